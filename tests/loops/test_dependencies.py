"""What a node is said to read, to write and to cost."""

from __future__ import annotations

from typing import Any

import sympy
import torch

from smelt.loops.dependencies import Read, analyze
from smelt.loops.ir import Extern, Node, Origin, Pointwise, Reduction, Scatter, StridedView
from smelt.ops import ops
from smelt.symbolic import loop_var

S0 = sympy.Symbol("s0", integer=True, positive=True)
ORIGIN = Origin("test")
N = sympy.Integer


def test_distinct_reads_and_costs() -> None:
    def inner(i: Any) -> Any:
        x = ops.load("x", i)
        return ops.add(ops.exp(x), ops.mul(ops.load("x", [i[1], i[0]]), ops.load("x", i)))

    found = analyze(Node(("y",), Pointwise((N(4), N(4)), torch.float32, inner), ORIGIN))
    i0, i1 = found.variables
    assert found.reads == (Read("x", (i0, i1), False, False), Read("x", (i1, i0), False, False))
    assert (found.operations, found.cost, found.checks) == (3, 12, 0)
    assert found.writes == ("y",)
    assert found.buffers_read == ("x",)


def test_given_variables_are_used() -> None:
    a, b, c = loop_var("a"), loop_var("b"), loop_var("c")
    body = Reduction("sum", (N(2), N(3)), (N(4),), torch.float32, lambda i, r: ops.load("x", [*r, *i]))
    found = analyze(Node(("y",), body, ORIGIN), (a, b), (c,))
    assert found.reads == (Read("x", (c, a, b), False, False),)
    assert (found.variables, found.reduce_variables) == ((a, b), (c,))


def test_masked_and_indirect_reads_are_marked() -> None:
    def inner(i: Any) -> Any:
        at = ops.load("at", i)
        inside = ops.ge(at, ops.constant(0, torch.int64))
        place = ops.indirect_index(at, N(9))
        return ops.masked(inside, lambda: ops.add(ops.load("x", [place]), ops.load("y", i)), 0.0)

    found = analyze(Node(("o",), Pointwise((N(4),), torch.float32, inner), ORIGIN))
    marks = {read.buffer: (read.indirect, read.masked) for read in found.reads}
    assert marks == {"at": (False, False), "x": (True, True), "y": (False, True)}
    assert found.checks == 1


def test_a_read_both_masked_and_not_is_not_masked() -> None:
    def inner(i: Any) -> Any:
        inside = ops.load("m", i)
        return ops.add(ops.masked(inside, lambda: ops.load("x", i), 0.0), ops.load("x", i))

    found = analyze(Node(("o",), Pointwise((N(4),), torch.float32, inner), ORIGIN))
    assert [read.masked for read in found.reads if read.buffer == "x"] == [False]


def test_scatter_reads_its_base_whole_and_its_places() -> None:
    def place(i: Any) -> Any:
        return (ops.indirect_index(ops.load("at", i), N(5)),)

    body = Scatter("base", (N(3),), torch.float32, lambda i: ops.load("v", i), place)
    found = analyze(Node(("o",), body, ORIGIN))
    assert found.whole == ("base",)
    assert found.buffers_read == ("v", "at", "base")
    assert found.place is not None
    assert found.place[0].is_Symbol


def test_extern_reads_every_view_in_its_arguments() -> None:
    def view(name: str) -> StridedView:
        return StridedView(name, (N(2),), (N(1),), N(0))

    body = Extern("aten.cat.default", ([view("a"), view("b")], 0), {"out": view("c")})
    assert analyze(Node(("o", None), body, ORIGIN)).whole == ("a", "b", "c")
    assert analyze(Node(("o", None), body, ORIGIN)).writes == ("o",)


def test_an_inlined_producer_reads_in_its_place() -> None:
    f32 = torch.float32
    producer = Pointwise((N(8),), f32, lambda i: ops.exp(ops.load("x", [i[0] + 1])))
    node = Node(("y",), Pointwise((N(8),), f32, lambda i: ops.neg(ops.load("p", [i[0] * 2]))), ORIGIN)
    (read,) = analyze(node, inlined={"p": producer}).reads
    assert (read.buffer, read.index) == ("x", (2 * loop_var("i0") + 1,))
    assert analyze(node, inlined={"p": producer}).cost == analyze(node).cost + 10


def code(function: Any, *outputs: str) -> tuple[Any, ...]:
    return analyze(Node(outputs or ("y",), Pointwise((N(8),), torch.float32, function), ORIGIN)).code


def test_code_is_the_same_for_other_buffers_and_no_other() -> None:
    def of(first: str, second: str) -> Any:
        return lambda i: ops.add(ops.load(first, i), ops.exp(ops.load(second, i)))

    assert code(of("a", "b")) == code(of("c", "d"), "z") == code(of("b", "a"))
    assert code(of("a", "b")) != code(of("a", "a"))
    assert code(of("a", "b")) != code(lambda i: ops.add(ops.load("a", i), ops.exp(ops.load("b", [7 - i[0]]))))
    assert code(of("a", "b")) != code(lambda i: ops.add(ops.load("a", i), ops.log(ops.load("b", i))))
    assert code(of("a", "b")) != code(lambda i: ops.add(ops.exp(ops.load("a", i)), ops.load("b", i)))


def test_code_tells_numbers_apart_that_are_equal() -> None:
    f32 = torch.float32
    codes = {code(lambda i, x=x: ops.constant(x, f32)) for x in (0.0, -0.0, 1.0, True, float("nan"))}
    assert len(codes) == 5
    assert code(lambda i: ops.constant(0.0, f32)) == code(lambda i: ops.constant(0.0, f32))
    masks = {
        code(lambda i, x=x: ops.masked(ops.load("m", i), lambda: ops.load("a", i), x)) for x in (0.0, -0.0)
    }
    assert len(masks) == 2


def test_code_has_what_is_inlined() -> None:
    f32 = torch.float32
    reader = Node(("y",), Pointwise((N(8),), f32, lambda i: ops.neg(ops.load("p", i))), ORIGIN)
    found = [
        analyze(reader, inlined={"p": Pointwise((N(8),), f32, lambda i, op=op: op(ops.load("x", i)))})
        for op in (ops.exp, ops.sin)
    ]
    assert [each.inlined for each in found] == [("p",), ("p",)]
    assert found[0].buffers_read == found[1].buffers_read == ("x",)
    assert found[0].code != found[1].code
