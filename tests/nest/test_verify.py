"""The nest verifier: a good kernel passes, and each rule has a kernel that breaks it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import sympy
import torch

from smelt.errors import VerificationError
from smelt.nest.ir import (
    Accumulate,
    Alloc,
    Argument,
    Block,
    Call,
    For,
    InArena,
    Kernel,
    Let,
    LoopKind,
    Masked,
    Param,
    Prefetch,
    Run,
    SortRow,
    Stmt,
    Store,
    Update,
)
from smelt.nest.tree import names_in, symbols_of, variables_of
from smelt.nest.verify import find_problems, verify, verify_run
from smelt.symbolic import contiguous_strides, loop_var

F32, I64, BOOL = torch.float32, torch.int64, torch.bool
S0 = sympy.Symbol("s0", integer=True, positive=True)
A, B, R, AT = (loop_var(name) for name in ("a", "b", "r", "at"))
ZERO = sympy.Integer(0)


def param(name: str, *shape: Any, dtype: torch.dtype = F32, written: bool = False) -> Param:
    sizes = tuple(sympy.sympify(size) for size in shape)
    return Param(name, dtype, sizes, contiguous_strides(sizes), written)


PARAMS = (param("x", S0, 8), param("n", S0, dtype=I64), param("y", S0, written=True))


def loop(var: sympy.Symbol, end: Any, *stmts: Stmt, kind: LoopKind = LoopKind.SERIAL, step: int = 1) -> For:
    return For(var, ZERO, sympy.sympify(end), Block(stmts), kind, step)


def kernel(
    *stmts: Stmt, params: tuple[Param, ...] = PARAMS, sizes: tuple[sympy.Symbol, ...] = (S0,)
) -> Kernel:
    return Kernel("k", params, sizes, Block(stmts))


LOAD = Let("v0", F32, "load", ("x", (A, R)))
N = Let("n0", I64, "load", ("n", (A,)))
INDIRECT = Let("p0", I64, "indirect_index", ("n0", S0, True, True), AT)
TRUE = Let("t0", BOOL, "constant", (True,))
ONE = Let("c0", F32, "constant", (1.0,))
ACC = Accumulate("acc", "sum", F32)
STORE = Store("y", (A,), "c0")


def good() -> Kernel:
    reduce = loop(R, 8, LOAD, Update("acc", "v0"), kind=LoopKind.VECTOR, step=8)
    gathered = Let("g0", F32, "load", ("x", (AT, ZERO)))
    guarded = Masked("m0", F32, "t0", Block((N, INDIRECT, gathered)), "g0", 0.0)
    total = Let("s", F32, "read", ("acc", 0))
    added = Let("sum", F32, "add", ("s", "m0"))
    scratch = Alloc("tmp", F32, (sympy.Integer(4),))
    keep = Store("tmp", (ZERO,), "sum")
    body = (scratch, ACC, reduce, TRUE, guarded, total, added, keep, Store("y", (A,), "sum"))
    return kernel(loop(A, S0, *body, kind=LoopKind.PARALLEL))


def test_a_good_kernel_passes() -> None:
    verify(good())


def in_loop(*stmts: Stmt) -> Kernel:
    return kernel(loop(A, S0, *stmts))


VECTOR, PARALLEL = LoopKind.VECTOR, LoopKind.PARALLEL

BROKEN: dict[str, tuple[Kernel, str]] = {
    "parameter twice": (kernel(params=(PARAMS[0], PARAMS[0])), "the parameter x is there twice"),
    "parameter strides": (
        kernel(params=(replace(PARAMS[1], strides=()),)),
        "n has 1 dimensions and 0 strides",
    ),
    "size not given": (kernel(sizes=()), "the symbol s0 in s0 is not defined here"),
    "prefetch": (in_loop(Prefetch("w", (A,))), "there is no buffer w"),
    "lookup outside": (
        in_loop(ONE, Let("n", torch.int32, "constant", (1,)), Let("v", F32, "lookup", ("c0", "n"))),
        "v is looked up outside of a vector loop of 16 iterations",
    ),
    "lookup by a float": (
        kernel(loop(A, 16, ONE, Let("v", F32, "lookup", ("c0", "c0")), kind=VECTOR, step=16)),
        "v: tables are of 32 bits, and looked up by numbers of int32",
    ),
    "undefined value": (in_loop(Let("v", F32, "exp", ("w",))), "w is used before it is defined"),
    "order": (in_loop(STORE, ONE), "c0 is used before it is defined"),
    "out of scope": (kernel(loop(A, S0, ONE), loop(A, S0, STORE)), "c0 is used before it is defined"),
    "twice": (in_loop(ONE, ONE), "c0 is assigned twice"),
    "shadow": (in_loop(ONE, loop(B, 2, ONE)), "c0 is assigned twice"),
    "masked leaks": (
        in_loop(TRUE, Masked("m", F32, "t0", Block((ONE,)), "c0", 0.0), STORE),
        "c0 is used before it is defined",
    ),
    "loop variable twice": (
        in_loop(loop(A, 2)),
        "the loop variable a is taken: it is a loop variable already",
    ),
    "loop variable is size": (kernel(loop(S0, 2)), "the loop variable s0 is taken: it is a size already"),
    "step": (kernel(loop(A, 8, step=0)), "the loop over a has the step 0"),
    "bound out of scope": (kernel(loop(A, B)), "the symbol b in b is not defined here"),
    "index out of scope": (kernel(LOAD), "the symbol a in a is not defined here"),
    "vector in vector": (
        kernel(loop(A, S0, loop(B, 8, kind=VECTOR, step=8), kind=VECTOR, step=8)),
        "the vector loop over b lies in the vector loop over a",
    ),
    "parallel in vector": (
        kernel(loop(A, S0, loop(B, 8, kind=PARALLEL), kind=VECTOR, step=8)),
        "the parallel loop over b lies in the vector loop over a",
    ),
    "parallel in parallel": (
        kernel(loop(A, S0, ONE, loop(B, 8, kind=PARALLEL), kind=PARALLEL)),
        "the parallel loop over b lies in the parallel loop over a, but not alone",
    ),
    "vector in jam": (
        kernel(loop(A, 4, loop(B, 8, kind=VECTOR, step=8), kind=LoopKind.JAM)),
        "the vector loop over b lies in the jammed one over a",
    ),
    "jam of a size": (
        kernel(loop(A, S0, ONE, kind=LoopKind.JAM)),
        "the loop over a cannot be jammed: s0 iterations",
    ),
    "jam with scratch": (
        kernel(loop(A, 4, Alloc("tmp", F32, ()), kind=LoopKind.JAM)),
        "the loop over a cannot be jammed: the loop holds scratch memory, sorts or masked loops",
    ),
    "lanes differ": (
        kernel(loop(A, S0, loop(B, A + 1), kind=VECTOR, step=8)),
        "the bounds of b differ between the lanes of a",
    ),
    "scratch in vector": (
        kernel(loop(A, S0, Alloc("tmp", F32, ()), kind=VECTOR, step=8)),
        "the scratch buffer tmp is inside a vector loop",
    ),
    "scratch hides": (
        in_loop(Alloc("x", F32, ())),
        "the scratch buffer x is declared twice or hides a parameter",
    ),
    "no buffer": (in_loop(Let("v", F32, "load", ("q", ()))), "there is no buffer q"),
    "rank": (
        in_loop(Let("v", F32, "load", ("x", (A,)))),
        "x is accessed with 1 indices, it has 2 dimensions",
    ),
    "load dtype": (in_loop(replace(N, dtype=F32)), "n0 is declared as torch.float32, it is torch.int64"),
    "no operation": (in_loop(Let("v", F32, "frobnicate", ())), "there is no operation 'frobnicate'"),
    "arity": (in_loop(Let("v", F32, "load", ("x",))), "load takes 2 arguments, not 1"),
    "table arity": (in_loop(ONE, Let("v", F32, "add", ("c0",))), "add takes 2 arguments, not 1"),
    "mixed dtypes": (
        in_loop(ONE, N, Let("v", F32, "add", ("c0", "n0"))),
        "argument dtypes differ: torch.float32, torch.int64",
    ),
    "result dtype": (
        in_loop(ONE, Let("v", F32, "lt", ("c0", "c0"))),
        "v is declared as torch.float32, it is torch.bool",
    ),
    "constant": (in_loop(Let("v", I64, "constant", (1.0,))), "the constant 1.0 is no torch.int64"),
    "bitcast": (in_loop(ONE, Let("v", I64, "bitcast", ("c0",))), "changes the width"),
    "indirect of float": (
        in_loop(ONE, replace(INDIRECT, args=("c0", S0, True, True))),
        "an indirect index is an integer, not torch.float32",
    ),
    "indirect raises": (
        in_loop(N, replace(INDIRECT, args=("n0", S0, True, "KeyError"))),
        "an indirect index raises no KeyError",
    ),
    "indirect binds nothing": (
        in_loop(N, replace(INDIRECT, index=None)),
        "the indirect index binds no symbol",
    ),
    "indirect symbol taken": (
        in_loop(N, replace(INDIRECT, index=A)),
        "the index symbol a is taken: it is a loop variable already",
    ),
    "indirect symbol leaks": (
        kernel(loop(A, S0, N, INDIRECT), Let("v", F32, "load", ("x", (AT, ZERO)))),
        "the symbol at in at is not defined here",
    ),
    "mask dtype": (
        in_loop(ONE, Masked("m", F32, "c0", Block(), "c0", 0.0)),
        "the mask c0 is bool, not torch.float32",
    ),
    "masked dtype": (
        in_loop(ONE, TRUE, Masked("m", I64, "t0", Block(), "c0", 0)),
        "m is declared as torch.int64, it is torch.float32",
    ),
    "masked store": (
        in_loop(ONE, TRUE, Masked("m", F32, "t0", Block((STORE,)), "c0", 0.0)),
        "a masked body only computes values, it holds a Store",
    ),
    "store to input": (in_loop(ONE, Store("x", (A, ZERO), "c0")), "x is stored to but not marked as written"),
    "store dtype": (in_loop(N, Store("y", (A,), "n0")), "y holds torch.float32, stored is torch.int64"),
    "store mode": (in_loop(ONE, replace(STORE, mode="max")), "a store has no mode 'max'"),
    "kind": (in_loop(Accumulate("acc", "median", F32)), "the accumulator acc is no reduction: 'median'"),
    "declared twice": (in_loop(ACC, loop(B, 2, ACC)), "the accumulator acc is declared twice"),
    "updated early": (
        in_loop(ONE, Update("acc", "c0"), ACC),
        "the accumulator acc is updated before it is declared",
    ),
    "update dtype": (
        in_loop(ACC, N, Update("acc", "n0")),
        "the accumulator acc takes torch.float32, not torch.int64",
    ),
    "read early": (
        in_loop(Let("v", F32, "read", ("acc", 0))),
        "the accumulator acc is read before it is declared",
    ),
    "read output": (
        in_loop(ACC, Let("v", F32, "read", ("acc", 1))),
        "the accumulator acc (sum) has no output 1",
    ),
    "read dtype": (
        in_loop(Accumulate("acc", "argmax", F32), Let("v", F32, "read", ("acc", 0))),
        "v is declared as torch.float32, it is torch.int64",
    ),
    "position": (
        in_loop(Accumulate("acc", "argmax", F32), ONE, Update("acc", "c0")),
        "the accumulator acc (argmax) needs a position",
    ),
    "merge early": (in_loop(ACC, Update("acc", "part", merge=True)), "part is merged before it is declared"),
    "merge kinds": (
        in_loop(ACC, Accumulate("part", "max", F32), Update("acc", "part", merge=True)),
        "part (max) is merged into acc (sum)",
    ),
    "race": (
        kernel(ACC, loop(A, S0, ONE, loop(B, 2, Update("acc", "c0")), kind=PARALLEL)),
        "iterations of the parallel loop over a share the accumulator acc",
    ),
}


@pytest.mark.parametrize("rule", BROKEN)
def test_each_rule_has_a_kernel_that_breaks_it(rule: str) -> None:
    broken, message = BROKEN[rule]
    with pytest.raises(VerificationError) as caught:
        verify(broken)
    assert caught.value.code == "SM0530"
    assert any(message in str(problem) for problem in caught.value.problems), caught.value


def test_all_problems_are_told_with_the_loops_around_them() -> None:
    with pytest.raises(VerificationError) as caught:
        verify(in_loop(STORE, loop(B, 2, replace(N, dtype=F32))))
    assert len(caught.value.problems) == 2
    assert "(at k: for a / for b)" in str(caught.value)


def test_siblings_may_reuse_names_and_a_vector_loop_may_hold_serial_ones() -> None:
    verify(kernel(loop(A, S0, ONE, STORE), loop(A, S0, ONE, STORE)))
    verify(kernel(loop(A, S0, ACC, loop(R, 8, LOAD, Update("acc", "v0")), kind=VECTOR, step=8)))
    verify(kernel(loop(A, S0, ACC, ONE, Update("acc", "c0"), kind=PARALLEL)))


WRITES_Y = Block((loop(B, 8, Alloc("tmp", F32, (sympy.Integer(4),)), ONE, STORE),))


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (kernel(For(R, ZERO, S0, WRITES_Y)), "the symbol a in a is not defined here"),
        (kernel(loop(B, 4, For(A, ZERO, S0, WRITES_Y))), "the loop variable b is taken"),
        (kernel(For(A, ZERO, S0, WRITES_Y), params=PARAMS[:2]), "there is no buffer y"),
        (kernel(For(A, ZERO, S0, WRITES_Y), params=(param("y", S0),)), "not marked as written"),
        (
            kernel(For(A, ZERO, S0, WRITES_Y), params=(param("y", S0, 8, written=True),)),
            "y is accessed with 1 indices",
        ),
        (
            kernel(For(A, ZERO, S0, WRITES_Y), params=(param("y", S0, dtype=I64, written=True),)),
            "y holds torch.int64",
        ),
        (
            kernel(For(A, ZERO, S0, WRITES_Y), params=(*PARAMS, param("tmp", S0))),
            "the scratch buffer tmp is declared twice",
        ),
        (kernel(For(A, ZERO, S0, WRITES_Y, LoopKind.VECTOR, 8)), "tmp is inside a vector loop"),
    ],
)
def test_a_block_without_problems_is_checked_again_in_other_surroundings(other: Kernel, why: str) -> None:
    assert find_problems(kernel(For(A, ZERO, S0, WRITES_Y))) == []
    assert any(why in problem.what for problem in find_problems(other))
    assert find_problems(kernel(For(A, ZERO, S0, WRITES_Y))) == []


def test_loops_around_a_block_without_problems_count() -> None:
    inside = Block((loop(B, 8, ONE, STORE, kind=LoopKind.PARALLEL),))
    for kind in (LoopKind.SERIAL, LoopKind.PARALLEL):
        assert find_problems(kernel(For(A, ZERO, S0, inside, kind))) == []
    two = For(A, ZERO, S0, Block((*inside.stmts, ONE)), LoopKind.PARALLEL)
    for outer in (For(A, ZERO, S0, inside, LoopKind.VECTOR, 8), two):
        assert any("parallel loop over b" in each.what for each in find_problems(kernel(outer)))


def test_the_names_of_a_block_are_all_that_it_uses_or_declares() -> None:
    sort = SortRow("x", (A, ZERO), S0, S0, False, "y", None, (A,))
    body = (*good().body.stmts, sort, Prefetch("n", (B,)), loop(R, S0 + 1, N, INDIRECT))
    names = names_in(Block(body))
    assert names.symbols == {A, B, R, S0, AT} == symbols_of(Block(body)) | variables_of(Block(body))
    assert names.buffers == {"x", "y", "n", "tmp"}


def _run(**changes: Any) -> Run:
    call = Call(good(), (Argument(0), InArena(4 * S0), Argument(1)))
    return replace(Run("run0", ("x", "y"), (S0,), (call, call)), **changes)


def test_runs() -> None:
    verify_run(_run())
    call = _run().calls[0]
    broken = {
        "2 buffers for 3 parameters": _run(calls=(replace(call, args=call.args[:2]),)),
        "there is no argument 1": _run(arguments=("x",)),
        "the size s0 is not given to the run": _run(sizes=()),
        "the size s1 of an arena offset": _run(
            calls=(replace(call, args=(Argument(0), InArena(sympy.Symbol("s1")), Argument(1))),)
        ),
        "c0 is assigned twice": _run(calls=(Call(in_loop(ONE, ONE), call.args),)),
    }
    for message, run in broken.items():
        with pytest.raises(VerificationError, match=message):
            verify_run(run)
