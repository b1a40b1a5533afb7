"""Attention in a kernel of our own: numbers, masks, grouped heads, sizes, gradients, what stays ATen's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import smelt
from smelt.config import Config
from smelt.loops.interpreter import evaluate_body
from smelt.loops.ir import Attention
from smelt.loops.printer import print_graph
from smelt.loops.verify import verify
from smelt.schedule import Target, schedule
from smelt.schedule.attention import nest as attention_nest
from smelt.schedule.products import tiles
from tests.lowering.harness import lowered
from tests.schedule.simulate import simulate
from tests.support.agreement import assert_close, compiled

attend = torch.nn.functional.scaled_dot_product_attention
ATTENTION = "aten._scaled_dot_product_flash_attention_for_cpu.default"
KERNEL = "scaled_dot_product_flash_attention_for_cpu_tiled"
NAN_WITH_BITS = torch.tensor(0x7FC12345, dtype=torch.int32).view(torch.float32).item()
"""A NaN like those that uninitialized memory has, of which not only the first bit is set."""


def heads(batch: int, count: int, length: int, width: int, seed: int = 0) -> Tensor:
    """(N, H, L, E) as a model has it: a view of what a linear layer gives."""
    made = torch.randn(batch, length, count, width, generator=torch.Generator().manual_seed(seed))
    return made.transpose(1, 2)


def operands(batch: int, count: int, queries: int, keys: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
    return (
        heads(batch, count, queries, width),
        heads(batch, count, keys, width, 1),
        heads(batch, count, keys, width, 2),
    )


SIZES = {
    "one block": (1, 3, 64, 64, 64),
    "odd sizes": (2, 3, 67, 71, 40),
    "narrow": (1, 2, 33, 50, 24),
    "several blocks": (1, 2, 150, 700, 32),
    "rounded blocks": (1, 1, 40, 400, 48),
}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", SIZES)
def test_numbers(name: str, causal: bool) -> None:
    _, report = compiled(lambda q, k, v: attend(q, k, v, is_causal=causal), *operands(*SIZES[name]))
    assert not report.externs and report.kernels == [KERNEL]


@pytest.mark.parametrize("shape", [(2, 3, 40, 50), (2, 1, 1, 50), (1, 3, 40, 1), (40, 50)])
def test_masks_broadcast(shape: tuple[int, ...]) -> None:
    mask = torch.randn(shape, generator=torch.Generator().manual_seed(3))
    _, report = compiled(lambda q, k, v, m: attend(q, k, v, attn_mask=m), *operands(2, 3, 40, 50, 32), mask)
    assert not report.externs


def test_mask_of_booleans_and_rows_without_keys() -> None:
    """A row of which all is masked gives 0, as ATen's kernel does."""
    mask = torch.rand(40, 300, generator=torch.Generator().manual_seed(3)) > 0.5
    mask[7] = False
    mask[8, :280] = False
    _, report = compiled(lambda q, k, v, m: attend(q, k, v, attn_mask=m), *operands(1, 2, 40, 300, 32), mask)
    assert not report.externs
    inputs = *operands(1, 2, 40, 600, 32), torch.cat([mask, mask], 1)
    compiled(lambda q, k, v, m: attend(q, k, v, attn_mask=m), *inputs)


@pytest.mark.parametrize("keys", [50, 600])
@pytest.mark.parametrize("number", [float("nan"), NAN_WITH_BITS, float("inf"), float("-inf")])
def test_what_is_not_finite(number: float, keys: int) -> None:
    mask = torch.zeros(40, keys)
    mask[3, 5] = mask[4, keys - 1] = number
    compiled(lambda q, k, v, m: attend(q, k, v, attn_mask=m), *operands(1, 2, 40, keys, 32), mask)


@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("number", [float("nan"), NAN_WITH_BITS, float("inf")])
def test_masked_keys_count_where_something_is_not_finite(number: float, which: int) -> None:
    """Keys that no query sees are left out, save where NaN would come of them."""
    inputs = operands(1, 2, 40, 300, 32)
    inputs[which][0, 1, 3 if which == 0 else 290, 4] = number
    mask = torch.zeros(40, 300)
    mask[:, 200:] = -torch.inf
    compiled(lambda q, k, v, m: attend(q, k, v, attn_mask=m), *inputs, mask)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("keys", [1, 5, 33])
def test_rows_of_nothing_but_nan(keys: int, causal: bool) -> None:
    """ATen finds the largest of few scores by comparing: a row of NaN counts as one that sees nothing."""
    torch.manual_seed(0)
    query, key, value = torch.randn(1, 2, 40, 16), *torch.randn(2, 1, 2, keys, 16)
    query[0, 0, 3] = torch.nan

    def function(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=causal)

    smelt.reset()
    compiled = torch.compile(function, backend="smelt")
    for keys_of_nan in (False, True):
        key = torch.full_like(key, torch.nan) if keys_of_nan else key
        want, got = function(query, key, value), compiled(query, key, value)
        torch.testing.assert_close(got, want, equal_nan=True)
    assert len(smelt.reports()[-1].kernels) == 1


def test_causal_as_a_mask() -> None:
    mask = torch.full((300, 300), -torch.inf).triu(1)
    _, report = compiled(lambda q, k, v, m: attend(q, k, v, attn_mask=m), *operands(1, 2, 300, 300, 32), mask)
    assert not report.externs


def test_grouped_heads() -> None:
    query, key, value = heads(2, 6, 40, 32), heads(2, 2, 50, 32, 1), heads(2, 2, 50, 32, 2)
    _, report = compiled(lambda q, k, v: attend(q, k, v, enable_gqa=True), query, key, value)
    assert not report.externs


def test_repeated_heads_are_read_where_they_are() -> None:
    """Keys and values that a model repeats for a group of heads are not copied."""

    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        each = (x[:, :, None].expand(-1, -1, 3, -1, -1).reshape(2, 6, 50, 32) for x in (k, v))
        return attend(q, *each)

    _, report = compiled(function, heads(2, 6, 40, 32), heads(2, 2, 50, 32, 1), heads(2, 2, 50, 32, 2))
    assert not report.externs and report.kernels == [KERNEL]


def test_scale() -> None:
    _, report = compiled(lambda q, k, v: attend(q, k, v, scale=0.3), *operands(1, 2, 40, 50, 32))
    assert not report.externs


def test_keys_that_lie_side_by_side() -> None:
    """The copy that ATen needs is not made."""
    query, key, value = operands(1, 2, 40, 70, 32)

    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend(q, k.transpose(2, 3).contiguous(), v)

    _, report = compiled(function, query, key.transpose(2, 3).contiguous(), value)
    assert not report.externs and report.kernels == [KERNEL]


@pytest.mark.parametrize("causal", [False, True])
def test_one_compile_for_all_sizes(causal: bool) -> None:
    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend(q, k, v, is_causal=causal)

    smelt.reset()
    fast = torch.compile(function, backend="smelt", dynamic=True, fullgraph=True, options={"verify": True})
    for sizes in [(2, 3, 40, 50, 32), (3, 2, 130, 300, 48), (4, 5, 17, 19, 8), (2, 2, 3, 2, 5)]:
        inputs = operands(*sizes)
        assert_close(fast(*inputs), function(*inputs), function(*(x.double() for x in inputs)))
    (report,) = smelt.reports()
    assert not report.externs


def test_dynamic_length_with_a_mask() -> None:
    def function(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
        return attend(q, k, v, attn_mask=m)

    smelt.reset()
    fast = torch.compile(function, backend="smelt", fullgraph=True, options={"verify": True})
    for length in (40, 129, 300):
        inputs = *operands(1, 2, length, length, 32), torch.randn(length, length)
        for x in inputs[:3]:
            torch._dynamo.mark_dynamic(x, 2)
        torch._dynamo.mark_dynamic(inputs[3], 0)
        torch._dynamo.mark_dynamic(inputs[3], 1)
        assert_close(fast(*inputs), function(*inputs), function(*(x.double() for x in inputs)))
    (report,) = smelt.reports()
    assert not report.externs


class Block(torch.nn.Module):
    """Attention between linear layers."""

    def __init__(self, causal: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inside, self.outside = torch.nn.Linear(64, 192), torch.nn.Linear(64, 64)
        self.causal = causal

    def forward(self, x: Tensor) -> Tensor:
        each = (y.unflatten(-1, (2, 32)).transpose(1, 2) for y in self.inside(x).split(64, -1))
        return self.outside(attend(*each, is_causal=self.causal).transpose(1, 2).flatten(2))


def test_between_linear_layers_nothing_is_copied() -> None:
    x, inside, outside = (
        torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))
        for shape in ((2, 31, 64), (192, 64), (64, 64))  # so few rows that no machine packs weights for them
    )

    def function(x: Tensor, inside: Tensor, outside: Tensor) -> Tensor:
        parts = torch.nn.functional.linear(x, inside).split(64, -1)
        found = attend(*(y.unflatten(-1, (2, 32)).transpose(1, 2) for y in parts))
        return torch.nn.functional.linear(found.transpose(1, 2).flatten(2), outside)

    _, report = compiled(function, x, inside, outside)
    assert not report.externs
    assert sorted(report.kernels) == ["mm_tiled", "mm_tiled", KERNEL]


def test_gradients() -> None:
    """Both are ours: the backward takes the result and the logarithms as the forward lays them out."""
    smelt.reset()
    grads: list[list[Tensor]] = []
    for kind in ("ours", "eager", "exact"):
        model = Block().train()
        x = torch.randn(2, 70, 64, generator=torch.Generator().manual_seed(1))
        if kind == "exact":
            model, x = model.double(), x.double()
        x.requires_grad_()
        run = torch.compile(model, backend="smelt", fullgraph=True, options={"verify": True})
        out = (run if kind == "ours" else model)(x)
        out.square().mean().backward()
        grads.append([out, x.grad, *(p.grad for p in model.parameters())])  # type: ignore[list-item]
    for got, eager, exact in zip(*grads, strict=True):
        assert_close(got, eager, exact)
    forward, backward = smelt.reports()
    assert ATTENTION not in forward.externs and KERNEL in forward.kernels
    assert not any("attention" in name for name in backward.externs)


def test_logarithms_of_the_sums() -> None:
    call = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    for keys in (50, 600):
        mask = torch.zeros(40, keys)
        mask[5] = -torch.inf
        inputs = *operands(2, 2, 40, keys, 32), mask
        smelt.reset()
        fast = torch.compile(
            lambda q, k, v, m: call(q, k, v, attn_mask=m)[1], backend="smelt", fullgraph=True
        )
        got, eager = fast(*inputs), call(*inputs[:3], attn_mask=mask)[1]
        torch.testing.assert_close(got, eager)
        assert got.stride() == eager.stride()
        assert not smelt.reports()[-1].externs


def test_thread_counts_give_equal_results() -> None:
    inputs = operands(2, 3, 150, 300, 32)
    torch._dynamo.reset()
    fast = torch.compile(lambda q, k, v: attend(q, k, v, is_causal=True), backend="smelt")
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(fast(*inputs))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


def test_equal_layers_have_one_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    built = []
    kernel = tiles.TileWriter.kernel
    monkeypatch.setattr(tiles.TileWriter, "kernel", lambda *args: built.append(1) or kernel(*args))

    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        once = attend(q, k, v)
        return attend(once, k * 2, v)

    inputs = [x.contiguous() for x in operands(1, 2, 40, 40, 32)]
    inputs[0] = inputs[0].transpose(1, 2).contiguous().transpose(1, 2)
    scheduled = schedule(lowered(function, *inputs), Config(), Target(32))
    calls = [call.kernel for run in scheduled.runs for call in run.calls]
    assert [kernel.name for kernel in calls].count(KERNEL) == 2 and len(built) == 1


@pytest.mark.parametrize(
    ("options", "inputs"),
    [
        ({"contractions": False}, operands(1, 2, 40, 50, 32)),
        ({}, operands(1, 2, 16, 600, 32)),
        ({}, tuple(x.bfloat16() for x in operands(1, 2, 40, 50, 32))),
    ],
    ids=["switched off", "many keys for a query", "bfloat16"],
)
def test_what_stays_atens(options: dict[str, Any], inputs: tuple[Tensor, ...]) -> None:
    smelt.reset()
    fast = torch.compile(lambda q, k, v: attend(q, k, v), backend="smelt", options=options)
    assert torch.equal(fast(*inputs), attend(*inputs))
    assert smelt.reports()[-1].externs == {ATTENTION: 1}


@pytest.mark.parametrize("causal", [False, True])
def test_the_meaning_is_what_aten_computes(causal: bool) -> None:
    """The loop functions, run by the reference interpreter, against float64."""
    call = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    query, key, value = heads(2, 4, 5, 8), heads(2, 2, 7, 8, 1), heads(2, 2, 7, 8, 2)
    mask = torch.randn(5, 7, generator=torch.Generator().manual_seed(3))
    mask[2] = -torch.inf

    def function(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Any:
        return call(q, k, v, 0.0, causal, attn_mask=m)

    inputs = (query, key, value, mask)
    graph = lowered(function, *inputs)
    verify(graph)
    (body,) = (node.body for node in graph.nodes if isinstance(node.body, Attention))
    assert "attention, as aten._scaled_dot_product" in print_graph(graph)
    names = [name for name in graph.inputs if isinstance(name, str)]
    out, total = evaluate_body(body, dict(zip(names, inputs)))
    exact_out, exact_total = function(*(x.double() for x in inputs))
    torch.testing.assert_close(out, exact_out.float())
    torch.testing.assert_close(total, exact_total.float())


@pytest.mark.parametrize("keys", [21, 75])
@pytest.mark.parametrize("vector_bytes", [16, 32, 64])
def test_the_nest_computes_it_too(vector_bytes: int, keys: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run by the nest's interpreter: the vectors of NEON, AVX2 and AVX-512, one block and several."""
    monkeypatch.setattr(attention_nest, "KEY_BLOCK", 32)
    call = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    mask = torch.zeros(9, keys)
    mask[:, 10:] = -torch.inf
    inputs = [*operands(1, 2, 9, keys, 10), mask]
    graph = lowered(lambda q, k, v, m: call(q, k, v, attn_mask=m), *inputs)
    results = simulate(graph, schedule(graph, Config(), Target(vector_bytes)), inputs)
    for got, want in zip(results, call(*inputs[:3], attn_mask=mask), strict=True):
        torch.testing.assert_close(got, want, rtol=2e-6, atol=1e-6)
