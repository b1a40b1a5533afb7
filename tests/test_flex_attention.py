"""`flex_attention`: compiled with its bodies, eager's numbers, nothing left to PyTorch."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import flex_attention as flex
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import smelt

B, H, L, S, E = 2, 4, 40, 48, 16
SLOPES = torch.linspace(0.1, 1.0, H)
BIAS = torch.linspace(-1.0, 1.0, H * 2 * S).reshape(H, 2 * S)
DOCUMENT = torch.arange(S) // 11


def softcap(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return 2.0 * torch.tanh(score / 2.0)


def alibi(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return score + SLOPES[h] * (k - q)


def relative(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return score * 0.5 + BIAS[h, q - k + S]


def causal(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return q >= k


def window(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return (q - k).abs() < 5


def documents(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return (DOCUMENT[q] == DOCUMENT[k]) & (q >= k)


def late(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return (k < 2 * h) & (q > b)


@pytest.fixture(autouse=True)
def _silent(own_cache: None, fresh: None) -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*flex_attention called without torch.compile.*")
        yield


def operands(heads: int = H, dtype: torch.dtype = torch.float32, queries: int = L, keys: int = S) -> Any:
    shapes = (B, H, queries, E), (B, heads, keys, E), (B, heads, keys, 2 * E)
    return [torch.randn(shape).to(dtype) for shape in shapes]


def masked(mask: Callable[..., Tensor] | None, queries: int = L, keys: int = S) -> Any:
    return mask and create_block_mask(mask, B, H, queries, keys, device="cpu", BLOCK_SIZE=16)


def errors(function: Callable[..., Any], got: Any, args: list[Tensor]) -> None:
    """Against float64 no result errs more than four times what eager does, and a few units more."""
    want, exact = function(*args), function(*(each.double() for each in args))
    for have, eager, true in zip(got, want, exact, strict=True):
        assert (have.dtype, have.stride()) == (eager.dtype, eager.stride())
        assert torch.equal(have.isinf(), eager.isinf()) and torch.equal(have.isnan(), eager.isnan())
        finite = true.isfinite()
        have, eager, true = (each.double()[finite] for each in (have, eager, true))
        slack = 4 * torch.finfo(want[0].dtype).eps * true.abs().max()
        assert (have - true).abs().max() <= 4 * (eager - true).abs().max() + slack


def compiled(function: Callable[..., Any], *args: Any, **options: Any) -> Callable[..., Any]:
    """The compiled function, called once: all of it runs in kernels."""
    made = smelt.compile(function, fullgraph=True, verify=True, **options)
    made(*args)
    reports = smelt.reports()
    assert reports and all(report.kind != "eager" and not report.regions for report in reports)
    assert [str(each) for report in reports for each in report.fallbacks] == []
    return made


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("score", "mask"),
    [
        (None, None),
        (None, causal),
        (None, documents),
        (softcap, window),
        (alibi, causal),
        (relative, None),
        (relative, late),
    ],
)
def test_scores_and_masks(
    score: Callable[..., Tensor] | None, mask: Callable[..., Tensor] | None, dtype: torch.dtype
) -> None:
    block = masked(mask)

    def function(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return flex_attention(q, k, v, score_mod=score, block_mask=block, return_lse=True)

    args = operands(dtype=dtype)
    errors(function, compiled(function, *args)(*args), args)


def test_groups_of_heads_share_keys() -> None:
    block = masked(causal)

    def function(q: Tensor, k: Tensor, v: Tensor) -> Any:
        out = flex_attention(q.sin(), k, v, score_mod=alibi, block_mask=block, scale=0.3, enable_gqa=True)
        return (out * 2,)

    args = operands(heads=2)
    errors(function, compiled(function, *args)(*args), args)


def test_queries_of_another_layout_give_results_of_that_layout() -> None:
    def function(q: Tensor, k: Tensor, v: Tensor) -> Any:
        heads = [each.unflatten(-1, (H, E)).transpose(1, 2) for each in (q, k, v)]
        out = flex_attention(*heads)
        return out, out.transpose(1, 2).flatten(2)

    args = [torch.randn(B, L, H * E) for _ in range(3)]
    errors(function, compiled(function, *args)(*args), args)


def test_one_compile_serves_all_sizes() -> None:
    def function(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return (flex_attention(q, k, v, score_mod=softcap),)

    args = operands()
    made = compiled(function, *args, dynamic=True)
    for queries, keys in ((40, 48), (17, 33), (64, 24)):
        args = operands(queries=queries, keys=keys)
        errors(function, made(*args), args)
    assert len(smelt.reports()) == 1


def test_equal_calls_are_traced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from smelt.contract import definitions

    traced = []
    make_fx = definitions.make_fx
    monkeypatch.setattr(
        definitions, "make_fx", lambda *args, **kwargs: traced.append(0) or make_fx(*args, **kwargs)
    )
    block = masked(documents, S, S)

    def function(x: Tensor) -> Any:
        for _ in range(3):
            x = flex_attention(x, x, x, score_mod=alibi, block_mask=block) + x
        return (x,)

    args = [torch.randn(B, H, S, E).bfloat16()]
    errors(function, compiled(function, *args)(*args), args)
    assert len(traced) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("mask", [None, causal, late])
def test_gradients(
    mask: Callable[..., Tensor] | None, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch refuses them on a CPU, where it checks for that."""
    block = masked(mask)
    q, k, v = operands(heads=2, dtype=dtype)
    bias = torch.randn(H, 2 * S)

    def function(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Any:
        def score(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return torch.tanh(score) + bias[h, i - j + S]

        return flex_attention(q, k, v, score_mod=score, block_mask=block, enable_gqa=True)

    def gradients(function: Callable[..., Any], *args: Tensor) -> list[Tensor]:
        args = tuple(each.detach().clone().requires_grad_() for each in args)
        out = function(*args)
        (out * torch.linspace(-1.0, 1.0, out.shape[-1], dtype=out.dtype)).sum().backward()
        return [each.grad for each in args if each.grad is not None]

    with pytest.raises(NotImplementedError, match="backward"):
        gradients(smelt.compile(function), q, k, v, bias)
    monkeypatch.setattr(flex, "_validate_device", lambda *args: None)
    smelt.reset()
    made = smelt.compile(function, fullgraph=True)
    got = gradients(made, q, k, v, bias)
    assert [report.kind for report in smelt.reports()] == ["forward", "backward"]
    assert [str(each) for report in smelt.reports() for each in report.fallbacks] == []
    errors(lambda *args: gradients(function, *args), got, [q, k, v, bias])


def test_what_is_denied_stays_pytorchs() -> None:
    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return flex_attention(q.sin() + 1, k, v).cos() * 2

    args = operands()
    made = smelt.compile(function, fullgraph=True, deny="flex_attention", min_cluster=1)
    torch.testing.assert_close(made(*args), function(*args))
    regions = [region for report in smelt.reports() for region in report.regions if not region.is_native]
    assert [(region.ops, region.reason) for region in regions] == [
        (("flex_attention",), "denied: flex_attention (option deny)")
    ]


def test_a_call_alone_is_worth_a_cluster_and_pytorch_can_run_what_is_left() -> None:
    def function(q: Tensor, k: Tensor, v: Tensor) -> Any:
        out = flex_attention(q, k, v, score_mod=softcap, block_mask=masked_once)
        return (torch.ops.higher_order.hints_wrapper(torch.cos, (out,), {}, hints={}),)

    masked_once = masked(causal)
    args = operands()
    for least in (2, 9):
        smelt.reset()
        made = smelt.compile(function, fullgraph=True, deny="hints_wrapper", min_cluster=least)
        errors(function, made(*args), args)
        native = [region.nodes for region in smelt.reports()[0].regions if region.is_native]
        assert native == ([3] if least == 2 else [])


def test_numbers_that_are_not_finite_go_where_eager_has_them() -> None:
    block = masked(causal)

    def function(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return flex_attention(q, k, v, score_mod=alibi, block_mask=block, return_lse=True)

    for place, value in ((0, math.nan), (1, math.nan), (2, math.nan), (2, math.inf), (1, math.inf)):
        args = operands()
        args[place][1, 2, 13, 3] = value
        made = compiled(function, *args)
        for have, want in zip(made(*args), function(*args), strict=True):
            torch.testing.assert_close(have, want, equal_nan=True)


def test_bodies_that_are_no_loop_functions_are_taken_apart() -> None:
    def function(q: Tensor, k: Tensor, v: Tensor) -> Any:
        def score(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return score * BIAS[h].sum()

        return (flex_attention(q, k, v, score_mod=score),)

    args = operands()
    errors(function, compiled(function, *args)(*args), args)
    assert "flex_attention_tiled" not in smelt.reports()[0].kernels


def test_no_scores_are_stored() -> None:
    def function(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return (flex_attention(q, k, v, score_mod=relative, block_mask=block),)

    block = masked(documents)
    args = operands()
    errors(function, compiled(function, *args)(*args), args)
    (report,) = smelt.reports()
    assert report.kernels == ["flex_attention_tiled"] and report.arena_bytes == 0
