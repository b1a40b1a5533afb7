"""Reductions in parts: under conditions, and of several values at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sympy
import torch

from smelt import te
from smelt.nest.primitives.reductions import not_empty
from smelt.nest.scopes import place_of_stage
from smelt.nest.tree import rewritten, with_body
from smelt.records import replace
from smelt.script import from_source
from smelt.tir import PrimFunc, Schedule, ScheduleError
from tests.nest.staging import loops_of, same, stage
from tests.tir.compiling import compiled, given_for
from tests.tir.test_schedule import product, replays


def extreme(reducer: Any = te.argmax, dtype: str = "float32", where: Any = None) -> PrimFunc:
    at, values = te.placeholder((5, 12), "int32", name="at"), te.placeholder((5, 12), dtype, name="values")
    k = te.reduce_axis((0, 12), "k")
    condition = None if where is None else where(k)

    def element(i: Any) -> Any:
        return reducer((at[i, k], values[i, k]), axis=k, where=condition)

    return te.create_prim_func([at, values, *te.compute((5,), element, name="best")])


def agrees(func: PrimFunc, sch: Schedule, given: list[torch.Tensor] | None = None) -> None:
    """By the interpreter, compiled, and by the trace."""
    same(func.kernel, sch.func.kernel, exactly=False)
    given = given or given_for(func.kernel.params)
    for one, other in zip(compiled(sch, *given), compiled(func, *given)):
        torch.testing.assert_close(one, other, equal_nan=True)
    replays(sch, func)


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("factors", [[3, None], [None, 5], [4, 5], [12, None]])
@pytest.mark.parametrize("name", ["sum", "argmax"])
def test_parts_of_which_some_have_fewer_terms_or_none(name: str, factors: list[Any], which: int) -> None:
    func = product(6, 8, 12) if name == "sum" else extreme()
    sch = Schedule(func)
    block = "matmul" if name == "sum" else "best"
    loops = sch.split(sch.get_loops(sch.get_block(block))[-1], factors)
    parts = sch.rfactor(loops[which], 0)
    assert sch.get(parts).name_hint == f"{block}_rf"
    if len(stage(sch.func.kernel, f"{block}_rf").axes) > 2:
        assert stage(sch.func.kernel, f"{block}_rf").init is not None
    agrees(func, sch)


def test_a_part_without_terms_is_not_added() -> None:
    sch = Schedule(product(6, 8, 12))
    outer, _ = sch.split(sch.get_loops(sch.get_block("matmul"))[2], [4, 5])
    sch.rfactor(outer, 2)
    assert stage(sch.func.kernel, "matmul").where  # 15 is none of 12 terms
    sch = Schedule(product(6, 8, 12))
    outer, _ = sch.split(sch.get_loops(sch.get_block("matmul"))[2], [None, 5])
    sch.rfactor(outer, 2)
    assert not stage(sch.func.kernel, "matmul").where and stage(sch.func.kernel, "matmul_rf").where


def test_conditions_of_what_is_kept_and_what_is_reduced() -> None:
    func = product(7, 8, 12)
    sch = Schedule(func)
    i, _, k = sch.get_loops(sch.get_block("matmul"))
    sch.split(i, [None, 3])
    _, k_1 = sch.split(k, [None, 5])
    sch.rfactor(k_1, -1)
    assert len(stage(sch.func.kernel, "matmul_rf").where) == 2
    agrees(func, sch)


def test_fused_loops_are_parted_too() -> None:
    func = product(3, 4, 10)
    sch = Schedule(func)
    _, _, k = sch.get_loops(sch.get_block("matmul"))
    k_0, k_1 = sch.split(k, [None, 4])
    sch.rfactor(sch.fuse(k_0, k_1), 0)
    agrees(func, sch)


@pytest.mark.parametrize("reducer", [te.argmax, te.argmin])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
def test_positions_of_extremes(reducer: Any, dtype: str) -> None:
    func = extreme(reducer, dtype)
    sch = Schedule(func)
    k_0, _ = sch.split(sch.get_loops(sch.get_block("best"))[1], [None, 5])
    sch.rfactor(k_0, 1)
    at = torch.arange(12, dtype=torch.int32).repeat(5, 1)
    given = given_for(func.kernel.params)
    given[0] = at
    given[1][0] = 3  # all are equal: the first one
    if dtype != "int32":
        given[1][1, 7] = float("nan")
    agrees(func, sch, given)
    position, value = compiled(sch, *given)[2:]
    search = torch.argmax if reducer is te.argmax else torch.argmin
    wanted = search(given[1], 1)
    wanted[0] = 0
    assert torch.equal(position.long(), wanted)
    assert torch.equal(value.nan_to_num(9), given[1].gather(1, wanted[:, None])[:, 0].nan_to_num(9))


def test_sums_of_several_values() -> None:
    a, k = te.placeholder((4, 9), name="A"), te.reduce_axis((0, 9), "k")
    moments = te.comm_reducer(
        lambda x, y: (x[0] + y[0], x[1] + y[1]),
        lambda s, t: (te.const(0, s), te.const(0, t)),
        name="moments",
    )
    outs = te.compute((4,), lambda i: moments((a[i, k], a[i, k] * a[i, k]), axis=k), name="M")
    func = te.create_prim_func([a, *outs])
    sch = Schedule(func)
    sch.rfactor(sch.split(sch.get_loops(sch.get_block("M"))[1], [None, 4])[1], 0)
    agrees(func, sch)
    given, sums, squares = compiled(sch)
    torch.testing.assert_close(sums, given.sum(1))
    torch.testing.assert_close(squares, (given * given).sum(1))


TEXT = """
@T.prim_func
def main(
    idx: T.Buffer((4, 8), "int32"), val: T.Buffer((4, 8)), v0: T.Buffer((4,), "int32"), v1: T.Buffer((4,))
):
    for i, k_0, k_1 in T.grid(4, 2, 4):
        with T.sblock("argmax"):
            v_i = T.axis.spatial(4, i)
            v_k = T.axis.reduce(8, k_0 * 4 + k_1)
            with T.init():
                v1[v_i] = T.min_value("float32")
                v0[v_i] = -1
            a: T.let[T.int32] = T.Select(v1[v_i] >= val[v_i, v_k], v0[v_i], idx[v_i, v_k])
            b: T.let[T.float32] = T.Select(v1[v_i] >= val[v_i, v_k], v1[v_i], val[v_i, v_k])
            v0[v_i] = a
            v1[v_i] = b
"""


@pytest.mark.parametrize("which", [1, 2])
def test_as_tvm_writes_it(which: int) -> None:
    func = from_source("from smelt.script import tir as T\n" + TEXT)
    sch = Schedule(func)
    sch.rfactor(sch.get_loops(sch.get_block("argmax"))[which], 1)
    agrees(func, sch)


FIRST, NEXT = 'v1[v_i] = T.min_value("float32")', "v0[v_i] = a\n"
WRITTEN_OTHERWISE = {
    "a name in init": (
        FIRST,
        'first: T.let[T.float32] = T.min_value("float32")\n                v1[v_i] = first',
    ),
    "a value without a name": (
        NEXT,
        "v0[v_i] = T.Select(v1[v_i] >= val[v_i, v_k], v0[v_i], idx[v_i, v_k])\n",
    ),
    "a longer buffer": ('v0: T.Buffer((4,), "int32")', 'v0: T.Buffer((9,), "int32")'),
}
"""Reductions that TVM's rfactor refuses for how they are written: they say the same."""


@pytest.mark.parametrize("which", [1, 2])
@pytest.mark.parametrize("name", WRITTEN_OTHERWISE)
def test_what_is_written_in_another_way(name: str, which: int) -> None:
    old, new = WRITTEN_OTHERWISE[name]
    assert old in TEXT
    func = from_source("from smelt.script import tir as T\n" + TEXT.replace(old, new))
    sch = Schedule(func)
    sch.rfactor(sch.get_loops(sch.get_block("argmax"))[which], 1)
    given = given_for(func.kernel.params)
    given[2].zero_()  # what a longer buffer has behind stays
    agrees(func, sch, given)
    position, value = compiled(sch, *given)[2:]
    best = given[1].argmax(1)
    assert torch.equal(position[:4], given[0].gather(1, best[:, None])[:, 0])
    assert torch.equal(value, given[1].amax(1))


def test_a_value_that_reads_what_is_stored_before_it_is_refused() -> None:
    text = TEXT.replace("v1[v_i] = b", "v1[v_i] = T.Select(v0[v_i] >= 0, v1[v_i], val[v_i, v_k])")
    sch = Schedule(from_source("from smelt.script import tir as T\n" + text))
    with pytest.raises(ScheduleError, match="SM1007"):
        sch.rfactor(sch.get_loops(sch.get_block("argmax"))[2], 1)


# -- refused -------------------------------------------------------------------------------------------------


def combined(combine: Callable[[Any, Any], Any], where: Any = None) -> PrimFunc:
    a, k = te.placeholder((4, 8), name="A"), te.reduce_axis((0, 8), "k")
    reducer = te.comm_reducer(combine, lambda s, t: (te.const(0, s), te.const(0, t)), name="R")
    outs = te.compute((4,), lambda i: reducer((a[i, k], a[i, k] + 1.0), axis=k), name="R")
    return te.create_prim_func([a, *outs])


def triangle() -> PrimFunc:
    """A product whose parts by the inner loop begin one after the other."""
    sch = Schedule(product())
    sch.split(sch.get_loops(sch.get_block("matmul"))[2], [3, 4])
    kernel = sch.func.kernel
    found, (*_, k_0, k_1) = stage(kernel, "matmul"), loops_of(kernel, "matmul")
    some = replace(found, where=(sympy.Ge(k_0, k_1),))
    return PrimFunc(with_body(kernel, rewritten(kernel.body, lambda s: [some] if s is found else None)))


REFUSED: dict[str, tuple[Callable[[], PrimFunc], str, str]] = {
    "a product of complex numbers": (
        lambda: combined(lambda x, y: (x[0] * y[0] - x[1] * y[1], x[0] * y[1] + x[1] * y[0])),
        "R",
        "either its current value or a new one",
    ),
    "another grouping": (
        lambda: combined(lambda x, y: (x[0] + y[0], te.if_then_else(x[0] > y[0], x[1], y[1]))),
        "R",
        "R has an initial value that is no identity|on the grouping of its terms",
    ),
    "another order": (
        lambda: combined(lambda x, y: (x[0] + y[0], te.if_then_else(y[0] > -1e9, y[1], x[1]))),
        "R",
        "depends on the order of its terms",
    ),
    "a condition beside": (
        lambda: extreme(where=lambda k: k < 7),
        "best",
        "more than combine|combines more than|either its current value",
    ),
    "parts that begin later": (triangle, "matmul", "no bound of one axis"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_parts(name: str) -> None:
    make, block, reason = REFUSED[name]
    sch = Schedule(make())
    before = sch.func.kernel
    with pytest.raises(ScheduleError, match=f"SM1007.*({reason})"):
        sch.rfactor(sch.get_loops(sch.get_block(block))[-1], 0)
    assert sch.func.kernel == before


def test_a_part_has_terms_if_it_has_the_first() -> None:
    kernel = triangle().kernel
    found, place = stage(kernel, "matmul"), place_of_stage(kernel, "matmul")
    assert place is not None
    *_, k_0, k_1 = place.loops
    assert not_empty(found, place.loops, [k_0]) is None
    assert not_empty(found, place.loops, [k_1]) == ()
    below = replace(found, where=(sympy.Lt(4 * k_0.var + k_1.var, 2),))
    assert not_empty(below, place.loops, [k_0]) == (sympy.Lt(k_1.var, 2),)
    assert not_empty(below, place.loops, [k_1]) == (sympy.Lt(4 * k_0.var, 2),)
