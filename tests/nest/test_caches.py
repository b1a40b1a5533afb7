"""Copies of buffers: what is computed stays, and the copies are where they should be."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from sympy import Integer, Symbol

from smelt.nest.ir import Alloc, Axis, Block, For, Kernel, Let, Stage
from smelt.nest.primitives.caches import cache_inplace, cache_read, cache_write, set_scope, storage_align
from smelt.nest.primitives.places import compute_at, reverse_compute_at
from smelt.nest.primitives.reindexed import reindex_cache_read, reindex_cache_write
from smelt.nest.scopes import place_of_stage
from smelt.nest.tree import rewritten, stages, walk, with_body
from smelt.ops import ops
from smelt.records import replace
from smelt.symbolic import loop_var
from tests.nest.staging import Program, extents_of, loops_of, same, stage
from tests.nest.test_places import chain, load, number, product, refused, split


def alloc(kernel: Kernel, name: str) -> Alloc:
    return next(each for each in walk(kernel.body) if isinstance(each, Alloc) and each.buffer == name)


def order(kernel: Kernel) -> list[str]:
    return [each.name for each in stages(kernel.body)]


def test_operands_and_results_have_copies() -> None:
    kernel = product()
    read, a = cache_read(kernel, "C", 0, "local")
    read, b = cache_read(read, "C", "B", "shared")
    both, c = cache_write(read, "C", 0, "global")
    assert (a, b, c) == ("A_local", "B_shared", "C_global")
    assert order(both) == ["B_shared", "A_local", "C", "C_global", "D"]
    assert alloc(both, "A_local").scope == "local" and alloc(both, "C_global").scope == ""
    same(kernel, both, exactly=False)
    j = loops_of(both, "C")[1]
    near = reverse_compute_at(compute_at(compute_at(both, a, j), b, j), c, j)
    assert extents_of(near, a) == [8, 6, 4] and extents_of(near, c) == [8, 6]
    same(kernel, near, exactly=False)


def test_copies_of_copies() -> None:
    kernel = chain()
    far, one = cache_read(kernel, "C", 0, "shared")
    near, two = cache_read(far, "C", 0, "local")
    assert (one, two) == ("B_shared", "B_shared_local")
    assert order(near) == ["B", "B_shared", "B_shared_local", "C", "D"]
    same(kernel, near)
    again, three = cache_read(near, "D", 0, "local")
    again, four = cache_write(again, "C", 0, "local")
    assert three == "C_local" and four == "C_local_1"
    same(kernel, again)


def shared_loop(consumers: Sequence[str] = ("B",)) -> Kernel:
    """for i: {A; B}; C: both B and C read A."""
    p = Program(X=(12, 4))
    p.compute("A", (12, 4), lambda i, j: ops.mul(load("X", i, j), number(2.0)))
    p.compute("B", (12, 4), lambda i, j: ops.add(load("A", i, j), number(1.0)))
    p.compute("C", (12, 4), lambda i, j: ops.add(load("A", i, j), number(3.0)))
    kernel = p.kernel("B", "C")
    return reverse_compute_at(kernel, "B", loops_of(kernel, "A")[0])


def test_a_copy_is_made_between_the_writer_and_its_first_reader() -> None:
    kernel = shared_loop()
    for given, found, inside in (
        ((), ["A", "A_local", "B", "C"], 3),
        (("C",), ["A", "B", "A_local", "C"], 2),
    ):
        copied, name = cache_read(kernel, "B", 0, "local", given)
        assert order(copied) == found and len(loops_of(copied, name)) == inside
        same(kernel, copied)
    i = loops_of(kernel, "A")[0]
    assert loops_of(cache_read(kernel, "B", 0, "local")[0], "A_local")[0] == i
    assert loops_of(cache_read(kernel, "B", 0, "local", ("C",))[0], "A_local")[0] != i


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ((), ["A", "A_local", "B", "C"]),
        (("B",), ["A", "B", "A_local", "C"]),
        (("C",), ["A", "A_local", "B", "C"]),
        (("B", "C"), ["A", "B", "C", "A_local"]),
    ],
)
def test_a_result_is_copied_before_its_first_reader(given: Sequence[str], found: list[str]) -> None:
    kernel = shared_loop()
    copied, _ = cache_write(kernel, "A", 0, "local", given)
    assert order(copied) == found
    same(kernel, copied)


def test_copies_hold_what_is_used() -> None:
    """Only four columns of A are read: the copy has no others."""
    p = Program(A=(6, 9))
    p.compute("B", (6, 4), lambda i, j: load("A", i, j + 3))
    kernel = p.kernel("B")
    copied, name = cache_read(kernel, "B", 0, "local")
    assert alloc(copied, name).shape == (6, 4)
    same(kernel, copied)


def test_copies_of_what_has_conditions_and_sizes() -> None:
    n = Symbol("n", integer=True, positive=True)
    kernel = split(split(chain(n, 6), "C", 1, 4), "D", 0, 4)
    copied, _ = cache_read(kernel, "D", 0, "local")
    copied, _ = cache_write(copied, "C", 0, "local")
    same(chain(n, 6), copied, {n: 7})


def test_copies_inside_a_block_are_as_large_as_the_block_needs() -> None:
    """The scope of a stage that holds stages: memory of its own, indexed from its first element."""
    p = Program(A=(8, 6))
    p.compute("B", (8, 6), lambda i, j: ops.mul(load("A", i, j), number(2.0)))
    kernel = p.kernel("B")
    inner = stage(kernel, "B")
    v, w, i, j, k = map(loop_var, ("v", "w", "o", "p", "q"))
    rows, columns = inner.axes
    axes = (
        Axis(rows.var, Integer(8), 4 * v + j),
        Axis(columns.var, Integer(6), 3 * w + k),
    )
    held = Stage("B", axes, inner.body)
    nest = For(j, Integer(0), Integer(4), Block((For(k, Integer(0), Integer(3), Block((held,))),)))
    q = loop_var("qq")
    outer = Stage("outer", (Axis(v, Integer(2), i), Axis(w, Integer(2), q)), Block((nest,)))
    loops = For(i, Integer(0), Integer(2), Block((For(q, Integer(0), Integer(2), Block((outer,))),)))
    blocked = with_body(kernel, Block((loops,)))
    same(kernel, blocked)
    read, name = cache_read(blocked, "B", 0, "shared")
    assert alloc(read, name).shape == (4, 3)
    same(kernel, read)
    written, name = cache_write(blocked, "B", 0, "local")
    assert alloc(written, name).shape == (4, 3)
    place = place_of_stage(written, name)
    assert place is not None and place.scope is not None and place.scope.name == "outer"
    same(kernel, written)
    whole, _ = cache_write(blocked, "outer", 0, "local")
    same(kernel, whole)


def test_caches_refuse() -> None:
    kernel = chain()
    refused("SM1002", lambda: cache_read(kernel, "E", 0, "local"))
    refused("SM1031", lambda: cache_read(kernel, "B", 1, "local"), "1 buffers (A)")
    refused("SM1031", lambda: cache_read(kernel, "B", "D", "local"), "not D")
    refused("SM1031", lambda: cache_read(kernel, "B", 0, "local", ["D"]), "D does not read A")
    refused("SM1031", lambda: cache_write(kernel, "B", 1, "local"))
    refused("SM1032", lambda: cache_read(kernel, "B", 0, "attic"), "'attic'")
    refused("SM1032", lambda: cache_write(kernel, "B", 0, "attic"))


def test_two_writers_cannot_be_cached() -> None:
    kernel = chain()
    nests, first = kernel.body.stmts, stage(kernel, "B")
    again = rewritten(
        Block((nests[2],)), lambda stmt: (replace(first, name="B2"),) if stmt is first else None
    )
    twice = with_body(kernel, Block((*nests[:3], *again.stmts, *nests[3:])))
    assert order(twice) == ["B", "B2", "C", "D"]
    refused("SM1033", lambda: cache_read(twice, "C", 0, "local"), "several producers")
    refused("SM1033", lambda: cache_write(twice, "B", 0, "local"), "two producers")


def test_scopes_and_alignment() -> None:
    kernel = chain()
    local = set_scope(kernel, "B", 0, "shared")
    assert alloc(local, "B").scope == "shared" and alloc(set_scope(local, "B", 0, "global"), "B").scope == ""
    same(kernel, local)
    padded = storage_align(kernel, "B", 0, axis=0, factor=32, offset=8)
    assert alloc(padded, "B").strides == (8, 1)  # a row has 8 elements already
    assert alloc(storage_align(kernel, "B", 0, 0, 32, 16), "B").strides == (16, 1)
    assert alloc(storage_align(kernel, "B", 0, -2, 32, 0), "B").strides == (32, 1)
    refused("SM1031", lambda: set_scope(kernel, "D", 0, "local"), "parameter")
    refused("SM1032", lambda: set_scope(kernel, "B", 0, "attic"))
    refused("SM1034", lambda: storage_align(kernel, "B", 0, 2, 32, 0), "dimension 2")
    refused("SM1034", lambda: storage_align(kernel, "B", 0, 0, 0, 0), "positive")


def test_a_block_that_overwrites_what_it_reads() -> None:
    kernel = chain()
    first = stage(kernel, "C")
    read = replace(first.body.stmts[-1], buffer="B")
    new = replace(first, body=Block((*first.body.stmts[:-1], read)))
    later = stage(kernel, "D")
    loads = tuple(
        replace(s, args=("B", s.args[1])) if isinstance(s, Let) and s.op == "load" else s
        for s in later.body.stmts
    )
    last = replace(later, body=Block(loads))
    own = with_body(
        kernel, rewritten(kernel.body, lambda s: (new,) if s is first else (last,) if s is later else None)
    )
    same(kernel, own)
    cached, into, back = cache_inplace(own, "C", 0, "local")
    assert (into, back) == ("B_local", "B_local_1")
    assert order(cached) == ["B", "B_local", "C", "B_local_1", "D"]
    same(kernel, cached)
    refused("SM1031", lambda: cache_inplace(own, "D", 0, "local"), "does not write")


def test_copies_in_an_order_of_ones_own() -> None:
    kernel = chain()
    read, name = reindex_cache_read(kernel, "C", 0, "shared", lambda i, j: (j, i // 2, i % 2))
    assert name == "B_shared" and alloc(read, name).shape == (8, 6, 2)
    same(kernel, read)
    written, name = reindex_cache_write(read, "C", 0, "local", lambda i, j: j * 12 + i)
    assert alloc(written, name).shape == (96,)
    same(kernel, written)
    both = shared_loop()
    near, name = reindex_cache_read(both, "B", 0, "local", lambda i, j: (j, i))
    assert order(near) == ["A", "A_local", "B", "C"] and extents_of(near, name) == [12, 4]
    same(both, near)
    tiled = split(shared_loop(), "C", 1, 3)
    same(both, reindex_cache_read(tiled, "C", 0, "local", lambda i, j: (j, i))[0])
    refused("SM1035", lambda: reindex_cache_read(kernel, "C", 0, "shared", lambda i, j: j), "v_i, v_j")
    refused("SM1035", lambda: reindex_cache_read(kernel, "C", 0, "shared", lambda i, j: i + j))
    refused("SM1035", lambda: reindex_cache_write(kernel, "C", 0, "shared", lambda i: i))
    refused(
        "SM1031", lambda: reindex_cache_read(kernel, "D", 0, "shared", lambda i, j: (i, j)), "single place"
    )
    refused("SM1032", lambda: reindex_cache_read(kernel, "C", 0, "attic", lambda i, j: (i, j)))


def test_loads_of_the_copy_are_the_only_change() -> None:
    kernel = chain()
    copied, _ = cache_read(kernel, "C", 0, "local")
    names = [
        each.args[0] for each in walk(stage(copied, "C").body) if isinstance(each, Let) and each.op == "load"
    ]
    assert names == ["B_local"]
    assert stage(copied, "D") == stage(kernel, "D") and stage(copied, "B") == stage(kernel, "B")
