"""Every pointwise, view and structural row as machine code: all cases of a dtype in one graph, compiled once.

The same cases as in tests/lowering, where the reference interpreter runs them one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import smelt
from smelt.capture import capture_function
from smelt.config import Config
from smelt.pipeline import compile_program
from tests.lowering import test_masked as masked
from tests.lowering import test_pointwise as pointwise
from tests.lowering import test_scans as scans
from tests.lowering import test_structural as structural
from tests.lowering import test_views as views
from tests.lowering.harness import DTYPES, compare, copies, flat, widened

aten = torch.ops.aten


@dataclass(frozen=True)
class Case:
    """A function and its inputs; ``others`` are inputs of other sizes for the same machine code."""

    name: str
    function: Callable[..., Any]
    inputs: tuple[torch.Tensor, ...]
    others: tuple[torch.Tensor, ...] = ()
    zeros: bool = True

    def run(self, inputs: Sequence[torch.Tensor]) -> list[Any]:
        return flat(self.function(*inputs))

    def works_in_eager(self) -> bool:
        try:
            self.run(copies(self.inputs))
        except (RuntimeError, TypeError, ValueError):
            return False
        return True

    def findings(self, inputs: Sequence[torch.Tensor], results: Sequence[Any]) -> list[str]:
        """What is wrong with the results."""
        expected = self.run(copies(inputs))
        try:
            exact = self.run([widened(x) for x in copies(inputs)])
        except (RuntimeError, TypeError, ValueError):
            exact = [widened(x) for x in expected]
        found = []
        for value, eager, reference in zip(results, expected, exact, strict=True):
            try:
                compare(value, eager, reference, zeros=self.zeros)
            except AssertionError as error:
                found.append(f"{self.name}: {error}")
        return found


def check_all(cases: Sequence[Case], dynamic: bool = False) -> None:
    """Compile the cases as one graph, run it, compare each result with eager's."""
    cases = [case for case in cases if case.works_in_eager()]
    counts = [len(case.run(copies(case.inputs))) for case in cases]

    def everything(*given: torch.Tensor) -> list[Any]:
        results, position = [], 0
        for case in cases:
            results += case.run(given[position : position + len(case.inputs)])
            position += len(case.inputs)
        return results

    inputs = [x for case in cases for x in case.inputs]
    program = capture_function(everything, copies(inputs), dynamic=dynamic)
    call = compile_program(program, Config(verify=True))
    for given in ("inputs", "others") if dynamic else ("inputs",):
        got = list(call(copies([x for case in cases for x in getattr(case, given)])))
        assert len(got) == sum(counts)
        wrong = []
        for case, count in zip(cases, counts, strict=True):
            wrong += case.findings(getattr(case, given), got[:count])
            del got[:count]
        assert not wrong, "\n".join(wrong)


def _pointwise_cases(dtype: torch.dtype) -> list[Case]:
    cases = []
    for name in pointwise.UNARY.split():
        x = pointwise.special(dtype)
        x = x[x.isfinite()] if name == "gelu" else x
        cases.append(Case(name, getattr(aten, name), (x,), zeros=name not in pointwise.ZEROS_DIFFER))
    cases += [
        Case(name, function, (pointwise.special(dtype),))
        for name, function in pointwise.WITH_ARGUMENTS.items()
    ]
    for name in pointwise.BINARY.split():
        x, y = _nonzero_pair(dtype)
        y = y.nan_to_num() if name in pointwise.NAN_DIFFERS else y
        cases.append(Case(name, getattr(aten, name), (x, y), zeros=name not in pointwise.ZEROS_DIFFER))
    for name, function in pointwise.TERNARY.items():
        x, y = (part.contiguous() for part in torch.broadcast_tensors(*_nonzero_pair(dtype)))
        cases.append(Case(name, function, (x, y)))
    return cases


def _nonzero_pair(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = pointwise.pairs(dtype)
    return x, y if dtype.is_floating_point else torch.where(y == 0, 1, y).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_pointwise(dtype: torch.dtype) -> None:
    check_all(_pointwise_cases(dtype))


@pytest.mark.parametrize("dtype", structural.KINDS, ids=str)
def test_rearranging(dtype: torch.dtype) -> None:
    check_all(
        [Case(name, structural.ONE[name], (structural.numbers(name, dtype),)) for name in structural.ONE]
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8], ids=str)
def test_views(dtype: torch.dtype) -> None:
    x = torch.randn(4, 6).mul(9).to(dtype)
    cases = [Case(name, function, (x,)) for name, function in views.VIEWS.items()]
    cases += [Case(f"{name} of a result", _after(function), (x,)) for name, function in views.VIEWS.items()]
    cases += [Case(f"{name} then add", _before(function), (x,)) for name, function in views.VIEWS.items()]
    check_all(cases)


def _after(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, *rest: function(x * 2, *rest)


def _before(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x: [part + 1 for part in flat(function(x))]


def test_creation_and_shapes() -> None:
    cases = [Case(name, function, (torch.randn(3, 3),)) for name, function in structural.CREATION.items()]
    cases += [
        Case(f"shapes {number}", lambda x, y: (x + y, torch.relu(x) * y, x > y), make())
        for number, make in enumerate(pointwise.SHAPES)
    ]
    check_all(cases)


def test_symbolic_sizes() -> None:
    names = ("cat", "cat last", "stack", "flip", "repeat", "tril", "slice_scatter", "clone", "roll")
    cases = [Case(name, structural.ONE[name], (torch.randn(5, 7),), (torch.randn(4, 9),)) for name in names]

    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        n, m = x.shape
        heads = (x + y).view(n, m, 1).expand(n, m, 4).transpose(0, 1)
        return (
            (x + y) * n / m,
            torch.cat([x[:2], x[-2:], x]).sum(1),
            heads.reshape(m, -1) * 2,
            torch.arange(n) + m,
        )

    cases.append(
        Case("sizes", function, (torch.randn(4, 6), torch.randn(6)), (torch.randn(9, 5), torch.randn(5)))
    )
    check_all(cases, dynamic=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool], ids=str)
def test_scans(dtype: torch.dtype) -> None:
    names = [name for name in scans.ALL if name != "logcumsumexp" or dtype.is_floating_point]
    cases = []
    for name in names:
        for dim, x in enumerate(
            (torch.randn(40, 3), torch.randn(5, 2, 37).mT, torch.randn(3, 0, 41)[:, :, ::2])
        ):
            cases.append(Case(f"{name} {dim}", _along(scans.ALL[name], dim), (x.to(dtype),)))
        x = torch.randn(9, 35).to(dtype)
        cases.append(Case(f"{name} of a result", _along(_after(scans.ALL[name]), 1), (x,)))
    check_all(cases)


def test_scans_of_dynamic_sizes() -> None:
    cases = []
    for name, function in scans.ALL.items():
        for dim in (0, 1):
            x, other = torch.randn(6, 20), torch.randn(19, 4)
            cases.append(Case(f"{name} {dim}", _along(function, dim), (x,), (other,)))
    check_all(cases, dynamic=True)


def _along(function: Callable[..., Any], dim: int) -> Callable[..., Any]:
    return lambda x: function(x, dim)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool], ids=str)
def test_masked_elements(dtype: torch.dtype) -> None:
    x, source = masked.given(dtype, 4, 3), masked.given(dtype, 12)
    check_all(
        [
            Case("masked_scatter", aten.masked_scatter, (x, masked.MASK, source)),
            Case("its gradient", lambda g, m: aten.masked_scatter_backward(g, m, [4, 4]), (x, masked.MASK)),
            Case("nonzero_static", lambda x: aten.nonzero_static(x, size=9), (x,)),
        ]
    )


def test_what_is_taken_from_a_mean_near_0_has_the_mean_0():
    """An error in the mean is one of all elements: a product with positive numbers adds it up."""
    torch.manual_seed(0)
    weight, x = torch.randn(64, 1024), torch.rand(1024, 8) + 50

    def program(weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        deviation, mean = torch.std_mean(weight, 1, keepdim=True)
        return (weight - mean) / deviation @ x

    exact = program(weight.double(), x.double())
    found, eager = smelt.compile(program)(weight, x), program(weight, x)
    assert (found - exact).norm() <= 2 * (eager - exact).norm()
