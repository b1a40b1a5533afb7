"""Mode max: contractions are measured and remembered, the faster way is taken. No test asks how fast."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import nn

import smelt
from smelt import pipeline, tuning
from smelt.cli import cache as cache_command
from smelt.cli import report_tables as report
from smelt.nest.work import work
from smelt.reporting import Choice, CompileReport
from smelt.runtime import library, probe, trampoline
from smelt.runtime.cache import Cache, open_cache
from smelt.symbolic import numel
from smelt.tuning import Timing


class Net(nn.Module):
    """Two equal layers, one other, and a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(32, 32, 1)
        self.first, self.second, self.last = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 96)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.convolution(x)).reshape(32, 64)
        return self.last(torch.relu(self.second(torch.relu(self.first(y)))))


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(tuning, "SECONDS_EACH", 0.0)
    monkeypatch.setattr(tuning, "LEAST_WORK", 2**12)
    torch.manual_seed(0)
    return tmp_path / "cache"


def decide(monkeypatch: pytest.MonkeyPatch, native: float, aten: float) -> list[int]:
    """Let every race of two ways to compute the same end so, after both have run; returns how many raced each
    time. The program's own kernels do not race.
    """
    races: list[int] = []
    monkeypatch.setattr(tuning.Tuning, "_in_place", lambda *args: {})

    def race(pairs: Sequence[Any], is_clear: Any) -> list[Timing]:
        for ours, theirs in pairs:
            torch.testing.assert_close(ours()[0], theirs()[0], rtol=1e-4, atol=1e-4)
        races.append(len(pairs))
        return [Timing(native, aten) for _ in pairs]

    monkeypatch.setattr(tuning, "_race", race)
    return races


def compiled(net: nn.Module, *args: torch.Tensor, **options: Any) -> tuple[torch.Tensor, list[Choice]]:
    smelt.reset()
    with torch.no_grad():
        result = smelt.compile(net, **options)(*args)
    (compiled_graph,) = smelt.reports()
    return result, compiled_graph.choices


def image() -> torch.Tensor:
    return torch.randn(1, 32, 8, 8, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(("native", "aten", "winner"), [(1e-6, 2e-6, "native"), (2e-6, 1e-6, "ATen")])
def test_the_faster_one_computes(
    monkeypatch: pytest.MonkeyPatch, native: float, aten: float, winner: str
) -> None:
    net = Net().eval()
    races = decide(monkeypatch, native, aten)
    result, choices = compiled(net, image(), mode="max")
    assert races == [3]  # equal layers once
    assert [(each.kernel, each.why, each.count) for each in choices] == [
        (winner, "measured", 1),
        (winner, "measured", 2),
        (winner, "measured", 1),
    ]
    assert all((each.native_seconds, each.aten_seconds) == (native, aten) for each in choices)
    with torch.no_grad():
        torch.testing.assert_close(result, net(image()), rtol=1e-4, atol=1e-5)


def test_the_first_call_waits_for_what_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not Dynamo, which has work to do while compilers run."""
    net, races, before_the_call = Net().eval(), decide(monkeypatch, 2e-6, 1e-6), []

    def backend(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        call = smelt.backend.smelt(graph, inputs, mode="max")
        before_the_call.append((len(races), smelt.reports()[-1].choices))
        return call

    smelt.reset()
    model = torch.compile(net, backend=backend)
    with torch.no_grad():
        results = [model(image()), model(image())]
    assert before_the_call == [(0, [])]
    assert races == [3]
    assert [each.kernel for each in smelt.reports()[-1].choices] == ["ATen"] * 3
    for result in results:
        torch.testing.assert_close(result, net(image()).detach(), rtol=1e-4, atol=1e-5)


def test_what_is_exported_or_trained_is_measured_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exported program is called who knows when; AOTAutograd asks how saved values lie."""
    net, races = Net().eval(), decide(monkeypatch, 1e-6, 2e-6)
    smelt.compile(torch.export.export(net, (image(),)), mode="max")
    assert races == [3]

    def backend(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        call = smelt.backend.smelt(graph, inputs, mode="max")
        assert len(races) == 2
        return call

    smelt.reset()
    torch.compile(net, backend=backend)(image()).sum().backward()
    assert net.first.weight.grad is not None


def test_operands_of_few_are_in_memory_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model's training has hundreds of MiB of them. They are measured all the same."""
    races = decide(monkeypatch, 1e-6, 2e-6)
    monkeypatch.setattr(tuning, "BYTES_AT_A_TIME", 2**16)
    _, choices = compiled(Net().eval(), image(), mode="max")
    assert len(races) > 1
    assert sum(races) == len(choices) == 3
    assert all(each.why == "measured" for each in choices)

    made: list[int] = []
    pairs = [(size, lambda: (lambda: None, lambda: None)) for size in (40, 60, 30, 200, 10)]
    monkeypatch.setattr(tuning, "_race", lambda pairs, is_clear: made.append(len(pairs)) or [])
    monkeypatch.setattr(tuning, "BYTES_AT_A_TIME", 100)
    tuning._race_in_groups(pairs)
    assert made == [2, 1, 1, 1]


def test_what_was_measured_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    net = Net().eval()
    races = decide(monkeypatch, 2e-6, 1e-6)
    compiled(net, image(), mode="max")
    store = open_cache()
    for key in list(store.entries()):
        if not key.startswith("choice-"):
            store.remove(key)  # programs: they would be taken as they are
    _, choices = compiled(net, image(), mode="max")
    assert races == [3] and {each.kernel for each in choices} == {"ATen"}
    found = tuning.remembered(store)
    assert [timing for _, timing, _ in found] == [Timing(2e-6, 1e-6)] * 3
    assert [what for what, _, _ in found] == sorted(each.what for each in choices)


def test_a_compiled_program_from_the_cache_says_what_was_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    net = Net().eval()
    races = decide(monkeypatch, 2e-6, 1e-6)
    _, before = compiled(net, image(), mode="max")
    _, after = compiled(net, image(), mode="max")
    assert smelt.reports()[0].cache_hit and after == before and races == [3]


def test_another_number_of_threads_is_another_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    net, threads = Net().eval(), torch.get_num_threads()
    races = decide(monkeypatch, 1e-6, 2e-6)
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            compiled(net, image(), mode="max")
    finally:
        torch.set_num_threads(threads)
    assert races == [3, 3]


@pytest.mark.parametrize("text", [b"{}", b"no JSON", b'{"what": "x", "native": -1, "aten": 1, "threads": 1}'])
def test_an_entry_that_holds_something_else_is_measured_anew(
    monkeypatch: pytest.MonkeyPatch, text: bytes
) -> None:
    net = Net().eval()
    races = decide(monkeypatch, 1e-6, 2e-6)
    compiled(net, image(), mode="max")
    store = open_cache()
    for key in list(store.entries()):
        store.remove(key)
        if key.startswith("choice-"):
            store.put(key, {tuning.FILE: text})
    compiled(net, image(), mode="max")
    assert races == [3, 3]


def test_measuring_draws_no_number_of_the_users_and_changes_no_parameter() -> None:
    net = Net().eval()
    before = [parameter.clone() for parameter in net.parameters()]
    torch.manual_seed(7)
    state = torch.get_rng_state()
    _, choices = compiled(net, image(), mode="max")
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters()))
    times = [time for each in choices for time in (each.native_seconds, each.aten_seconds)]
    assert len(times) == 6 and all(time is not None and 0 < time < math.inf for time in times)


def test_dynamic_sizes_are_measured_at_the_size_that_was_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = nn.Linear(64, 64).eval()
    races = decide(monkeypatch, 2e-6, 1e-6)
    _, (choice,) = compiled(layer, torch.randn(48, 64), mode="max", dynamic=True)
    assert races == [1] and choice.kernel == "ATen" and "~48" in choice.what


def test_without_mode_max_the_rule_decides_and_says_why() -> None:
    net = Net().eval()
    _, choices = compiled(net, image())
    assert all(each.native_seconds is None and each.times == "" for each in choices)
    assert {each.why for each in choices} == {
        "64 rows, 32 columns, 32 terms: enough",
        "32 rows, 64 columns, 64 terms: enough",
        "32 rows, 96 columns, 64 terms: enough",
    }
    _, choices = compiled(nn.Linear(256, 256).eval(), torch.randn(2, 256))
    assert [(each.kernel, each.why) for each in choices] == [
        ("native", "2 rows, 256 columns, 256 terms: enough")
    ]
    _, choices = compiled(lambda x, w: x @ w, torch.randn(6, 256), torch.randn(256, 256))
    assert [(each.kernel, each.why) for each in choices] == [
        ("ATen", "6 rows, 256 columns, 256 terms: too few")
    ]
    _, choices = compiled(nn.Linear(64, 64).double().eval(), torch.randn(64, 64, dtype=torch.float64))
    assert [(each.kernel, each.why) for each in choices] == [("ATen", "no product in float32")]
    _, choices = compiled(nn.Linear(64, 64).eval(), torch.randn(64, 64), contractions=False)
    assert [(each.kernel, each.why) for each in choices] == [("ATen", "the option contractions is off")]


def test_what_is_too_small_is_left_to_the_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "LEAST_WORK", 2**30)
    races = decide(monkeypatch, 2e-6, 1e-6)
    _, choices = compiled(Net().eval(), image(), mode="max")
    assert races == [] and {each.kernel for each in choices} == {"native"}


def test_the_command_lists_and_clears_what_was_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from smelt.cli import main

    assert main(["cache", "choices"]) == 0
    assert "mode max" in capsys.readouterr().out
    decide(monkeypatch, 2e-6, 1e-6)
    compiled(Net().eval(), image(), mode="max")
    assert cache_command.CHOICE == tuning.PREFIX
    assert main(["cache", "choices"]) == 0 and main(["cache"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("addmm(") == 2 and shown.count("convolution(") == 1 and "3 measured" in shown
    assert main(["cache", "clear", "--yes"]) == 0
    assert tuning.remembered(open_cache()) == []


def test_what_is_remembered_is_json(tmp_path: Path) -> None:
    store = Cache(tmp_path)
    store.put(
        "choice-x", {tuning.FILE: json.dumps({"what": "mm", "native": 1, "aten": 2, "threads": 4}).encode()}
    )
    assert tuning.remembered(store) == [("mm", Timing(1.0, 2.0), 4)]


def test_the_report_says_who_was_chosen_and_the_two_times() -> None:
    found = CompileReport("inference", "graph 0")
    found.choices = [
        Choice("mm(f32[8, 8], f32[8, 8])", "ATen", "8 rows, 8 columns, 8 terms: too few", 3),
        Choice("mm(f32[64, 64], f32[64, 64])", "native", "measured", 2, None, 2e-6, 3e-6),
    ]
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(report.graph_tables([found]), report.overview([found]))
    shown = console.export_text()
    assert "too few" in shown and "measured: native 2 µs, ATen 3 µs" in shown
    assert "ATen ×3, native ×2" in shown
    assert report.summary([found])["contractions"] == {"ATen": 3, "native": 2}


@pytest.mark.parametrize(("native", "aten"), [(1.05e-6, 1e-6), (1e-6, 1e-6)])
def test_what_the_rule_says_stays_where_it_is_about_as_fast(
    monkeypatch: pytest.MonkeyPatch, native: float, aten: float
) -> None:
    layers = [nn.Linear(2048, 3).eval(), nn.Linear(64, 64).eval()]
    decide(monkeypatch, native, aten)
    (few,), (enough,) = (
        compiled(layer, torch.randn(64, layer.in_features), mode="max")[1] for layer in layers
    )
    assert (few.kernel, enough.kernel) == ("ATen", "native")


def attend() -> None:
    """Compile an attention and its gradients, which are eager's."""

    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    smelt.reset()
    inputs = [torch.randn(1, 2, 24, 16, requires_grad=True) for _ in range(3)]
    found, eager = (
        torch.autograd.grad(each(*inputs).square().sum(), inputs)
        for each in (smelt.compile(function, mode="max"), function)
    )
    torch.testing.assert_close(found, eager)


@pytest.mark.parametrize(("native", "aten", "winner"), [(1e-6, 2e-6, "native"), (2e-6, 1e-6, "ATen")])
def test_attention_and_its_gradients_are_measured_too(
    monkeypatch: pytest.MonkeyPatch, native: float, aten: float, winner: str
) -> None:
    races = decide(monkeypatch, native, aten)
    attend()
    assert races == [1, 1]
    for compiled_graph, name in zip(smelt.reports(), ("_cpu(f32", "_cpu_backward(f32"), strict=True):
        (choice,) = compiled_graph.choices
        assert name in choice.what and (choice.kernel, choice.why) == (winner, "measured")
        assert len(compiled_graph.externs) == (winner == "ATen")


def test_a_kernel_that_was_disturbed_is_heard_again(monkeypatch: pytest.MonkeyPatch) -> None:
    now, calls = [0.0], [0, 0]

    def call(which: int, seconds: Callable[[int], float]) -> Callable[[], None]:
        def run() -> None:
            calls[which] += 1
            now[0] += seconds(calls[which])

        return run

    monkeypatch.setattr(tuning, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    disturbed = call(0, lambda count: 5.0 if count <= 1 + tuning.LEAST_RUNS else 1.0)
    (timing,) = tuning._race([(disturbed, call(1, lambda count: 2.0))])
    assert timing == Timing(1.0, 2.0)
    assert calls == [1 + tuning.LEAST_RUNS + tuning.ENOUGH_RUNS] * 2
    calls[:] = [0, 0]
    assert tuning._race([(call(0, lambda count: 1.0), call(1, lambda count: 2.0))]) == [Timing(1.0, 2.0)]
    assert calls == [1 + tuning.LEAST_RUNS] * 2


def decide_in_place(monkeypatch: pytest.MonkeyPatch, *ends: Timing) -> list[int]:
    """Let each race, of which the first is that of the program's own kernels, end as the next of ``ends``."""
    races: list[int] = []

    def race(pairs: Sequence[tuple[Callable[[], Any], Callable[[], Any]]], *rest: Any) -> list[Timing]:
        for ours, theirs in pairs:
            ours()
            theirs()
        races.append(len(pairs))
        return [ends[len(races) - 1]] * len(pairs)

    monkeypatch.setattr(tuning, "_race", race)
    return races


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The sources that the compiler was given for programs and for trials."""
    texts: list[str] = []
    compiled_by = library.CompileJob._compile

    def noted(job: library.CompileJob) -> library.Library:
        texts.append(job.text)
        return compiled_by(job)

    monkeypatch.setattr(library.CompileJob, "_compile", noted)
    return texts


@pytest.mark.parametrize("native", [1e-6, 1.05e-6])
def test_the_programs_own_kernels_race_first_and_nothing_else_is_compiled(
    monkeypatch: pytest.MonkeyPatch, built: list[str], native: float
) -> None:
    net = Net().eval()
    trampoline.start()  # the process's helpers are not counted
    probe.start()
    races = decide_in_place(monkeypatch, Timing(native, 1e-6))
    result, choices = compiled(net, image(), mode="max")
    assert races == [3]
    assert len([text for text in built if "alone" in text]) == 1 and not any("try0" in text for text in built)
    assert [(each.kernel, each.why, each.native_seconds) for each in choices] == [
        ("native", "measured", native)
    ] * 3
    with torch.no_grad():
        torch.testing.assert_close(result, net(image()), rtol=1e-4, atol=1e-5)
    _, again = compiled(net, image(), mode="max")
    assert smelt.reports()[0].cache_hit and again == choices and races == [3]


def test_a_kernel_that_loses_with_its_epilogue_races_alone(
    monkeypatch: pytest.MonkeyPatch, built: list[str]
) -> None:
    net = Net().eval()
    races = decide_in_place(monkeypatch, Timing(3e-6, 1e-6), Timing(1e-6, 2e-6))
    result, choices = compiled(net, image(), mode="max")
    assert races == [3, 3]
    assert {(each.kernel, each.native_seconds, each.aten_seconds) for each in choices} == {
        ("native", 1e-6, 2e-6)
    }
    assert [("alone0" in text, "try0" in text) for text in built if "run" in text or "try0" in text] == [
        (True, False),
        (False, True),
    ]
    with torch.no_grad():
        torch.testing.assert_close(result, net(image()), rtol=1e-4, atol=1e-5)


def test_a_program_whose_kernels_lose_both_races_is_compiled_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    net = Net().eval()
    decide_in_place(monkeypatch, Timing(3e-6, 1e-6), Timing(2e-6, 1e-6))
    result, choices = compiled(net, image(), mode="max")
    assert {each.kernel for each in choices} == {"ATen"}
    with torch.no_grad():
        torch.testing.assert_close(result, net(image()), rtol=1e-4, atol=1e-5)
    _, again = compiled(net, image(), mode="max")
    assert smelt.reports()[0].cache_hit and again == choices


def test_what_the_rule_gives_to_aten_races_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    races = decide_in_place(monkeypatch, Timing(1e-6, 2e-6))
    _, (choice,) = compiled(nn.Linear(64, 48).eval(), torch.randn(64, 64), mode="max")
    assert races == [1] and choice.kernel == "native"


def scheduled_alone(function: Callable[..., Any], *args: torch.Tensor) -> list[tuple[int, int]]:
    """For each product of what is compiled of ``function``: the operations of the run that is to time it, and
    those it has at least.
    """
    found = []
    schedule = pipeline.schedule

    def noted(*args: Any) -> Any:
        scheduled = schedule(*args)
        for run, body in scheduled.alone:
            done = sum(work(call.kernel, scheduled.graph.hints).operations for call in run.calls)
            found.append((done, 2 * int(numel((*body.shape, *body.reduce_shape)))))
        return scheduled

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "schedule", noted)
        smelt.reset()
        inputs = [arg.requires_grad_() for arg in args]
        smelt.compile(function, mode="max")(*inputs).sum().backward()
    return found


def test_a_run_alone_does_all_of_its_product() -> None:
    layers = nn.Sequential(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3))
    found = scheduled_alone(layers, torch.randn(2, 16, 20, 20))
    assert len(found) == 6  # forward, and both gradients
    assert all(done >= least for done, least in found), found
    assert max(done / least for done, least in found) < 2


def test_attention_and_its_gradients_race_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    won = Timing(1e-6, 2e-6)
    races = decide_in_place(monkeypatch, won, won)
    attend()
    assert races == [1, 1]
    assert all(
        (choice.kernel, choice.why) == ("native", "measured")
        for compiled_graph in smelt.reports()
        for choice in compiled_graph.choices
    )


def test_kernels_that_read_integers_do_not_run_on_any_numbers(
    monkeypatch: pytest.MonkeyPatch, built: list[str]
) -> None:
    def function(x: torch.Tensor, weight: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        places = torch.argmax(x, 1, keepdim=True).expand(64, 64)
        return x @ weight + torch.gather(table, 1, places % 4)

    races = decide_in_place(monkeypatch, Timing(1e-6, 2e-6))
    x, weight, table = torch.randn(64, 64), torch.randn(64, 64), torch.randn(64, 4)
    result, _ = compiled(function, x, weight, table, mode="max")  # type: ignore[arg-type]
    torch.testing.assert_close(result, function(x, weight, table), rtol=1e-4, atol=1e-4)
    assert races == [1]
    assert any("try0n_" in text for text in built)  # the product alone


@pytest.mark.parametrize("expanded", ["operand", "added"])
def test_expanded_inputs_are_measured(expanded: str) -> None:
    def function(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return x @ weight + bias

    inputs = {"operand": torch.randn(64, 64), "added": torch.randn(64, 64)}
    inputs[expanded] = torch.randn(64).expand(64, 64)
    args = inputs["operand"], torch.randn(64, 64), inputs["added"]
    result, (choice,) = compiled(function, *args, mode="max")  # type: ignore[arg-type]
    assert choice.why == "measured"
    torch.testing.assert_close(result, function(*args), rtol=1e-4, atol=1e-4)
