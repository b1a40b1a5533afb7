"""Every primitive keeps what a nest computes (by the nest interpreter), and refuses what would change it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from sympy import Expr, Integer, Symbol

from smelt.nest.interpreter import run_kernel
from smelt.nest.ir import (
    Accumulate,
    Axis,
    AxisKind,
    Block,
    For,
    Kernel,
    Let,
    LoopKind,
    Masked,
    Param,
    Prefetch,
    Stage,
    Store,
    Update,
)
from smelt.nest.primitives import (
    ScheduleError,
    cascade,
    flatten_accesses,
    fuse,
    fuses_cleanly,
    hoist,
    interchange,
    jam,
    parallelize,
    partition,
    reorder,
    split,
    tile,
    unroll,
    vectorize,
)
from smelt.nest.primitives.reductions import decompose_reduction
from smelt.nest.stages import dissolve
from smelt.nest.tree import find, loops, walk
from smelt.nest.verify import verify
from smelt.symbolic import contiguous_strides, loop_var

F32 = torch.float32
I0, I1 = loop_var("i0"), loop_var("i1")
ROW, TERM = loop_var("row"), loop_var("term")
N = Symbol("s0", integer=True, positive=True)


def loop(var: Symbol, end: Expr | int, *stmts: object) -> For:
    return For(var, Integer(0), Integer(end) if isinstance(end, int) else end, Block(stmts))  # type: ignore[arg-type]


def param(name: str, *shape: Expr | int, written: bool = False) -> Param:
    sizes = tuple(Integer(s) if isinstance(s, int) else s for s in shape)
    return Param(name, F32, sizes, contiguous_strides(sizes), written)


def scaled(rows: Expr | int = 6, columns: int = 10) -> Kernel:
    """y[i, j] = x[i, j] * sqrt(w[i])"""
    body = loop(
        I0,
        rows,
        loop(
            I1,
            columns,
            Let("v0", F32, "load", ("x", (I0, I1))),
            Let("v1", F32, "load", ("w", (I0,))),
            Let("v2", F32, "sqrt", ("v1",)),
            Let("v3", F32, "mul", ("v0", "v2")),
            Store("y", (I0, I1), "v3"),
        ),
    )
    params = (param("x", rows, columns), param("w", rows), param("y", rows, columns, written=True))
    return Kernel("scaled", params, (N,) if rows is N else (), Block((body,)))


def bordered() -> Kernel:
    """Columns from the third on are a number."""
    x, y = param("x", 6, 10), param("y", 6, 10, written=True)
    inside = (
        Let("column", torch.int64, "index_expr", (I1,)),
        Let("three", torch.int64, "constant", (3,)),
        Let("mask", torch.bool, "lt", ("column", "three")),
        Masked("v1", F32, "mask", Block((Let("v0", F32, "load", ("x", (I0, I1))),)), "v0", 0.5),
        Store("y", (I0, I1), "v1"),
    )
    return Kernel("bordered", (x, y), (), Block((loop(I0, 6, loop(I1, 10, *inside)),)))


def copied(rows: int = 6, columns: int = 10) -> Kernel:
    """y = x, both row-major: the two loops are one."""
    body = loop(
        I0, rows, loop(I1, columns, Let("v0", F32, "load", ("x", (I0, I1))), Store("y", (I0, I1), "v0"))
    )
    params = (param("x", rows, columns), param("y", rows, columns, written=True))
    return Kernel("copied", params, (), Block((body,)))


def summed(rows: int = 6, columns: int = 10) -> Kernel:
    """y[i] = sum_j x[i, j]"""
    body = loop(
        I0,
        rows,
        Accumulate("acc", "sum", F32),
        loop(I1, columns, Let("v0", F32, "load", ("x", (I0, I1))), Update("acc", "v0")),
        Let("v1", F32, "read", ("acc", 0)),
        Store("y", (I0,), "v1"),
    )
    return Kernel("summed", (param("x", rows, columns), param("y", rows, written=True)), (), Block((body,)))


def running() -> Kernel:
    """y[i + 1] = y[i] + x[i]: each iteration reads what the iteration before wrote."""
    body = loop(
        I0,
        8,
        Let("v0", F32, "load", ("y", (I0,))),
        Let("v1", F32, "load", ("x", (I0,))),
        Let("v2", F32, "add", ("v0", "v1")),
        Store("y", (I0 + 1,), "v2"),
    )
    return Kernel("running", (param("x", 8), param("y", 9, written=True)), (), Block((body,)))


def blocks(kernel: Kernel, var: Symbol, factor: int) -> tuple[Kernel, Symbol]:
    """A plain loop cut into blocks, and the loop inside one."""
    kernel, (_, inner) = split(kernel, var, [None, factor], plain=True)
    return kernel, inner


def outcome(kernel: Kernel, rows: int = 6) -> torch.Tensor:
    verify(kernel)
    torch.manual_seed(0)
    sizes = {N: rows}
    memory = {}
    for each in kernel.params:
        count = 1
        for size in each.shape:
            count *= int(size.subs(sizes))
        memory[each.name] = torch.rand(count)
    run_kernel(kernel, memory, sizes)
    return memory["y"]


CHANGES: dict[str, tuple[Callable[[], Kernel], Callable[[Kernel], Kernel]]] = {
    "flatten": (scaled, flatten_accesses),
    "fuse": (copied, lambda k: fuse(flatten_accesses(k), [I0, I1], plain=True)[0]),
    "fuse under a new name": (copied, lambda k: fuse(flatten_accesses(k), [I0, I1])[0]),
    "fuse with division": (scaled, lambda k: fuse(flatten_accesses(k), [I0, I1], plain=True)[0]),
    "split evenly": (scaled, lambda k: blocks(flatten_accesses(k), I1, 5)[0]),
    "split with a rest": (scaled, lambda k: blocks(flatten_accesses(k), I1, 4)[0]),
    "split of a size": (lambda: scaled(N), lambda k: blocks(flatten_accesses(k), I0, 4)[0]),
    "split under a condition": (scaled, lambda k: split(flatten_accesses(k), I1, [None, 2, 2])[0]),
    "partition": (scaled, lambda k: partition(flatten_accesses(k), I1, [3, None, 2])[0]),
    "reorder": (scaled, lambda k: reorder(flatten_accesses(k), [I1, I0])),
    "peel": (scaled, lambda k: partition(flatten_accesses(k), I1, [8, None], plain=True)[0]),
    "peel around a loop": (scaled, lambda k: partition(flatten_accesses(k), I0, [4, None], plain=True)[0]),
    "interchange": (scaled, lambda k: interchange(flatten_accesses(k), I0)),
    "tile": (scaled, lambda k: tile(flatten_accesses(k), I0, 4, 3)[0]),
    "tile of a size": (lambda: scaled(N), lambda k: tile(flatten_accesses(k), I0, 4, 3)[0]),
    "parallelize": (scaled, lambda k: parallelize(flatten_accesses(k), I0)),
    "parallelize around a sum": (summed, lambda k: parallelize(flatten_accesses(k), I0)),
    "vectorize": (scaled, lambda k: vectorize(flatten_accesses(k), I1, 4)),
    "vectorize a sum": (summed, lambda k: vectorize(flatten_accesses(k), I1, 4)),
    "vectorize around a sum": (summed, lambda k: vectorize(flatten_accesses(k), I0, 4)),
    "unroll": (scaled, lambda k: unroll(k, I1)),
    "cascade": (summed, lambda k: cascade(blocks(flatten_accesses(k), I1, 4)[0], I1)),
    "hoist": (scaled, lambda k: hoist(flatten_accesses(k))),
    "jam": (summed, lambda k: jam(flatten_accesses(k), I0)),
    "jam inside": (scaled, lambda k: jam(*blocks(interchange(flatten_accesses(k), I0), I0, 3))),
    "jam what is masked": (bordered, lambda k: jam(flatten_accesses(k), I1)),
    "jam a block": (summed, lambda k: jam(*blocks(flatten_accesses(k), I0, 3))),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("rows", [1, 6, 9])
def test_a_primitive_changes_no_result(name: str, rows: int) -> None:
    make, change = CHANGES[name]
    kernel = make()
    if not kernel.sizes:
        rows = 6
    changed = change(kernel)
    assert changed != kernel
    exact = name != "cascade"  # parts of a sum are rounded on their way
    torch.testing.assert_close(
        outcome(changed, rows), outcome(kernel, rows), rtol=0 if exact else 2e-7, atol=0
    )


REFUSED: dict[str, tuple[Kernel, Callable[[Kernel], object], str]] = {
    "parallel recurrence": (running(), lambda k: parallelize(k, I0), "two iterations|another"),
    "vector recurrence": (running(), lambda k: vectorize(k, I0, 4), "two iterations|another"),
    "parallel sum": (summed(), lambda k: parallelize(flatten_accesses(k), I1), "accumulator acc"),
    "fuse around a sum": (summed(), lambda k: fuse(k, [I0, I1], plain=True), "not the whole body"),
    "interchange around a sum": (summed(), lambda k: interchange(k, I0), "not exactly one loop"),
    "unroll of a size": (scaled(N), lambda k: unroll(k, I0), "s0 iterations"),
    "jam of a size": (scaled(N), lambda k: jam(k, I0), "s0 iterations"),
    "jam of a sum": (summed(), lambda k: jam(flatten_accesses(k), I1), "accumulator acc"),
    "peel of all": (
        scaled(),
        lambda k: partition(k, I1, [10, None], plain=True),
        "i1 has 10 iterations",
    ),
    "peel of a size": (
        scaled(N),
        lambda k: partition(k, I0, [4, None], plain=True),
        "s0 of i0 is no number",
    ),
    "fuse of two kinds": (
        parallelize(flatten_accesses(scaled()), I0),
        lambda k: fuse(k, [I0, I1], plain=True),
        "i0 is parallel, i1 is serial",
    ),
    "interchange of a recurrence": (
        Kernel("twice", running().params, (), Block((loop(I1, 2, *running().body.stmts),))),
        lambda k: interchange(k, I1),
        "two iterations|another",
    ),
    "split in three": (scaled(), lambda k: split(k, I0, [None, 2, 2], plain=True), "becomes two"),
    "split of a split": (
        blocks(scaled(), I1, 4)[0],
        lambda k: blocks(k, loops(k.body)[-1].var, 2),
        "does not begin at 0",
    ),
    "vector around vector": (
        vectorize(flatten_accesses(scaled()), I1, 4),
        lambda k: vectorize(k, I0, 4),
        "inside is vector",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_change_results_is_refused(name: str) -> None:
    kernel, change, why = REFUSED[name]
    with pytest.raises(ScheduleError, match=why) as caught:
        change(kernel)
    assert caught.value.code in ("SM1003", "SM1004", "SM1005", "SM1008")


NO_LOOP: dict[str, Callable[[Kernel, Symbol], object]] = {
    "cascade": cascade,
    "fuse": lambda k, v: fuse(k, [v]),
    "interchange": interchange,
    "jam": jam,
    "parallelize": parallelize,
    "partition": lambda k, v: partition(k, v, [2, None]),
    "reorder": lambda k, v: reorder(k, [v, I0]),
    "split": lambda k, v: split(k, v, [None, 2]),
    "tile": lambda k, v: tile(k, v, 2, 2),
    "unroll": unroll,
    "vectorize": lambda k, v: vectorize(k, v, 4),
}


@pytest.mark.parametrize("name", NO_LOOP)
def test_a_loop_that_is_not_there_is_told_of(name: str) -> None:
    with pytest.raises(ScheduleError, match="no such loop") as caught:
        NO_LOOP[name](scaled(), loop_var("nobody"))
    assert caught.value.code == "SM1002"


def test_cascade_takes_sums_only() -> None:
    kernel = summed()
    product = Kernel(
        "product",
        kernel.params,
        (),
        Block(
            (
                Accumulate("acc", "prod", F32),
                loop(I0, 6, loop(I1, 10, Let("v0", F32, "load", ("x", (I0, I1))), Update("acc", "v0"))),
            )
        ),
    )
    with pytest.raises(ScheduleError, match="is a prod"):
        cascade(product, I0)


def test_merging_is_clean_only_where_memory_is_contiguous() -> None:
    assert fuses_cleanly(flatten_accesses(copied()), I0)
    assert not fuses_cleanly(flatten_accesses(scaled()), I0)


def test_hoist_moves_the_square_root_out_of_the_inner_loop() -> None:
    inner = find(hoist(flatten_accesses(scaled())).body, I1)
    assert [stmt.op for stmt in walk(inner.body) if isinstance(stmt, Let)] == ["load", "mul"]


def test_hoist_keeps_a_load_of_what_the_loop_stores() -> None:
    body = loop(
        I0,
        4,
        Let("v0", F32, "load", ("y", (Integer(0),))),
        Let("v1", F32, "add", ("v0", "v0")),
        Store("y", (I0,), "v1"),
    )
    kernel = Kernel("k", (param("x", 4), param("y", 4, written=True)), (), Block((body,)))
    assert hoist(kernel) == kernel


def test_hoist_brings_what_two_loops_share_out_once() -> None:
    zero = Let("zero", F32, "constant", (0.0,))
    body = [loop(I0, 4, zero, Store("y", (I0 + 4 * k,), "zero")) for k in range(2)]
    kernel = hoist(Kernel("k", (param("y", 8, written=True),), (), Block(tuple(body))))
    verify(kernel)
    assert kernel.body.stmts[0] == zero and len(kernel.body.stmts) == 3


def test_what_turns_prefetch_alike_is_prefetched_once() -> None:
    """Jamming makes copies of what differs from iteration to iteration only; no value changes."""
    alike, own = Prefetch("x", (I0 + 100,)), Prefetch("x", (I0 * 8 + I1,))
    steps = (alike, own, Let("v0", F32, "load", ("x", (I0,))), Store("y", (I0, I1), "v0"))
    kernel = Kernel(
        "k", (param("x", 6), param("y", 6, 2, written=True)), (), Block((loop(I0, 6, loop(I1, 2, *steps)),))
    )
    jammed = hoist(flatten_accesses(jam(kernel, I1)))
    verify(jammed)
    found = [str(stmt.index[0] - 8 * I0) for stmt in walk(jammed.body) if isinstance(stmt, Prefetch)]
    assert found == ["100 - 7*i0", "0", "1"]
    x, y = torch.arange(6.0), torch.zeros(12)
    run_kernel(jammed, {"x": x, "y": y})
    assert y.tolist() == x.repeat_interleave(2).tolist()


def test_vector_and_parallel_are_marks_on_the_loop() -> None:
    kernel = parallelize(vectorize(flatten_accesses(scaled()), I1, 4), I0)
    assert [each.kind for each in loops(kernel.body)] == [LoopKind.PARALLEL, LoopKind.VECTOR]
    assert find(kernel.body, I1).step == 4


def test_two_offsets_of_one_buffer_conflict() -> None:
    """y[i] and y[i + 3] in one loop: iterations 0 and 3 touch the same element."""
    body = loop(I0, 8, Let("v0", F32, "load", ("y", (I0 + 3,))), Store("y", (I0,), "v0"))
    kernel = Kernel("k", (param("y", 11, written=True),), (), Block((body,)))
    with pytest.raises(ScheduleError):
        parallelize(kernel, I0)


def test_overlapping_rows_conflict() -> None:
    """y[4*i + j] with j up to 5: the rows overlap."""
    body = loop(I0, 4, loop(I1, 6, Let("v0", F32, "load", ("x", (I1,))), Store("y", (4 * I0 + I1,), "v0")))
    kernel = Kernel("k", (param("x", 6), param("y", 18, written=True)), (), Block((body,)))
    with pytest.raises(ScheduleError, match="same element"):
        parallelize(kernel, I0)


def test_a_loop_that_reads_beyond_all_that_it_writes_is_parallel() -> None:
    body = loop(I0, 8, Let("v0", F32, "load", ("y", (I0 + 8,))), Store("y", (I0,), "v0"))
    kernel = Kernel("k", (param("y", 16, written=True),), (), Block((body,)))
    assert find(parallelize(kernel, I0).body, I0).kind is LoopKind.PARALLEL


def test_first_values_of_a_triangle_have_the_loop_that_bounds_theirs() -> None:
    """The init goes through `i in 4 - k`, and k is reduced over: the nest of first values needs its own k."""
    body = Block((Let("v0", F32, "load", ("x", (TERM,))), Store("y", (ROW,), "v0", "add")))
    first = Block((Let("zero", F32, "constant", (0.0,)), Store("y", (ROW,), "zero")))
    axes = (Axis(ROW, Integer(4), I1), Axis(TERM, Integer(4), I0, AxisKind.REDUCE))
    nest = loop(I0, 4, loop(I1, 4 - I0, Stage("C", axes, body, first)))
    kernel = Kernel("triangle", (param("x", 4), param("y", 4, written=True)), (), Block((nest,)))
    changed, begun, rest = decompose_reduction(kernel, "C", I0)
    assert (begun, rest) == ("C_init", "C_update")
    torch.testing.assert_close(outcome(dissolve(changed)), outcome(dissolve(kernel)), rtol=0, atol=0)
