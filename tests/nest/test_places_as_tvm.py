"""Regions of well-known programs: the loops and conditions that TVM's own tests expect."""

from __future__ import annotations

from typing import Any

import torch
from sympy import Symbol
from torch.utils._sympy.functions import FloorDiv, Mod

from smelt.nest.ir import Block, For, Kernel
from smelt.nest.primitives.caches import cache_read
from smelt.nest.primitives.inline import reverse_compute_inline
from smelt.nest.primitives.places import compute_at, reverse_compute_at
from smelt.nest.scopes import place_of_stage
from smelt.nest.tree import rewritten, with_body
from smelt.ops import ops
from smelt.records import replace
from tests.nest.staging import Program, extents_of, loops_of, same, stage
from tests.nest.test_places import load, split


def below(i: Any, number: int) -> Any:
    return ops.lt(ops.index_expr(i, torch.int64), ops.constant(number, torch.int64))


def from_on(i: Any, number: int) -> Any:
    return ops.ge(ops.index_expr(i, torch.int64), ops.constant(number, torch.int64))


def reorder(kernel: Kernel, name: str, *order: int) -> Kernel:
    place = place_of_stage(kernel, name)
    assert place is not None
    nest, top = place.stmt, place.loops[0]
    for number in reversed(order):
        nest = replace(place.loops[number], body=Block((nest,)))
    return with_body(
        kernel, rewritten(kernel.body, lambda s: (nest,) if isinstance(s, For) and s is top else None)
    )


def values(kernel: Kernel, name: str) -> list[str]:
    return [str(axis.value) for axis in stage(kernel, name).axes]


def where(kernel: Kernel, name: str) -> list[str]:
    return [str(each) for each in stage(kernel, name).where]


def test_pooling_reads_a_border() -> None:
    p = Program(X=(24, 24))
    p.compute("cache", (24, 24), lambda h, w: load("X", h, w))

    def window(h: Any, w: Any, a: Any, b: Any) -> Any:
        rows = ops.logical_and(from_on(h + a, 1), below(h + a, 25))
        columns = ops.logical_and(from_on(w + b, 1), below(w + b, 25))
        inside = ops.logical_and(rows, columns)
        return ops.masked(inside, lambda: load("cache", h + a - 1, w + b - 1), 0.0)

    p.reduce("Y", (24, 24), (3, 3), window, "max")
    first = p.kernel("Y")
    kernel = reorder(split(split(first, "Y", 0, 8), "Y", 2, 8), "Y", 0, 2, 1, 3, 4, 5)
    at = compute_at(kernel, "cache", loops_of(kernel, "Y")[1])
    assert extents_of(at, "cache") == [3, 3, 10, 10] and len(where(at, "cache")) == 4
    same(first, at)


def test_convolution_in_uneven_tiles() -> None:
    p = Program(x=(1, 3, 20, 20), w=(4, 3, 3, 3))
    p.compute("cache", (1, 3, 20, 20), lambda *at: load("x", *at))
    p.reduce(
        "y",
        (1, 4, 18, 18),
        (3, 3, 3),
        lambda n, c, h, w, a, b, d: ops.mul(
            load("cache", n, FloorDiv(c, 4) * 3 + a, h + b, w + d), load("w", c, a, b, d)
        ),
    )
    kernel = split(split(p.kernel("y"), "y", 2, 5), "y", 4, 5)
    kernel = reorder(kernel, "y", 2, 4, 0, 1, 3, 5, 6, 7, 8)
    at = compute_at(kernel, "cache", loops_of(kernel, "y")[1])
    assert extents_of(at, "cache") == [4, 4, 3, 7, 7] and len(where(at, "cache")) == 2


def test_concatenated_pieces() -> None:
    p = Program(x=(16,), y=(8,))
    p.compute("a", (16,), lambda i: load("x", i))
    p.compute("b", (8,), lambda i: load("y", i))

    def both(i: Any) -> Any:
        last = ops.masked(from_on(i, 16), lambda: load("b", i - 16), 0.0)
        return ops.where(from_on(i, 16), last, ops.masked(below(i, 16), lambda: load("a", i), 0.0))

    p.compute("c", (24,), both)
    first = p.kernel("c")
    i = loops_of(first, "c")[0]
    at = compute_at(compute_at(first, "a", i), "b", i)
    assert where(at, "a") == [f"{i} < 16"] and where(at, "b") == [f"{i} >= 16"]
    same(first, at)


def test_a_slice_of_what_is_concatenated() -> None:
    p = Program(X=(16, 4), Z=(53, 4))
    p.compute("c", (16, 4), lambda i, j: load("X", i, j))

    def both(i: Any, j: Any) -> Any:
        last = ops.masked(from_on(i, 85), lambda: load("c", i - 85, j), 0.0)
        return ops.where(from_on(i, 85), last, ops.masked(below(i, 53), lambda: load("Z", i, j), 1.0))

    p.compute("cat", (101, 4), both)
    p.compute("slice", (1, 87, 4), lambda n, i, j: load("cat", i, j))
    first = p.kernel("slice")
    n = loops_of(first, "slice")[0]
    at = compute_at(compute_at(first, "cat", n), "c", n)
    assert extents_of(at, "cat") == [1, 87, 4] and extents_of(at, "c") == [1, 2, 4]
    same(first, at)


def test_indices_that_run_backwards() -> None:
    p = Program(X=(10, 10))
    p.compute("b0", (10, 10), lambda i, j: load("X", i, j))
    p.compute("b1", (10, 10), lambda i, j: load("b0", 9 - j, 9 - i))
    kernel = p.kernel("b1")
    i = loops_of(kernel, "b1")[0]
    at = compute_at(kernel, "b0", i)
    assert values(at, "b0") == ["ax0", f"9 - {i}"]
    same(kernel, at)


def test_groups_that_tiles_cut() -> None:
    p = Program(X=(45,))
    p.compute("init", (45,), lambda i: load("X", i))
    p.compute("y", (720, 2), lambda c, h: load("init", FloorDiv(c, 16)))
    kernel = split(p.kernel("y"), "y", 0, 360)
    assert extents_of(compute_at(kernel, "init", loops_of(kernel, "y")[0]), "init") == [2, 23]


def test_packed_layouts() -> None:
    p = Program(A=(1, 3, 5, 5, 16))
    p.compute("B", (1, 3, 5, 5, 16), lambda *at: load("A", *at))
    p.compute(
        "C",
        (1, 6, 5, 5, 8),
        lambda a, b, c, d, e: load("B", a, FloorDiv(b * 8 + e, 16), c, d, Mod(b * 8 + e, 16)),
    )
    kernel = p.kernel("C")
    at = reverse_compute_at(kernel, "C", loops_of(kernel, "B")[1])
    assert extents_of(at, "C") == [1, 3, 2, 5, 5, 8]
    same(kernel, at)
    same(kernel, reverse_compute_inline(kernel, "C"))


def test_digits_of_digits() -> None:
    p = Program(A=(1, 128, 16, 8, 2, 32, 2))
    p.compute("B", (1, 128, 16, 8, 2, 32, 2), lambda *at: load("A", *at))
    p.compute(
        "C",
        (3, 512, 512),
        lambda a, b, c: load(
            "B",
            FloorDiv(a, 8),
            FloorDiv(b, 4),
            FloorDiv(c, 32),
            a,
            FloorDiv(Mod(b, 4), 2),
            Mod(c, 32),
            Mod(b, 2),
        ),
    )
    kernel = p.kernel("C")
    assert extents_of(reverse_compute_at(kernel, "C", loops_of(kernel, "B")[2]), "C") == [
        1,
        128,
        16,
        3,
        4,
        32,
    ]


def test_more_is_produced_than_used() -> None:
    p = Program(A=(12, 12))
    p.compute("B", (12, 12), lambda i, j: load("A", i, j))
    p.compute("C", (11, 11), lambda i, j: load("B", i, j))
    kernel = p.kernel("C")
    into = reverse_compute_inline(kernel, "C")
    assert sorted(where(into, "B")) == ["i < 11", "j < 11"]
    same(kernel, into)


def test_multiples_of_a_size() -> None:
    n = Symbol("n", integer=True, positive=True)
    p = Program(X=(8, n * 32))
    p.compute("Y", (8, n * 32), lambda i, j: load("X", i, j))
    kernel, copy = cache_read(split(p.kernel("Y"), "Y", 1, 32), "Y", 0, "global")
    at = compute_at(kernel, copy, loops_of(kernel, "Y")[1])
    assert extents_of(at, copy) == [8, n, 32] and not where(at, copy)
