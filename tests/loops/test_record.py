"""What the recorder keeps: merged values, scopes, masks, inlining, dtypes; and that a replay agrees."""

from __future__ import annotations

from typing import Any

import pytest
import sympy
import torch

from smelt.errors import SmeltError
from smelt.loops.interpreter import Interpreter
from smelt.loops.ir import Origin
from smelt.loops.record import RecordedValue, Recorder, is_exact, record
from smelt.loops.straightline import Instruction, MaskedInstruction, prune, replay
from smelt.ops import ops
from smelt.symbolic import FloorDiv, Mod, loop_var

A, B, R = loop_var("i"), loop_var("j"), loop_var("r")
EXTENTS = {A: sympy.Integer(6), B: sympy.Integer(4), R: sympy.Integer(5)}
FLOATS = dict.fromkeys("xyz", torch.float32)
F32 = torch.float32


def recorder(**kwargs: Any) -> Recorder:
    return Recorder({**FLOATS, "at": torch.int64, "h": torch.bfloat16, "m": torch.bool}, EXTENTS, **kwargs)


def steps_of(r: Recorder) -> list[tuple[str, str]]:
    return [
        (step.name, "masked" if isinstance(step, MaskedInstruction) else step.op) for step in r.instructions
    ]


def test_equal_computations_are_merged_over_bodies() -> None:
    r = recorder()
    first = r.run(lambda i: ops.exp(ops.add(ops.load("x", i), ops.load("y", i))), (A,))
    second = r.run(lambda i: ops.exp(ops.add(ops.load("y", i), ops.load("x", i))), (A,))
    assert first == second == RecordedValue("v3", F32)
    assert steps_of(r) == [("v0", "load"), ("v1", "load"), ("v2", "add"), ("v3", "exp")]
    third = r.run(lambda i: ops.sub(ops.load("y", i), ops.load("x", i)), (A,))
    fourth = r.run(lambda i: ops.sub(ops.load("x", i), ops.load("y", i)), (A,))
    assert third != fourth


def test_loads_are_merged_when_their_simplified_indices_are_equal() -> None:
    r = recorder()
    a = r.run(lambda i: ops.load("x", [FloorDiv(4 * i[0] + i[1], 4), Mod(4 * i[0] + i[1], 4)]), (A, B))
    b = r.run(lambda i: ops.load("x", i), (A, B))
    assert a == b
    assert r.instructions[0].args == ("x", (A, B))


@pytest.mark.parametrize(("left", "right"), [(0.0, -0.0), (1.0, 2.0), (float("nan"), 0.0)])
def test_constants_that_differ_in_any_bit_stay_apart(left: float, right: float) -> None:
    r = recorder()
    assert r.constant(left, F32) != r.constant(right, F32)
    assert r.constant(left, F32) == r.constant(left, F32)
    assert r.constant(left, F32) != r.constant(left, torch.float64)
    assert r.constant(1, torch.bool) != r.constant(1, torch.int64)


def test_code_with_a_negative_zero_is_not_equal_to_code_with_a_zero() -> None:
    def codes(value: float) -> tuple[object, ...]:
        def masked(index: object) -> object:
            return ops.masked(ops.constant(True, torch.bool), lambda: ops.constant(1.0, F32), value)

        return tuple(
            record(fn, ((),), {}, {}).instructions for fn in (lambda index: ops.constant(value, F32), masked)
        )

    assert all(left != right for left, right in zip(codes(0.0), codes(-0.0)))
    assert codes(-0.0) == codes(-0.0)


def test_conversion_there_and_back_vanishes_only_where_it_is_exact() -> None:
    r = recorder()
    h = r.load("h", (A,))
    assert r.to_dtype(r.to_dtype(h, F32), torch.bfloat16) == h
    x = r.load("x", (A,))
    rounded = r.to_dtype(r.to_dtype(x, torch.bfloat16), F32)
    assert rounded != x
    assert rounded.dtype == F32


@pytest.mark.parametrize(
    "narrow", [torch.bool, torch.int8, torch.uint8, torch.int16, torch.float16, torch.bfloat16]
)
@pytest.mark.parametrize("wide", [torch.int16, torch.int32, torch.float16, torch.bfloat16, F32, torch.int8])
def test_is_exact_is_true_only_for_lossless_conversions(narrow: torch.dtype, wide: torch.dtype) -> None:
    if narrow is torch.bool:
        every = torch.tensor([False, True])
    elif narrow.itemsize == 1:
        every = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(narrow)
    else:
        every = torch.arange(65536, dtype=torch.int32).to(torch.uint16).view(narrow)
    back = every.to(wide).to(narrow)
    lossless = bool(((back == every) | (every != every)).all())
    if is_exact(narrow, wide):
        assert lossless
    elif not narrow.is_floating_point and wide.is_floating_point:
        assert not lossless  # integers into floats: the rule is exact, not only safe


def test_masked_bodies_nest_and_do_not_leak() -> None:
    r = recorder()

    def inner(i: Any) -> Any:
        outside = ops.load("x", i)
        value = ops.masked(ops.load("m", i), lambda: ops.add(outside, ops.load("y", i)), 0.0)
        return ops.mul(value, ops.load("y", i))

    result = r.run(inner, (A,))
    masked = next(step for step in r.instructions if isinstance(step, MaskedInstruction))
    assert [step.op for step in masked.body if isinstance(step, Instruction)] == ["load", "add"]
    assert masked.body[1].args[0] == "v0"
    y_loads = [step for step in r.instructions if isinstance(step, Instruction) and step.args[:1] == ("y",)]
    assert len(y_loads) == 1, "the load inside the mask must not serve outside of it"
    assert r.instructions[-1].name == result.name


def test_equal_masked_bodies_are_merged_and_different_ones_are_not() -> None:
    r = recorder()

    def inner(other: float, name: str) -> Any:
        return lambda i: ops.masked(ops.load("m", i), lambda: ops.exp(ops.load(name, i)), other)

    first = r.run(inner(0.0, "x"), (A,))
    assert r.run(inner(0.0, "x"), (A,)) == first
    assert r.run(inner(1.0, "x"), (A,)) != first
    assert r.run(inner(-0.0, "x"), (A,)) != first
    assert r.run(inner(0.0, "y"), (A,)) != first


def test_blocks_hoist_what_does_not_depend_on_their_loop() -> None:
    r = recorder()
    with r.block(A) as outer:
        with r.block(R) as inner:
            r.run(lambda i, k: ops.mul(ops.exp(ops.load("x", i)), ops.load("y", k)), (A,), (R,))
        r.emit("the loop over r")
    assert [getattr(step, "op", step) for step in outer.instructions] == ["load", "exp", "the loop over r"]
    assert [step.op for step in inner.instructions] == ["load", "mul"]


def test_what_may_raise_is_not_hoisted() -> None:
    r = recorder()
    with r.block(A) as outer, r.block(R) as inner:
        r.run(lambda i: ops.load("x", [ops.indirect_index(ops.load("at", i), sympy.Integer(9))]), (A,))
        r.run(lambda i: ops.floordiv(ops.load("at", i), ops.load("at", i)), (A,))
    assert [step.op for step in outer.instructions] == ["load"]
    assert [step.op for step in inner.instructions] == ["indirect_index", "load", "floordiv"]


def test_values_of_a_block_are_not_seen_by_its_sibling() -> None:
    r = recorder()
    with r.block(R) as first:
        r.run(lambda k: ops.load("x", k), (R,))
    with r.block(R) as second:
        r.run(lambda k: ops.load("x", k), (R,))
    assert [step.name for step in first.instructions] == ["v0"]
    assert [step.name for step in second.instructions] == ["v1"]


def test_load_hook_inlines_a_producer() -> None:
    seen = []

    def hook(buffer: str, index: tuple[sympy.Expr, ...]) -> RecordedValue | None:
        seen.append((buffer, index))
        return ops.exp(ops.load("x", index)) if buffer == "y" else None

    r = recorder(load_hook=hook)
    r.run(lambda i: ops.mul(ops.load("y", i), ops.load("x", i)), (A,))
    assert steps_of(r) == [("v0", "load"), ("v1", "exp"), ("v2", "mul")]
    assert seen[0] == ("y", (A,))


def test_indirect_index_gives_one_symbol_for_equal_arguments() -> None:
    r = recorder()
    at = r.load("at", (A,))
    first = r.indirect_index(at, sympy.Integer(9))
    assert r.indirect_index(at, sympy.Integer(9)) == first
    assert r.indirect_index(at, sympy.Integer(8)) != first
    assert r._simplify(FloorDiv(first, 9)) == 0  # the symbol is known to be below its size


def test_dtypes_that_do_not_go_together_name_the_users_line() -> None:
    r = recorder(origin=Origin("aten.add.Tensor", "model.py:3 in forward"))
    with pytest.raises(
        SmeltError, match=r"(?s)SM0503: add: argument dtypes differ.*at: model.py:3 in forward"
    ):
        r.run(lambda i: ops.add(ops.load("x", i), ops.load("at", i)), (A,))
    with pytest.raises(SmeltError, match="SM0503: a mask is bool"):
        r.run(lambda i: ops.masked(ops.load("x", i), lambda: ops.load("x", i), 0.0), (A,))
    with pytest.raises(SmeltError, match="SM0504: load of the unknown buffer 'nope'"):
        r.run(lambda i: ops.load("nope", i), (A,))


def test_prune_keeps_checks_and_drops_the_rest() -> None:
    r = recorder()

    def inner(i: Any) -> Any:
        ops.exp(ops.load("y", i))
        ops.indirect_index(ops.load("at", i), sympy.Integer(9))
        return ops.load("x", i)

    result = r.run(inner, (A,))
    assert [step.op for step in prune(r.instructions, [result.name])] == ["load", "indirect_index", "load"]


def test_replay_computes_what_the_function_computes() -> None:
    def inner(i: Any) -> Any:
        at = ops.load("at", i)
        positive = ops.ge(at, ops.constant(0, torch.int64))

        def gather() -> Any:
            place = ops.indirect_index(at, sympy.Integer(6), wrap=False)
            return ops.mul(ops.load("x", [place]), ops.index_expr(2 * i[0], F32))

        return ops.add(ops.masked(positive, gather, 0.5), ops.to_dtype(at, F32))

    recorded = record(inner, [(A,)], {**FLOATS, "at": torch.int64}, EXTENTS)
    x, at = torch.randn(6), torch.tensor([3, -5, 0, 5, -1, 2])
    world = {"x": x, "at": at}
    got = replay(recorded.instructions, Interpreter(world, {A: torch.arange(6)}))[recorded.results[0].name]
    want = torch.where(at >= 0, x[at.clamp(0)] * 2 * torch.arange(6), 0.5) + at
    assert torch.equal(got, want)
