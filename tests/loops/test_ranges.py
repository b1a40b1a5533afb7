"""Intervals: what is claimed holds for every value (by the interpreter), and what should be proved is."""

from __future__ import annotations

from typing import Any

import pytest
import sympy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from smelt.loops.elementwise import apply
from smelt.loops.ir import Buffer, Graph, Node, Origin, Pointwise
from smelt.loops.ranges import Interval, RangeChecker, contents_of, relax_checks
from smelt.loops.record import Recorder
from smelt.loops.straightline import Instruction, MaskedInstruction
from smelt.ops import ops, using
from smelt.symbolic import loop_var

S0 = sympy.Symbol("s0", integer=True, positive=True)
A = loop_var("a")
INT64, INT8 = torch.int64, torch.int8


def interval(low: int | None, high: int | None, dtype: torch.dtype) -> Interval:
    ends = [None if end is None else sympy.Integer(end) for end in (low, high)]
    return Interval(ends[0], ends[1], dtype)


def holds(found: Interval, value: int) -> bool:
    return (found.low is None or found.low <= value) and (found.high is None or value <= found.high)


_END = st.one_of(st.none(), st.integers(-128, 127))


@settings(max_examples=400, deadline=None)
@given(
    st.sampled_from(
        ["add", "sub", "mul", "minimum", "maximum", "remainder", "floordiv", "truncdiv", "lt", "fmod"]
    ),
    _END,
    _END,
    _END,
    _END,
    st.integers(-128, 127),
    st.integers(-128, 127),
)
def test_rules_hold_for_int8_that_wraps(
    name: str, a: int | None, b: int | None, c: int | None, d: int | None, x: int, y: int
) -> None:
    left, right = interval(a, b, INT8), interval(c, d, INT8)
    if not (holds(left, x) and holds(right, y)) or (
        y == 0 and name not in ("add", "sub", "mul", "minimum", "maximum", "lt")
    ):
        return
    if y == -1 and x == -128 and name in ("floordiv", "truncdiv"):
        return  # overflows: C's own matter
    found = RangeChecker({}).elementwise(name, left, right)
    value = int(apply(name, (torch.tensor(x, dtype=INT8), torch.tensor(y, dtype=INT8))))
    assert holds(found, value), (name, left, right, x, y, value, found)


@pytest.mark.parametrize("source", [torch.uint8, INT8, torch.int32, INT64, torch.bool])
@pytest.mark.parametrize("target", [torch.uint8, INT8, torch.int32, INT64, torch.bool])
@pytest.mark.parametrize(("low", "high"), [(0, 1), (0, None), (-3, 9), (None, 100), (0, 127)])
def test_conversions_hold(
    source: torch.dtype, target: torch.dtype, low: int | None, high: int | None
) -> None:
    found = RangeChecker({}).to_dtype(interval(low, high, source), target)
    for number in (-128, -3, -1, 0, 1, 5, 9, 100, 127, 200, 255, 300, 2**31 - 1, 2**40):
        there = torch.tensor(number).to(source)
        if int(there) == number and holds(interval(low, high, source), number):
            assert holds(found, int(there.to(target)))


def _proofs(inner: Any, extents: Any, **contents: Interval) -> list[tuple[bool, bool]]:
    checker = RangeChecker(extents, contents)
    with using(checker):
        inner()
    return checker.proofs


def test_what_should_be_proved_is() -> None:
    def at(value: Any, size: Any) -> Any:
        return ops.indirect_index(value, sympy.sympify(size))

    def number(value: int) -> Any:
        return ops.constant(value, INT64)

    def arange() -> Any:
        return ops.index_expr(A, INT64)

    assert _proofs(lambda: at(arange(), S0), {A: S0}) == [(True, True)]
    assert _proofs(lambda: at(arange(), 7), {A: S0}) == [(True, False)]
    assert _proofs(lambda: at(ops.sub(arange(), number(1)), S0), {A: S0}) == [(False, False)]

    def clamped() -> Any:
        return ops.maximum(ops.minimum(ops.load("n", []), ops.index_expr(S0 - 1, INT64)), number(0))

    assert _proofs(lambda: at(clamped(), S0), {}) == [(True, True)]
    assert _proofs(lambda: at(ops.remainder(ops.load("n", []), number(5)), 5), {}) == [(True, True)]
    assert _proofs(lambda: at(ops.load("n", []), 5), {}) == [(False, False)]
    assert _proofs(lambda: at(ops.load("n", []), 5), {}, n=interval(0, 4, INT64)) == [(True, True)]
    assert _proofs(lambda: at(ops.to_dtype(ops.gt(ops.load("n", []), number(3)), INT64), 2), {}) == [
        (True, True)
    ]
    picked = _proofs(lambda: at(ops.where(ops.load("m", []), arange(), number(9)), 10), {A: sympy.Integer(4)})
    assert picked == [(True, True)]


def test_overflow_of_a_narrow_dtype_proves_nothing() -> None:
    def inner() -> Any:
        x = ops.minimum(ops.maximum(ops.load("n", []), ops.constant(0, INT8)), ops.constant(100, INT8))
        ops.indirect_index(ops.add(x, x), sympy.Integer(256))

    assert _proofs(inner, {}) == [(False, False)]


def test_contents_follow_buffers_through_the_graph() -> None:
    n = sympy.Integer
    graph = Graph()
    for name in ("positions", "shifted", "floats"):
        dtype = torch.float32 if name == "floats" else INT64
        graph.buffers[name] = Buffer(name, dtype, (S0,), (n(1),))
    graph.nodes = [
        Node(
            ("positions",), Pointwise((S0,), INT64, lambda i: ops.index_expr(i[0], INT64)), Origin("arange")
        ),
        Node(
            ("shifted",),
            Pointwise((S0,), INT64, lambda i: ops.add(ops.load("positions", i), ops.constant(2, INT64))),
            Origin("add"),
        ),
        Node(
            ("floats",),
            Pointwise((S0,), torch.float32, lambda i: ops.to_dtype(ops.load("shifted", i), torch.float32)),
            Origin("to"),
        ),
    ]
    assert contents_of(graph) == {
        "positions": Interval(n(0), S0 - 1),
        "shifted": Interval(n(2), S0 + 1),
    }


def test_relax_drops_only_what_is_proved() -> None:
    recorder = Recorder({"x": torch.float32, "m": torch.bool, "n": INT64}, {A: sympy.Integer(8)})

    def inner(index: Any) -> Any:
        here = ops.indirect_index(ops.index_expr(index[0], INT64), sympy.Integer(8))
        there = ops.indirect_index(ops.index_expr(index[0] * 2, INT64), sympy.Integer(8))

        def body() -> Any:
            return ops.load("x", [ops.indirect_index(ops.load("n", index), sympy.Integer(8))])

        masked = ops.masked(ops.load("m", index), body, 0.0)
        return ops.add(ops.add(ops.load("x", [here]), ops.load("x", [there])), masked)

    recorder.run(inner, (A,))
    relaxed = relax_checks(recorder.instructions, {A: sympy.Integer(8)}, {})

    def flags(steps: Any) -> list[tuple[bool, bool]]:
        found = []
        for step in steps:
            if isinstance(step, MaskedInstruction):
                found += flags(step.body)
            elif isinstance(step, Instruction) and step.op == "indirect_index":
                found.append(step.args[2:])
        return found

    assert flags(relaxed) == [(False, False), (False, True), (True, True)]
    assert len(relaxed) == len(recorder.instructions)


def test_a_check_that_stays_raises_what_it_did() -> None:
    recorder = Recorder({"n": INT64}, {A: sympy.Integer(8)})
    with using(recorder):
        ops.indirect_index(ops.load("n", [A]), sympy.Integer(8), wrap=False, check="RuntimeError")
    relaxed = relax_checks(recorder.instructions, {A: sympy.Integer(8)}, {})
    assert [s.args[3] for s in relaxed if isinstance(s, Instruction) and s.op == "indirect_index"] == [
        "RuntimeError"
    ]
