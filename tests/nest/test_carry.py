"""A carry: what iterations hand on. Its loops keep their order; the ones around it may run as they like."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from sympy import Integer

from smelt.errors import VerificationError
from smelt.nest.interpreter import run_kernel
from smelt.nest.ir import Advance, Block, Carry, For, Kernel, Let, LoopKind, Param, Stmt, Store
from smelt.nest.primitives import (
    ScheduleError,
    cascade,
    flatten_accesses,
    fuse,
    hoist,
    interchange,
    parallelize,
    split,
    unroll,
    vectorize,
)
from smelt.nest.printer import print_kernel
from smelt.nest.verify import find_problems, verify
from smelt.symbolic import contiguous_strides, loop_var

F32, F64 = torch.float32, torch.float64
I0, I1 = loop_var("i0"), loop_var("i1")
ROWS, COLUMNS = 5, 12
SHAPE = (Integer(ROWS), Integer(COLUMNS))
TURN: tuple[Stmt, ...] = (
    Let("s", F64, "read", ("c", 0)),
    Let("x0", F32, "load", ("x", (I0, I1))),
    Let("x1", F64, "to_dtype", ("x0",)),
    Let("t", F64, "add", ("s", "x1")),
    Advance("c", "t"),
    Store("y", (I0, I1), "t"),
)
START = Carry("c", F64, 0.0)


def loop(var: object, end: int, *stmts: Stmt, kind: LoopKind = LoopKind.SERIAL, step: int = 1) -> For:
    return For(var, Integer(0), Integer(end), Block(stmts), kind, step)  # type: ignore[arg-type]


def kernel(*stmts: Stmt) -> Kernel:
    strides = contiguous_strides(SHAPE)
    params = (Param("x", F32, SHAPE, strides), Param("y", F64, SHAPE, strides, True))
    return Kernel("scan", params, (), Block(stmts))


def along_rows() -> Kernel:
    """y[i, :] = cumsum(x[i, :])"""
    return kernel(loop(I0, ROWS, START, loop(I1, COLUMNS, *TURN)))


def along_columns() -> Kernel:
    """y[:, j] = cumsum(x[:, j])"""
    return kernel(loop(I1, COLUMNS, START, loop(I0, ROWS, *TURN)))


def along_all() -> Kernel:
    """y = cumsum(x.flatten())"""
    return kernel(START, loop(I0, ROWS, loop(I1, COLUMNS, *TURN)))


def result(of: Kernel) -> torch.Tensor:
    verify(of)
    torch.manual_seed(0)
    x, y = torch.randn(ROWS * COLUMNS), torch.zeros(ROWS * COLUMNS, dtype=F64)
    run_kernel(of, {"x": x, "y": y})
    return y.view(ROWS, COLUMNS)


def test_the_interpreter_hands_values_on() -> None:
    torch.manual_seed(0)
    x = torch.randn(ROWS, COLUMNS).double()
    assert torch.equal(result(along_rows()), x.cumsum(1))
    assert torch.equal(result(along_columns()), x.cumsum(0))
    assert torch.equal(result(along_all()).flatten(), x.flatten().cumsum(0))


LEGAL: dict[str, tuple[Kernel, Callable[[Kernel], Kernel]]] = {
    "vector loop around": (along_columns(), lambda k: vectorize(k, I1, 4)),
    "parallel loop around": (along_rows(), lambda k: parallelize(k, I0)),
    "scan cut in blocks": (along_rows(), lambda k: split(k, I1, [None, 4], plain=True)[0]),
    "scan unrolled": (along_rows(), lambda k: unroll(k, I1)),
    "two scan loops made one": (along_all(), lambda k: fuse(k, [I0, I1], plain=True)[0]),
    "hoisting": (along_rows(), hoist),
}


@pytest.mark.parametrize("name", list(LEGAL))
def test_what_keeps_the_order_is_allowed(name: str) -> None:
    before, change = LEGAL[name]
    flat = flatten_accesses(before)
    after = change(flat)
    assert after != flat or name == "hoisting"
    assert torch.equal(result(after), result(before))


ILLEGAL: dict[str, tuple[Kernel, Callable[[Kernel], object]]] = {
    "vector scan": (along_rows(), lambda k: vectorize(k, I1, 4)),
    "parallel scan": (along_rows(), lambda k: parallelize(k, I1)),
    "outer of two scan loops": (along_all(), lambda k: parallelize(k, I0)),
    "scan loops that change places": (along_all(), lambda k: interchange(k, I0)),
}


@pytest.mark.parametrize("name", list(ILLEGAL))
def test_what_breaks_the_order_is_refused(name: str) -> None:
    before, change = ILLEGAL[name]
    with pytest.raises(ScheduleError, match=r"hands c on|the loops are not|not exactly one loop"):
        change(flatten_accesses(before))


def test_a_carry_is_no_sum_to_be_cascaded() -> None:
    whole = flatten_accesses(along_all())
    assert result(cascade(whole, I0)).equal(result(along_all()))


def test_golden() -> None:
    assert print_kernel(along_columns()) == GOLDEN


GOLDEN = """\
kernel scan(x: f32[5, 12], out y: f64[5, 12]):
    for i1 in range(12):
        carry c: f64 = 0.0
        for i0 in range(5):
            s: f64 = c.0
            x0: f32 = x[i0, i1]
            x1: f64 = f64(x0)
            t: f64 = add(s, x1)
            c = t
            y[i0, i1] = t
"""

ONCE = (Let("s", F64, "read", ("c", 0)), Advance("c", "s"))
PROBLEMS: dict[str, tuple[Kernel, str]] = {
    "unknown": (
        kernel(Let("a", F64, "constant", (1.0,)), Advance("c", "a")),
        "advanced before it is declared",
    ),
    "twice": (kernel(START, START), "the carry c is declared twice"),
    "dtype": (kernel(START, Let("a", F32, "constant", (1.0,)), Advance("c", "a")), "c is torch.float64, not"),
    "first": (kernel(Carry("c", F64, 1)), "the constant 1 is no torch.float64"),
    "output": (kernel(START, Let("s", F64, "read", ("c", 1))), "the carry c has no output 1"),
    "parallel": (
        kernel(START, loop(I0, 2, *ONCE, kind=LoopKind.PARALLEL)),
        "parallel loop over i0 share the",
    ),
    "vector": (
        kernel(START, loop(I0, 8, *ONCE, kind=LoopKind.VECTOR, step=4)),
        "vector loop over i0 share the",
    ),
}


@pytest.mark.parametrize("rule", list(PROBLEMS))
def test_each_rule_has_a_kernel_that_breaks_it(rule: str) -> None:
    broken, message = PROBLEMS[rule]
    found = find_problems(broken)
    assert any(message in problem.what for problem in found), found
    with pytest.raises(VerificationError, match="SM0530"):
        verify(broken)
