"""Products of groups: every arrangement against ATen and transformers, natively and as loop functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt
from smelt.loops.ir import Contraction
from tests.lowering.harness import check, lowered


def draw(*shape: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def ends(*offsets: int) -> torch.Tensor:
    return torch.tensor(offsets, dtype=torch.int32)


CASES: dict[str, tuple[torch.Tensor | None, ...]] = {
    "rows": (draw(7, 8), draw(3, 8, 16), ends(2, 2, 7)),
    "rows, transposed": (draw(7, 8), draw(3, 16, 8).mT, ends(2, 5, 7)),
    "columns": (draw(3, 8, 8), draw(8, 16), ends(4, 8, 16)),
    "terms": (draw(8, 16), draw(16, 8), ends(4, 4, 16)),
    "batch": (draw(3, 4, 8), draw(3, 8, 16)),
}


def grouped(*args: Any) -> torch.Tensor:
    return torch.ops.aten._grouped_mm.default(*args)


@pytest.mark.parametrize("name", CASES)
def test_arrangements(name: str) -> None:
    graph = lowered(grouped, *CASES[name])
    assert any(isinstance(node.body, Contraction) for node in graph.nodes)
    check(grouped, *CASES[name], slack=16)


def loss(function: Callable[..., torch.Tensor], *args: torch.Tensor) -> tuple[torch.Tensor, ...]:
    x, weight, offsets = args
    return torch.autograd.grad(function(x, weight, offsets).float().square().sum(), (x, weight))


def test_gradients_are_atens_by_choice() -> None:
    args = draw(7, 8).requires_grad_(), draw(3, 8, 16).requires_grad_(), ends(2, 2, 7)
    smelt.reset()
    for got, expected in zip(loss(torch.compile(grouped, backend="smelt"), *args), loss(grouped, *args)):
        assert torch.equal(got, expected)
    assert not any(report.fallbacks for report in smelt.reports())


def test_transformers_operators() -> None:
    pytest.importorskip("transformers.integrations.moe")
    operator = torch.ops.transformers.grouped_mm_fallback
    x, weight = draw(7, 6, dtype=torch.float32), draw(3, 6, 5, dtype=torch.float32)
    behind = ends(2, 5, 6)  # the last row is in no group
    check(lambda *args: operator(*args), x, weight, behind)
    gradients = torch.ops.transformers.grouped_mm_fallback_backward
    check(lambda *args: gradients(*args), x, weight, behind, draw(7, 5, dtype=torch.float32))

    def function(x: torch.Tensor, weight: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        return operator(x, weight, offsets)

    args = x.requires_grad_(), weight.requires_grad_(), behind
    smelt.reset()
    for got, expected in zip(loss(torch.compile(function, backend="smelt"), *args), loss(function, *args)):
        torch.testing.assert_close(got, expected)
    forward, backward = smelt.reports()
    assert not forward.fallbacks and not backward.fallbacks
    assert backward.externs == {"transformers.grouped_mm_fallback_backward.default": 1}
    exported = smelt.export(function, (x.detach(), weight.detach(), behind))
    torch.testing.assert_close(exported.run(x.detach(), weight.detach(), behind), function(*args).detach())
