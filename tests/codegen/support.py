"""Compile printed units with g++ and call them on tensors; builders for small nests."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import sympy
import torch
from sympy import Expr, Symbol

from smelt.codegen.cpp import CppUnit, print_unit
from smelt.nest.ir import Argument, Block, Call, For, Kernel, Let, LoopKind, Param, Run, Stmt, Store
from smelt.runtime import toolchain

COMPILER = shutil.which(os.environ.get("CXX", "g++"))
_OWN_FLAGS = toolchain.CLANG_FLAGS if "clang" in (COMPILER or "") else toolchain.GCC_FLAGS
FLAGS = [*toolchain.FLAGS, *_OWN_FLAGS, "-shared", "-fopenmp"]
NATIVE = ["-march=native"]

SIZE = Symbol("n", integer=True, positive=True)


def var(name: str) -> Symbol:
    return Symbol(name, integer=True, nonnegative=True)


def number(value: int) -> Expr:
    return sympy.Integer(value)


def block(*stmts: Stmt) -> Block:
    return Block(tuple(stmts))


def param(name: str, dtype: torch.dtype, shape: Sequence[int | Expr], *, written: bool = False) -> Param:
    """A contiguous parameter."""
    sizes = [sympy.sympify(size) for size in shape]
    strides: list[Expr] = []
    step: Expr = sympy.Integer(1)
    for size in reversed(sizes):
        strides.insert(0, step)
        step = step * size
    return Param(name, dtype, tuple(sizes), tuple(strides), written)


def single(kernel: Kernel, name: str | None = None) -> Run:
    """A run of one kernel, each parameter an argument of the run."""
    places = tuple(Argument(position) for position in range(len(kernel.params)))
    names = tuple(p.name for p in kernel.params)
    return Run(name or f"run_{kernel.name}", names, kernel.sizes, (Call(kernel, places),))


def pointwise(op: str, dtypes: Sequence[torch.dtype], out: torch.dtype, lanes: int) -> Kernel:
    """``out[i] = op(in0[i], …)`` over SIZE elements; ``lanes`` 1 is a serial loop."""
    i = var("i")
    params = [param(f"x{k}", dtype, [SIZE]) for k, dtype in enumerate(dtypes)]
    loads = [Let(f"v{k}", dtype, "load", (f"x{k}", (i,))) for k, dtype in enumerate(dtypes)]
    if op == "to_dtype":
        result = Let("r", out, "to_dtype", ("v0",))
    else:
        result = Let("r", out, op, tuple(f"v{k}" for k in range(len(dtypes))))
    body = block(*loads, result, Store("y", (i,), "r"))
    kind = LoopKind.SERIAL if lanes == 1 else LoopKind.VECTOR
    loop = For(i, number(0), SIZE, body, kind, lanes)
    tag = "_".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
    name = f"{op}_{tag}_to_{str(out).removeprefix('torch.')}_{lanes}"
    return Kernel(name, (*params, param("y", out, [SIZE], written=True)), (SIZE,), block(loop))


class Library:
    """A compiled unit; ``library(run_name, tensors…, sizes…, arena=bytes)`` returns the error number."""

    def __init__(self, folder: Path, runs: Sequence[Run], flags: Sequence[str] = NATIVE) -> None:
        self.unit: CppUnit = print_unit(runs)
        source, target = folder / "unit.cpp", folder / "unit.so"
        source.write_text(self.unit.text)
        compile_unit(source, target, flags)
        self.handle = ctypes.CDLL(str(target))

    def __call__(self, name: str, *args: torch.Tensor | int, arena: torch.Tensor | int = 0) -> int:
        function = getattr(self.handle, name)
        function.restype = ctypes.c_int64
        values = []
        for arg in (arena, *args):
            is_tensor = isinstance(arg, torch.Tensor)
            values.append(ctypes.c_void_p(arg.data_ptr()) if is_tensor else ctypes.c_int64(arg))
        return int(function(*values))


def compile_unit(source: Path, target: Path, flags: Sequence[str] = NATIVE) -> None:
    command = [COMPILER or "g++", *FLAGS, *flags, str(source), "-o", str(target), "-lm"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise AssertionError(done.stderr[:4000])
