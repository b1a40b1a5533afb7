"""Where stages are computed: what a kernel computes stays, and what would change it is refused."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from sympy import Integer, Symbol
from torch.utils._sympy.functions import FloorDiv, Mod

from smelt.nest.ir import Alloc, Block, For, Kernel, LoopKind, Stage
from smelt.nest.primitives import ScheduleError
from smelt.nest.primitives.caches import cache_read, cache_write
from smelt.nest.primitives.compact import compact
from smelt.nest.primitives.inline import compute_inline, inverted, reverse_compute_inline
from smelt.nest.primitives.places import compute_at, reverse_compute_at
from smelt.nest.scopes import place_of_stage
from smelt.nest.stages import Fresh, dissolve, names_of
from smelt.nest.tree import replace_loop, rewritten, stages, walk, with_body
from smelt.ops import ops
from smelt.records import replace
from smelt.symbolic import loop_var
from tests.nest.staging import Program, extents_of, loops_of, same, stage
from tests.support.refusals import refused

F32 = torch.float32


def number(value: float) -> Any:
    return ops.constant(value, F32)


def load(name: str, *index: Any) -> Any:
    return ops.load(name, list(index))


def chain(n: Any = 12, m: Any = 8) -> Kernel:
    """B = 2A; C = B + 1; D[i] = max(C[i], C[i + 2])."""
    p = Program(A=(n, m))
    p.compute("B", (n, m), lambda i, j: ops.mul(load("A", i, j), number(2.0)))
    p.compute("C", (n, m), lambda i, j: ops.add(load("B", i, j), number(1.0)))
    p.compute("D", (n - 2, m), lambda i, j: ops.maximum(load("C", i, j), load("C", i + 2, j)))
    return p.kernel("D")


def product(n: int = 8, m: int = 6, k: int = 4) -> Kernel:
    """C = A @ B; D = relu(C)."""
    p = Program(A=(n, k), B=(k, m))
    p.reduce("C", (n, m), (k,), lambda i, j, r: ops.mul(load("A", i, r), load("B", r, j)))
    p.compute("D", (n, m), lambda i, j: ops.maximum(load("C", i, j), number(0.0)))
    return p.kernel("D")


def split(kernel: Kernel, name: str, depth: int, factor: int) -> Kernel:
    """A loop around one stage in two, with a condition at the tail."""
    place = place_of_stage(kernel, name)
    assert place is not None
    var = loops_of(kernel, name)[depth]
    fresh = Fresh(names_of(kernel))
    out, inner = fresh(f"{var}_0"), fresh(f"{var}_1")
    value = out * factor + inner

    def change(loop: For) -> tuple[For]:
        target = stage(Kernel("k", (), (), loop.body), name)
        axes = tuple(replace(axis, value=axis.value.xreplace({var: value})) for axis in target.axes)
        where = tuple(each.xreplace({var: value}) for each in target.where)
        if not (loop.end.is_Integer and loop.end % factor == 0):
            where = (*where, value < loop.end)

        def visit(block: Block) -> Block:
            return Block(
                tuple(
                    replace(target, axes=axes, where=where)
                    if each is target
                    else replace(each, body=visit(each.body))
                    for each in block.stmts
                )
            )

        body = visit(loop.body)
        inside = For(inner, Integer(0), Integer(factor), body, label=f"{loop.label}_1")
        count = FloorDiv(loop.end + factor - 1, factor)
        return (For(out, Integer(0), count, Block((inside,)), label=f"{loop.label}_0"),)

    return with_body(kernel, replace_loop(kernel.body, var, change))


# -- compute_at ----------------------------------------------------------------------------------------------


def test_compute_at_makes_what_a_turn_reads() -> None:
    kernel = chain()
    at = compute_at(kernel, "C", loops_of(kernel, "D")[0])
    same(kernel, at)
    assert extents_of(at, "C") == [10, 3, 8]
    place = place_of_stage(at, "C")
    assert place is not None
    assert [loop.label for loop in place.loops] == ["i", "ax0", "ax1"]
    inner = compute_at(at, "B", loops_of(at, "D")[0])
    same(kernel, inner)
    assert [each.name for each in stages(inner.body)] == ["B", "C", "D"]
    same(kernel, compute_at(inner, "B", loops_of(inner, "C")[1]))


def test_unit_loops_are_kept_where_they_are_asked_for() -> None:
    kernel = product()
    j = loops_of(kernel, "D")[1]
    assert extents_of(compute_at(kernel, "C", j), "C") == [8, 6, 4]
    kept = compute_at(kernel, "C", j, preserve_unit_loops=True)
    assert extents_of(kept, "C") == [8, 6, 1, 1, 4]
    same(kernel, kept, exactly=False)


def test_uneven_splits_keep_regions_inside() -> None:
    kernel = split(chain(), "D", 0, 4)
    same(chain(), kernel)
    at = compute_at(kernel, "C", loops_of(kernel, "D")[0])
    assert extents_of(at, "C") == [3, 6, 8] and stage(at, "C").where
    same(chain(), at)
    same(chain(), compute_at(at, "B", loops_of(at, "D")[0]))


def test_a_condition_of_the_producer_is_forgotten_with_its_loops() -> None:
    kernel = split(chain(), "C", 0, 5)
    assert stage(kernel, "C").where
    at = compute_at(kernel, "C", loops_of(kernel, "D")[1])
    assert not stage(at, "C").where and extents_of(at, "C") == [10, 8, 3]
    same(chain(), at)


def test_sizes_may_be_symbols() -> None:
    n = Symbol("n", integer=True, positive=True)
    kernel = chain(n, n)
    same(kernel, compute_at(kernel, "C", loops_of(kernel, "D")[0]), {n: 7})
    same(kernel, reverse_compute_at(kernel, "C", loops_of(kernel, "B")[0]), {n: 7})
    uneven = split(kernel, "D", 1, 4)
    same(kernel, compute_at(uneven, "C", loops_of(uneven, "D")[1]), {n: 7})


@pytest.mark.parametrize(
    ("shape", "where"),
    [
        ((3, 16), lambda i: (FloorDiv(i, 16), Mod(i, 16))),
        ((48,), lambda i: (47 - i,)),
        ((4,), lambda i: (FloorDiv(i, 12),)),
        ((96,), lambda i: (2 * i + 1,)),
        ((60,), lambda i: (i + 5,)),
    ],
)
def test_regions_follow_the_index(shape: tuple[int, ...], where: Callable[[Any], tuple[Any, ...]]) -> None:
    p = Program(A=shape)
    p.compute("B", shape, lambda *at: ops.mul(load("A", *at), number(3.0)))
    p.compute("C", (48,), lambda i: load("B", *where(i)))
    kernel = split(p.kernel("C"), "C", 0, 8)
    for var in loops_of(kernel, "C"):
        same(kernel, compute_at(kernel, "B", var))
    var = loops_of(kernel, "B")[0]
    same(kernel, reverse_compute_at(kernel, "C", var))


def test_the_place_among_the_statements_of_a_loop() -> None:
    p = Program(A=(6, 4))
    p.compute("B", (6, 4), lambda i, j: ops.mul(load("A", i, j), number(2.0)))
    p.compute("C", (6, 4), lambda i, j: ops.mul(load("A", i, j), number(3.0)))
    p.compute("D", (6, 4), lambda i, j: ops.add(load("B", i, j), load("C", i, j)))
    kernel = p.kernel("D")
    i = loops_of(kernel, "D")[0]
    first = compute_at(kernel, "C", i)
    late, early = compute_at(first, "B", i), compute_at(first, "B", i, index=-2)
    assert [each.name for each in stages(late.body)] == ["C", "B", "D"]
    assert [each.name for each in stages(early.body)] == ["B", "C", "D"]
    same(kernel, late)
    same(kernel, early)
    refused("SM1025", lambda: compute_at(first, "B", i, index=2), "0 to 1")


def test_compute_at_refuses() -> None:
    kernel = chain()
    d, c, b = (loops_of(kernel, each)[0] for each in "DCB")
    refused("SM1002", lambda: compute_at(kernel, "E", d), "'E'")
    refused("SM1002", lambda: compute_at(kernel, "C", loop_var("zz")))
    refused("SM1021", lambda: compute_at(kernel, "B", b), "ancestor of block")
    refused("SM1022", lambda: compute_at(kernel, "D", c), "output block", "compute_at")
    refused("SM1023", lambda: compute_at(kernel, "B", d), "requires all the consumers", "C is not")
    refused("SM1023", lambda: reverse_compute_at(kernel, "D", b), "requires all the producers", "C is not")
    lanes = with_body(
        kernel, replace_loop(kernel.body, d, lambda loop: (replace(loop, kind=LoopKind.VECTOR, step=2),))
    )
    refused("SM1026", lambda: compute_at(lanes, "C", d), "vector")


def test_two_writers_are_no_complete_block() -> None:
    kernel = product()
    place = place_of_stage(kernel, "C")
    assert place is not None and isinstance(place.stmt, Stage)
    nests = kernel.body.stmts
    first = replace(place.stmt, name="C_init", init=None, axes=place.stmt.axes[:2], body=place.stmt.init)
    outer = place.loops
    init = replace(outer[0], body=Block((replace(outer[1], body=Block((first,))),)))
    two = with_body(kernel, Block((nests[0], init, *nests[1:])))
    refused("SM1022", lambda: compute_at(two, "C", loops_of(two, "D")[0]), "complete block", "C_init")


def test_nothing_moves_past_a_write_of_what_it_reads() -> None:
    """B reads A before A is written over: in the loops of C it would read the new values."""
    p = Program(X=(6,))
    p.compute("A", (6,), lambda i: ops.mul(load("X", i), number(2.0)))
    p.compute("B", (6,), lambda i: ops.add(load("A", i), number(1.0)))
    p.compute("Z", (6,), lambda i: ops.mul(load("X", i), number(5.0)))
    p.compute("C", (6,), lambda i: ops.add(load("B", i), load("Z", i)))
    kernel = p.kernel("C")
    z = stage(kernel, "Z")
    stores = replace(z.body.stmts[-1], buffer="A")
    again = replace(z, body=Block((*z.body.stmts[:-1], stores)))
    text = with_body(
        kernel,
        replace_loop(
            kernel.body, loops_of(kernel, "Z")[0], lambda loop: (replace(loop, body=Block((again,))),)
        ),
    )
    refused("SM1024", lambda: compute_at(text, "B", loops_of(text, "C")[0]), "Z writes A")
    refused("SM1024", lambda: compute_inline(text, "B"), "Z writes A")


# -- reverse_compute_at --------------------------------------------------------------------------------------


def test_reverse_compute_at_follows_what_a_turn_makes() -> None:
    kernel = product()
    i, j, _ = loops_of(kernel, "C")
    for var, extents in ((i, [8, 6]), (j, [8, 6])):
        at = reverse_compute_at(kernel, "D", var)
        assert extents_of(at, "D") == extents
        same(kernel, at, exactly=False)
    tiled = split(split(kernel, "C", 0, 3), "C", 2, 4)
    for var in loops_of(tiled, "C")[:4]:
        same(kernel, reverse_compute_at(tiled, "D", var), exactly=False)


def test_a_consumer_may_be_computed_again_until_its_input_is_final() -> None:
    """Each iteration of k adds to what D reads: the last iteration's D is right."""
    kernel = product()
    same(kernel, reverse_compute_at(kernel, "D", loops_of(kernel, "C")[2]), exactly=False)


def test_two_reductions_in_one_loop() -> None:
    p = Program(A=(6, 5))
    p.reduce("B", (6,), (5,), lambda i, r: load("A", i, r))
    p.reduce("C", (), (6,), lambda r: load("B", r))
    kernel = p.kernel("C")
    into = reverse_compute_at(kernel, "C", loops_of(kernel, "B")[0])
    assert extents_of(into, "C") == [6]
    same(kernel, into, exactly=False)
    same(kernel, compute_at(kernel, "B", loops_of(kernel, "C")[0]), exactly=False)


def test_no_term_is_added_twice() -> None:
    p = Program(A=(6, 5))
    p.reduce("B", (6,), (5,), lambda i, r: load("A", i, r))
    p.reduce("C", (), (6,), lambda r: load("B", r))
    kernel = p.kernel("C")
    refused("SM1027", lambda: reverse_compute_at(kernel, "C", loops_of(kernel, "B")[1]), "twice")


def test_turns_of_a_parallel_loop_write_elements_of_their_own() -> None:
    kernel = chain()

    def parallel(var: Symbol) -> Kernel:
        change = lambda loop: (replace(loop, kind=LoopKind.PARALLEL),)  # noqa: E731
        return with_body(kernel, replace_loop(kernel.body, var, change))

    b, c = loops_of(kernel, "B")[0], loops_of(kernel, "C")[0]
    same(kernel, reverse_compute_at(parallel(b), "C", b))
    refused("SM1027", lambda: reverse_compute_at(parallel(c), "D", c), "parallel loop i")


# -- inline --------------------------------------------------------------------------------------------------


def test_producers_go_into_their_consumers() -> None:
    kernel = chain()
    once = compute_inline(kernel, "B")
    assert [each.name for each in stages(once.body)] == ["C", "D"]
    same(kernel, once)
    twice = compute_inline(once, "C")
    assert not [each for each in walk(twice.body) if isinstance(each, Alloc)]
    same(kernel, twice)


def test_inline_at_any_index_and_under_masks() -> None:
    p = Program(A=(4, 5))
    p.compute(
        "B",
        (4, 5),
        lambda i, j: ops.masked(
            ops.lt(ops.index_expr(i, torch.int64), ops.constant(2, torch.int64)), lambda: load("A", i, j), 7.0
        ),
    )
    p.compute(
        "C",
        (20,),
        lambda i: ops.masked(
            ops.lt(ops.index_expr(i, torch.int64), ops.constant(9, torch.int64)),
            lambda: ops.add(load("B", FloorDiv(i, 5), Mod(i, 5)), load("B", 3 - FloorDiv(i, 5), 0)),
            0.0,
        ),
    )
    kernel = p.kernel("C")
    same(kernel, compute_inline(kernel, "B"))


def test_inline_refuses() -> None:
    kernel = product()
    refused("SM1028", lambda: compute_inline(kernel, "C"), "reduction", "C")
    refused("SM1028", lambda: compute_inline(kernel, "D"), "output block")
    refused("SM1029", lambda: reverse_compute_inline(kernel, "D"), "reduction")
    refused("SM1029", lambda: reverse_compute_inline(chain(), "B"), "single producer")
    refused("SM1030", lambda: reverse_compute_inline(chain(), "D"), "2 places")
    p = Program(A=(6,))
    p.compute("B", (6,), lambda i: ops.mul(load("A", i), number(2.0)))
    p.compute("C", (6, 3), lambda i, j: load("B", i))
    p.compute("D", (6,), lambda i: load("B", 5 - i))
    kernel = p.kernel("C", "D")
    refused("SM1029", lambda: reverse_compute_inline(kernel, "C"), "other consumers", "D")
    p = Program(A=(6,))
    p.compute("B", (6,), lambda i: ops.mul(load("A", i), number(2.0)))
    p.compute("C", (6, 3), lambda i, j: load("B", i))
    refused("SM1030", lambda: reverse_compute_inline(p.kernel("C"), "C"), "v_j")


@pytest.mark.parametrize(
    ("shape", "made", "where"),
    [
        ((6, 4), (6, 4), lambda i, j: (i, j)),
        ((6, 4), (4, 6), lambda i, j: (j, i)),
        ((24,), (6, 4), lambda i, j: (4 * i + j,)),
        ((12, 2), (6, 4), lambda i, j: (FloorDiv(4 * i + j, 2), Mod(4 * i + j, 2))),
        ((6, 4), (6, 4), lambda i, j: (5 - i, j)),
        ((9, 4), (6, 4), lambda i, j: (i + 2, j)),
        ((6, 7), (6, 4), lambda i, j: (i, j)),
    ],
)
def test_consumers_go_into_their_producer(shape: Any, made: Any, where: Callable[..., Any]) -> None:
    p = Program(A=shape)
    p.compute("B", shape, lambda *at: ops.mul(load("A", *at), number(3.0)))
    p.compute("C", made, lambda i, j: ops.add(load("B", *where(i, j)), ops.index_expr(i, F32)))
    kernel = p.kernel("C")
    into = reverse_compute_inline(kernel, "C")
    assert [each.name for each in stages(into.body)] == ["B"]
    same(kernel, into)
    uneven = split(kernel, "B", 0, 5)
    same(kernel, reverse_compute_inline(uneven, "C"))


def test_a_copy_goes_into_a_reduction() -> None:
    p = Program(A=(6, 4, 5))
    p.reduce("B", (6, 4), (5,), lambda i, j, r: load("A", i, j, r))
    p.compute("C", (4, 6), lambda i, j: load("B", j, i))
    kernel = p.kernel("C")
    into = reverse_compute_inline(kernel, "C")
    assert [each.name for each in stages(into.body)] == ["B"]
    same(kernel, into, exactly=False)


def test_an_index_that_loses_something_cannot_be_turned_around() -> None:
    i, j, p = map(loop_var, "ijp")
    extents = {i: Integer(6), j: Integer(4)}
    assert isinstance(inverted((2 * i,), (p,), {i: Integer(6)}), str)
    assert isinstance(inverted((3 * i + j,), (p,), extents), str)
    assert isinstance(inverted((Mod(i, 3),), (p,), {i: Integer(6)}), str)


def padded(low: int, size: int) -> Kernel:
    """C[i] is B[i - low] where that is in B, and 0 elsewhere."""

    def inside(i: Any) -> Any:
        at, first = ops.index_expr(i, torch.int64), ops.constant(low, torch.int64)
        last = ops.constant(low + 6, torch.int64)
        return ops.logical_and(ops.ge(at, first), ops.lt(at, last))

    p = Program(A=(6,))
    p.compute("B", (6,), lambda i: ops.mul(load("A", i), number(3.0)))
    p.compute("C", (size,), lambda i: ops.masked(inside(i), lambda: load("B", i - low), 0.5))
    return p.kernel("C")


def test_elements_that_load_nothing_are_computed_too() -> None:
    """The border of a padded buffer has no element of the producer's: no iteration of its loops would make
    it.
    """
    for kernel in (padded(2, 10), padded(0, 7)):
        i = loops_of(kernel, "B")[0]
        refused(
            "SM1027", lambda kernel=kernel, i=i: reverse_compute_at(kernel, "C", i), "would not be computed"
        )
        refused("SM1030", lambda kernel=kernel: reverse_compute_inline(kernel, "C"))
        same(kernel, compute_at(kernel, "B", loops_of(kernel, "C")[0]))
        same(kernel, compute_inline(kernel, "B"))
    kernel = padded(0, 6)
    same(kernel, reverse_compute_at(kernel, "C", loops_of(kernel, "B")[0]))
    same(kernel, reverse_compute_inline(kernel, "C"))


# -- memory --------------------------------------------------------------------------------------------------


def shapes(kernel: Kernel) -> dict[str, tuple[Any, ...]]:
    return {each.buffer: each.shape for each in walk(kernel.body) if isinstance(each, Alloc)}


def test_memory_goes_into_the_loop_that_uses_it() -> None:
    kernel = chain()
    at = compute_at(compute_at(kernel, "C", loops_of(kernel, "D")[0]), "B", loops_of(kernel, "D")[0])
    small = compact(dissolve(at))
    assert shapes(small) == {"B": (3, 8), "C": (3, 8)}
    assert not [each for each in small.body.stmts if isinstance(each, Alloc)]
    same(kernel, small)


def test_a_reductions_memory_is_as_large_as_its_tile() -> None:
    kernel = product()
    cached, tile = cache_write(kernel, "C", 0, "local")
    cached = split(cached, "C", 1, 4)
    at = reverse_compute_at(cached, tile, loops_of(cached, "C")[1])
    small = compact(dissolve(at))
    assert shapes(small)["C_local"] == (1, 4)
    same(kernel, small, exactly=False)


def test_uneven_tiles_are_covered() -> None:
    kernel = split(chain(), "D", 0, 4)
    small = compact(dissolve(compute_at(kernel, "C", loops_of(kernel, "D")[0])))
    assert shapes(small)["C"] == (6, 8)
    same(chain(), small)


def test_memory_that_outlives_a_turn_stays() -> None:
    """C[i] is added to in every iteration of k: it cannot live in one."""
    p = Program(A=(4, 6))
    p.reduce("C", (4,), (6,), lambda i, r: load("A", i, r))
    p.compute("D", (4,), lambda i: load("C", i))
    kernel = p.kernel("D")
    into = reverse_compute_at(kernel, "D", loops_of(kernel, "C")[1])
    small = compact(dissolve(into))
    assert shapes(small)["C"] == (1,)
    place = [each for each in walk(small.body) if isinstance(each, For)]
    assert any(isinstance(each, Alloc) for each in place[0].body.stmts)
    assert not any(isinstance(each, Alloc) for each in place[1].body.stmts)
    same(kernel, small, exactly=False)


def test_a_value_is_taken_before_the_next_turn_overwrites_it() -> None:
    """A[0] is another number in each iteration of i; B[i] keeps it."""
    p = Program(X=(6,))
    p.compute("A", (6,), lambda i: ops.mul(load("X", i), number(2.0)))
    p.compute("B", (6,), lambda i: ops.add(load("A", i), number(1.0)))
    p.compute("C", (6,), lambda i: ops.mul(load("B", i), number(3.0)))
    kernel = p.kernel("C")
    near = reverse_compute_at(kernel, "B", loops_of(kernel, "A")[0])
    first, second = stage(near, "A"), stage(near, "B")
    store = replace(first.body.stmts[-1], index=(Integer(0),))
    read = replace(second.body.stmts[0], args=("A", (Integer(0),)))
    one = replace(first, body=Block((*first.body.stmts[:-1], store)))
    two = replace(second, body=Block((read, *second.body.stmts[1:])))
    changed = with_body(
        near,
        rewritten(near.body, lambda s: (one,) if s is first else (two,) if s is second else None),
    )
    same(kernel, changed)
    refused("SM1024", lambda: compute_inline(changed, "B"), "later iterations")
    refused("SM1024", lambda: compute_at(changed, "B", loops_of(changed, "C")[0]), "later iterations")


def window() -> Kernel:
    """B[i] is the sum of three neighbours of A's double, C of two of B's."""
    p = Program(X=(9,))
    p.compute("A", (9,), lambda i: ops.mul(load("X", i), number(2.0)))
    p.reduce("B", (7,), (3,), lambda i, k: load("A", i + k))
    p.compute("C", (6,), lambda i: ops.sub(load("B", i), load("B", i + 1)))
    return p.kernel("C")


def turned() -> Kernel:
    """Pieces of four, and back in another order."""
    p = Program(X=(12,))
    p.compute("A", (3, 4), lambda i, j: ops.mul(load("X", 4 * i + j), number(2.0)))
    p.compute("B", (12,), lambda i: load("A", FloorDiv(i, 4), Mod(i, 4)))
    p.compute("C", (4, 3), lambda i, j: ops.add(load("B", 11 - 3 * i - j), load("X", i)))
    return p.kernel("C")


# -- all together --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(40))
def test_random_moves_keep_what_is_computed(seed: int) -> None:
    """Whatever is not refused leaves the results as they are: as stages, as loops, in compacted memory."""
    chosen = random.Random(seed)
    first = chosen.choice([chain(5, 4), product(4, 3, 3), window(), padded(1, 8), turned()])
    kernel, done, whys = first, 0, []
    for _ in range(8):
        names = [each.name for each in stages(kernel.body)]
        name, other = chosen.choice(names), chosen.choice(names)
        loops = loops_of(kernel, other)
        move = chosen.choice(["at", "reverse", "split", "read", "write", "inline", "into", "at", "reverse"])
        try:
            if move in ("at", "reverse") and loops:
                step = compute_at if move == "at" else reverse_compute_at
                kernel = step(kernel, name, chosen.choice(loops), chosen.random() < 0.3)
            elif move == "split" and loops and len(names) < 7 and len(loops) < 5:
                alone = [d for d, var in enumerate(loops) if _holds_one(kernel, var)]
                kernel = (
                    split(kernel, other, chosen.choice(alone), chosen.choice([2, 3])) if alone else kernel
                )
            elif move == "read" and len(names) < 5:
                kernel, _ = cache_read(kernel, name, 0, "local")
            elif move == "write" and len(names) < 5:
                kernel, _ = cache_write(kernel, name, 0, "local")
            elif move == "inline":
                kernel = compute_inline(kernel, name)
            elif move == "into":
                kernel = reverse_compute_inline(kernel, name)
            done += 1
        except ScheduleError as error:
            whys.append(str(error))
            assert str(error).startswith("SM10") and name in str(error)
    same(first, kernel, exactly=False)
    same(first, compact(dissolve(kernel)), exactly=False)


def _holds_one(kernel: Kernel, var: Symbol) -> bool:
    loop = next(each for each in walk(kernel.body) if isinstance(each, For) and each.var == var)
    while isinstance(loop, For) and len(loop.body.stmts) == 1:
        loop = loop.body.stmts[0]  # type: ignore[assignment]
    return isinstance(loop, Stage)
