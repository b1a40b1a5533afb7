"""Schedules: every step keeps what a function computes, says what it did, or refuses with a reason."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sympy import Symbol

from smelt.nest.claims import unproved
from smelt.nest.ir import Kernel, LoopKind
from smelt.nest.primitives import kinds
from smelt.nest.tree import find, loops, replace_loop, stages, with_body
from smelt.nest.verify import verify
from smelt.ops import ops
from smelt.records import replace
from smelt.script import from_source, structural_equal
from smelt.tir import IRModule, PrimFunc, Schedule, ScheduleError, Trace
from tests.nest.staging import F32, Program, same

N = Symbol("n", integer=True, nonnegative=True)


def product(rows: int = 6, columns: int = 8, inner: int = 12) -> PrimFunc:
    p = Program(A=(rows, inner), B=(inner, columns))
    p.reduce(
        "matmul",
        (rows, columns),
        (inner,),
        lambda i, j, k: ops.mul(ops.load("A", [i, k]), ops.load("B", [k, j])),
    )
    p.compute(
        "relu", (rows, columns), lambda i, j: ops.maximum(ops.load("matmul", [i, j]), ops.constant(0.0, F32))
    )
    return PrimFunc(p.kernel("relu"))


def chain() -> PrimFunc:
    p = Program(A=(7, 10))
    p.compute("B", (7, 10), lambda i, j: ops.add(ops.load("A", [i, j]), ops.load("A", [i, j])))
    p.compute("C", (7, 10), lambda i, j: ops.mul(ops.load("B", [i, j]), ops.load("A", [i, j])))
    p.reduce("D", (7,), (10,), lambda i, k: ops.load("C", [i, k]), "max")
    return PrimFunc(p.kernel("C", "D"))


def sized() -> PrimFunc:
    p = Program(A=(N, 6))
    p.compute("B", (N, 6), lambda i, j: ops.mul(ops.load("A", [i, j]), ops.load("A", [i, j])))
    p.reduce("C", (6,), (N,), lambda i, k: ops.load("B", [k, i]))
    return PrimFunc(p.kernel("B", "C"))


def replays(sch: Schedule, func: PrimFunc) -> None:
    """The trace does the same again: as an object, as Python, and from JSON."""
    for apply in (
        sch.trace.apply_to_schedule,
        lambda other: exec("\n".join(sch.trace.as_python()), {"sch": other}),
        lambda other: Trace.apply_json_to_schedule(sch.trace.as_json(), other),
    ):
        again = Schedule(func)
        apply(again)
        assert structural_equal(again.mod, sch.mod)
        assert str(again.trace) == str(sch.trace)


def test_index_maps_go_into_json_and_back() -> None:
    func = chain()
    sch = Schedule(func)
    sch.transform_layout("B", ("write", 0), lambda i, j: (j // 2, i, j % 2))
    sch.transform_block_layout("C", lambda i, j: (i * 10 + j,))
    replays(sch, func)
    (steps, decided), broken = sch.trace.as_json(), "lambda i, j: (print(i), j)"
    steps[0][2]["index_map"] = {"$map": broken}
    with pytest.raises(ScheduleError, match="SM1009"):
        Trace.apply_json_to_schedule([steps, decided], Schedule(func))


def test_a_product_by_hand() -> None:
    func = product(24, 32, 20)
    sch = Schedule(func)
    block, relu = sch.get_block("matmul"), sch.get_block("relu")
    i, j, k = sch.get_loops(block)
    i0, i1 = sch.split(i, factors=[None, 8])
    j0, j1 = sch.split(j, factors=[None, 16])
    k0, k1 = sch.split(k, factors=[None, 4])
    sch.reorder(i0, j0, k0, i1, k1, j1)
    sch.parallel(i0)
    sch.vectorize(j1)
    sch.unroll(k1)
    init = sch.decompose_reduction(block, k0)
    sch.reverse_compute_at(relu, j0)
    assert [sch.get(each).name_hint for each in (block, init)] == ["matmul_update", "matmul_init"]
    assert [str(sch.get(loop)) for loop in sch.get_loops(block)] == [
        *("for i_0 in parallel(3)", "for j_0 in serial(2)", "for k_0 in serial(5)"),
        *("for i_1 in serial(8)", "for k_1 in unroll(4)", "for j_1 in vector(16)"),
    ]
    assert "i_0, i_1 = sch.split(i, factors=[None, 8])" in str(sch.trace)
    same(func.kernel, sch.func.kernel, exactly=False)
    replays(sch, func)
    assert structural_equal(from_source(sch.mod.script()), sch.mod)


def test_a_split_that_does_not_divide_has_a_condition() -> None:
    for func, sizes in ((chain(), {}), (sized(), {N: 7}), (sized(), {N: 0})):
        sch = Schedule(func)
        i, j = sch.get_loops("B")
        i0, _ = sch.split(i, factors=[None, 4])
        sch.split(j, factors=[2, None, 3])
        assert len(sch.get(sch.get_block("B")).stmt.where) == (1 if sizes else 2)
        sch.parallel(i0)
        same(func.kernel, sch.func.kernel, sizes)
        replays(sch, func)


def test_fused_tiles_of_unknown_sizes_are_parallel() -> None:
    p = Program(A=(N, N))
    p.compute("B", (N, N), lambda i, j: ops.load("A", [i, j]))
    func = PrimFunc(p.kernel("B"))
    sch = Schedule(func)
    i, j = sch.get_loops("B")
    i0, i1 = sch.split(i, factors=[None, 4])
    j0, j1 = sch.split(j, factors=[None, 2])
    sch.reorder(i0, j0, i1, j1)
    fused = sch.fuse(i0, j0)
    sch.parallel(fused)
    assert sch.get(fused).loop_var.name == "i_0_j_0_fused"
    same(func.kernel, sch.func.kernel, {N: 5})
    replays(sch, func)


@pytest.mark.parametrize("axis", [0, 1, 2, -3])
@pytest.mark.parametrize("outer", [True, False])
def test_a_reduction_in_parts(axis: int, outer: bool) -> None:
    func = product()
    sch = Schedule(func)
    block = sch.get_block("matmul")
    k0, k1 = sch.split(sch.get_loops(block)[2], factors=[None, 4])
    part = sch.rfactor(k0 if outer else k1, axis)
    assert sch.get(part).name_hint == "matmul_rf"
    sch.parallel(sch.get_loops(part)[2 if outer else 3])
    same(func.kernel, sch.func.kernel, exactly=False)
    replays(sch, func)


def test_a_reduction_in_as_many_parts_as_terms() -> None:
    func = chain()
    sch = Schedule(func)
    sch.rfactor(sch.get_loops("D")[1], 0)
    same(func.kernel, sch.func.kernel)


def test_loops_that_follow_one_another_meet_and_part() -> None:
    func = chain()
    sch = Schedule(func)
    b, c = sch.get_loops("B"), sch.get_loops("C")
    both = sch.merge(b[1], c[1])
    assert [sch.get(each).name_hint for each in sch.get_child_blocks(both)] == ["B", "C"]
    same(func.kernel, sch.func.kernel)
    outer = sch.get_loops("B")[0]
    with pytest.raises(ScheduleError, match="SM1003"):
        sch.merge(outer, sch.get_loops("D")[0], outer)
    sch.fission(both)
    same(func.kernel, sch.func.kernel)
    sch.reorder(sch.get_loops("C")[1], outer, parting=True)
    same(func.kernel, sch.func.kernel)
    replays(sch, func)


def test_parts_of_a_loop_follow_one_another() -> None:
    func = chain()
    sch = Schedule(func)
    made = sch.loop_partition(sch.get_loops("B")[0], factors=[2, None, 1])
    assert [sch.get(loop).extent for loop in made] == [2, 4, 1]
    assert sch.get(sch.get_block("B_i1")).name_hint == "B_i1"
    same(func.kernel, sch.func.kernel)
    replays(sch, func)


def test_notes_threads_and_loops_of_one_turn() -> None:
    func = product()
    sch = Schedule(func)
    i, j, k = sch.get_loops("matmul")
    sch.annotate(i, "pragma", {"key": [1, 2]})
    sch.bind(j, "threadIdx.x")
    sch.bind(k, "threadIdx.y")
    unit = sch.add_unit_loop(sch.get_block("relu"))
    assert sch.get(unit).extent == 1
    assert sch.get(i).annotations == {"pragma": {"key": [1, 2]}}
    assert sch.get(j).thread_binding == "threadIdx.x"
    replays(sch, func)
    sch.unannotate(i, "pragma")
    assert sch.get(i).annotations == {}


@pytest.mark.parametrize(("n", "at", "factor"), [(3, 1, 4), (4, 2, 6), (2, 0, 12), (3, 2, 1)])
def test_factors_of_which_the_inner_ones_are_a_multiple(n: int, at: int, factor: int) -> None:
    func = product(6, 8, 24)
    drawn = set()
    for seed in range(8):
        sch = Schedule(func, seed=seed)
        k = sch.get_loops(sch.get_block("matmul"))[2]
        factors = sch.sample_partitioned_tile(k, n, at, factor)
        numbers = [sch.get(each) for each in factors]
        assert len(numbers) == n and math.prod(numbers) == 24 and math.prod(numbers[at:]) % factor == 0
        sch.split(k, factors)
        replays(sch, func)
        drawn.add(tuple(numbers))
    assert len(drawn) > 1
    wrong: list[dict[str, Any]] = [{"innerpart_factor": 5}, {"decision": [5] * n}, {"partition_pos": 9}]
    for options in wrong:
        with pytest.raises(ScheduleError, match="SM1012"):
            sch.sample_partitioned_tile(sch.get_loops(sch.get_block("relu"))[0], n, **options)


def test_draws_are_kept() -> None:
    func = product()
    sch = Schedule(func, seed=3)
    i, _, _ = sch.get_loops("matmul")
    tiles = sch.sample_perfect_tile(i, n=2)
    sch.split(i, factors=tiles)
    one = sch.sample_categorical([2, 4], [0.5, 0.5])
    assert sch.get(one) in (2, 4)
    assert sch.get(tiles[0]) * sch.get(tiles[1]) == 6
    replays(sch, func)


REFUSED: dict[str, tuple[Callable[..., Any], str, str]] = {
    "parallel sum": (
        lambda s, i, j, k, r: s.parallel(k),
        "SM1006",
        r"k is reduced over.*matmul\[v_i, v_j\]",
    ),
    "vector sum": (lambda s, i, j, k, r: s.vectorize(k), "SM1006", "vectorize.k. of matmul"),
    "blocks share a sum": (lambda s, i, j, k, r: s.bind(k, "blockIdx.x"), "SM1006", "bind"),
    "no such index": (lambda s, i, j, k, r: s.bind(i, "warp"), "SM1008", "'warp'"),
    "another nest": (
        lambda s, i, j, k, r: s.reorder(k, r),
        "SM1003",
        "of relu is not around k of matmul",
    ),
    "a loop twice": (lambda s, i, j, k, r: s.reorder(r, r), "SM1003", "twice"),
    "a gap": (
        lambda s, i, j, k, r: s.fuse(i, k),
        "SM1003",
        "k is not the whole",
    ),
    "too few iterations": (
        lambda s, i, j, k, r: s.split(i, [1, 5]),
        "SM1004",
        "5, is less than the extent 6",
    ),
    "no iterations": (lambda s, i, j, k, r: s.split(i, [0, None]), "SM1004", "0 is no positive"),
    "two unknown": (lambda s, i, j, k, r: s.split(i, [None, None]), "SM1004", "only one"),
    "no condition": (
        lambda s, i, j, k, r: s.split(i, [None, 4], disable_predication=True),
        "SM1004",
        "no condition is wanted",
    ),
    "a name": (lambda s, i, j, k, r: s.get_block("matmull"), "SM1001", "did you mean 'matmul'"),
    "no sum": (lambda s, i, j, k, r: s.rfactor(r, 0), "SM1007", "no init"),
    "a spatial loop": (lambda s, i, j, k, r: s.rfactor(i, 0), "SM1007", "i is not reduced over"),
    "no dimension": (lambda s, i, j, k, r: s.rfactor(k, 3), "SM1004", "2 dimensions"),
    "begins no sum": (lambda s, i, j, k, r: s.decompose_reduction("relu", r), "SM1007", "no init"),
    "too long": (lambda s, i, j, k, r: s.unroll(s.split(k, [1, 1000])[1]), "SM1008", "1000 iterations"),
    "a note of no data": (lambda s, i, j, k, r: s.annotate(i, "x", [object()]), "SM1011", "a number, a text"),
    "a note": (lambda s, i, j, k, r: s.unannotate(i, "x"), "SM1008", "no note 'x'"),
    "not following": (
        lambda s, i, j, k, r: s.merge(i, s.get_loops("relu")[1]),
        "SM1003",
        "as far in",
    ),
    "partition of more": (
        lambda s, i, j, k, r: s.loop_partition(r, [4, 4]),
        "SM1004",
        "add up to 8",
    ),
    "a draw": (lambda s, i, j, k, r: s.sample_categorical([1], []), "SM1012", "0 chances"),
    "a number": (lambda s, i, j, k, r: s.split(r, ["x"]), "SM1011", "a number"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_has_a_reason_and_changes_nothing(name: str) -> None:
    action, code, why = REFUSED[name]
    sch = Schedule(product())
    with pytest.raises(ScheduleError, match=why) as caught:
        action(sch, *sch.get_loops("matmul"), sch.get_loops("relu")[0])
    assert caught.value.code == code
    first = str(caught.value).splitlines()[0]
    assert first.startswith(code) and len(first) < 200
    if name != "too long":
        assert structural_equal(sch.mod, IRModule({"main": product()}))


def test_an_error_shows_the_loop_that_is_meant() -> None:
    sch = Schedule(product())
    with pytest.raises(ScheduleError) as caught:
        sch.parallel(sch.get_loops("matmul")[2])
    assert str(caught.value).splitlines() == [
        "SM1006: parallel(k) of matmul: k is reduced over: its iterations add to matmul[v_i, v_j]",
        "  do: rfactor(k) first, or parallel one of i, j",
        "  for i in range(6):",
        "    for j in range(8):",
        ">     for k in range(12):  ← here",
        "        stage matmul",
    ]


def test_a_reference_to_what_is_gone_says_what_took_it() -> None:
    sch = Schedule(product())
    i = sch.get_loops("matmul")[0]
    sch.split(i, factors=[2, 3])
    with pytest.raises(ScheduleError, match="the loop i is gone: split took it away") as caught:
        sch.parallel(i)
    assert caught.value.code == "SM1002"


def test_a_trace_of_another_program_is_refused() -> None:
    with pytest.raises(ScheduleError, match="SM1009"):
        Trace.apply_json_to_schedule("[1]", Schedule(product()))
    with pytest.raises(ScheduleError, match="no method launch"):
        Trace.apply_json_to_schedule([[["launch", [], {}, []]], []], Schedule(product()))


def test_a_step_that_changes_results_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(kernel: Kernel, var: Symbol) -> Kernel:

        loop = find(kernel.body, var)

        return with_body(kernel, replace_loop(kernel.body, var, lambda _: (replace(loop, end=loop.end - 1),)))

    monkeypatch.setattr(kinds, "parallelize", wrong)
    sch = Schedule(product(), check=True)
    with pytest.raises(ScheduleError, match="SM1010"):
        sch.parallel(sch.get_loops("matmul")[0])


def test_a_claim_that_cannot_be_shown_is_named() -> None:
    kernel = product().kernel
    k = loops(kernel.body)[2]
    claimed = replace_loop(kernel.body, k.var, lambda loop: (replace(loop, kind=LoopKind.PARALLEL),))
    assert unproved(kernel) == []
    assert unproved(with_body(kernel, claimed)) == [
        "k is parallel: k is reduced over: its iterations add to matmul[v_i, v_j]"
    ]


def test_the_last_step_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    sch = Schedule(product())
    sch.parallel(sch.get_loops("relu")[0])
    sch.show(diff=True)
    added = [line for line in capsys.readouterr().out.splitlines() if line.lstrip().startswith("+")]
    assert any("T.parallel(6)" in line for line in added)


def test_notes_may_be_lists() -> None:
    """Kernels with them are verified and compared with others."""
    sch = Schedule(product())
    sch.annotate(sch.get_loops("relu")[0], "note", [1, 2])
    sch.annotate(sch.get_sblock("matmul"), "note", {"key": [1]})
    sch.parallel(sch.get_loops("relu")[0])
    verify(sch.func.kernel)
    assert len({sch.func.kernel, product().kernel}) == 2
    same(product().kernel, sch.func.kernel)


def test_copies_go_their_own_way() -> None:
    sch = Schedule(product())
    i, j, _ = sch.get_loops("matmul")
    other = sch.copy()
    i0, _ = sch.split(i, factors=[2, None])
    j0, _ = other.split(j, factors=[2, None])
    assert sch.get(i0).extent == 2 and other.get(j0).extent == 2
    with pytest.raises(IndexError):
        other.get(i0)


def test_a_module_of_several_functions_is_worked_on_by_name() -> None:
    sch = Schedule(IRModule({"one": product(), "two": chain()}))
    with pytest.raises(ValueError, match="which function"):
        sch.get_block("B")
    sch.work_on("two")
    sch.parallel(sch.get_loops("B")[0])
    assert sch.mod["one"] == product()
    with pytest.raises(ScheduleError, match="SM1001"):
        sch.work_on("three")


MOVES = (
    "split",
    "fuse",
    "reorder",
    "parallel",
    "vectorize",
    "unroll",
    "rfactor",
    "decompose",
    "partition",
    "merge",
    "fission",
)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_random_steps_keep_results(data: st.DataObject) -> None:
    func = data.draw(st.sampled_from([product(4, 3, 6), chain(), sized()]))
    sizes = {N: 5} if func.kernel.sizes else {}
    sch = Schedule(func)
    for _ in range(data.draw(st.integers(1, 6))):
        names = sorted({each.name for each in _stages(sch)})
        block = data.draw(st.sampled_from(names))
        found = sch.get_loops(block)
        if not found:
            continue
        loop = data.draw(st.sampled_from(found))
        move = data.draw(st.sampled_from(MOVES))
        number = data.draw(st.integers(1, 4))
        before = sch.func.kernel
        try:
            if move == "split":
                sch.split(loop, data.draw(st.permutations([None, number])))
            elif move == "fuse":
                sch.fuse(*found[: data.draw(st.integers(1, len(found)))])
            elif move == "reorder":
                sch.reorder(*data.draw(st.permutations(found)), parting=data.draw(st.booleans()))
            elif move == "rfactor":
                sch.rfactor(loop, 0)
            elif move == "decompose":
                sch.decompose_reduction(block, loop)
            elif move == "partition":
                sch.loop_partition(loop, [None, number])
            elif move == "merge":
                other = data.draw(st.sampled_from(names))
                sch.merge(loop, sch.get_loops(other)[0])
            else:
                getattr(sch, move)(loop)
        except ScheduleError as error:
            assert error.code.startswith("SM10") and error.why
            assert sch.func.kernel == before
    same(func.kernel, sch.func.kernel, sizes, exactly=False)
    assert unproved(sch.func.kernel) == []
    replays(sch, func)


def _stages(sch: Schedule) -> list[Any]:
    return stages(sch.func.kernel.body)
