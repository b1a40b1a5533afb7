"""The gradients of attention in a kernel of our own: numbers, masks, grouped heads, sizes, what is ATen's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import smelt
from smelt.config import Config
from smelt.loops.interpreter import run_graph
from smelt.loops.ir import AttentionGradients
from smelt.loops.printer import print_graph
from smelt.loops.verify import verify
from smelt.schedule import Target, schedule
from smelt.schedule.attention import gradients as attention_gradients
from tests.lowering.harness import lowered
from tests.schedule.simulate import simulate
from tests.schedule.test_attention import NAN_WITH_BITS, attend, heads, operands
from tests.support.agreement import assert_close, wide

CALL = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default
ATTENTION = "aten._scaled_dot_product_flash_attention_for_cpu_backward.default"
KERNEL = "scaled_dot_product_flash_attention_for_cpu_backward_tiled"


def gradients(
    function: Callable[..., Tensor], inputs: Sequence[Tensor], others: Sequence[Any]
) -> list[Tensor]:
    """The gradients by ``inputs`` of a weighted sum of what ``function`` gives."""
    wanted = [x.detach().requires_grad_() for x in inputs]
    out = function(*wanted, *others)
    weights = heads(*(out.shape[d] for d in (0, 1, 2, 3)), seed=9)
    return list(torch.autograd.grad(out, wanted, weights.to(out.dtype)))


def compiled(
    function: Callable[..., Tensor], *inputs: Any, count: int = 3, dynamic: bool = False, native: bool = True
) -> Any:
    """Compare the gradients by the first ``count`` inputs with eager's and float64; the backward's report."""
    smelt.reset()
    fast = torch.compile(function, backend="smelt", dynamic=dynamic, fullgraph=True, options={"verify": True})
    compare(fast, function, *inputs, count=count)
    report = smelt.reports()[-1]
    assert report.externs == ({} if native else {ATTENTION: 1})
    assert (KERNEL in report.kernels) is native
    return report


def compare(
    fast: Callable[..., Tensor], function: Callable[..., Tensor], *inputs: Any, count: int = 3
) -> None:
    double = [wide(x) for x in inputs]
    got, eager, exact = (
        gradients(each, given[:count], given[count:])
        for each, given in ((fast, inputs), (function, inputs), (function, double))
    )
    for ours, theirs, right in zip(got, eager, exact, strict=True):
        assert_close(ours, theirs, right)
        assert ours.stride() == theirs.stride()


SIZES = {
    "one block": (1, 3, 64, 64, 64),
    "odd sizes": (2, 3, 67, 71, 40),
    "one head": (1, 1, 37, 300, 24),
    "few keys": (1, 2, 40, 9, 32),
    "several blocks": (1, 2, 150, 700, 32),
}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", SIZES)
def test_numbers(name: str, causal: bool) -> None:
    compiled(lambda q, k, v: attend(q, k, v, is_causal=causal), *operands(*SIZES[name]))


@pytest.mark.parametrize("shape", [(2, 1, 1, 50), (40, 50)])
def test_masks_broadcast(shape: tuple[int, ...]) -> None:
    mask = torch.randn(shape, generator=torch.Generator().manual_seed(3))
    compiled(lambda q, k, v, m: attend(q, k, v, attn_mask=m), *operands(2, 3, 40, 50, 32), mask)


def test_mask_of_booleans_and_rows_without_keys() -> None:
    """A row of which all is masked has no gradient."""
    mask = torch.rand(40, 300, generator=torch.Generator().manual_seed(3)) > 0.5
    mask[7] = False
    mask[8, :280] = False
    compiled(lambda q, k, v, m: attend(q, k, v, attn_mask=m), *operands(1, 2, 40, 300, 32), mask)


@pytest.mark.parametrize("number", [float("nan"), NAN_WITH_BITS, float("inf"), float("-inf")])
def test_what_is_not_finite(number: float) -> None:
    mask = torch.zeros(40, 50)
    mask[3, 5] = mask[4, 49] = number
    compiled(lambda q, k, v, m: attend(q, k, v, attn_mask=m), *operands(1, 2, 40, 50, 32), mask)


@pytest.mark.parametrize("which", [0, 1, 2])
def test_an_operand_is_not_a_number(which: int) -> None:
    """It shows where it does in ATen's kernel: keys that nobody sees count too."""
    inputs = operands(1, 2, 40, 300, 32)
    inputs[which][0, 1, 3 if which == 0 else 290, 4] = float("nan")
    mask = torch.zeros(40, 300)
    mask[:, 200:] = -torch.inf
    compiled(lambda q, k, v, m: attend(q, k, v, attn_mask=m), *inputs, mask)


@pytest.mark.parametrize("causal", [False, True])
def test_grouped_heads(causal: bool) -> None:
    """What the heads of a group find for the keys that they share is added."""
    inputs = heads(2, 6, 150, 32), heads(2, 2, 170, 32, 1), heads(2, 2, 170, 32, 2)
    compiled(lambda q, k, v: attend(q, k, v, is_causal=causal, enable_gqa=True), *inputs)


@pytest.mark.parametrize("which", [0, 1, 2])
def test_only_some_are_wanted(which: int) -> None:
    def function(x: Tensor, *others: Tensor) -> Tensor:
        q, k, v = (*others[:which], x, *others[which:])
        return attend(q, k, v, scale=0.3, is_causal=True)

    inputs = list(operands(1, 2, 40, 50, 32))
    inputs.insert(0, inputs.pop(which))
    compiled(function, *inputs, count=1)


@pytest.mark.parametrize("causal", [False, True])
def test_one_compile_for_all_sizes(causal: bool) -> None:
    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend(q, k, v, is_causal=causal)

    smelt.reset()
    fast = torch.compile(function, backend="smelt", dynamic=True, fullgraph=True, options={"verify": True})
    for sizes in [(2, 3, 40, 50, 32), (3, 2, 130, 300, 48), (4, 5, 17, 19, 8), (2, 2, 3, 2, 5)]:
        compare(fast, function, *operands(*sizes))
    forward, backward = smelt.reports()
    assert not forward.externs and not backward.externs


def test_thread_counts_give_equal_results() -> None:
    torch._dynamo.reset()
    fast = torch.compile(lambda q, k, v: attend(q, k, v, is_causal=True), backend="smelt")
    before = torch.get_num_threads()
    found: list[list[Tensor]] = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(gradients(fast, operands(2, 3, 150, 300, 32), ()))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for others in found[1:] for a, b in zip(found[0], others, strict=True))


@pytest.mark.parametrize("causal", [False, True])
def test_the_meaning_is_what_aten_computes(causal: bool) -> None:
    """The loop functions, run by the reference interpreter, against float64."""
    inputs, mask = call_operands(4, 2, 5, 7, 8), torch.randn(5, 7, generator=torch.Generator().manual_seed(3))
    mask[2] = -torch.inf

    def function(*given: Tensor) -> Any:
        return CALL(*given[:6], 0.0, causal, attn_mask=given[6])

    graph = lowered(function, *inputs, mask)
    verify(graph)
    assert sum(isinstance(node.body, AttentionGradients) for node in graph.nodes) == 1
    assert "gradients of attention, as aten._scaled_dot_product" in print_graph(graph)
    found = run_graph(graph, [*inputs, mask])
    for got, exact in zip(found, function(*(x.double() for x in (*inputs, mask))), strict=True):
        torch.testing.assert_close(got, exact.float())


def call_operands(
    count: int, fewer: int, queries: int, keys: int, width: int, batch: int = 2
) -> list[Tensor]:
    """upstream, query, key, value, result, logsumexp: numbers, whatever made them."""
    upstream, query, result = (heads(batch, count, queries, width, seed) for seed in (5, 6, 7))
    key, value = (heads(batch, fewer, keys, width, seed) for seed in (1, 2))
    return [upstream, query, key, value, result, heads(batch, count, queries, 1, 8)[..., 0].abs() + 4]


@pytest.mark.parametrize(("vector_bytes", "enough_heads"), [(16, 1), (32, 2), (64, 1)])
def test_the_nest_computes_it_too(
    vector_bytes: int, enough_heads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run by the nest's interpreter: vectors of NEON, AVX2 and AVX-512, several blocks, one nest or two."""
    monkeypatch.setattr(attention_gradients, "KEY_BLOCK", 32)
    monkeypatch.setattr(attention_gradients, "QUERY_TILES", 1)
    monkeypatch.setattr(attention_gradients, "ENOUGH_HEADS", enough_heads)
    inputs = call_operands(2, 1, 9, 35, 9, batch=1)
    graph = lowered(lambda *given: CALL(*given, 0.0, True), *inputs)
    scheduled = schedule(graph, Config(), Target(vector_bytes), choose=lambda *_: True)
    results = simulate(graph, scheduled, inputs)
    for got, want in zip(results, CALL(*inputs, 0.0, True), strict=True):
        torch.testing.assert_close(got, want, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "inputs"),
    [
        ({"contractions": False}, operands(1, 2, 40, 50, 32)),
        ({}, operands(1, 2, 12, 50, 32)),
        ({}, operands(1, 2, 24, 600, 32)),
        ({}, tuple(x.bfloat16() for x in operands(1, 2, 40, 50, 32))),
    ],
    ids=["switched off", "few queries", "many keys for a query", "bfloat16"],
)
def test_what_stays_atens(options: dict[str, Any], inputs: tuple[Tensor, ...]) -> None:
    smelt.reset()
    fast = torch.compile(lambda q, k, v: attend(q, k, v), backend="smelt", options=options)
    found, eager = (gradients(each, inputs, ()) for each in (fast, attend))
    torch.testing.assert_close(found, eager)
    assert smelt.reports()[-1].externs == {ATTENTION: 1}


def test_dropout_apart() -> None:
    """PyTorch takes attention with dropout apart where its mask learns: it is drawn where the softmax is
    computed, and kept.
    """
    smelt.reset()
    mask = torch.zeros(64, 64, requires_grad=True)
    fast = torch.compile(lambda q, k, v: attend(q, k, v, mask, 0.5), backend="smelt", fullgraph=True)
    query, key, value = (x.requires_grad_() for x in operands(2, 2, 64, 64, 64))
    out = fast(query, key, value)
    out.square().sum().backward()
    assert value.grad is not None
    torch.testing.assert_close((value.grad * value).sum(), 2 * out.square().sum())  # linear in the values
    assert not torch.allclose(out, attend(query, key, value), atol=0.1)
    forward, backward = smelt.reports()
    assert any("softmax" in name and "native_dropout" in name for name in forward.kernels)
    assert [name.startswith("bmm") for name in forward.kernels].count(True) == 2
    assert forward.externs == {"aten.randint.low": 1} and not backward.externs
