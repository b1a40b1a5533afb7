"""The script of a loop graph: one golden of everything, and the details that mislead when they are wrong."""

from __future__ import annotations

from typing import Any

import sympy
import torch

from smelt.loops.ir import (
    Buffer,
    Extern,
    Graph,
    Mutation,
    Node,
    Origin,
    Pointwise,
    Reduction,
    Scatter,
    StridedView,
)
from smelt.loops.printer import instruction_text, print_graph, type_text
from smelt.loops.straightline import Instruction
from smelt.ops import ops
from smelt.symbolic import contiguous_strides

S0 = sympy.Symbol("s0", integer=True, positive=True)
THREE = sympy.Integer(3)


def _buffer(name: str, *shape: Any, dtype: torch.dtype = torch.float32) -> Buffer:
    sizes = tuple(sympy.sympify(size) for size in shape)
    return Buffer(name, dtype, sizes, contiguous_strides(sizes))


def _graph() -> Graph:
    graph = Graph(inputs=["x", "at", S0, None], hints={S0: 8})
    for b in (
        _buffer("x", S0, 3),
        _buffer("at", S0, dtype=torch.int64),
        _buffer("c", 3),
        Buffer("y", torch.bfloat16, (S0, THREE), (sympy.Integer(1), S0)),
        _buffer("m", S0),
        _buffer("z", S0, 3),
        _buffer("w", S0, S0),
    ):
        graph.buffers[b.name] = b
    graph.constants["c"] = torch.zeros(3)

    def exp_plus(index: Any) -> Any:
        value = ops.exp(ops.load("x", index))
        total = ops.mul(ops.add(value, ops.load("c", [index[1]])), value)
        return ops.to_dtype(total, torch.bfloat16)

    def padded(index: Any) -> Any:
        at = ops.index_expr(index[0] - 1, torch.int64)
        inside = ops.ge(at, ops.constant(0, torch.int64))
        return ops.masked(inside, lambda: ops.load("x", [index[0] - 1, index[1]]), 0.0)

    def place(index: Any) -> Any:
        return ops.indirect_index(ops.load("at", [index[0]]), S0), index[1]

    where = "model.py:12 in forward"
    graph.nodes = [
        Node(("y",), Pointwise((S0, THREE), torch.bfloat16, exp_plus), Origin("aten.exp.default", where)),
        Node(
            ("m",),
            Reduction("max", (S0,), (THREE,), torch.float32, lambda i, r: ops.load("x", [*i, *r])),
            Origin("aten.amax.default"),
        ),
        Node(
            ("z",),
            Scatter("x", (S0, THREE), torch.float32, padded, place, "add"),
            Origin("aten.index_put.default"),
        ),
        Node(
            ("w",),
            Extern(
                "aten.mm.default",
                (
                    StridedView("x", (S0, THREE), contiguous_strides((S0, THREE)), sympy.Integer(0)),
                    StridedView("x", (THREE, S0), (sympy.Integer(1), THREE), 3 * S0),
                ),
                {},
                "no rows for mm",
            ),
            Origin("aten.mm.default"),
        ),
    ]
    graph.mutations = [Mutation("x", "z")]
    graph.outputs = [StridedView("w", (S0, S0), (S0, sympy.Integer(1)), sympy.Integer(0)), 2 * S0, None]
    return graph


GOLDEN = """\
graph(
    x: f32[s0, 3],
    at: i64[s0],
    s0: size,  # 8 while capturing
    _,
):
    c: f32[3] = constant
    # aten.exp.default  model.py:12 in forward
    y: bf16[s0, 3] strides (1, s0) = pointwise
        for i0 in range(s0), i1 in range(3):
            v1: f32 = exp(x[i0, i1])
            y[i0, i1] = bf16(mul(add(v1, c[i1]), v1))
    # aten.amax.default
    m: f32[s0] = reduce max
        for i0 in range(s0):
            for r0 in range(3):
                m[i0] max= x[i0, r0]
    # aten.index_put.default
    z: f32[s0, 3] = copy of x, then scatter
        for i0 in range(s0), i1 in range(3):
            at_v6 = index(at[i0], size=s0, wrap, check)
            z[at_v6, i1] += (x[i0 - 1, i1] where ge(i64(i0 - 1), 0) else 0.0)
    # aten.mm.default
    w: f32[s0, s0] = aten.mm.default(x[s0, 3] strides (3, 1), x[3, s0] strides (1, 3) offset 3*s0)  # fallback: no rows for mm
    x[...] = z
    return w[s0, s0] strides (s0, 1), 2*s0, None
"""  # noqa: E501


def test_golden() -> None:
    assert print_graph(_graph()) == GOLDEN


def test_an_index_says_what_it_raises() -> None:
    step = Instruction("v1", torch.int64, "indirect_index", ("v0", S0, False, "RuntimeError"), None)
    assert instruction_text(step) == "index(v0, size=s0, check, raises=RuntimeError)"


def test_type_names_are_all_different() -> None:
    dtypes = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.bool, torch.uint8]
    dtypes += [torch.int8, torch.int16, torch.int32, torch.int64]
    assert len({type_text(dtype) for dtype in dtypes}) == len(dtypes)
