"""What random programs under random schedules have found (`tests.conformance.te_fuzz`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt
from smelt import te
from smelt.nest.interpreter import run_kernel
from smelt.nest.ir import Block, Let, Masked
from smelt.nest.tree import exchanged, stages, walk
from smelt.records import replace
from smelt.script import from_source, structural_equal
from smelt.tir import PrimFunc, Schedule, ScheduleError, Trace


def copied(n: Any = 6) -> PrimFunc:
    """B = 2*A; C[i] = B[i] where i < 6."""
    m = te.var("m")
    A = te.placeholder((n,), name="A")
    B = te.compute((n,), lambda i: A[i] * 2.0, name="B")
    C = te.compute((m,), lambda i: te.if_then_else(te.all(i >= 0, i < n), B[i], 0.0), name="C")
    return te.create_prim_func([A, C])


def total(n: Any, m: Any) -> PrimFunc:
    A, k = te.placeholder((n, m), name="A"), te.reduce_axis((0, m), "k")
    return te.create_prim_func([A, te.compute((n,), lambda i: te.sum(A[i, k], axis=k), name="B")])


def round_trips(sch: Schedule) -> None:
    assert structural_equal(from_source(sch.mod.script()), sch.mod)


def interpreted(func: PrimFunc, *buffers: torch.Tensor, **sizes: int) -> None:
    memory = {p.name: b.view(-1) for p, b in zip(func.kernel.params, buffers)}
    run_kernel(func.kernel, memory, {s: sizes[s.name] for s in func.kernel.sizes})


def test_a_size_that_no_argument_tells_is_an_argument() -> None:
    n = te.var("n")
    func = te.create_prim_func([te.compute((n,), lambda i: i.astype("float32") * 2.0, name="B")])
    lib, op = smelt.build(func), te.as_torch(func)
    for size in (0, 1, 7):
        x = torch.full((size,), 5.0)
        lib(x)
        assert torch.equal(x, torch.arange(size) * 2.0)
        assert torch.equal(op(size), x)

    def f(x: torch.Tensor) -> torch.Tensor:
        return op(x.shape[0]) + x

    assert torch.equal(torch.compile(f, backend="smelt", dynamic=True)(torch.ones(6)), f(torch.ones(6)))


def test_a_reduction_over_nothing_begins() -> None:
    func = total(te.var("n"), te.var("m"))
    for steps in ((), ("reorder",), ("split",)):
        sch = Schedule(func)
        i, k = sch.get_loops("B")
        if "reorder" in steps:
            sch.reorder(k, i)
        if "split" in steps:
            sch.split(k, [None, 4])
        found, built = torch.full((3,), 7.0), torch.full((3,), 7.0)
        interpreted(sch.func, torch.empty(3, 0), found, n=3, m=0)
        smelt.build(sch)(torch.empty(3, 0), built)
        assert found.tolist() == built.tolist() == [0.0, 0.0, 0.0]


def _beside(sch: Schedule) -> None:
    sch.compute_at("P", sch.get_loops("C")[1])


def _beside_and_outermost(sch: Schedule) -> None:
    i, k = sch.get_loops("C")
    sch.reorder(k, i)
    sch.compute_at("P", k)


def _beside_in_parts(sch: Schedule) -> None:
    i, k = sch.get_loops("C")
    outer, _ = sch.split(k, [None, 2])
    sch.reorder(outer, i)
    sch.compute_at("P", i)


def _fused(sch: Schedule) -> None:
    sch.fuse(*sch.get_loops("C"))


def _fused_and_split(sch: Schedule) -> None:
    sch.split(sch.fuse(*sch.get_loops("C")), [4, None])


def _split_and_fused(sch: Schedule) -> None:
    i, k = sch.get_loops("C")
    sch.fuse(sch.split(i, [None, 2])[1], k)


@pytest.mark.parametrize(
    "steps", [_beside, _beside_and_outermost, _beside_in_parts, _fused, _fused_and_split, _split_and_fused]
)
def test_a_reduction_over_nothing_begins_in_any_nest(steps: Callable[[Schedule], None]) -> None:
    n, m = te.var("n"), te.var("m")
    A = te.placeholder((n, m), name="A")
    k = te.reduce_axis((0, m), "k")
    P = te.compute((n, m), lambda i, j: A[i, j] * 2.0, "P")
    sch = Schedule(te.create_prim_func([A, te.compute((n,), lambda i: te.sum(P[i, k], axis=k), "C")]))
    steps(sch)
    built = smelt.build(sch)
    for rows, columns in ((3, 0), (1, 0), (0, 0), (0, 5), (3, 5)):
        given = torch.ones(rows, columns)
        one, other = torch.full((rows,), 7.0), torch.full((rows,), 7.0)
        interpreted(sch.func, given, one, n=rows, m=columns)
        built(given, other)
        assert one.tolist() == other.tolist() == [2.0 * columns] * rows


def test_copies_of_a_stage_print_as_one_does() -> None:
    A = te.placeholder((6, 4), name="A")
    k = te.reduce_axis((0, 4), "k")
    sch = Schedule(
        te.create_prim_func([A, te.compute((6,), lambda i: te.sum(A[i, k] * A[i, k], axis=k), "B")])
    )
    sch.loop_partition(sch.get_loops("B")[0], [None, 2])
    round_trips(sch)


def test_a_block_of_symbolic_extent_is_one_at_size_nothing() -> None:
    sch = Schedule(total(te.var("n"), te.var("m")))
    sch.blockize(sch.get_loops("B")[0])
    assert [axis.extent for axis in sch.get(sch.get_block("B_o")).stmt.axes] == [1, 1]
    round_trips(sch)


def test_loops_of_no_turns_become_a_block() -> None:
    sch = Schedule(total(0, 4))
    sch.blockize(sch.get_loops("B")[0])
    interpreted(sch.func, torch.empty(0, 4), torch.empty(0))
    round_trips(sch)


def test_loops_of_no_turns_are_fused() -> None:
    sch = Schedule(total(0, 3))
    sch.fuse(*sch.get_loops("B"))
    smelt.build(sch)(torch.empty(0, 3), torch.empty(0))


def test_fused_loops_of_symbolic_extents_are_built_for_none() -> None:
    sch = Schedule(total(te.var("n"), te.var("m")))
    sch.fuse(*sch.get_loops("B"))
    smelt.build(sch)(torch.empty(0, 17), torch.empty(0))


@pytest.mark.parametrize("step", ["cache_read", "reindex", "reindex_cache_read"])
@pytest.mark.parametrize("m", [3, 9])
def test_a_copy_stays_inside_of_what_a_condition_reads(step: str, m: int) -> None:
    sch = Schedule(copied(te.var("n")))
    if step == "cache_read":
        sch.cache_read("C", "B", "local")
    elif step == "reindex":
        sch.reindex("C", "B")
    else:
        sch.reindex_cache_read("C", "B", "local", lambda i: (i,))
    a, c = torch.randn(6), torch.full((m,), 7.0)
    interpreted(sch.func, a, c, n=6, m=m)
    want = torch.cat([a * 2, torch.zeros(9)])[:m]
    assert torch.equal(c, want)
    built = torch.full((m,), 7.0)
    smelt.build(sch)(a, built)
    assert torch.equal(built, want)
    round_trips(sch)


def test_what_is_written_beside_a_loop_may_be_a_list() -> None:
    sch = Schedule(total(3, 4))
    sch.annotate(sch.get_loops("B")[0], "note", [1, {"a": [2]}])
    a, b = torch.randn(3, 4), torch.empty(3)
    smelt.build(sch)(a, b)
    torch.testing.assert_close(b, a.sum(1))


def test_a_trace_from_json_has_pairs_as_lists() -> None:
    sch, again = Schedule(total(3, 4)), Schedule(total(3, 4))
    sch.reindex("B", ("read", 0))
    Trace.apply_json_to_schedule(sch.trace.as_json(), again)
    assert structural_equal(sch.mod, again.mod)


WRONG = {
    "a list": lambda s, i: s.sample_categorical([1, 2], object()),
    "an integer": lambda s, i: s.storage_align("B", 0, None, 8, 0),
    "a name": lambda s, i: s.unannotate(i, []),
    "an integer or a name": lambda s, i: s.cache_read("B", None, "local"),
    "True or False": lambda s, i: s.reorder(i, parting="no"),
    "a function": lambda s, i: s.transform_layout("B", "B", 3),
    "a buffer": lambda s, i: s.reindex("B", 3.5),
}


@pytest.mark.parametrize("wanted", WRONG)
def test_an_argument_of_another_kind_is_refused(wanted: str) -> None:
    sch = Schedule(total(3, 4))
    with pytest.raises(ScheduleError, match=f"{wanted} is wanted") as caught:
        WRONG[wanted](sch, sch.get_loops("B")[0])
    assert caught.value.code == "SM1011"


def test_a_loop_of_no_turns_has_no_tiles() -> None:
    sch = Schedule(total(0, 3))
    with pytest.raises(ScheduleError, match="SM1012"):
        sch.sample_perfect_tile(sch.get_loops("B")[0], n=2)


def test_conditions_of_a_block_are_in_order() -> None:
    sch = Schedule(total(7, 5))
    i, k = sch.get_loops("B")
    sch.split(i, [None, 4])
    sch.split(k, [None, 3])
    found = sch.get(sch.get_block("B")).stmt.where
    assert isinstance(found, tuple) and len(found) == 2


def test_a_reindexed_result_is_there_before_the_same_loops_read_it() -> None:
    A = te.placeholder((4, 3), name="A")
    k = te.reduce_axis((0, 3), "k")
    B = te.compute((4,), lambda i: te.sum(A[i, k], axis=k), name="B")
    C = te.compute((4,), lambda i: B[3 - i] + 1.0, name="C")
    sch = Schedule(te.create_prim_func([A, C]))
    sch.compute_at("B", sch.get_loops("C")[0])
    with pytest.raises(ScheduleError, match="SM1033: reindex of B: C, of the same loops, reads B"):
        sch.reindex("B", ("write", 0))


def test_what_is_loaded_and_not_used_is_not_among_what_a_block_reads() -> None:
    """A load under a condition, which has no text: elsewhere it would be evaluated."""
    A, B = te.placeholder((4,), name="A"), te.placeholder((4,), name="B")
    C = te.compute((4,), lambda i: te.if_then_else(i < 2, A[i], 0.0), name="C")
    kernel = te.create_prim_func([A, B, C]).kernel
    (masked,) = (stmt for stmt in walk(kernel.body) if isinstance(stmt, Masked))
    (stage,) = stages(kernel.body)
    unused = Let("unused", torch.float32, "load", ("B", (stage.axes[0].var,)))
    loading = replace(masked, body=Block((unused, *masked.body.stmts)))
    text = PrimFunc(exchanged(kernel, masked, loading)).script()
    assert "A[v_i]" in text and "B[" not in text
    assert from_source(text).script() == text


def test_what_a_block_adds_to_is_not_read_from_a_copy() -> None:
    """A pair's running values, copied before the block, would never have what the block has found."""
    x = te.placeholder((6, 4), "float32", "X")
    k = te.reduce_axis((0, 4), "k")
    larger = te.comm_reducer(
        lambda a, b: (te.if_then_else(a[1] >= b[1], a[0], b[0]), te.if_then_else(a[1] >= b[1], a[1], b[1])),
        lambda at, value: (te.const(-1, at), te.min_value(value)),
        name="larger",
    )
    best = te.compute((6,), lambda i: larger((k, x[i, k]), axis=k), name="best")
    sch = Schedule(te.create_prim_func([x, *best]))
    sch.blockize(sch.get_loops("best")[1])
    with pytest.raises(ScheduleError, match="SM1033"):
        sch.cache_read("best", "best_v0", "local", ["best"])
