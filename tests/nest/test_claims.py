"""Kinds of loops are proved: parallel, vector and jammed loops whose iterations meet are found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sympy
import torch
from torch.utils._sympy.functions import FloorDiv, Min, Mod

import smelt.pipeline
from smelt.errors import VerificationError
from smelt.nest.claims import trusted, unproved
from smelt.nest.dependence import carried_state, carried_updates
from smelt.nest.ir import Block, For, Kernel, Let, LoopKind, Param, SortRow, Stmt, Store
from smelt.nest.tree import local_buffers, loops, replace_loop, rewritten, trip_count, with_body
from smelt.nest.verify import find_problems, verify
from smelt.records import replace
from smelt.symbolic import loop_var

F32 = torch.float32
U, J, K, AT = (loop_var(name) for name in ("i", "j", "k", "at"))
N = sympy.Symbol("n", integer=True, positive=True)
ONE = Let("one", F32, "constant", (1.0,))


def over(var: sympy.Symbol, begin: Any, end: Any, *stmts: Stmt, kind: LoopKind = LoopKind.SERIAL) -> For:
    return For(var, sympy.sympify(begin), sympy.sympify(end), Block(stmts), kind)


def parallel(*stmts: Stmt, end: Any = 8) -> Kernel:
    """A kernel whose one loop over i is parallel."""
    params = [Param("x", F32, (N,), (sympy.Integer(1),)), Param("y", F32, (N,), (sympy.Integer(1),), True)]
    rows = Param("r", F32, (N, N), (N, sympy.Integer(1)), True)
    where = Param("n", torch.int64, (N,), (sympy.Integer(1),))
    body = over(U, 0, end, ONE, *stmts, kind=LoopKind.PARALLEL)
    return Kernel("k", (*params, rows, where), (N,), Block((body,)))


def put(*index: Any) -> Store:
    return Store("y" if len(index) == 1 else "r", tuple(map(sympy.sympify, index)), "one")


ROWS = Min(sympy.Integer(127), 6 * J + K)
LOOKED_UP = (
    Let("p", torch.int64, "load", ("n", (U,))),
    Let("", torch.int64, "indirect_index", ("p", sympy.Integer(8), False, "True"), index=AT),
)

APART = {
    "blocks": over(J, 8 * U, 8 * U + 8, put(J)),
    "blocks, the last one shorter": over(J, 8 * U, Min(N, 8 * U + 8), put(J)),
    "blocks of a known number": over(
        J, 8 * U, Min(sympy.Integer(61), 8 * U + 8), over(K, 0, 4, put(4 * J + K))
    ),
    "rows": over(J, 0, N, put(N * U + J)),
    "unflattened rows": over(J, 0, N, put(U, J)),
    "clamped rows": over(J, 0, 22, over(K, 0, 6, put(32 * ROWS + 4 * U))),
    "digits": put(8 * Mod(U, 2) + FloorDiv(U, 2)),
    "a line with a gap": over(J, 6 * U, 6 * U + 6, put(30 * FloorDiv(J, 28) + Mod(J, 28))),
    "in pieces": over(J, FloorDiv(30 * U, 8), FloorDiv(30 * U + 30, 8), put(J)),
    "only the last": over(J, 7, U + 1, put(J)),
    "beyond": over(J, 0, 3, Let("v", F32, "load", ("y", (J + 8,))), put(U)),
    "backwards": put(7 - U),
    "sorted rows": SortRow("x", (5 * U,), sympy.Integer(5), sympy.Integer(5), False, "y", None, (5 * U,)),
    "looked up in a row": (*LOOKED_UP, put(8 * U + AT)),
}
MEET = {
    "one element": put(0),
    "blocks that overlap": over(J, 8 * U, 8 * U + 9, put(J)),
    "rows that overlap": over(J, 0, N + 1, put(N * U + J)),
    "unflattened columns": put(0, 3),
    "clamped rows": over(J, 0, 22, over(K, 0, 6, put(32 * Min(sympy.Integer(127), 6 * U + K)))),
    "a digit of two": put(Mod(U, 2)),
    "a line without its remainder": over(J, 6 * U, 6 * U + 6, put(30 * FloorDiv(J, 28))),
    "in pieces that overlap": over(J, FloorDiv(30 * U, 8), FloorDiv(30 * U + 38, 8), put(J)),
    "all but the first": over(J, 1, U + 1, put(J)),
    "the next element": (Let("v", F32, "load", ("y", (U + 1,))), put(U)),
    "sums of two": over(J, 0, 2, put(U + J)),
    "sorted rows": SortRow("x", (4 * U,), sympy.Integer(5), sympy.Integer(5), False, "y", None, (4 * U,)),
    "looked up": (*LOOKED_UP, put(AT)),
}


def body_of(case: Stmt | tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    return case if isinstance(case, tuple) else (case,)


@pytest.mark.parametrize("name", APART)
def test_iterations_that_are_apart_are_shown_to_be(name: str) -> None:
    kernel = parallel(*body_of(APART[name]))
    assert unproved(kernel) == []
    verify(kernel)


@pytest.mark.parametrize("name", MEET)
def test_iterations_that_meet_are_found(name: str) -> None:
    kernel = parallel(*body_of(MEET[name]))
    assert unproved(kernel)
    with pytest.raises(VerificationError, match=r"(?s)SM0531.*i is parallel: two iterations of i may"):
        verify(kernel)


def test_jammed_iterations_may_store_one_element_one_after_another() -> None:
    """The last rows of a tile may all be one row, which each of them computes."""
    store = put(Min(sympy.Integer(4), J))
    tile = over(J, 0, 6, store, kind=LoopKind.JAM)
    assert unproved(parallel(over(K, 0, 2, tile), end=1)) == []
    read = Let("v", F32, "load", ("y", (Min(sympy.Integer(4), J + 1),)))
    assert unproved(parallel(over(J, 0, 6, read, store, kind=LoopKind.JAM), end=1))


# -- claims about kernels that the compiler makes ------------------------------------------------------------


def kernels_of(program: Callable[..., Any], *args: torch.Tensor) -> list[Kernel]:
    """The plain and the final kernels of a program."""
    found: list[Kernel] = []
    with pytest.MonkeyPatch.context() as patch:
        real = smelt.pipeline.schedule

        def schedule(*given: Any, **others: Any) -> Any:
            scheduled = real(*given, **others)
            found.extend([*scheduled.plain, *scheduled.kernels])
            return scheduled

        patch.setattr(smelt.pipeline, "schedule", schedule)
        patch.setattr(smelt.pipeline, "_from_cache", lambda *_: None)
        torch._dynamo.reset()
        with torch.no_grad():
            torch.compile(program, backend="smelt")(*args)
    return [with_body(kernel, rewritten(kernel.body, _unmarked)) for kernel in found]


def _unmarked(stmt: Stmt) -> list[Stmt] | None:
    """The loop as if it had not been proved before its indices were flat."""
    if not isinstance(stmt, For) or not stmt.proved:
        return None
    return [replace(stmt, body=rewritten(stmt.body, _unmarked), proved=False)]


def _network(x: torch.Tensor, w: torch.Tensor, c: torch.Tensor) -> Any:
    image = torch.nn.functional.conv2d(torch.relu(x), c, padding=1)
    rows = torch.softmax(image.flatten(2) @ w, -1)
    return rows.cumsum(-1), rows.sum(1), rows.sort(-1).values, rows.transpose(1, 2).contiguous()


@pytest.fixture(scope="module")
def compiled() -> list[Kernel]:
    made = torch.Generator().manual_seed(0)
    x, w, c = (torch.randn(*shape, generator=made) for shape in ((2, 16, 12, 12), (144, 72), (16, 16, 3, 3)))
    return kernels_of(_network, x, w, c)


def test_all_kinds_are_proved(compiled: list[Kernel]) -> None:
    claimed = [loop for kernel in compiled for loop in loops(kernel.body) if loop.kind is not LoopKind.SERIAL]
    assert len(claimed) > 20
    assert [why for kernel in compiled for why in (*unproved(kernel), *trusted(kernel))] == []


MOVED: dict[str, Callable[[sympy.Symbol], Any]] = {
    "one element": lambda var: sympy.Integer(0),
    "pairs": lambda var: FloorDiv(var, 2),
    "backwards from the second": lambda var: sympy.Abs(var - 1),
}


@pytest.mark.parametrize("moved", MOVED)
def test_a_dependence_that_is_put_into_a_loop_is_found(compiled: list[Kernel], moved: str) -> None:
    """Mutations: each loop of a kind in turn stores at an index that several of its iterations have."""
    count = 0
    for kernel in compiled:
        for loop in loops(kernel.body):
            trips = trip_count(loop)
            if loop.kind not in (LoopKind.PARALLEL, LoopKind.VECTOR) or trips in (0, 1):
                continue
            local, place = local_buffers(loop.body), {loop.var: MOVED[moved](loop.var)}

            def store(
                stmt: Stmt, local: set[str] = local, place: dict[sympy.Symbol, Any] = place
            ) -> list[Stmt] | None:
                if not isinstance(stmt, Store) or stmt.buffer in local:
                    return None
                return [replace(stmt, index=tuple(expr.xreplace(place) for expr in stmt.index))]

            body = rewritten(loop.body, store)
            if body is loop.body or body == loop.body:
                continue
            wrong = replace(loop, body=body)
            mutant = with_body(kernel, replace_loop(kernel.body, loop.var, lambda _, to=wrong: (to,)))
            found = (*unproved(mutant), *trusted(mutant))
            assert any(why.startswith(f"{loop.var} ") for why in found), (kernel.name, loop.var)
            count += 1
    assert count > 10


@pytest.mark.parametrize("kind", [LoopKind.PARALLEL, LoopKind.VECTOR])
def test_a_loop_that_sums_or_carries_is_refused_whatever_it_is_said_to_be(
    compiled: list[Kernel], kind: LoopKind
) -> None:
    count = 0
    for kernel in compiled:
        for loop in loops(kernel.body):
            sums = kind is LoopKind.PARALLEL and carried_updates(loop)
            if loop.kind is LoopKind.SERIAL and (sums or carried_state(loop)):
                wrong = replace(loop, kind=kind, step=1)
                mutant = with_body(kernel, replace_loop(kernel.body, loop.var, lambda _, to=wrong: (to,)))
                assert find_problems(mutant) or unproved(mutant), (kernel.name, loop.var)
                count += 1
    assert count
