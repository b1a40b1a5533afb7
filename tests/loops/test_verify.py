"""The loop verifier: a good graph passes, and each rule has a graph that breaks it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import sympy
import torch

from smelt.errors import VerificationError
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
from smelt.loops.verify import verify
from smelt.ops import ops
from smelt.symbolic import contiguous_strides

S0 = sympy.Symbol("s0", integer=True, positive=True)
F32, I64 = torch.float32, torch.int64
ORIGIN = Origin("aten.test.default", "model.py:7 in forward")
ZERO = sympy.Integer(0)


def sizes(*shape: Any) -> tuple[sympy.Expr, ...]:
    return tuple(sympy.sympify(size) for size in shape)


def good() -> Graph:
    """x, n → y = x + x; m = max of y; z = x with y scattered by n; w = mm(y, y)."""
    graph = Graph(inputs=["x", "n", S0, None])
    for name, shape, dtype in (
        ("x", (S0, 4), F32),
        ("n", (S0,), I64),
        ("y", (S0, 4), F32),
        ("m", (S0,), F32),
        ("z", (S0, 4), F32),
        ("w", (S0, S0), F32),
        ("c", (2,), F32),
    ):
        graph.buffers[name] = Buffer(name, dtype, sizes(*shape), contiguous_strides(sizes(*shape)))
    graph.constants["c"] = torch.zeros(2)

    def place(i: Any) -> Any:
        return ops.indirect_index(ops.load("n", [i[0]]), S0), i[1]

    def view(name: str, *shape: Any) -> StridedView:
        return StridedView(name, sizes(*shape), contiguous_strides(sizes(*shape)), ZERO)

    shape = sizes(S0, 4)
    reduction = Reduction("max", (S0,), sizes(4), F32, lambda i, r: ops.load("y", [*i, *r]))
    call = Extern("aten.mm.default", (view("y", S0, 4), view("y", 4, S0)), {})
    graph.nodes = [
        Node(("y",), Pointwise(shape, F32, lambda i: ops.add(ops.load("x", i), ops.load("x", i))), ORIGIN),
        Node(("m",), reduction, ORIGIN),
        Node(("z",), Scatter("x", shape, F32, lambda i: ops.load("y", i), place), ORIGIN),
        Node(("w",), call, ORIGIN),
    ]
    graph.outputs = [view("w", S0, S0), S0, None]
    graph.mutations = [Mutation("x", "z")]
    return graph


def test_a_good_graph_passes() -> None:
    verify(good())


def _body(graph: Graph, position: int, **changes: Any) -> None:
    node = graph.nodes[position]
    graph.nodes[position] = replace(node, body=replace(node.body, **changes))


def _load(name: str, *index: Any) -> Callable[[Any], Any]:
    return lambda i: ops.load(name, [sympy.sympify(expr) for expr in index] if index else i)


def _buffer(graph: Graph, name: str, /, **changes: Any) -> None:
    graph.buffers[name] = replace(graph.buffers[name], **changes)


def _swap(graph: Graph) -> None:
    graph.nodes[0], graph.nodes[1] = graph.nodes[1], graph.nodes[0]


BROKEN: dict[str, tuple[Callable[[Graph], Any], str]] = {
    "input twice": (lambda g: g.inputs.append("x"), "x is an input twice"),
    "input without buffer": (lambda g: g.inputs.append("q"), "q is given but is no buffer"),
    "constant is input": (lambda g: g.inputs.append("c"), "the constant c is an input too"),
    "constant differs": (
        lambda g: g.constants.update(c=torch.zeros(3)),
        "the constant c is torch.float32 [3]",
    ),
    "filed wrongly": (lambda g: _buffer(g, "m", name="q"), "buffer q is filed under m"),
    "strides": (lambda g: _buffer(g, "m", strides=sizes(1, 1)), "m has 1 dimensions and 2 strides"),
    "negative size": (lambda g: _buffer(g, "c", shape=sizes(-2)), "c has a negative size"),
    "written twice": (lambda g: g.nodes.append(g.nodes[0]), "y is written twice"),
    "input written": (lambda g: g.nodes.append(replace(g.nodes[0], outputs=("x",))), "x is written twice"),
    "unknown output": (
        lambda g: g.nodes.append(replace(g.nodes[0], outputs=("q",))),
        "q is written but is no buffer",
    ),
    "never written": (lambda g: g.nodes.pop(1), "m is never written"),
    "order": (_swap, "y is read before it is written"),
    "extern order": (lambda g: g.nodes.insert(0, g.nodes.pop()), "y is read before it is written"),
    "unknown buffer": (lambda g: _body(g, 0, inner_fn=_load("q")), "load of the unknown buffer 'q'"),
    "rank": (lambda g: _body(g, 0, inner_fn=_load("x", 0)), "load of x with 1 indices, it has 2 dimensions"),
    "too large": (lambda g: _body(g, 0, inner_fn=_load("x", 0, 4)), "index 4 of dimension 1 leaves [0, 4)"),
    "negative": (
        lambda g: _body(g, 0, inner_fn=lambda i: ops.load("x", [i[0], i[1] - 1])),
        "index i1 - 1 of dimension 1 leaves [0, 4)",
    ),
    "affine beyond": (
        lambda g: _body(g, 0, inner_fn=lambda i: ops.load("x", [i[0] + 1, i[1]])),
        "index i0 + 1 of dimension 0 leaves [0, s0)",
    ),
    "dtype rule": (
        lambda g: _body(g, 0, inner_fn=lambda i: ops.bitwise_not(ops.load("x", i))),
        "bitwise_not does not take torch.float32",
    ),
    "mask": (
        lambda g: _body(g, 0, inner_fn=lambda i: ops.masked(ops.load("x", i), lambda: ops.load("x", i), 0.0)),
        "a mask is bool, not torch.float32",
    ),
    "indirect": (
        lambda g: _body(
            g, 0, inner_fn=lambda i: ops.load("x", [ops.indirect_index(ops.load("x", i), S0), i[1]])
        ),
        "an indirect index is an integer, not torch.float32",
    ),
    "bitcast": (
        lambda g: _body(g, 0, inner_fn=lambda i: ops.bitcast(ops.bitcast(ops.load("x", i), I64), F32)),
        "bitcast from torch.float32 to torch.int64: the widths differ",
    ),
    "constant": (
        lambda g: _body(g, 0, inner_fn=lambda i: ops.to_dtype(ops.constant(1.5, I64), F32)),
        "constant 1.5 is no torch.int64",
    ),
    "other": (
        lambda g: _body(
            g,
            0,
            inner_fn=lambda i: ops.to_dtype(
                ops.masked(
                    ops.eq(ops.load("x", i), ops.load("x", i)), lambda: ops.constant(1, I64), float("inf")
                ),
                F32,
            ),
        ),
        "masked gives torch.int64, else inf",
    ),
    "node dtype": (lambda g: _body(g, 0, dtype=torch.float64), "the loop function gives torch.float32"),
    "stored dtype": (
        lambda g: _buffer(g, "y", dtype=torch.float64),
        "y is torch.float64, its node writes torch.float32",
    ),
    "stored shape": (lambda g: _buffer(g, "y", shape=sizes(S0, 5)), "y has the shape (s0, 5)"),
    "argmax gives int64": (
        lambda g: _body(g, 1, kind="argmax"),
        "m is torch.float32, its node writes torch.int64",
    ),
    "reduction kind": (lambda g: _body(g, 1, kind="median"), "there is no reduction 'median'"),
    "output count": (lambda g: _body(g, 1, kind="welford"), "the node has 1 outputs, its body 3"),
    "scatter base": (lambda g: _body(g, 2, base="q"), "the scatter's base q is no buffer"),
    "scatter place": (lambda g: _body(g, 2, place=lambda i: (i[0],)), "the scatter's place has 1 indices"),
    "scatter mode": (lambda g: _body(g, 2, mode="amax"), "a scatter has no mode 'amax'"),
    "scatter of booleans": (
        lambda g: _body(g, 2, dtype=torch.bool, mode="mul"),
        "a scatter of booleans has no mode 'mul'",
    ),
    "indirect raises": (
        lambda g: _body(
            g, 2, place=lambda i: (ops.indirect_index(ops.load("n", i[:1]), S0, check="KeyError"), i[1])
        ),
        "an indirect index raises no KeyError",
    ),
    "extern target": (
        lambda g: _body(g, 3, target="aten.nope.default"),
        "there is no ATen operator 'aten.nope.default'",
    ),
    "extern view": (
        lambda g: _body(g, 3, args=(StridedView("y", sizes(1), (), ZERO),)),
        "a view of y has 1 dimensions and 0 strides",
    ),
    "extern buffer": (
        lambda g: _body(g, 3, args=(StridedView("q", (), (), ZERO),)),
        "a view of q, which is no buffer",
    ),
    "output": (
        lambda g: g.outputs.append(StridedView("q", (), (), ZERO)),
        "output 3: a view of q, which is no buffer",
    ),
    "mutation target": (lambda g: g.mutations.append(Mutation("y", "z")), "y is mutated but is no input"),
    "mutation source": (
        lambda g: g.mutations.append(Mutation("x", "q")),
        "the value of q, which is never written",
    ),
    "mutation dtype": (
        lambda g: g.mutations.append(Mutation("n", "m")),
        "n is torch.int64, it is to hold m: torch.float32",
    ),
    "mutation shape": (
        lambda g: g.mutations.append(Mutation("x", "m")),
        "x has the shape (s0, 4), m has (s0,)",
    ),
}


@pytest.mark.parametrize("rule", BROKEN)
def test_each_rule_has_a_graph_that_breaks_it(rule: str) -> None:
    break_it, message = BROKEN[rule]
    graph = good()
    break_it(graph)
    with pytest.raises(VerificationError) as caught:
        verify(graph)
    assert caught.value.code == "SM0520"
    assert any(message in str(problem) for problem in caught.value.problems), caught.value


def test_all_problems_are_told_at_once_with_the_users_line() -> None:
    graph = good()
    _body(graph, 0, inner_fn=_load("x", 0, 4))
    _body(graph, 1, kind="median")
    graph.mutations.append(Mutation("y", "z"))
    with pytest.raises(VerificationError) as caught:
        verify(graph)
    assert len(caught.value.problems) == 3
    assert "(at model.py:7 in forward)" in str(caught.value)


def test_masked_loads_and_empty_domains_may_name_indices_outside() -> None:
    graph = good()

    def padded(i: Any) -> Any:
        at = ops.index_expr(i[1] - 1, I64)
        return ops.masked(ops.ge(at, ops.constant(0, I64)), lambda: ops.load("x", [i[0], i[1] - 1]), 0.0)

    _body(graph, 0, inner_fn=padded)
    verify(graph)
    graph = good()
    for name in ("x", "y", "z"):
        _buffer(graph, name, shape=sizes(S0, 0), strides=sizes(1, 1))
    _body(graph, 0, shape=sizes(S0, 0), inner_fn=_load("x", 0, 0))
    _body(graph, 1, reduce_shape=sizes(0))
    _body(graph, 2, shape=sizes(S0, 0))
    verify(graph)
