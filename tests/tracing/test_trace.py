"""Traces: what comes from where, through every pass; times are only there, never compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import smelt
from smelt import te, tir
from smelt.cli import trace as cli
from smelt.cli.app import main
from smelt.cli.fresh_cache import cache_in
from smelt.errors import SmeltError, VerificationError
from smelt.loops.ir import Origin
from smelt.nest.ir import Block, Call, Kernel
from smelt.nest.origins import verify
from smelt.tracing import lookup
from smelt.tracing.exports import chrome
from smelt.tracing.lookup import attributed
from smelt.tracing.program import Program
from smelt.tracing.record import record
from smelt.tracing.schedules import schedule_trace
from smelt.tracing.workload import Setup
from smelt.viewer.checks import check


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        waves = x.sin()
        moved = waves + 3.0
        return self.inner(moved).softmax(-1)


def line_of(text: str) -> int:
    lines = Path(__file__).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.strip() == text)


def trace(model: Any, *args: Any, train: bool = False, seconds: float = 0.01, **options: Any) -> Any:
    setup = Setup(train, None, tuple(options.items()))
    return record(Program(model, args, {}), setup, title="model", command="test", seconds=seconds)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with cache_in(str(tmp_path_factory.mktemp("cache"))):
        return trace(Model().eval(), torch.randn(8, 16), verify=True)


def test_a_trace_is_plain_data(whole: Any) -> None:
    assert json.loads(json.dumps(whole)) == whole
    assert whole["schema"] == "smelt.trace" and whole["version"] == 1
    assert whole["run_seconds"] > 0 and whole["peaks"]["flops"] > 0
    assert {span["name"] for span in whole["compile"]} >= {
        "Dynamo",
        "AOTAutograd",
        "lower_calls",
        "C++ compiler",
    }


def test_every_operator_knows_its_line_and_module(whole: Any) -> None:
    (graph,) = whole["graphs"]
    (place,) = [n for n, each in enumerate(whole["files"]) if each["path"] == __file__]
    sine = next(each for each in graph["operators"] if each["op"] == "aten.sin.default")
    assert sine["lines"][0] == [place, line_of("waves = x.sin()"), "forward"]
    product = next(each for each in graph["operators"] if each["op"] == "aten.addmm.default")
    assert product["module"] == "inner"
    assert all(each["lines"] for each in graph["operators"])


def test_lines_of_nests_and_code_know_their_operators(whole: Any) -> None:
    (graph,) = whole["graphs"]
    found: dict[str, set[str]] = {}
    for step in graph["steps"]:
        if step["kind"] != "kernel":
            continue
        film, code = graph["nests"][step["nest"]], graph["codes"][step["code"]]
        for text in (film[0], film[-1], code):
            assert len(text["lines"]) == len(text["marks"])
            for line, marks in zip(text["lines"], text["marks"]):
                for name in ("sin(", "add("):
                    if f"= {name}" in line or f" {name}" in line:
                        operators = {graph["operators"][step["origins"][mark]]["op"] for mark in marks}
                        found.setdefault(name, set()).update(operators)
    assert found["sin("] == {"aten.sin.default"}
    assert "aten.add.Tensor" in found["add("]


def test_steps_have_origins_loops_and_reasons(whole: Any) -> None:
    (graph,) = whole["graphs"]
    assert graph["steps"] and len({step["id"] for step in graph["steps"]}) == len(graph["steps"])
    for step in graph["steps"]:
        assert step["origins"] and step["loops"] and step["seconds"] is not None
        assert all(place < len(graph["operators"]) for place in step["origins"])
        for film in (graph["nests"][step["nest"]],) if step["nest"] is not None else ():
            assert all(
                mark < len(step["origins"]) for frame in film for marks in frame["marks"] for mark in marks
            )
    assert all(step["apart"] for step in graph["steps"][:-1] if step["kind"] == "kernel")
    assert attributed(whole) == 1.0


def test_backward_kernels_belong_to_forward_lines() -> None:
    made = trace(Model(), torch.randn(8, 16), train=True, verify=True)
    assert [graph["kind"] for graph in made["graphs"]] == ["forward", "backward"]
    backward = made["graphs"][1]
    lines = {tuple(each["lines"][0][1:]) for each in backward["operators"] if each["lines"]}
    assert (line_of("return self.inner(moved).softmax(-1)"), "forward") in lines
    assert attributed(made) == 1.0


def test_what_is_folded_into_a_product_has_its_kernel() -> None:
    model = nn.Sequential(nn.Conv2d(8, 16, 3), nn.BatchNorm2d(16)).eval()
    (graph,) = trace(model, torch.randn(2, 8, 16, 16), freezing=True)["graphs"]
    names = {place: each["op"] for place, each in enumerate(graph["operators"])}
    computed = {names[place] for step in graph["steps"] for place in step["origins"]}
    assert {"aten.convolution.default", "aten._native_batch_norm_legit_no_training.default"} <= computed


def test_products_that_are_joined_have_the_lines_of_all() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v = (nn.Linear(64, 64) for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q = self.q(x)
            k = self.k(x)
            v = self.v(x)
            q, k, v = (each.unflatten(-1, (4, 16)).transpose(1, 2) for each in (q, k, v))
            return nn.functional.scaled_dot_product_attention(q, k, v)

    made = trace(Attention().eval(), torch.randn(2, 64, 64), freezing=True)
    (graph,) = made["graphs"]
    product = next(each for each in graph["operators"] if each["name"].startswith("joined"))
    place = graph["operators"].index(product)
    steps = [step for step in graph["steps"] if place in step["origins"]]
    lines = {line for step in steps for _, line in lookup.lines_of(graph, step)}
    assert lines >= {line_of(f"{name} = self.{name}(x)") for name in "qkv"}


def test_what_pytorch_runs_has_its_reason() -> None:
    def sorted_twice(x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.svd(x.cos())[1].sin()

    made = trace(sorted_twice, torch.randn(8, 8))
    steps = [step for graph in made["graphs"] for step in graph["steps"] if step["kind"] != "kernel"]
    assert steps and all(step["reason"] for step in steps)
    assert any(step["seconds"] for step in steps)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_a_program_in_clusters_has_its_regions() -> None:
    def rounded(x: torch.Tensor) -> torch.Tensor:
        near = torch.quantize_per_tensor(x.sin() + 1, 1 / 32, 0, torch.qint8).dequantize()
        return (near - x).exp()

    made = trace(rounded, torch.rand(64, 8))
    check(made)
    outer = next(graph for graph in made["graphs"] if graph["kind"] == "eager")
    assert [step["kind"] for step in outer["steps"]] == ["cluster", "eager", "cluster"]
    left = outer["steps"][1]
    assert left["seconds"] and "quantized" in left["reason"]
    (line, *_) = outer["operators"][left["origins"][0]]["lines"]
    text = "near = torch.quantize_per_tensor(x.sin() + 1, 1 / 32, 0, torch.qint8).dequantize()"
    assert line[1] == line_of(text)
    assert {graph["name"] for graph in made["graphs"]} >= {step["name"] for step in outer["steps"][::2]}
    assert attributed(made) == 1.0


def test_without_time_nothing_is_timed() -> None:
    made = trace(Model().eval(), torch.randn(8, 16), seconds=0.0)
    assert made["run_seconds"] is None and made["peaks"] is None
    assert all(step["seconds"] is None for graph in made["graphs"] for step in graph["steps"])


def test_a_program_that_pytorch_runs_shows_nothing() -> None:
    with pytest.raises(SmeltError, match="SM0930"):
        trace(lambda x: x, torch.randn(2))


def test_a_line_has_its_steps_and_a_step_its_lines(whole: Any) -> None:
    name = f"test_trace.py:{line_of('waves = x.sin()')}"
    place = lookup.line_named(whole, name)
    assert lookup.name_of(whole, place) == name and lookup.text_of(whole, place) == "waves = x.sin()"
    (part, *_) = lookup.parts(whole)[place]
    assert {each["op"] for each in part.operators} == {"aten.sin.default"}
    graph, step = lookup.step_named(whole, part.step["id"])
    assert place in lookup.lines_of(graph, step)


@pytest.mark.parametrize("wrong", ["test_trace.py:1", "nowhere.py:7", "test_trace.py"])
def test_a_line_that_nothing_comes_from_is_an_error(whole: Any, wrong: str) -> None:
    with pytest.raises(SmeltError, match="SM0931"):
        lookup.line_named(whole, wrong)


def test_a_step_that_is_not_there_is_an_error(whole: Any) -> None:
    with pytest.raises(SmeltError, match=r"SM0932(.|\n)*k0 to k"):
        lookup.step_named(whole, "k99")


def test_events_have_every_step_and_span(whole: Any) -> None:
    events = [each for each in chrome(whole)["traceEvents"] if each["ph"] == "X"]
    steps = [step for graph in whole["graphs"] for step in graph["steps"]]
    assert [each["args"]["id"] for each in events if each["pid"] == 2] == [step["id"] for step in steps]
    assert sum(each["pid"] == 1 for each in events) == len(whole["compile"])


def test_explain_prints_lines_and_steps(
    whole: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "trace.json"
    cli.write(json.dumps(whole), str(file))
    line = f"test_trace.py:{line_of('waves = x.sin()')}"
    assert main(["explain", str(file), "--line", line, "--kernel", "k0", "--top", "3"]) == 0
    printed = capsys.readouterr().out
    assert "waves = x.sin()" in printed and "the lines that cost most" in printed and "k0 " in printed


def test_a_kernel_needs_origins() -> None:
    kernel = Kernel("k", (), (), Block(()))
    verify([Call(kernel, (), (Origin("aten.add.Tensor", None, ("add",)),))])
    with pytest.raises(VerificationError, match="SM0530"):
        verify([Call(kernel, ())])
    with pytest.raises(VerificationError, match="comes from no node"):
        verify([Call(kernel, (), (Origin("aten.add.Tensor"),))])
    smelt.reset()


def test_view_is_a_page_of_the_program(tmp_path: Path) -> None:
    shown = smelt.view(Model().eval(), (torch.randn(8, 16),), seconds=0.01)
    page = shown.save(tmp_path / "page.html").read_text()
    assert page.startswith("<!doctype html>") and "Model, inference" in page


def test_a_page_of_a_trace_and_of_a_difference(whole: Any, tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    file.write_text(json.dumps(whole))
    assert main(["view", str(file), "-o", str(tmp_path / "a.html")]) == 0
    assert main(["view", str(file), "--against", str(file), "-o", str(tmp_path / "b.html")]) == 0
    assert main(["view", str(file), "--perfetto", str(tmp_path / "c.json")]) == 0
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.html", "b.html", "c.json", "trace.json"]
    assert main(["view", str(file), "-o", str(tmp_path / "none" / "a.html")]) == 2


def test_a_schedule_is_a_film() -> None:
    x = te.placeholder((64, 64), name="x")
    y = te.compute((64, 64), lambda i, j: x[i, j] * 2.0, name="twice")
    z = te.compute((64, 64), lambda i, j: y[i, j] + 1.0, name="more")
    sch = tir.Schedule(te.create_prim_func([x, z]))
    outer, _ = sch.split(sch.get_loops("more")[0], factors=[None, 8])
    sch.parallel(outer)
    sch.compute_inline("twice")
    made = schedule_trace(sch, title="film", command="test", seconds=0.01)
    (graph,) = made["graphs"]
    frames = [frame["pass"] for frame in graph["nests"][0]]
    assert len(frames) == 4 and frames[0] == "start" and "compute_inline" in frames[-1]
    assert [each["name"] for each in graph["operators"]] == ["twice", "more"]
    marks = {mark for each in graph["codes"][0]["marks"] for mark in each}
    assert 1 in marks and graph["steps"][0]["seconds"] > 0
    assert "scratch twice" in graph["nests"][0][0]["lines"][0]
    check(made)


def test_bodies_of_control_flow_have_operators_and_steps() -> None:
    def branches(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda t: t.sin() + 1, lambda t: t.cos(), (x * 2,)).exp()

    made = trace(branches, torch.rand(16, 16), verify=True)
    (graph,) = made["graphs"]
    names = {each["name"] for each in graph["operators"]}
    assert {"true_graph_0.sin", "false_graph_0.cos"} <= names
    check(made)
    kernels = [step for step in graph["steps"] if step["kind"] == "kernel"]
    assert any(
        graph["operators"][place]["op"] == "aten.cos.default" for each in kernels for place in each["origins"]
    )
    assert [step["reason"] for step in graph["steps"] if step["kind"] == "aten"] == ["control flow"]
