"""Layouts of buffers and orders of axes change, and what is computed does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from smelt.nest.interpreter import run_kernel
from smelt.nest.ir import Alloc, AxisKind, Kernel
from smelt.nest.primitives.caches import storage_align
from smelt.nest.primitives.layouts import (
    mapped,
    reindex,
    reorder_block_iter_var,
    transform_block_layout,
    transform_layout,
)
from smelt.nest.stages import dissolve
from smelt.nest.tree import stages, walk
from smelt.nest.verify import verify
from smelt.ops import ops
from smelt.symbolic import loop_var
from tests.nest.staging import Program, extents_of, results, same, stage
from tests.nest.test_places import chain, load, product, refused, split


def alloc(kernel: Kernel, name: str) -> Alloc:
    return next(each for each in walk(kernel.body) if isinstance(each, Alloc) and each.buffer == name)


@pytest.mark.parametrize(
    ("index_map", "shape"),
    [
        (lambda i, j: (i // 4, j // 4, i % 4, j % 4), (3, 2, 4, 4)),
        (lambda i, j: (j, i), (8, 12)),
        (lambda i, j: i * 8 + j, (96,)),
        (lambda *rest, k: [*rest, k // 2, k % 2], (12, 4, 2)),
        (lambda i, j: (11 - i, j), (12, 8)),
    ],
)
def test_layouts_of_scratch(index_map: Callable[..., Any], shape: tuple[int, ...]) -> None:
    kernel = chain()
    for name in "BC":
        changed = transform_layout(kernel, name, index_map)
        assert alloc(changed, name).shape == shape
        same(kernel, changed)
    uneven = split(split(kernel, "C", 0, 5), "D", 1, 3)
    same(kernel, transform_layout(uneven, "C", index_map))


def test_layouts_of_parameters() -> None:
    kernel = chain()
    changed = transform_layout(kernel, "A", lambda i, j: (i // 4, j, i % 4))
    changed = transform_layout(changed, "D", lambda i, j: (j, i))
    verify(changed)
    assert [param.shape for param in changed.params] == [(3, 8, 4), (8, 10)]
    wanted = results(kernel)
    packed = wanted["A"].reshape(3, 4, 8).permute(0, 2, 1).reshape(-1).contiguous()
    memory = {"A": packed, "D": torch.zeros(80)}
    run_kernel(dissolve(changed), memory)
    assert torch.equal(memory["D"].reshape(8, 10).t(), wanted["D"].reshape(10, 8))


def test_indices_are_simple_afterwards() -> None:
    kernel = split(split(chain(12, 8), "C", 0, 4), "C", 2, 4)
    changed = transform_layout(kernel, "B", lambda i, j: (i // 4, j // 4, i % 4, j % 4))
    same(kernel, changed)
    again = transform_layout(changed, "B", lambda a, b, c, d: (a * 4 + c, b * 4 + d))
    assert stage(again, "C").body == stage(kernel, "C").body


def test_padding_is_filled() -> None:
    kernel = chain(14, 4)
    with_pads = transform_layout(kernel, "B", lambda i, j: (i // 4, i % 4, j), pad_value=7.0)
    assert "buffer_B_padding" in [each.name for each in stages(with_pads.body)]
    same(kernel, with_pads)
    out = transform_layout(kernel, "D", lambda i, j: (i // 8, i % 8, j), pad_value=7.0)
    verify(out)
    memory = {name: tensor.clone() for name, tensor in results(out).items()}
    made = memory["D"].reshape(16, 4)
    assert torch.equal(made[:12].reshape(-1), results(kernel)["D"]) and (made[12:] == 7.0).all()
    trusted = transform_layout(kernel, "B", lambda i, j: (i // 4, i % 4, j), assume_injective=True)
    same(kernel, trusted)


def test_transform_layout_refuses() -> None:
    kernel = chain(14, 4)
    refused("SM1031", lambda: transform_layout(kernel, "Q", lambda i, j: (i, j)))
    refused("SM1035", lambda: transform_layout(kernel, "B", lambda i, j: (i // 4, i % 4, j)), "pad")
    refused("SM1035", lambda: transform_layout(kernel, "B", lambda i, j: (i + j,)), "cannot be inverted")
    refused("SM1035", lambda: transform_layout(kernel, "B", lambda i, j: (i,)), "forgets index 1")
    refused("SM1035", lambda: transform_layout(kernel, "B", lambda i: (i,)), "does not take 2")
    refused("SM1035", lambda: transform_layout(kernel, "B", lambda i, j: (i - 3, j)), "below 0")
    pad = lambda i, j: (i // 4, i % 4, j)  # noqa: E731
    refused("SM1035", lambda: transform_layout(kernel, "B", pad, pad_value=0), "float32")


def test_alignment_is_of_a_layout() -> None:
    aligned = storage_align(chain(), "B", 0, 0, 32, 0)
    assert alloc(transform_layout(aligned, "B", lambda i, j: (j, i)), "B").aligned == ()


def test_axes_in_another_order() -> None:
    kernel = product()
    changed = reorder_block_iter_var(kernel, "C", [2, 0, 1])
    kinds = [axis.kind for axis in stage(changed, "C").axes]
    assert kinds == [AxisKind.REDUCE, AxisKind.SPATIAL, AxisKind.SPATIAL]
    same(kernel, changed, exactly=False)
    for order in ([0, 1], [0, 1, 1], [0, 1, 3]):
        refused("SM1036", lambda order=order: reorder_block_iter_var(kernel, "C", order), "3 axes")


def test_blocks_go_through_their_axes_in_another_way() -> None:
    kernel = product()
    changed = transform_block_layout(kernel, "C", lambda i, j, k: (i * 6 + j, k))
    assert extents_of(changed, "C") == [48, 4]
    same(kernel, changed, exactly=False)
    changed = transform_block_layout(kernel, "C", lambda i, j, k: (j // 3, i, j % 3, k // 2, k % 2))
    assert extents_of(changed, "C") == [2, 8, 3, 2, 2]
    same(kernel, changed, exactly=False)
    refused("SM1035", lambda: transform_block_layout(kernel, "D", lambda i, j: (i + j,)))
    refused(
        "SM1035", lambda: transform_block_layout(kernel, "C", lambda i, j, k: (i, j * 4 + k)), "two kinds"
    )
    refused("SM1036", lambda: transform_block_layout(split(kernel, "D", 0, 2), "D", lambda i, j: (j, i)))


def test_copies_in_the_order_of_a_blocks_axes() -> None:
    p = Program(A=(6, 5, 3), W=(4, 3))
    p.reduce("C", (5, 4), (6, 3), lambda i, j, a, b: ops.mul(load("A", a, i, b), load("W", j, b)))
    kernel = p.kernel("C")
    changed, name = reindex(kernel, "C", "A")
    assert name == "A_reindex" and alloc(changed, name).shape == (5, 6, 3)
    changed, _ = reindex(changed, "C", "W")
    changed, out = reindex(changed, "C", "C")
    assert out == "C_reindex" and [each.name for each in stages(changed.body)][-1] == "C_reindex"
    same(kernel, changed, exactly=False)
    refused("SM1031", lambda: reindex(chain(), "D", "C"), "2 places")
    refused("SM1031", lambda: reindex(chain(), "D", "A"), "does not use A")


def test_index_maps_are_python() -> None:
    i, j = map(loop_var, "ij")
    assert mapped(lambda i, j: (2 * i + 1, 7 - j, (i - j) % 3), (i, j))[:2] == (2 * i + 1, 7 - j)
    assert mapped(lambda i, j: 3, (i, j)) == (3,)
