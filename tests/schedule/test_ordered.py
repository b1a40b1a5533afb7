"""Numerics ``strict``: the same bits for any number of rows and threads, or a reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.exc import BackendCompilerFailed

import smelt
from smelt.config import from_options
from smelt.errors import SmeltError
from tests.support.agreement import assert_close

F = torch.nn.functional
ROWS = (1, 2, 3, 8, 17, 64)


def _strict(function: Callable[..., Any], *args: Tensor, **options: object) -> Any:
    smelt.reset()
    chosen = {"numerics": "strict", **options}
    return torch.compile(function, backend="smelt", dynamic=False, fullgraph=True, options=chosen)(*args)


class _Layer(nn.Module):
    """A layer of a decoder: products by weights of both layouts, norms, attention, softmax, means."""

    def __init__(self, width: int = 96, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out, self.up = (nn.Linear(width, n * width) for n in (3, 1, 4))
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.RMSNorm(width)])
        self.down = nn.Parameter(torch.randn(4 * width, width) / 20)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norms[0](x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        found = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(found.transpose(1, 2).reshape(batch, length, width))
        x = x + F.gelu(self.up(self.norms[1](x))) @ self.down
        return (
            x,
            x.softmax(-1),
            x.mean(1),
            x.std(-1),
            x.double().sum(1),
            x.bfloat16() @ self.down.bfloat16().t(),
        )


def test_rows_are_equal_in_batches_of_any_size() -> None:
    model = _Layer().eval()
    x = torch.randn(max(ROWS), 5, 96)
    with torch.no_grad():
        found = {count: _strict(model, x[:count], verify=True) for count in ROWS}
        eager, exact = model(x), model.double()(x.double())
    for count in ROWS[1:]:
        assert all(torch.equal(many[:1], one) for many, one in zip(found[count], found[1], strict=True))
    for got, usual, wanted in zip(found[64][:3], eager, exact):
        assert_close(got, usual, wanted)


def test_rows_are_equal_where_their_number_is_dynamic() -> None:
    model = _Layer().eval()
    x = torch.randn(64, 5, 96)
    smelt.reset()
    fast = torch.compile(model, backend="smelt", fullgraph=True, options={"numerics": "strict"})
    torch._dynamo.mark_dynamic(x, 0)
    with torch.no_grad():
        (all_rows, *_), (some, *_) = fast(x), fast(x[:17])
        (alone, *_) = _strict(model, x[:1])
    assert torch.equal(all_rows[:17], some) and torch.equal(all_rows[:1], alone)


@pytest.mark.parametrize("terms", [40, 1003, 140_003])
def test_sums_of_any_length_have_one_order(terms: int) -> None:
    def sums(x: Tensor) -> tuple[Tensor, ...]:
        return (x.exp() * x).sum(-1), x.logsumexp(-1), x.var(-1), x[:, :40].view(len(x), 8, 5).sum(1)

    x = torch.randn(9, terms)
    alone, many = _strict(sums, x[:1]), _strict(sums, x)
    assert all(torch.equal(some[:1], one) for some, one in zip(many, alone, strict=True))


def test_convolutions_have_one_order() -> None:
    weight = torch.randn(16, 8, 3, 3)

    def function(x: Tensor) -> Tensor:
        return F.group_norm(F.conv2d(x, weight, padding=1), 4)

    x = torch.randn(9, 8, 9, 9)
    assert torch.equal(_strict(function, x)[:1], _strict(function, x[:1]))
    assert_close(
        _strict(function, x), function(x), F.group_norm(F.conv2d(x.double(), weight.double(), padding=1), 4)
    )


def test_bits_do_not_depend_on_threads() -> None:
    model, x = _Layer(), torch.randn(17, 40, 96)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            model.zero_grad()
            results = _strict(model, x)
            results[0].square().mean().backward()
            found.append(
                [*results, *(each.grad.clone() for each in model.parameters() if each.grad is not None)]
            )
    finally:
        torch.set_num_threads(before)
    assert len(found[0]) > 10
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other, strict=True))


@pytest.mark.parametrize(
    ("function", "options", "why"),
    [
        (torch.linalg.inv, {}, "aten.linalg_inv_ex"),
        (lambda x: x.softmax(-1) + x, {"deny": "aten._softmax"}, "aten._softmax"),
    ],
    ids=["inverse", "denied"],
)
def test_what_aten_would_sum_is_refused(function: Any, options: dict[str, object], why: str) -> None:
    with pytest.raises(BackendCompilerFailed, match=f"SM0126: .*(\n.*)*{why}.*another order"):
        _strict(function, torch.eye(8), **options)


def test_operators_that_move_elements_are_not_refused() -> None:
    def function(x: Tensor) -> Tensor:
        values, at = x.sort(-1)
        return values.sum(-1) + at.argmax(-1) + x.topk(3).values.sum(-1)

    x = torch.randn(9, 70)
    assert torch.equal(_strict(function, x)[:1], _strict(function, x[:1]))


@pytest.mark.parametrize(
    "options", [{"mode": "max"}, {"contractions": False}, {"numerics": "exact"}], ids=str
)
def test_options_that_contradict_it_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(SmeltError, match="SM0102"):
        from_options({"numerics": "strict", **options})
