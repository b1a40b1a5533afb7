"""smelt bench --profile: what it counts, writes and refuses. No assertion is about a time's size."""

from __future__ import annotations

import json
import pstats
import threading
from pathlib import Path

import pytest
import torch

import smelt
from smelt.cli import sampling
from smelt.cli.sampling import Function, Sampler
from smelt.errors import SmeltError

MAIN, OUR, WORK, THEIRS = (
    Function("main", "/a/main.py", 1),
    Function("our", "/mine/b.py", 10),
    Function("work", "/mine/b.py", 20),
    Function("theirs", "/lib/c.py", 5),
)
SAMPLES = {(MAIN, OUR): 1.0, (MAIN, OUR, WORK): 2.0, (MAIN, OUR, WORK, THEIRS): 4.0, (MAIN, THEIRS): 8.0}


def burn() -> int:
    return sum(number * number for number in range(300_000))


def test_a_sampler_sees_the_function_that_works() -> None:
    with Sampler() as sampler:
        for _ in range(5):
            burn()
    seen = {function.name for stack in sampler.samples for function in stack}
    assert "burn" in seen and all(seconds >= 0 for seconds in sampler.samples.values())


def test_a_sampler_needs_the_main_thread() -> None:
    caught: list[SmeltError] = []

    def elsewhere() -> None:
        try:
            Sampler().__enter__()
        except SmeltError as error:
            caught.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert [error.code for error in caught] == ["SM0912"]


def test_below_and_folded_keep_the_seconds_that_belong_to_them() -> None:
    below = sampling.below(SAMPLES, OUR)
    assert below == {(OUR,): 1.0, (OUR, WORK): 2.0, (OUR, WORK, THEIRS): 4.0}
    assert sampling.folded(below, "/mine") == {(OUR,): 1.0, (OUR, WORK): 6.0}


def test_own_and_total_time() -> None:
    spent = {each.function: (each.own, each.total) for each in sampling.by_own_time(SAMPLES)}
    assert spent == {MAIN: (0.0, 15.0), OUR: (1.0, 7.0), WORK: (2.0, 6.0), THEIRS: (12.0, 12.0)}


def test_a_function_that_calls_itself_counts_once() -> None:
    (spent,) = sampling.by_own_time({(WORK, WORK, WORK): 3.0})
    assert (spent.own, spent.total) == (3.0, 3.0)


def test_the_profile_as_pstats_and_for_speedscope(tmp_path: Path) -> None:
    sampling.write(SAMPLES, tmp_path / "p.prof", "title")
    stats = pstats.Stats(str(tmp_path / "p.prof"))
    assert stats.total_tt == 15.0  # type: ignore[attr-defined]
    assert stats.stats[("/lib/c.py", 5, "theirs")][2:4] == (12.0, 12.0)  # type: ignore[attr-defined]
    sampling.write(SAMPLES, tmp_path / "p.json", "title")
    written = json.loads((tmp_path / "p.json").read_text())
    names = [frame["name"] for frame in written["shared"]["frames"]]
    (profile,) = written["profiles"]
    assert [names[number] for number in profile["samples"][2]] == ["main", "our", "work", "theirs"]
    assert profile["weights"] == [1.0, 2.0, 4.0, 8.0] and profile["endValue"] == 15.0


def test_bench_profile_has_phases_functions_and_parts(smelt_command, programs, tmp_path) -> None:
    target, to = tmp_path / "out.json", tmp_path / "own.prof"
    words = ["--profile", "--profile-to", str(to), "--seconds", "0", "--no-compile-times", "--threads", "1"]
    words += ["--option", "contractions=false"]
    code, _, err = smelt_command("bench", f"{programs}:good", *words, "--json", str(target))
    assert code == 0, err
    profile = json.loads(target.read_text())["profile"]
    assert {"lowering", "schedule", "codegen"} <= set(profile["compile"]["phases"])
    functions = profile["compile"]["functions"]
    assert functions and all(each["file"].startswith("smelt/") for each in functions)
    assert set(profile["peaks"]) == {"flops", "flops_from", "bytes"}
    rows = profile["parts"]["rows"]
    assert {row["kind"] for row in rows} == {"kernel", "aten"} and all(row["calls"] >= 1 for row in rows)
    assert pstats.Stats(str(to)).stats  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["own.txt", "nowhere/own.prof"])
def test_a_profile_goes_to_a_file_of_a_known_kind(smelt_command, programs, tmp_path, name) -> None:
    code, _, err = smelt_command("bench", f"{programs}:good", "--profile-to", str(tmp_path / name))
    assert code == 2 and "SM0913" in err


def test_clocks_count_kernels_and_aten_calls_and_change_no_number() -> None:
    torch.manual_seed(0)
    layer = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8)).eval()
    x = torch.randn(4, 8)
    smelt.reset()
    with torch.no_grad():
        plain = smelt.compile(layer, contractions=False)(x)
        clocked = smelt.compile(layer, clocks=True, contractions=False)
        results = [clocked(x) for _ in range(3)]
    assert all(torch.equal(plain, result) for result in results)
    without, report = smelt.reports()
    assert without.clocks is None and "clock" not in without.text("cpp")
    parts = {(part.kind, part.name): part for part in report.clocks()}
    product = parts["aten", "aten.addmm.default"]
    assert (product.calls, product.operations) == (3, 3 * 2 * 4 * 8 * 8)
    kernels = [part for part in parts.values() if part.kind == "kernel"]
    assert kernels and all(part.calls == 3 and part.moved > 0 for part in kernels)
    smelt.reset()
