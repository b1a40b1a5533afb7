"""Sibling products: which are joined, which are not, and that the joined program computes the same."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from smelt.capture import Program, capture_function
from smelt.contract import contract, decompositions, fuse_horizontally, verify

aten = torch.ops.aten
ROWS, WIDTH, HEADS = 6, 16, 2


def program(function: Callable[..., Any], *args: Tensor, users: int = 1) -> Program:
    """The contract form of a function of ``users`` tensors, all other arguments frozen."""
    found = contract(capture_function(function, args, decompositions()))
    inputs = tuple(
        dataclasses.replace(each, static=position >= users) for position, each in enumerate(found.inputs)
    )
    return dataclasses.replace(found, inputs=inputs)


def products(found: Program) -> list[tuple[int, ...]]:
    """The shapes of all products' weights."""
    nodes = found.graph_module.graph.nodes
    kinds = {aten.mm.default: 1, aten.addmm.default: 2}
    weights = [node.args[kinds[node.target]] for node in nodes if node.target in kinds]
    return [tuple(weight.meta["val"].shape) for weight in weights]


def heads(x: Tensor, count: int = HEADS) -> Tensor:
    """(rows, columns) → (1, heads, rows, columns for each head)."""
    return x.view(1, x.shape[0], count, -1).transpose(1, 2)


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return functional.scaled_dot_product_attention(heads(q), heads(k), heads(v))


def weights(count: int = 3) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(WIDTH, WIDTH) for _ in range(count)]


def rows() -> Tensor:
    torch.manual_seed(1)
    return torch.randn(ROWS, WIDTH)


# -- structure ----------------------------------------------------------------------------------------------


def unbiased(x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return attend(x @ a, x @ b.t(), x @ c)


def test_q_k_and_v_are_one_product() -> None:
    x, frozen = rows(), weights()
    before = program(unbiased, x, *frozen)
    text = str(before.graph_module.graph)
    after = fuse_horizontally(before)
    verify(after)
    assert products(before) == [(16, 16)] * 3
    assert products(after) == [(16, 48)]
    assert str(before.graph_module.graph) == text
    assert after.frozen_inputs == before.frozen_inputs
    torch.testing.assert_close(after.graph_module(x, *frozen)[0], unbiased(x, *frozen))


def test_every_node_has_its_line_and_its_metadata() -> None:
    def forward(x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return attend(x @ a, x @ b, x @ c)

    after = fuse_horizontally(program(forward, rows(), *weights()))
    nodes = after.graph_module.graph.nodes
    (joined,) = [node for node in nodes if node.target is aten.mm.default]
    parts = list(joined.users)
    assert all(node.meta["where"].startswith("test_horizontal_fusion.py") for node in (joined, *parts))
    assert joined.meta["val"].fake_mode is joined.args[0].meta["val"].fake_mode
    assert [node.meta["val"].shape for node in (joined, *joined.args)] == [(6, 48), (6, 16), (16, 48)]
    assert [part.meta["val"].stride() for part in parts] == [(48, 1)] * 3
    assert [part.meta["val"].storage_offset() for part in parts] == [0, 16, 32]


def test_nothing_is_joined_that_is_not_frozen() -> None:
    given = program(unbiased, rows(), *weights(), users=4)
    assert fuse_horizontally(given) is given
    two = fuse_horizontally(program(unbiased, rows(), *weights(), users=2))
    assert products(two) == [(16, 16), (16, 32)]


def test_a_training_graph_stays() -> None:
    given = dataclasses.replace(program(unbiased, rows(), *weights()), kind="forward")
    assert fuse_horizontally(given) is given


def rotated(x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    def turn(y: Tensor) -> Tensor:
        half = torch.cat([-y[:, WIDTH // 2 :], y[:, : WIDTH // 2]], -1)
        return y * 0.5 + half * 0.25

    return attend(turn(x @ a), turn(x @ b), x @ c)


def normed(x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    q, k = (functional.layer_norm(x @ each, (WIDTH,)) for each in (a, b))
    return attend(q, k, x @ c)


def converted(x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    y = x.double()
    return attend(y @ a.double(), y @ b.double().t(), y @ c.t().double())


def gated(x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return (functional.silu(x @ a) * (x @ b)) @ c


def gated_before_an_attention(x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    y = gated(x, a, b, c)
    return attend(y, y, y)


def returned(x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, ...]:
    v = x @ c
    return attend(x @ a, x @ b, v), heads(v)


def strided(x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return attend(x @ a, torch.as_strided(x @ b, (ROWS, WIDTH), (WIDTH - 1, 1)), x @ c)


def crossed(x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return attend(x.sin() @ a, x @ b, x @ c)


def apart(x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    y = attend(x.sin() @ a, x @ b, x.cos())
    return attend(y.reshape(ROWS, WIDTH), x @ c, x)


def computed(x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return attend(x @ a, x @ (b * x.sum()), x @ c)


def masked(x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    mask = (x @ a) @ x.t()
    again = functional.scaled_dot_product_attention(heads(x @ b), heads(x), heads(x), attn_mask=mask)
    return again + c.sum()


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (rotated, [(16, 48)]),
        (normed, [(16, 48)]),
        (converted, [(16, 48)]),
        (crossed, [(16, 16), (16, 32)]),
        (returned, [(16, 32), (16, 16)]),
        (strided, [(16, 32), (16, 16)]),
        (computed, [(16, 32), (16, 16)]),
        (gated, [(16, 16)] * 3),
        (gated_before_an_attention, [(16, 16)] * 3),
        (apart, [(16, 16)] * 3),
        (masked, [(16, 16), (16, ROWS), (16, 16)]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_meets_in_one_attention_is_joined(
    function: Callable[..., Any], expected: list[tuple[int, ...]]
) -> None:
    x, frozen = rows(), weights()
    after = fuse_horizontally(program(function, x, *frozen))
    verify(after)
    assert sorted(products(after)) == sorted(expected)
    result = function(x, *frozen)
    got = after.graph_module(x, *frozen)
    torch.testing.assert_close(tuple(got), result if isinstance(result, tuple) else (result,))


def biased(x: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Tensor, e: Tensor, f: Tensor) -> Tensor:
    return attend(torch.addmm(d, x, a), torch.addmm(e, x, b), torch.addmm(f, x, c))


def biased_partly(x: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Tensor, e: Tensor, f: Tensor) -> Tensor:
    return attend(torch.addmm(d, x, a), x @ b, x @ c)


def biased_by_rows(x: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Tensor, e: Tensor, f: Tensor) -> Tensor:
    return attend(torch.addmm(d[:1], x, a), torch.addmm(e, x, b), torch.addmm(f, x, c))


def scaled(x: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Tensor, e: Tensor, f: Tensor) -> Tensor:
    return attend(torch.addmm(d, x, a, alpha=2), torch.addmm(e, x, b, beta=0.5), torch.addmm(f, x, c))


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (biased, [(16, 48)]),
        (biased_partly, [(16, 16), (16, 32)]),
        (biased_by_rows, [(16, 16), (16, 32)]),
        (scaled, [(16, 16)] * 3),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_biases_are_joined_with_the_weights(
    function: Callable[..., Any], expected: list[tuple[int, ...]]
) -> None:
    x, frozen = rows(), [*weights(), *(torch.randn(WIDTH) for _ in range(3))]
    after = fuse_horizontally(program(function, x, *frozen))
    verify(after)
    assert sorted(products(after)) == expected
    torch.testing.assert_close(after.graph_module(x, *frozen)[0], function(x, *frozen))
