"""What runs between kernels: sizes that depend on data, sizes that follow from others, checks."""

from __future__ import annotations

import pytest
import sympy
import torch

from smelt.loops.dependencies import analyze, bound_symbols, domain
from smelt.loops.interpreter import run_graph
from smelt.loops.ir import (
    Bind,
    Buffer,
    Check,
    Extern,
    Graph,
    Node,
    Origin,
    Pointwise,
    SizeOf,
    StridedView,
)
from smelt.loops.printer import print_graph
from smelt.loops.verify import verify
from smelt.ops import ops
from smelt.schedule import Target, schedule
from smelt.symbolic import FloorDiv, loop_var

n, half = loop_var("u0"), loop_var("sz1")
ONE, FOUR = sympy.Integer(1), sympy.Integer(4)


def graph_of_nonzero() -> Graph:
    """Positions of the nonzero elements, the first half of them doubled; at least two are asked for."""
    graph = Graph(inputs=["x"])
    for name, dtype, shape in [("x", torch.float32, (FOUR,)), ("found", torch.int64, (n, ONE))]:
        graph.buffers[name] = Buffer(name, dtype, shape, (ONE,) * len(shape))
    graph.buffers["out"] = Buffer("out", torch.int64, (half,), (ONE,))
    whole = StridedView("x", (FOUR,), (ONE,), sympy.Integer(0))
    call = Extern("aten.nonzero.default", (whole,), {}, sizes=(SizeOf(n, 0, 0),))
    plain = sympy.Symbol("u0", integer=True)
    double = Pointwise(
        (half,),
        torch.int64,
        lambda i: ops.mul(ops.load("found", (i[0], ONE * 0)), ops.constant(2, torch.int64)),
    )
    graph.nodes = [
        Node(("found",), call, Origin("aten.nonzero.default")),
        Node((), Check(sympy.Ge(plain, 2), "fewer than two"), Origin("aten._assert_scalar.default")),
        Node((), Bind(half, FloorDiv(n, 2)), Origin("aten.slice.Tensor")),
        Node(("out",), double, Origin("aten.mul.Tensor")),
    ]
    graph.outputs = [StridedView("out", (half,), (ONE,), sympy.Integer(0)), n]
    return graph


def test_the_interpreter_binds_sizes_and_checks() -> None:
    graph = graph_of_nonzero()
    verify(graph)
    doubled, count = run_graph(graph, [torch.tensor([0.0, 1.0, 2.0, 3.0])])
    assert (doubled.tolist(), count) == ([2], 3)
    with pytest.raises(RuntimeError, match="fewer than two"):
        run_graph(graph, [torch.tensor([0.0, 1.0, 0.0, 0.0])])


def test_the_printer_tells_sizes_and_checks() -> None:
    text = print_graph(graph_of_nonzero())
    assert "u0: size = found.shape[0]" in text
    assert "check u0 >= 2, else RuntimeError: fewer than two" in text
    assert "sz1: size = u0//2" in text


def test_what_binds_sizes_has_no_loops() -> None:
    call, check, bind, double = graph_of_nonzero().nodes
    assert [bound_symbols(node) for node in (call, check, bind, double)] == [(n,), (), (half,), ()]
    assert domain(bind) == domain(check) == ()
    assert analyze(bind).buffers_read == analyze(check).buffers_read == ()
    assert domain(double) == (half,)


def test_a_kernel_comes_after_the_sizes_it_needs() -> None:
    from smelt.config import Config
    from smelt.runtime.plan import AllocStep, CheckStep, ExternStep, NativeStep, SizeStep

    steps = schedule(graph_of_nonzero(), Config(), Target(32)).plan.steps
    kinds = [type(step) for step in steps]
    assert kinds.index(ExternStep) < kinds.index(CheckStep) < kinds.index(NativeStep)
    assert kinds.index(SizeStep) < kinds.index(AllocStep) < kinds.index(NativeStep)
