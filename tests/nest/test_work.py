"""How much a kernel does: loops that are cut off, what is read again and again, sums."""

from __future__ import annotations

from dataclasses import replace

import sympy
import torch
from sympy import Expr

from smelt.nest.ir import Accumulate, Block, For, Kernel, Let, Param, Stmt, Store, Update
from smelt.nest.primitives import split
from smelt.nest.work import Work, work
from smelt.symbolic import loop_var

F32 = torch.float32
I, J, N = loop_var("i0"), loop_var("i1"), loop_var("n")  # noqa: E741


def number(value: int) -> Expr:
    return sympy.Integer(value)


def param(name: str, *shape: int | Expr, written: bool = False) -> Param:
    sizes = tuple(number(s) if isinstance(s, int) else s for s in shape)
    strides = tuple(sympy.Mul(*sizes[d + 1 :]) for d in range(len(sizes)))
    return Param(name, F32, sizes, strides, written)


def loop(var: Expr, end: int | Expr, *body: Stmt) -> For:
    return For(var, number(0), number(end) if isinstance(end, int) else end, Block(body))  # type: ignore[arg-type]


def scale(size: int | Expr) -> Kernel:
    body = (
        Let("v", F32, "load", ("x", (I,))),
        Let("w", F32, "load", ("a", (number(0),))),
        Let("r", F32, "fma", ("v", "w", "w")),
        Store("y", (I,), "r"),
    )
    params = (param("x", size), param("a", 1), param("y", size, written=True))
    return Kernel("scale", params, (), Block((loop(I, size, *body),)))


def test_a_number_that_every_turn_reads_is_read_once() -> None:
    assert work(scale(100), {}) == Work(200, 4 * (100 + 1 + 100))


def test_a_symbolic_size_counts_as_its_hint() -> None:
    assert work(scale(N), {N: 50}) == Work(100, 4 * (50 + 1 + 50))


def test_a_loop_in_blocks_counts_its_turns_and_no_more() -> None:
    kernel, _ = split(scale(100), I, [None, 32], plain=True)
    assert work(kernel, {}) == work(scale(100), {})


def test_a_sum_counts_its_additions() -> None:
    row = loop(J, 10, Let("v", F32, "load", ("x", (I, J))), Update("s", "v"))
    body = (Accumulate("s", "sum", F32), row, Let("r", F32, "read", ("s", 0)), Store("y", (I,), "r"))
    params = (param("x", 4, 10), param("y", 4, written=True))
    kernel = Kernel("sums", params, (), Block((loop(I, 4, *body),)))
    assert work(kernel, {}) == Work(40, 4 * (40 + 4))


def test_a_loop_that_turns_in_the_last_block_alone_counts_that() -> None:
    """100 elements in blocks of 32: the first loop takes the whole blocks, the second one the four left."""
    block, first = loop_var("i2"), 32 * J
    (inner,) = scale(100).body.stmts
    assert isinstance(inner, For)
    whole = For(block, J, sympy.Min(J + 1, 3), Block((replace(inner, begin=first, end=first + 32),)))
    rest = replace(inner, begin=number(96), end=sympy.Min(100, first + 32))
    kernel = replace(scale(100), body=Block((loop(J, 4, whole, rest),)))
    assert work(kernel, {}) == work(scale(100), {})


def test_a_loop_that_ends_where_data_says_counts_as_long_as_it_may_be() -> None:
    (inner,) = scale(100).body.stmts
    assert isinstance(inner, For)
    count = (
        Let("n", torch.int64, "constant", (7,)),
        Let("end", torch.int64, "indirect_index", ("n", number(101), False, False), J),
    )
    kernel = replace(scale(100), body=Block((*count, replace(inner, end=J))))
    assert work(kernel, {}) == work(scale(100), {})
