"""A target for smelt in one file: plain C for a machine with neither vectors nor threads.

Use it so: ``torch.compile(model, backend=smelt.backend.backend_for(ScalarC()))``.
"""

import subprocess
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from sympy import Expr

from smelt.codegen import NestText, call_arguments, flat_offset, index_text, run_parameters
from smelt.errors import Unsupported
from smelt.loops.reductions import MODES, identity
from smelt.nest import ir
from smelt.ops import Handler
from smelt.pipeline.targets import Code
from smelt.runtime.library import load
from smelt.schedule import Target

HEADER = """#include <stdbool.h>
#include <stdint.h>
#include <tgmath.h>
#define max_of(x, y) ((x) > (y) ? (x) : (y))
#define min_of(x, y) ((x) < (y) ? (x) : (y))
static int64_t floor_mod(int64_t x, int64_t y) { return (x % y + y) % y; }
static int64_t floor_div(int64_t x, int64_t y) { return (x - floor_mod(x, y)) / y; }
"""
FLAGS = ("-O2", "-std=gnu11", "-ffp-contract=off", "-fwrapv", "-fPIC", "-shared")
TYPES = {torch.float32: "float", torch.float64: "double", torch.bool: "bool", torch.int64: "int64_t"}
SIGNS = {"add": "+", "sub": "-", "mul": "*", "truediv": "/", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
TEXTS = {name: f"({{}} {sign} {{}})" for name, sign in SIGNS.items()} | {
    "maximum": "({0} > {1} || {0} != {0} ? {0} : {1})",
    "minimum": "({0} < {1} || {0} != {0} ? {0} : {1})",
    "where": "({} ? {} : {})",
    "pow": "pow({}, {})",
    "fma": "fma({}, {}, {})",
    "neg": "(-{})",
    "rsqrt": "(1 / sqrt({}))",
    "ndtr": "(erfc({} * -0.70710678118654752) / 2)",
}
TEXTS |= {name: f"{name}({{}})" for name in ("exp", "log", "sin", "cos", "tanh", "erf", "sqrt", "floor")}


def among(table: dict, key: object) -> str:
    if key not in table:
        raise Unsupported(f"scalar C has no {key}")
    return table[key]


def literal(value: float | int | bool, dtype: torch.dtype) -> str:
    text = float(value).hex() if dtype.is_floating_point else str(int(value))
    return f"(({among(TYPES, dtype)}){text.replace('nan', 'NAN').replace('inf', 'INFINITY')})"


class Values(Handler):
    """What is computed: each value is the text of an expression."""

    constant = staticmethod(literal)

    def __init__(self, nest: "Nest") -> None:
        self.nest = nest

    def elementwise(self, name: str, *args: str) -> str:
        return among(TEXTS, name).format(*args)

    def load(self, buffer: str, index: Sequence[Expr]) -> str:
        return f"{buffer}[{flat_offset(index, self.nest.strides[buffer]).text(self.nest.symbols)}]"

    def index_expr(self, expr: Expr, dtype: torch.dtype) -> str:
        return self.to_dtype(self.nest.index(expr), dtype)

    def to_dtype(self, x: str, dtype: torch.dtype) -> str:
        return f"(({among(TYPES, dtype)})({x}))"


class Nest(NestText):
    """One kernel as a C function: a method for each kind of statement."""

    def function(self, name: str) -> str:
        params, sizes = self.kernel.params, [size.name for size in self.kernel.sizes]
        self.symbols = {size: size.name for size in self.kernel.sizes}
        self.strides = {param.name: param.strides for param in params}
        self.modes, self.handler = {}, Values(self)
        self.statements(self.kernel.body)
        heads = [f"{among(TYPES, p.dtype)}* {p.name}" for p in params] + [f"int64_t {size}" for size in sizes]
        return "\n".join([f"static void {name}({', '.join(heads)}) {{", *self.text(), "}\n"])

    def declare(self, name: str, dtype: torch.dtype, text: str) -> None:
        self.values[name] = self.fresh("v")
        self.line(f"{among(TYPES, dtype)} {self.values[name]} = {text};")

    def loop(self, stmt: ir.For) -> None:  # of whichever kind: one turn after the other is right
        i = self.symbols[stmt.var] = self.fresh("i")
        with self.block(f"for (int64_t {i} = {self.index(stmt.begin)}; {i} < {self.index(stmt.end)}; {i}++)"):
            self.statements(stmt.body)

    def let(self, stmt: ir.Let) -> None:
        value = self.values[stmt.args[0]] if stmt.op == "read" else self.perform(stmt, self.handler)
        self.declare(stmt.name, stmt.dtype, value)

    def store(self, stmt: ir.Store) -> None:
        place, value = self.handler.load(stmt.buffer, stmt.index), self.values[stmt.value]
        if stmt.mode is not None:
            value = self.handler.elementwise(stmt.mode.removeprefix("atomic_"), place, value)
        self.line(f"{place} = {value};")

    def accumulate(self, stmt: ir.Accumulate) -> None:
        self.modes[stmt.name] = among(MODES, stmt.kind)
        self.declare(stmt.name, stmt.dtype, literal(identity(stmt.kind, stmt.dtype), stmt.dtype))

    def update(self, stmt: ir.Update) -> None:  # ``merge``: the other accumulator is a value like any other
        old, new = self.values[stmt.acc], self.values[stmt.value]
        self.line(f"{old} = {self.handler.elementwise(self.modes[stmt.acc], old, new)};")

    def carry(self, stmt: ir.Carry) -> None:
        self.declare(stmt.name, stmt.dtype, literal(stmt.initial, stmt.dtype))

    def advance(self, stmt: ir.Advance) -> None:
        self.line(f"{self.values[stmt.carry]} = {self.values[stmt.value]};")

    def alloc(self, stmt: ir.Alloc) -> None:
        self.strides[stmt.buffer] = stmt.strides
        self.line(f"{among(TYPES, stmt.dtype)} {stmt.buffer}[{self.index(stmt.count)}];")


class ScalarC:
    """The target: what the scheduler knows of it, and from runs to a library."""

    machine = Target(vector_bytes=4)
    choose = staticmethod(lambda *product: True)  # every product and attention becomes a nest

    def build(self, runs: Sequence[ir.Run]) -> Code:
        kernels = dict.fromkeys(call.kernel for run in runs for call in run.calls)
        names = {kernel: f"kernel{position}" for position, kernel in enumerate(kernels)}
        texts = [HEADER, *(Nest(kernel).function(name) for kernel, name in names.items())]
        for run in runs:
            params, sizes = run_parameters(run, "int64_t")
            texts.append(f"int64_t {run.name}({', '.join(params)}) {{")
            for call in run.calls:
                args = call_arguments(call, partial(index_text, names=sizes), TYPES, sizes)
                texts.append(f"  {names[call.kernel]}({', '.join(args)});")
            texts.append("  return 0;\n}\n")
        folder = Path(tempfile.mkdtemp())
        (folder / "unit.c").write_text("\n".join(texts))
        subprocess.run(["cc", *FLAGS, "unit.c", "-o", "unit.so", "-lm"], check=True, cwd=folder)
        return Code("\n".join(texts), load(folder / "unit.so"), {})
