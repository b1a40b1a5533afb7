"""Plans survive JSON, whatever they hold; what is no plan is refused."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some

from smelt.errors import SmeltError
from smelt.runtime.plan import (
    AllocStep,
    ArenaTensor,
    ExternStep,
    Folded,
    FoldedUse,
    FreeStep,
    NativeStep,
    Plan,
    Ref,
    SizeRef,
    TensorSpec,
    ViewRef,
)
from smelt.runtime.plan_json import decode, encode, from_json, to_json

names = some.text(min_size=1, max_size=8)
identifiers = some.from_regex(r"[a-z_]\w{0,7}", fullmatch=True).filter(str.isidentifier)
errors = some.tuples(some.sampled_from(["IndexError", "RuntimeError"]), names)
sizes = some.integers(-(2**62), 2**62) | some.sampled_from(["s0", "s0*128", "(s0//2)", "max(s0, 1)"])
shapes = some.lists(sizes, max_size=4).map(tuple)
dtypes = some.sampled_from(["float32", "bfloat16", "int8", "bool"])
specs = some.builds(TensorSpec, names, dtypes, shapes, shapes)
literals = some.recursive(
    some.none()
    | some.booleans()
    | some.integers(-(2**70), 2**70)
    | some.floats(allow_nan=False)
    | some.complex_numbers(allow_nan=False)
    | some.text(max_size=8)
    | some.sampled_from([torch.float32, torch.bfloat16, torch.bool, torch.complex64])
    | some.sampled_from([torch.strided, torch.sparse_coo, torch.contiguous_format, torch.channels_last])
    | some.sampled_from(
        [torch.preserve_format, torch.device("cpu"), torch.device("cuda", 1), torch.device("meta")]
    )
    | some.builds(Ref, names)
    | some.builds(SizeRef, some.sampled_from(["s0", "s0*128", "min(s0, s1) - 1"]))
    | some.builds(ViewRef, names, shapes, shapes, sizes),
    lambda inner: (
        some.lists(inner, max_size=3)
        | some.lists(inner, max_size=3).map(tuple)
        | some.dictionaries(some.text(max_size=4) | some.integers(0, 9), inner, max_size=3)
    ),
    max_leaves=8,
)
steps = some.one_of(
    some.builds(AllocStep, specs),
    some.builds(
        NativeStep,
        identifiers,
        some.lists(names, max_size=3).map(tuple),
        shapes,
        some.lists(errors, max_size=2).map(tuple),
    ),
    some.builds(
        ExternStep,
        some.sampled_from(["aten.add.Tensor", "higher_order.cond", "mine.op"]),
        some.lists(literals, max_size=3).map(tuple),
        some.dictionaries(identifiers, literals, max_size=2),
        some.lists(some.none() | names, max_size=2).map(tuple),
        some.booleans(),
        some.none() | identifiers,
        some.lists(some.none() | specs, max_size=2).map(tuple),
    ),
    some.builds(FreeStep, some.lists(names, max_size=3).map(tuple)),
)
plans = some.builds(
    Plan,
    some.lists(some.none() | names, max_size=3).map(tuple),
    some.lists(identifiers, max_size=3).map(tuple),
    some.lists(names, max_size=3).map(tuple),
    sizes,
    some.lists(some.builds(ArenaTensor, specs, sizes), max_size=2).map(tuple),
    some.lists(steps, max_size=4).map(tuple),
    some.lists(literals, max_size=3).map(tuple),
    some.lists(some.tuples(identifiers, names, some.integers(0, 7)), max_size=2).map(tuple),
    some.dictionaries(names, literals, max_size=2),
)
uses = some.builds(FoldedUse, some.lists(some.integers(0, 9)).map(tuple), some.lists(names).map(tuple))
foldings = some.builds(Folded, plans, names, some.lists(uses, max_size=2).map(tuple))


def types(value: Any) -> Any:
    """Types all the way down: ``1 == 1.0 == True`` must not hide a change."""
    if isinstance(value, (list, tuple)):
        return type(value), [types(item) for item in value]
    return type(value)


@settings(max_examples=150, deadline=None)
@given(plans)
def test_every_plan_survives(plan: Plan) -> None:
    text = to_json(plan)
    assert from_json(text) == plan
    assert to_json(from_json(text.encode())) == text


@settings(max_examples=200, deadline=None)
@given(literals)
def test_every_literal_keeps_its_type(value: Any) -> None:
    found = decode(json.loads(json.dumps(encode(value), allow_nan=False)))
    assert found == value and types(found) == types(value)


def test_floats_that_json_lacks() -> None:
    values = [math.inf, -math.inf, -0.0, 5e-324, 0.1]
    found = decode(json.loads(json.dumps(encode(values), allow_nan=False)))
    assert [value.hex() for value in found] == [value.hex() for value in values]
    assert math.isnan(decode(encode(math.nan)))


def test_every_dtype_survives() -> None:
    every = [value for value in vars(torch).values() if isinstance(value, torch.dtype)]
    assert decode(encode(every)) == every


@pytest.mark.parametrize("value", [object(), {1}, torch.ones(1), slice(1), [1, {2}], b"bytes"])
def test_what_a_plan_cannot_hold(value: Any) -> None:
    with pytest.raises(SmeltError) as caught:
        to_json(Plan((), (), (), 0, (), (), (value,)))
    assert caught.value.code == "SM0401"


@settings(max_examples=20, deadline=None)
@given(plans, some.lists(foldings, max_size=2).map(tuple))
def test_what_runs_ahead_survives(plan: Plan, folded: tuple[Folded, ...]) -> None:
    plan = replace(plan, folded=folded)
    assert from_json(to_json(plan)) == plan


def good() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(to_json(Plan(("x",), (), (), 0, (), (FreeStep(("x",)),), (Ref("x"),))))
    return data


@pytest.mark.parametrize(
    "change",
    [
        {"smelt_plan": 99},
        {"inputs": None},
        {"steps": [{"step": "dance"}]},
        {"steps": [{"step": "native", "function": "f"}]},
        {"steps": [{"step": "native", "function": "f", "buffers": [], "sizes": [1.5], "errors": []}]},
        {"outputs": [{"$": "no such kind", "v": 1}]},
        {"outputs": [{"$": "dtype", "v": "torch.load"}]},
        {"outputs": [{"$": "dtype", "v": "os.system"}]},
        {"outputs": [{"$": "view", "v": ["x", [True], [1], 0]}]},
        {"outputs": [{"odd": 1}]},
        {"outputs": [{"$": "device", "v": "no device"}]},
        {"outputs": [{"$": "complex", "v": ["1"]}]},
        {"outputs": [{"$": "size", "v": "print(s0)"}]},
        {"outputs": [{"$": "size", "v": "s0\n"}]},
        {"outputs": [{"$": "size", "v": "s0 # "}]},
        {"outputs": [{"$": "ref", "v": 1}]},
        {"inputs": "x"},
        {"symbols": ["s 0"]},
        {"arena_bytes": None},
        {"shape_symbols": [["s0", "x", "0"]]},
        {"shape_symbols": [["s0", "x", True]]},
        {"shape_symbols": [["s0", "x"]]},
        {"orders": [[0, "1"]]},
        {"notes": "text"},
        {"layouts": [{"name": "x", "dtype": "load", "shape": [], "strides": []}]},
        {"steps": [{"step": "native", "function": "f()", "buffers": [], "sizes": [], "errors": []}]},
        {"steps": [{"step": "size", "symbol": "s0", "value": "__import__('os')"}]},
        {"steps": [{"step": "check", "condition": "[].append", "error": ["ValueError", ""]}]},
    ],
)
def test_what_is_no_plan(change: dict[str, Any]) -> None:
    assert from_json(json.dumps(good()))
    with pytest.raises(SmeltError) as caught:
        from_json(json.dumps({**good(), **change}))
    assert caught.value.code == "SM0402"


@pytest.mark.parametrize("text", ["", "[]", "null", "{}", '{"smelt_plan": 1}', "\x80", b"\xff\xfe\x00"])
def test_what_is_no_json(text: str | bytes) -> None:
    with pytest.raises(SmeltError, match="SM0402"):
        from_json(text)
