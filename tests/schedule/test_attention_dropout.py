"""Attention with dropout as one operator: what is dropped, numbers, gradients, sizes, what stays apart."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import smelt
from smelt.config import Config
from smelt.contract.dropout import kept
from smelt.loops.interpreter import run_graph
from smelt.loops.ir import Attention, AttentionGradients
from smelt.loops.printer import print_graph
from smelt.loops.verify import verify
from smelt.schedule import Target, schedule
from tests.lowering.harness import lowered
from tests.schedule.simulate import simulate
from tests.schedule.test_attention import attend, heads, operands
from tests.support.agreement import assert_close

CALL = torch.ops.smelt.attention_with_dropout.default
BACKWARD = torch.ops.smelt.attention_with_dropout_backward.default
KERNELS = ("attention_with_dropout_tiled", "attention_with_dropout_backward_tiled")
SUMS = "attention_with_dropout_backward"
"""The kernel of the sums of upstream * result."""
P = 0.25


def fresh(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """The function compiled, as in a process that has compiled nothing."""
    smelt.reset()
    dynamic = options.pop("dynamic", False)
    return torch.compile(
        function, backend="smelt", fullgraph=True, dynamic=dynamic, options={"verify": True, **options}
    )


def seeded(function: Callable[..., Tensor], *inputs: Any) -> Tensor:
    torch.manual_seed(5)
    return function(*inputs)


def plain(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, left: Tensor
) -> Tensor:
    """Attention of which ``left`` says what shares are multiplied with."""
    key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    if causal:
        scores = scores.masked_fill(~torch.ones(scores.shape[-2:], dtype=torch.bool).tril(), -math.inf)
    if mask is not None:
        added = torch.zeros(mask.shape, dtype=scores.dtype)
        scores = scores + (added.masked_fill(~mask, -math.inf) if mask.dtype is torch.bool else mask)
    return (torch.ops.aten._safe_softmax(scores, -1) * left) @ value


def compare(
    fast: Callable[..., Tensor], query: Tensor, key: Tensor, value: Tensor, mask: Any, causal: bool = False
) -> Tensor:
    """What ``fast`` drops of the shares; its result and gradients are those of `plain` with just that."""
    keys = key.shape[-2]
    every = torch.eye(keys).expand(*key.shape[:2], keys, keys)
    ones = torch.ones(*query.shape[:-1], keys)
    shares, seen = seeded(fast, query, key, every, mask), plain(query, key, every, mask, causal, ones)
    left = torch.where(seen > 0, (shares != 0).float() / (1 - P), 0.0)
    torch.testing.assert_close(shares, seen * left)
    upstream = heads(*query.shape[:3], value.shape[-1], seed=9)
    found = []
    for kind in ("ours", "eager", "exact"):
        given = [x.detach().double() if kind == "exact" else x.detach() for x in (query, key, value)]
        for x in given:
            x.requires_grad_()
        if kind == "ours":
            out = seeded(fast, *given, mask)
        else:
            wide = (
                mask.double()
                if kind == "exact" and mask is not None and mask.dtype.is_floating_point
                else mask
            )
            out = plain(*given, wide, causal, left.to(given[0].dtype))
        found.append([out, *torch.autograd.grad(out, given, upstream.to(out.dtype))])
    for got, eager, exact in zip(*found, strict=True):
        assert_close(got, eager, exact)
    return left[seen > 0]


SIZES = {
    "one block": (1, 3, 64, 64, 64),
    "odd sizes": (2, 3, 67, 71, 40),
    "several blocks": (1, 2, 150, 700, 32),
    "one head": (1, 1, 150, 300, 48),
}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", SIZES)
def test_numbers_and_gradients(name: str, causal: bool) -> None:
    fast = fresh(lambda q, k, v, m: attend(q, k, v, m, P, causal))
    left = compare(fast, *operands(*SIZES[name]), None, causal)
    assert abs(float((left == 0).float().mean()) - P) < 5 * math.sqrt(P * (1 - P) / left.numel())
    forward, backward = (r for r in smelt.reports() if r.kind in ("forward", "backward"))
    assert KERNELS[0] in forward.kernels and backward.kernels == [SUMS, KERNELS[1]]
    assert not (forward.fallbacks or backward.fallbacks)


@pytest.mark.parametrize("kind", ["booleans", "numbers", "broadcast"])
def test_masks_and_grouped_heads(kind: str) -> None:
    query, key, value = heads(2, 6, 40, 32), heads(2, 2, 50, 32, 1), heads(2, 2, 50, 32, 2)
    mask = torch.randn(40, 50, generator=torch.Generator().manual_seed(3))
    if kind == "booleans":
        mask = mask > 0
        mask[7] = False
    elif kind == "broadcast":
        mask = mask[:1].expand(2, 1, 1, 50)
    fast = fresh(lambda q, k, v, m: attend(q, k, v, m, P, enable_gqa=True))
    compare(fast, query, key, value, mask)
    assert KERNELS[0] in smelt.reports()[-2].kernels


def test_whoever_computes_it_drops_the_same() -> None:
    """Few queries are ATen's, that is the operator's own; forward and backward need not be the same one's."""
    for queries, native in ((4, (False, False)), (12, (True, False)), (40, (True, True))):
        fast = fresh(lambda q, k, v, m: attend(q, k, v, m, P))
        compare(fast, *operands(1, 2, queries, 50, 32), None)
        forward, backward = (r for r in smelt.reports() if r.kind in ("forward", "backward"))
        assert tuple(n in r.kernels for n, r in zip(KERNELS, (forward, backward))) == native


def test_one_compile_for_all_sizes() -> None:
    fast = fresh(lambda q, k, v, m: attend(q, k, v, m, P), dynamic=True)
    for sizes in [(2, 3, 40, 50, 32), (3, 2, 130, 300, 32)]:
        compare(fast, *operands(*sizes), None)
    assert sum(report.kind == "forward" for report in smelt.reports()) == 1


def test_measured_against_the_operator() -> None:
    fast = fresh(lambda q, k, v, m: attend(q, k, v, m, P), mode="max")
    compare(fast, *operands(1, 2, 60, 60, 32), None)


def test_every_run_drops_others() -> None:
    fast = fresh(lambda q, k, v: attend(q, k, v, None, P))
    inputs = operands(1, 2, 40, 50, 32)
    assert torch.equal(seeded(fast, *inputs), seeded(fast, *inputs))
    assert not torch.equal(fast(*inputs), fast(*inputs))


def test_layers_drop_each_its_own() -> None:
    every = torch.eye(50).expand(1, 2, 50, 50)
    fast = fresh(lambda q, k, v: (attend(q, k, v, None, P), attend(q, k, v, None, P)))
    one, other = fast(*operands(1, 2, 40, 50, 32)[:2], every)
    assert not torch.equal(one == 0, other == 0)


def test_a_transformer_trains() -> None:
    layer = torch.nn.TransformerEncoderLayer(64, 2, 128, dropout=P, batch_first=True)
    out = fresh(layer)(torch.randn(2, 40, 64))
    out.square().mean().backward()
    assert all(bool(p.grad.isfinite().all()) for p in layer.parameters())  # type: ignore[union-attr]
    for name, report in zip(KERNELS, smelt.reports()[-2:]):
        assert name in report.kernels and not report.fallbacks


@pytest.mark.parametrize(
    "stays",
    [
        "contractions",
        "eager's numbers",
        "autocast",
        "float64",
        "bfloat16",
        "vmap",
        "no dropout",
        "mask learns",
    ],
)
def test_where_it_stays_apart(stays: str) -> None:
    options: dict[str, Any] = {}
    inputs: tuple[Any, ...] = operands(1, 2, 40, 50, 32)

    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend(q, k, v, None, P)

    run = function
    if stays == "contractions":
        options = {"contractions": False}
    elif stays == "eager's numbers":
        options = {"fallback_random": True}
    elif stays == "autocast":

        def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            with torch.autocast("cpu"):
                return attend(q, k, v, None, P)

    elif stays in ("float64", "bfloat16"):
        inputs = tuple(x.to(getattr(torch, stays)) for x in inputs)
    elif stays == "vmap":
        inputs = tuple(x[None] for x in inputs)

        def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return torch.vmap(function, randomness="different")(q, k, v)

    elif stays == "mask learns":
        mask = torch.zeros(40, 50, requires_grad=True)

        def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return attend(q, k, v, mask, P)

    else:

        def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return attend(q, k, v)

    out = fresh(run, **options)(*inputs)
    assert out.shape == run(*inputs).shape
    names = {name for report in smelt.reports() for name in (*report.kernels, *report.externs)}
    assert not any("attention_with_dropout" in name for name in names)


def test_shares_are_dropped_independently() -> None:
    """By row, by column and beside one another: no more alike than chance has it."""
    query, key = torch.zeros(1, 1, 2000, 1), torch.zeros(1, 1, 1000, 1)
    left = kept(query, key, torch.tensor(17), P)[0, 0]
    centered = (left - 1.0) / math.sqrt(P / (1 - P))
    assert set(left.unique().tolist()) == {0.0, torch.tensor(1 / (1 - P)).item()}
    for dim in (0, 1):
        sums = centered.sum(dim) / math.sqrt(left.shape[dim])
        assert abs(float(sums.std()) - 1) < 5 / math.sqrt(2 * len(sums)) and float(sums.abs().max()) < 5
        for step in (1, 2, 3, 16):
            beside = centered * centered.roll(step, dim)
            assert abs(float(beside.sum())) < 5 * math.sqrt(left.numel())


def test_gradients_of_the_operator_itself() -> None:
    seed = torch.tensor(11)
    inputs = [
        x.double().requires_grad_() for x in (heads(1, 4, 5, 6), heads(1, 2, 7, 6, 1), heads(1, 2, 7, 6, 2))
    ]
    mask = torch.randn(5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    mask[2] = -torch.inf
    assert torch.autograd.gradcheck(lambda *x: CALL(*x, P, False, mask, 0.3, seed)[0], inputs)
    torch.library.opcheck(CALL, (*(x.float().detach() for x in inputs), P, True, None, None, seed))


@pytest.mark.parametrize("causal", [False, True])
def test_the_meaning_is_what_the_operator_computes(causal: bool) -> None:
    """The loop functions, run by the reference interpreter and as a nest, against the operator."""
    query, key, value = heads(1, 2, 17, 8), heads(1, 1, 19, 8, 1), heads(1, 1, 19, 8, 2)
    seed = torch.tensor(-3)

    def function(q: Tensor, k: Tensor, v: Tensor, s: Tensor) -> Any:
        return CALL(q, k, v, P, causal, None, None, s)

    def backward(g: Tensor, q: Tensor, k: Tensor, v: Tensor, r: Tensor, t: Tensor, s: Tensor) -> Any:
        return BACKWARD(g, q, k, v, r, t, P, causal, None, None, s)

    forward = (query, key, value, seed)
    result = function(*forward)
    upstream = heads(1, 2, 17, 8, 4)
    for run, inputs, kind in (
        (function, forward, Attention),
        (backward, (upstream, query, key, value, *result, seed), AttentionGradients),
    ):
        graph = lowered(run, *inputs)
        verify(graph)
        assert sum(isinstance(node.body, kind) for node in graph.nodes) == 1
        assert " * kept" in print_graph(graph)
        wanted = run(*inputs)
        for one, two in zip(run_graph(graph, list(inputs)), wanted, strict=True):
            torch.testing.assert_close(one, two)
        scheduled = schedule(graph, Config(), Target(32))
        assert any(call.kernel.name in KERNELS for call in scheduled.runs[0].calls)
        for one, two in zip(simulate(graph, scheduled, list(inputs)), wanted, strict=True):
            torch.testing.assert_close(one, two)
