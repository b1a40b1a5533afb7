"""The text of kernels and runs: one golden of every statement."""

from __future__ import annotations

from dataclasses import replace

import sympy
import torch

from smelt.loops.ir import Origin
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
    Run,
    Store,
    Update,
)
from smelt.nest.printer import print_kernel, print_run
from smelt.symbolic import loop_var

F32, I64 = torch.float32, torch.int64
S0 = sympy.Symbol("s0", integer=True, positive=True)
A, R, AT = loop_var("i0"), loop_var("r0"), loop_var("at")
ZERO, ONE, EIGHT = (sympy.Integer(number) for number in (0, 1, 8))


def _kernel() -> Kernel:
    inner = For(
        R,
        ZERO,
        EIGHT,
        Block((Let("v0", F32, "load", ("x", (A, R))), Update("acc", "v0", R))),
        LoopKind.VECTOR,
        8,
    )
    gather = Block(
        (
            Let("v1", I64, "load", ("n", (A,))),
            Let("v2", I64, "indirect_index", ("v1", S0, True, False), AT),
            Let("v3", F32, "load", ("x", (AT, ZERO))),
        )
    )
    body = Block(
        (
            Alloc("tmp", F32, (EIGHT,)),
            Accumulate("acc", "argmax", F32),
            inner,
            Let("t", torch.bool, "constant", (True,)),
            Masked("v4", F32, "t", gather, "v3", 0.0),
            Let("v5", I64, "read", ("acc", 0)),
            Let("v6", F32, "to_dtype", ("v5",)),
            Let("v7", F32, "add", ("v4", "v6")),
            Store("tmp", (ZERO,), "v7"),
            Store("y", (A,), "v7", "atomic_add"),
        )
    )
    params = (
        Param("x", F32, (S0, EIGHT), (ONE, S0)),
        Param("n", I64, (S0,), (ONE,)),
        Param("y", F32, (S0,), (ONE,), True),
    )
    loop = For(A, ONE, S0, body, LoopKind.PARALLEL)
    return Kernel("k0", params, (S0,), Block((loop,)), ("aten.argmax.default",))


GOLDEN = """\
kernel k0(x: f32[s0, 8] strides (1, s0), n: i64[s0], out y: f32[s0], s0: size):
    # aten.argmax.default
    parallel for i0 in range(1, s0):
        scratch tmp: f32[8]
        acc: f32 = argmax()
        vector for r0 in range(8) step 8:
            v0: f32 = x[i0, r0]
            acc update v0 at r0
        t: bool = True
        v4: f32 = where t, else 0.0:
            v1: i64 = n[i0]
            at = index(v1, size=s0, wrap)
            v3: f32 = x[at, 0]
            v3
        v5: i64 = acc.0
        v6: f32 = f32(v5)
        v7: f32 = add(v4, v6)
        tmp[0] = v7
        y[i0] atomic_add= v7
"""


def test_golden_kernel() -> None:
    assert print_kernel(_kernel()) == GOLDEN


def test_equal_kernels_of_a_run_are_shown_once() -> None:
    kernel = _kernel()
    places = (Argument(0), InArena(64 * S0), Argument(1))
    other = replace(kernel, origins=(Origin("another layer"),))
    run = Run("run0", ("a", "b"), (S0,), (Call(kernel, places), Call(other, places)))
    head, _, rest = print_run(run).partition("\n\n")
    call = "    k0(x=a, n=arena[64*s0], y=b)"
    assert head == f"run run0(a, b, s0: size):\n{call}\n{call}"
    assert rest == GOLDEN
