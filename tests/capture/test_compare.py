"""Every way to get a graph, side by side; a backend of one's own before smelt; captures that are compiled."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor

import smelt
from smelt.capture import compare, tee
from smelt.capture.compare import Comparison
from smelt.errors import SmeltError

pytestmark = pytest.mark.usefixtures("fresh")

PAGE = Path(__file__).parents[2] / "docs" / "capture.md"


def branch(x: Tensor) -> Tensor:
    if x.sum() < 0:
        return -x
    return x * 2


def flat(x: Tensor) -> Tensor:
    bsz, *_ = x.shape
    return x.reshape(bsz, -1)


def noisy(x: Tensor) -> Tensor:
    return x + torch.from_numpy(numpy.random.random((5, 5, 5)))


@pytest.fixture(scope="module")
def found() -> dict[str, Comparison]:
    given = ((branch, torch.rand(3, 4)), (flat, torch.rand(3, 4, 5)), (noisy, torch.rand(5, 5, 5)))
    return {function.__name__: compare(function, x) for function, x in given}


def test_the_table_of_the_docs(found: dict[str, Comparison]) -> None:
    rows = [re.split(r"\s*\|\s*", line)[1:-1] for line in PAGE.read_text().splitlines() if "|" in line]
    start = next(place for place, row in enumerate(rows) if row[1:2] == ["`branch`"])
    for row in rows[start + 2 : start + 7]:
        assert row[1:] == [found[name][row[0]].summary() for name in ("branch", "flat", "noisy")], row[0]


def test_reasons_lines_and_what_is_fixed(found: dict[str, Comparison]) -> None:
    line = branch.__code__.co_firstlineno + 1
    symbolic, traced = found["branch"]["fx.symbolic_trace"], found["branch"]["torch.jit.trace"]
    assert "control flow" in str(symbolic.reason) and f"test_compare.py:{line}" in str(symbolic.where)
    assert any(f"test_compare.py:{line}" in each for each in traced.fixed)
    assert len(found["branch"]["Dynamo"].breaks) == 1
    assert found["flat"]["make_fx"].fixed == ["sizes"]
    assert "a value from outside of the graph" in found["noisy"]["make_fx"].fixed
    assert "view" in found["flat"]["make_fx"].text
    text = str(found["branch"])
    assert text.startswith("branch\nway") and text.count("\n") == 6


def test_further_examples_and_sizes_that_are_fixed() -> None:
    def function(x: Tensor) -> Tensor:
        return x * 2 if x.shape[0] != 7 else x

    found = compare(function, torch.rand(3), torch.rand(7))
    assert [check.case for check in found["make_fx"].checks][:2] == ["called again", "example 2"]
    assert found["make_fx"].summary() == "wrong: example 2"
    assert found["Dynamo"].is_right
    with pytest.raises(TypeError, match="at least one example"):
        compare(function)


def test_the_generators_are_as_before() -> None:
    torch.manual_seed(3)
    numpy.random.seed(3)
    compare(noisy, torch.rand(5, 5, 5))
    again = torch.rand(2), numpy.random.random(2)
    torch.manual_seed(3)
    numpy.random.seed(3)
    torch.rand(5, 5, 5)
    assert torch.equal(again[0], torch.rand(2)) and (again[1] == numpy.random.random(2)).all()


def test_tee() -> None:
    seen: list[str] = []

    def mine(graph_module: Any, example_inputs: Any) -> Any:
        seen.append(str(graph_module.graph))
        return graph_module.forward

    def turned(graph_module: Any, example_inputs: Any) -> Any:
        for node in graph_module.graph.nodes:
            if node.target == "sin" or node.target is torch.sin:
                node.target = "cos" if node.op == "call_method" else torch.cos
        graph_module.recompile()
        return graph_module.forward

    x = torch.rand(4)
    call = torch.compile(lambda x: x.sin() + 1, backend=tee(mine, turned), options={"deny": "cos"})
    torch.testing.assert_close(call(x), x.cos() + 1)
    assert len(seen) == 1 and "sin" in seen[0]
    (report,) = smelt.reports()
    assert [each.op for each in report.fallbacks] == ["aten.cos.default"]


@pytest.mark.parametrize("way", ["dynamo", "export", "symbolic", "trace", "script", "make_fx"])
def test_a_capture_is_compiled(way: str) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)).eval()
    call = smelt.compile(model, capture=way)
    with torch.no_grad():
        for rows in (3, 5, 3):
            x = torch.rand(rows, 4)
            torch.testing.assert_close(call(x), model(x))
    assert smelt.reports() and all(report.kind == "inference" for report in smelt.reports())


def test_a_capture_that_fixes_a_branch_and_one_that_refuses_it() -> None:
    x = torch.rand(3)
    traced = smelt.compile(branch, capture="trace")
    with pytest.warns(torch.jit.TracerWarning):
        torch.testing.assert_close(traced(x), x * 2)
    torch.testing.assert_close(traced(-x), -x * 2)
    with pytest.raises(SmeltError, match=r"SM0108: symbolic refuses branch(.|\n)*control flow"):
        smelt.compile(branch, capture="symbolic")(x)
    with pytest.raises(SmeltError, match="SM0107: capture 'magic'"):
        smelt.compile(branch, capture="magic")


def test_export_with_sizes() -> None:
    call = smelt.compile(flat, capture="export", dynamic=True)
    for shape in ((3, 4, 5), (2, 6, 7)):
        x = torch.rand(shape)
        assert torch.equal(call(x), flat(x))
