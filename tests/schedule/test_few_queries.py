"""Attention of few queries: numbers, masks, shared heads, lengths, caches that are appended in place."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import smelt
from tests.support.agreement import assert_close, compiled, wide

attend = torch.nn.functional.scaled_dot_product_attention


def _drawn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def _operands(
    heads: int, shared: int, queries: int, keys: int, width: int, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor]:
    kept = (1, heads // shared, keys, width)
    query = _drawn(1, heads, queries, width, dtype=dtype)
    return query, _drawn(*kept, dtype=dtype, seed=1), _drawn(*kept, dtype=dtype, seed=2)


def _repeated(x: Tensor, times: int) -> Tensor:
    """As ``repeat_kv`` of transformers."""
    batch, heads, length, width = x.shape
    return x[:, :, None].expand(batch, heads, times, length, width).reshape(batch, -1, length, width)


def _nest() -> str:
    return smelt.reports()[-1].text("nest")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("queries", "mask"), [(1, None), (3, "causal"), (2, "bool"), (7, "added")])
def test_numbers(dtype: torch.dtype, queries: int, mask: str | None) -> None:
    keys = 100 if mask == "causal" else 128
    seen = None
    if mask is not None and mask != "causal":
        seen = torch.rand(1, 1, queries, keys, generator=torch.Generator().manual_seed(3)) > 0.3
        seen[..., 0, :] = queries == 2  # the added mask has a row that sees nothing
    if mask == "added":
        assert seen is not None
        seen = torch.where(seen, 0.5, -torch.inf).to(dtype)

    def function(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        given = None if seen is None else seen.to(query.dtype) if mask == "added" else seen
        key, value = _repeated(key, 2), _repeated(value, 2)
        return attend(query, key, value, attn_mask=given, is_causal=mask == "causal")

    _, report = compiled(function, *_operands(4, 2, queries, keys, 40, dtype))
    assert not report.externs
    assert "kernel clone" not in _nest()


@pytest.mark.parametrize("width", [8, 33, 64, 96])
def test_each_key_is_read_once_for_the_heads_that_share_it(width: int) -> None:
    def function(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return attend(query, key, value, enable_gqa=True)

    _, report = compiled(function, *_operands(6, 3, 1, 64, width))
    assert not report.externs
    products = [each for each in _nest().split("\n\n") if "= sum()" in each and "max()" not in each]
    assert len(products) == 2 and not any("range(3)" in each for each in products)


def test_a_mask_of_a_cache_is_read_once_for_all_layers_and_ends_the_loops() -> None:
    def function(query: Tensor, key: Tensor, value: Tensor, last: Tensor) -> Tensor:
        mask = torch.arange(key.shape[2])[None, None, None] <= last
        for _ in range(2):
            query = attend(query, key, value, attn_mask=mask)
        return query

    inputs = *_operands(2, 1, 1, 320, 16), torch.tensor(19)
    fast, report = compiled(function, *inputs)
    assert report.externs == {"aten._local_scalar_dense.default": 2}  # the first block, and their number
    for last in (0, 63, 64, 319):
        inputs = *inputs[:3], torch.tensor(last)
        exact = function(*(wide(x) for x in inputs))
        assert_close(fast(*inputs), function(*inputs), exact)
    inputs[1][:, :, 200:] = torch.nan
    assert fast(*inputs[:3], torch.tensor(19)).isfinite().all()  # is not read


def test_keys_before_a_window_are_not_read() -> None:
    def function(query: Tensor, key: Tensor, value: Tensor, last: Tensor) -> Tensor:
        places = torch.arange(key.shape[2])[None, None, None]
        return attend(query, key, value, attn_mask=(places <= last) & (places > last - 70), enable_gqa=True)

    fast, _ = compiled(function, *_operands(4, 2, 1, 500, 16), torch.tensor(450))
    for last in (0, 69, 70, 127, 191, 300, 499):
        inputs = *_operands(4, 2, 1, 500, 16), torch.tensor(last)
        assert_close(fast(*inputs), function(*inputs), function(*(wide(x) for x in inputs)))
        for hidden in inputs[1:3]:
            hidden[:, :, : max(0, last - 70) // 64 * 64] = torch.nan
            hidden[:, :, (last // 64 + 1) * 64 :] = torch.nan
        assert fast(*inputs).isfinite().all()


def test_masks_that_hide_all() -> None:
    inputs = _operands(2, 1, 1, 300, 16)
    fast, _ = compiled(
        lambda q, k, v, m: attend(q, k, v, attn_mask=m), *inputs, torch.ones(300, dtype=torch.bool)[None]
    )
    assert torch.equal(fast(*inputs, torch.zeros(1, 300, dtype=torch.bool)), torch.zeros(1, 2, 1, 16))


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_what_is_not_finite(number: float) -> None:
    for which, place in ((0, 0), (1, 99), (2, 99)):
        inputs = _operands(2, 1, 1, 100, 16)
        inputs[which][0, 1, place, 4] = number
        compiled(lambda q, k, v: attend(q, k, v), *inputs)


def test_a_static_cache_is_appended_and_read_where_it_is() -> None:
    def step(query: Tensor, new: Tensor, at: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        keys.index_copy_(2, at, new)
        values.index_copy_(2, at, new + 1)
        mask = torch.arange(keys.shape[2])[None, None, None] <= at
        return attend(query, _repeated(keys, 3), _repeated(values, 3), attn_mask=mask)

    query, keys, values = _operands(6, 3, 1, 256, 32)
    fast = torch.compile(step, backend="smelt", fullgraph=True)
    smelt.reset()
    mine, theirs = (keys.clone(), values.clone()), (keys.clone(), values.clone())
    with torch.no_grad():
        for at in range(3, 6):
            new, place = _drawn(1, 2, 1, 32, seed=at), torch.tensor([at])
            exact = step(query.double(), new.double(), place, *(x.double() for x in theirs))
            want = step(query, new, place, *theirs)
            assert_close(fast(query, new, place, *mine), want, exact)
            assert torch.equal(mine[0], theirs[0]) and torch.equal(mine[1], theirs[1])
    assert len(smelt.reports()) == 1 and not _copies(_nest())


def test_a_cache_that_grows_does_not_compile_again() -> None:
    def step(query: Tensor, new: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        keys, values = torch.cat([keys, new], 2), torch.cat([values, new + 1], 2)
        return attend(query, _repeated(keys, 2), _repeated(values, 2)), keys, values

    query, keys, values = _operands(4, 2, 1, 63, 32)
    torch._dynamo.reset()
    smelt.reset()
    fast = torch.compile(step, backend="smelt", fullgraph=True, dynamic=True)
    with torch.no_grad():
        for turn in range(4):
            inputs = query, _drawn(1, 2, 1, 32, seed=turn), keys, values
            got, _, _ = fast(*inputs)
            want, keys, values = step(*inputs)
            assert_close(got, want, step(*(x.double() for x in inputs))[0])
    assert len(smelt.reports()) == 1


def _copies(nest: str) -> list[str]:
    return [line for line in nest.splitlines() if line.startswith("kernel clone")]


@pytest.mark.parametrize(("shared", "queries", "atens"), [(1, 1, True), (2, 1, False), (1, 2, False)])
def test_one_query_in_bfloat16_with_keys_of_its_own_is_atens(shared: int, queries: int, atens: bool) -> None:
    operands = _operands(4, shared, queries, 96, 32, torch.bfloat16)
    _, report = compiled(lambda q, k, v: attend(q, k, v, enable_gqa=shared > 1), *operands)
    assert bool(report.externs) == atens


def test_dropout_and_few_keys_stay_atens() -> None:
    inputs: tuple[Any, ...] = _operands(2, 1, 1, 9, 16)
    _, report = compiled(lambda q, k, v: attend(q, k, v), *inputs)
    assert report.externs


def test_a_mask_that_is_constant_is_read_ahead_or_at_each_call() -> None:
    class Layer(torch.nn.Module):
        mask: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mask", torch.arange(300)[None] < 70)

        def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            own = torch.arange(300)[None] < 100
            return attend(attend(query, key, value, attn_mask=self.mask), key, value, attn_mask=own)

    layer, inputs = Layer().eval(), _operands(2, 1, 1, 300, 16)
    exact = layer(*(wide(x) for x in inputs))
    for freezing in (False, True):
        smelt.reset()
        torch._dynamo.reset()
        with torch.no_grad():
            got = torch.compile(layer, backend="smelt", options={"freezing": freezing})(*inputs)
        assert_close(got, layer(*inputs), exact)
        assert not smelt.reports()[-1].fallbacks
