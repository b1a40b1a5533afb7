"""Batched products of one matrix for the whole batch become products without a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import smelt
from smelt.capture import capture_function
from smelt.contract import contract, decompositions

aten = torch.ops.aten
PRODUCTS = (aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default)
BATCH, ROWS, TERMS, COLUMNS = 4, 3, 16, 8


def products(function: Callable[..., Tensor], *args: Any, copies: int = 0) -> list[str]:
    """The products of a function's contract form, which computes what eager does, in eager's layout."""
    program = contract(capture_function(function, args, decompositions()))
    expected = function(*args)
    (result,) = program.graph_module(*args)
    torch.testing.assert_close(result, expected)
    assert result.stride() == expected.stride()
    nodes = program.graph_module.graph.nodes
    assert [node.target for node in nodes].count(aten.clone.default) == copies
    return [str(node.target).split(".")[1] for node in nodes if node.target in PRODUCTS]


def rows(batch: int = BATCH) -> Tensor:
    return torch.randn(batch, ROWS, TERMS)


def weight(*batch: int) -> Tensor:
    return torch.randn(*batch, TERMS, COLUMNS)


@torch.no_grad()
def test_weight_without_gradient_is_expanded_to_a_batch_of_one_by_matmul() -> None:
    """Each token of a frozen bfloat16 model copied the weights of all output projections."""

    def f(x: Tensor, w: Tensor) -> Tensor:
        return x.transpose(1, 2).reshape(1, 1, 4 * TERMS) @ w.t()

    x, w = torch.randn(1, 4, 1, TERMS), torch.nn.Parameter(torch.randn(COLUMNS, 4 * TERMS), False)
    assert products(f, x, w) == ["mm"]
    turned = torch.randn(1, TERMS, ROWS).transpose(1, 2)
    assert products(lambda x, w: x @ w, turned, weight()) == ["mm"]


def test_batch_of_one_needs_no_batch() -> None:
    assert products(torch.bmm, rows(1), weight(1)) == ["mm"]
    assert products(torch.baddbmm, torch.randn(COLUMNS), rows(1), weight(1)) == ["addmm"]
    assert products(torch.baddbmm, torch.randn(1, ROWS, 1), rows(1), weight(1)) == ["addmm"]
    assert products(lambda x, w: torch.einsum("bsd,de->bse", x, w), rows(), weight()) == ["mm"]


def test_expanded_weight_is_read_once_for_the_whole_batch() -> None:
    def f(x: Tensor, w: Tensor) -> Tensor:
        return torch.bmm(x, w.expand(BATCH, TERMS, COLUMNS))

    assert products(f, rows(), weight()) == ["mm"]
    x = torch.randn(BATCH, TERMS, ROWS).transpose(1, 2)
    assert products(f, x, weight(), copies=1) == ["mm"]  # the rows are copied, not the weight
    assert products(f, x[:, :1], weight()) == ["mm"]


@pytest.mark.parametrize("shape", [(COLUMNS,), (1, COLUMNS), (ROWS, 1), (BATCH, ROWS, COLUMNS), (1, 1, 1)])
def test_expanded_weight_with_something_added(shape: tuple[int, ...]) -> None:
    def f(onto: Tensor, x: Tensor, w: Tensor) -> Tensor:
        return torch.baddbmm(onto, x, w.expand(BATCH, TERMS, COLUMNS), beta=2, alpha=0.5)

    spread = shape == (ROWS, 1)
    assert products(f, torch.randn(shape), rows(), weight(), copies=int(spread)) == ["addmm"]


def test_expanded_first_operand_is_the_weight_of_transposed_columns() -> None:
    def f(w: Tensor, y: Tensor) -> Tensor:
        return torch.bmm(w.t().expand(BATCH, COLUMNS, TERMS), y)

    columns = rows().transpose(1, 2)
    assert products(f, weight(), columns, copies=1) == ["mm"]
    assert products(f, weight(), columns.contiguous()) == ["bmm"]  # would copy both


def test_batch_of_several_weights_stays() -> None:
    assert products(torch.bmm, rows(), weight(BATCH)) == ["bmm"]
    empty = torch.randn(0, ROWS, TERMS), weight().expand(0, TERMS, COLUMNS)
    assert products(torch.bmm, *empty) == ["bmm"]


@torch.no_grad()
def test_expanded_weight_with_sizes_that_are_not_known() -> None:
    def f(x: Tensor, w: Tensor) -> Tensor:
        return x.transpose(1, 2) @ w

    torch._dynamo.reset()
    smelt.reset()
    fast = torch.compile(f, backend="smelt", dynamic=True)
    for batch, count in ((3, 7), (5, 4)):
        x, w = torch.randn(batch, TERMS, count), weight()
        torch.testing.assert_close(fast(x, w), f(x, w))
    (report,) = smelt.reports()
    assert [choice.what.split("(")[0] for choice in report.choices] == ["mm"]
