"""Results as text and as a picture: what was measured is there, what was not is there with its reason."""

from __future__ import annotations

import doctest
import importlib
from xml.etree import ElementTree

import pytest

import plot
import tables
from contenders import CONTENDERS, error_for_ours

FINE = {"compared": True, "within_promise": True, "worst": None}
OFF = {
    "compared": True,
    "within_promise": False,
    "worst": {"name": "output 0", "contender": 0.5, "eager": 1e-7, "why": ""},
}
MACHINE = {"processor": "a processor", "cpus": 2, "isa": "AVX2", "versions": {"torch": "2.13"}}


def contender(median=None, speedup=None, failed=None, accuracy=FINE, fastest=None):
    return {
        "run": None if median is None else {"median": median, "min": fastest or median},
        "speedup": speedup,
        "compile_seconds": None if median is None or speedup == 1.0 else 3.25,
        "own_seconds": None,
        "peak_bytes": None if median is None else 100 * 2**20,
        "accuracy": None if median is None else accuracy,
        "failed": failed,
    }


def document(name="model", mode="inference", threads=2, **contenders):
    eager = contender(0.1, 1.0)
    return {"name": name, "mode": mode, "threads": threads, "contenders": {"eager": eager, **contenders}}


def results(*programs, kernels=(), peaks=None):
    head = {"date": "today", "command": "run.py", "machine": MACHINE, "peaks": peaks or {}}
    return {**head, "programs": list(programs), "kernels": list(kernels)}


@pytest.mark.parametrize("name", ["tables", "plot", "kernels", "run", "figures"])
def test_examples_in_the_docstrings_hold(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_geometric_mean_is_of_ratios():
    assert tables.geometric_mean([0.5, 2.0]) == pytest.approx(1.0)
    assert tables.geometric_mean([1.0, 2.0, 4.0]) == pytest.approx(2.0)


def test_means_say_of_how_many_programs_they_are():
    one = document("one", smelt=contender(0.05, 2.0), inductor=contender(0.05, 2.0))
    two = document("two", smelt=contender(0.0125, 8.0), inductor=contender(failed="no"))
    means = tables.means([one, two])
    assert means["smelt"] == (pytest.approx(4.0), 2)
    assert means["inductor"] == (pytest.approx(2.0), 1)
    text = tables.markdown(results(one, two))
    assert "**4.00x**" in text
    assert "**2.00x** (1 of 2)" in text


def test_fastest_turns_have_a_mean_of_their_own():
    one = document(
        "one", smelt=contender(0.05, 2.0, fastest=0.02), openvino=contender(0.05, 2.0, fastest=0.04)
    )
    lines = tables.markdown(results(one)).splitlines()
    (usual,), (fastest,) = (
        [line for line in lines if title in line] for title in ("mean over", "fastest turns")
    )
    assert usual.endswith("| **2.00x** | **2.00x** | **1.00** |")
    assert fastest.endswith("| **5.00x** | **2.50x** | **2.00** |")


def test_best_peer_is_the_fastest_other_compiler():
    peers = {"inductor": contender(0.1, 1.0), "openvino": contender(0.05, 2.0)}
    assert tables.over_best_peer(document(smelt=contender(0.04, 3.0), **peers)) == pytest.approx(1.5)
    assert tables.over_best_peer(document(smelt=contender(failed="no"), **peers)) is None
    assert tables.over_best_peer(document(smelt=contender(0.04, 3.0))) is None


def test_longest_kernels_of_a_program_are_told_with_their_share_of_the_peaks():
    def row(name, seconds, operations, moved):
        return {"name": name, "calls": 2.0, "seconds": seconds, "operations": operations, "moved": moved}

    rows = [row("product", 0.06, 4.8e9, 1e7), row("copy", 0.02, 0, 1e8)]
    rows += [row(f"little{k}", 0.001, 1, 1e6) for k in range(tables.LONGEST)]
    inside = {"of": "smelt-max", "run_seconds": 0.1, "rows": rows}
    peak = {"flops": 100e9, "flops_from": "fma", "bytes": 10e9}
    one, two = document("one", smelt=contender(0.1, 1.0)), document("two", smelt=contender(0.1, 1.0))
    text = tables.markdown(results({**one, "inside": inside}, {**two, "inside": None}, peaks={"2": peak}))
    assert "| one: smelt-max, 100 ms | product | 2 | 60.0% | 80.0 | 0.2 | 80% |" in text
    assert "|  | copy | 2 | 20.0% | 0.0 | 5.0 | 50% |" in text
    assert "|  | all of over 10 operations a byte | 2 | 60.0% | 80.0 | 0.2 | 80% |" in text
    assert "little2" in text
    assert "little3" not in text
    assert "two: " not in text


def test_a_kernel_too_short_for_its_clock_has_no_rates():
    row = {"name": "tiny", "calls": 1.0, "seconds": 0.0, "operations": 8.0, "moved": 64.0}
    program = document("one", smelt=contender(1e-6, 1.0))
    program["inside"] = {"of": "smelt", "run_seconds": 1e-6, "rows": [row]}
    peak = {"flops": 100e9, "flops_from": "fma", "bytes": 10e9}
    assert "| tiny | 1 | 0.0% | – | – | – |" in tables.markdown(results(program, peaks={"2": peak}))


def test_who_is_missing_is_listed_with_the_reason_once():
    missing = contender(failed="not installed: openvino")
    text = tables.markdown(results(document("one", openvino=missing), document("two", openvino=missing)))
    assert text.count("openvino: not installed: openvino") == 1


def test_who_fails_on_one_program_is_listed_with_that_program():
    bad = document("two", inductor=contender(failed="raised | this"))
    text = tables.markdown(results(document("one", inductor=contender(0.1, 1.0)), bad))
    assert "inductor (two): raised \\| this" in text


def test_numbers_outside_the_promise_are_marked():
    text = tables.markdown(results(document(smelt=contender(0.1, 1.0, accuracy=OFF))))
    assert "(1.00x) ⚠" in text
    assert "error 5.0e-01 against float64" in text


def test_each_mode_and_number_of_threads_has_a_heading():
    text = tables.markdown(results(document(), document(mode="train"), document(threads=1)))
    for heading in ("## Inference, 2 threads", "## Train, 2 threads", "## Inference, 1 thread"):
        assert f"{heading}\n" in text


def test_rows_have_as_many_cells_as_the_heads():
    lines = tables.markdown(results(document(smelt=contender(0.1, 1.0)))).splitlines()
    widths = {line.count("|") for line in lines if line.startswith(("| program", "| model"))}
    assert widths == {5, 4}


def test_roofline_is_against_the_peak_that_binds():
    peak = {"flops": 100e9, "bytes": 10e9, "flops_from": "multiply-add loop"}
    assert tables.roofline_share(100 * 10**9, 1, 2.0, peak) == pytest.approx(0.5)
    assert tables.roofline_share(1, 10 * 10**9, 4.0, peak) == pytest.approx(0.25)
    kernel = {**document("matmul"), "flops": 10**9, "bytes": 10**6}
    text = tables.markdown(results(kernels=[kernel], peaks={"2": peak}))
    assert "| matmul | 1000.0 | 10.0, 0.0 (10%) |" in text


def test_roofline_is_against_the_multiply_adds_of_the_same_round():
    peak = {"flops": 100e9, "bytes": 10e9, "flops_from": "multiply-add loop"}
    kernel = {**document("matmul"), "flops": 10**9, "bytes": 10**6}
    kernel["contenders"]["eager"]["of_peak_flops"] = 0.4
    assert "10.0, 0.0 (40%) |" in tables.markdown(results(kernels=[kernel], peaks={"2": peak}))
    kernel["contenders"]["eager"]["of_peak_flops_fastest"] = 0.9
    assert "10.0, 0.0 (40%, 90%) |" in tables.markdown(results(kernels=[kernel], peaks={"2": peak}))
    del kernel["contenders"]["eager"]["of_peak_flops_fastest"]
    kernel["bytes"] = 9 * 10**8  # memory binds
    assert "(90%) |" in tables.markdown(results(kernels=[kernel], peaks={"2": peak}))


def test_roofline_without_peaks_says_so():
    kernel = {**document("matmul"), "flops": 10**9, "bytes": 10**6}
    assert "could not be measured" in tables.markdown(results(kernels=[kernel], peaks={"2": None}))


def test_ours_failing_is_an_error_and_others_failing_is_none():
    assert error_for_ours(document(smelt=contender(0.1, 1.0), inductor=contender(failed="no"))) is None
    assert error_for_ours(document(smelt=contender(failed="no"))) == "smelt failed: no"
    assert "outside" in str(error_for_ours(document(smelt=contender(0.1, 1.0, accuracy=OFF))))


def test_plot_has_a_bar_or_a_mark_for_each_contender_and_the_mean():
    text = plot.svg([document(smelt=contender(0.05, 2.0), openvino=contender(failed="a < b"))])
    titles = [node.text for node in ElementTree.fromstring(text).iter() if node.tag.endswith("title")]
    assert titles == [
        "model, smelt: 2.00x",
        "model, openvino: a < b",
        "geo. mean, smelt: 2.00x (1 of 1 programs)",
        "geo. mean, openvino: none",
    ]


def test_plot_of_nothing_is_a_picture_still():
    assert ElementTree.fromstring(plot.svg([])).tag.endswith("svg")


def test_each_contender_has_a_colour_of_its_own():
    assert len({plot.COLORS[i % len(plot.COLORS)] for i in range(len(CONTENDERS) - 1)}) == len(CONTENDERS) - 1
