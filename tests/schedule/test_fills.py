"""Loops that store one number, as fills: which they are, and that they store the same elements."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import sympy
import torch
from sympy import Expr, Symbol

import smelt
from smelt.nest.interpreter import run_kernel
from smelt.nest.ir import Block, For, Kernel, Let, Param, Stage, Stmt, Store
from smelt.nest.primitives import memories_of
from smelt.nest.tree import loops, stages
from smelt.nest.verify import verify
from smelt.schedule.fills import fills
from smelt.symbolic import contiguous_strides, loop_var

A, B, C, D = map(loop_var, "abcd")
ZERO = Let("zero", torch.float32, "constant", (0.5,))


def kernel(shape: tuple[int, ...], index: tuple[Expr, ...], *ranges: tuple[Symbol, int, int]) -> Kernel:
    """Loops that store one number at an index."""
    body: tuple[Stmt, ...] = (ZERO, Store("y", tuple(map(sympy.sympify, index)), "zero"))
    for var, begin, end in reversed(ranges):
        body = (For(var, sympy.Integer(begin), sympy.Integer(end), Block(body)),)
    sizes = tuple(map(sympy.Integer, shape))
    param = Param("y", torch.float32, sizes, contiguous_strides(sizes), written=True)
    return Kernel("k", (param,), (), Block(body))


FILLED: dict[str, tuple[Kernel, int, int]] = {
    "a row": (kernel((40,), (A + 3,), (A, 0, 20)), 0, 1),
    "rows with gaps": (kernel((100,), (10 * A + B + 1,), (A, 2, 9), (B, 0, 7)), 0, 2),
    "rows without gaps": (kernel((100,), (10 * A + B,), (A, 2, 9), (B, 0, 10)), 0, 1),
    "a box": (kernel((1000,), (100 * A + 10 * B + C,), (A, 1, 4), (B, 0, 3), (C, 2, 8)), 1, 2),
    "four loops, two fill memory": (
        kernel((4000,), (1000 * A + 100 * B + 10 * C + D,), (A, 0, 3), (B, 1, 3), (C, 0, 10), (D, 0, 10)),
        0,
        2,
    ),
    "one iteration": (kernel((100,), (10 * A + B,), (A, 3, 4), (B, 0, 7)), 0, 1),
    "several dimensions": (kernel((8, 9, 10), (A, B + 1, C), (A, 1, 3), (B, 0, 8), (C, 0, 10)), 1, 2),
}


@pytest.mark.parametrize("name", FILLED)
def test_a_fill_stores_the_same(name: str) -> None:
    plain, around, inside = FILLED[name]
    (loop,) = plain.body.stmts
    assert isinstance(loop, For)
    found = fills(loop, memories_of(plain))
    made = Kernel("k", plain.params, (), Block(found))
    verify(made)
    (stage,) = stages(made.body)
    assert stage.text is not None and stage.text.form == ("fill", 0.5)
    assert (len(loops(made.body)) - len(loops(stage.body)), len(loops(stage.body))) == (around, inside)
    (want,), (got,) = ([torch.zeros(4000)] for _ in range(2))
    run_kernel(plain, {"y": want}, {})
    run_kernel(made, {"y": got}, {})
    assert torch.equal(got, want) and want.any()


def changed(change: Callable[[Store], Stmt], dtype: torch.dtype = torch.float32) -> Kernel:
    made = kernel((40,), (A,), (A, 0, 20))
    (loop,) = made.body.stmts
    assert isinstance(loop, For)
    *others, store = loop.body.stmts
    assert isinstance(store, Store)
    body = Block((For(loop.var, loop.begin, loop.end, Block((*others, change(store)))),))
    (param,) = made.params
    return Kernel("k", (Param("y", dtype, param.shape, param.strides, written=True),), (), body)


OTHERS = {
    "a sum": changed(lambda store: Store("y", store.index, "zero", "add")),
    "every second element": changed(lambda store: Store("y", (2 * A,), "zero")),
    "a quotient": changed(lambda store: Store("y", (A // 2,), "zero")),
    "a value from elsewhere": changed(lambda store: Store("y", store.index, "other")),
    "two bytes": changed(lambda store: store, torch.bfloat16),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_loops_are_no_fills(name: str) -> None:
    (loop,) = OTHERS[name].body.stmts
    assert isinstance(loop, For)
    assert fills(loop, memories_of(OTHERS[name])) == ()


def test_zeros_before_a_scatter_are_a_fill() -> None:
    def scattered(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return torch.zeros(500, 12).index_add(0, at, x)

    x, at = torch.randn(70, 12), torch.randint(0, 500, (70,))
    fast = smelt.compile(scattered, keep_text=True, verify=True)
    torch.testing.assert_close(fast(x, at), scattered(x, at))
    assert "fill_all_rows(Y, 1, 0, length, 0.0f)" in smelt.reports()[-1].text("cpp")


def test_a_stage_is_what_is_left() -> None:
    (loop,) = FILLED["a row"][0].body.stmts
    assert isinstance(loop, For)
    assert all(isinstance(each, Stage) for each in fills(loop, memories_of(FILLED["a row"][0])))
