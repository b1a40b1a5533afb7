"""Plans as JSON and back, for the cache. A version, no pickle, every literal that ATen takes.

The executor makes Python source of a plan. Stored data is not trusted: every field is checked to have the
type of `smelt.runtime.plan_schema`, names that become source are identifiers, sizes arithmetic.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import torch

from smelt.errors import SmeltError
from smelt.runtime import plan_schema as read
from smelt.runtime.plan import (
    AllocStep,
    ArenaTensor,
    CheckStep,
    ExternStep,
    Folded,
    FoldedUse,
    FreeStep,
    NativeStep,
    Plan,
    Ref,
    SizeRef,
    SizeStep,
    Step,
    TensorSpec,
    ViewRef,
)

VERSION = 4
_TAG = "$"


def to_json(plan: Plan) -> str:
    """The plan as text.

    >>> plan = Plan(("x",), (), (), 0, (), (), (Ref("x"),))
    >>> from_json(to_json(plan)) == plan
    True

    Raises:
        SmeltError: SM0401, an argument is of a kind that a plan cannot hold.
    """
    return json.dumps({"smelt_plan": VERSION, **_plan_out(plan)}, allow_nan=False, separators=(",", ":"))


def _plan_out(plan: Plan) -> dict[str, Any]:
    return {
        "inputs": list(plan.inputs),
        "symbols": list(plan.symbols),
        "constants": list(plan.constants),
        "arena_bytes": plan.arena_bytes,
        "arena": [{**_spec_out(item.spec), "offset": item.offset} for item in plan.arena],
        "steps": [_step_out(step) for step in plan.steps],
        "outputs": [encode(value) for value in plan.outputs],
        "shape_symbols": [list(each) for each in plan.shape_symbols],
        "layouts": [_spec_out(spec) for spec in plan.layouts],
        "folded": [_folded_out(each) for each in plan.folded],
        "orders": [[output, list(order)] for output, order in plan.orders],
        "lazy": [_spec_out(spec) for spec in plan.lazy],
        "device": plan.device,
        "notes": encode(plan.notes),
    }


def from_json(text: str | bytes) -> Plan:
    """The plan that `to_json` wrote.

    Raises:
        SmeltError: SM0402, the text is not a plan of this version.
    """
    try:
        data = json.loads(text)
        if data["smelt_plan"] != VERSION:
            raise ValueError(f"plan version {data['smelt_plan']}, this smelt reads {VERSION}")
        return _plan_in(data)
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RuntimeError) as error:
        raise SmeltError(
            "SM0402", "not a plan that this version of smelt can read", why=repr(error)
        ) from error


def _plan_in(data: dict[str, Any]) -> Plan:
    return Plan(
        inputs=read.each(read.optional(read.name), data["inputs"]),
        symbols=read.each(read.identifier, data["symbols"]),
        constants=read.each(read.name, data["constants"]),
        arena_bytes=read.size(data["arena_bytes"]),
        arena=read.each(lambda item: ArenaTensor(_spec_in(item), read.size(item["offset"])), data["arena"]),
        steps=read.each(_step_in, data["steps"]),
        outputs=read.each(decode, data["outputs"]),
        shape_symbols=read.each(read.fields(read.identifier, read.name, read.index), data["shape_symbols"]),
        layouts=read.each(_spec_in, data["layouts"]),
        folded=read.each(_folded_in, data["folded"]),
        orders=read.each(read.fields(read.index, read.indices), data["orders"]),
        notes=read.named(decode(data["notes"])),
        lazy=read.each(_spec_in, data["lazy"]),
        device=read.optional(read.device)(data["device"]),
    )


def _folded_out(folded: Folded) -> dict[str, Any]:
    uses = [[list(use.sources), list(use.results)] for use in folded.uses]
    return {"plan": _plan_out(folded.plan), "digest": folded.digest, "uses": uses}


def _folded_in(data: dict[str, Any]) -> Folded:
    use = read.fields(read.indices, lambda results: read.each(read.name, results))
    uses = read.each(lambda each: FoldedUse(*use(each)), data["uses"])
    return Folded(_plan_in(data["plan"]), read.name(data["digest"]), uses)


def encode(value: Any) -> Any:
    """A literal, reference or nest of lists as JSON data; types that JSON lacks become ``{"$": kind, …}``."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else {_TAG: "float", "v": repr(value)}
    if isinstance(value, list):
        return [encode(item) for item in value]
    for kind, (matches, fields, _) in _KINDS.items():
        if isinstance(value, matches):
            return {_TAG: kind, "v": fields(value)}
    raise SmeltError("SM0401", f"a plan cannot hold a {type(value).__name__}: {value!r}")


def decode(data: Any) -> Any:
    """The inverse of `encode`."""
    if isinstance(data, list):
        return [decode(item) for item in data]
    if not isinstance(data, dict):
        return data
    return _KINDS[data[_TAG]][2](data["v"])


def _torch_name(kind: type) -> Callable[[str], Any]:
    def read(name: str) -> Any:
        value = getattr(torch, name.removeprefix("torch."), None)
        if not isinstance(value, kind):
            raise ValueError(f"{name} is not a {kind.__name__}")
        return value

    return read


def _view(fields: list[Any]) -> ViewRef:
    name, shape, strides, offset, dtype = fields
    kind = read.optional(read.dtype)(dtype)
    return ViewRef(read.name(name), read.sizes(shape), read.sizes(strides), read.size(offset), kind)


_KINDS: dict[str, tuple[type | tuple[type, ...], Callable[[Any], Any], Callable[[Any], Any]]] = {
    "ref": (Ref, lambda ref: ref.name, lambda v: Ref(read.name(v))),
    "view": (
        ViewRef,
        lambda view: [view.name, list(view.shape), list(view.strides), view.offset, view.dtype],
        _view,
    ),
    "size": (SizeRef, lambda size: size.expr, lambda v: SizeRef(read.condition(v))),
    "dtype": (torch.dtype, str, _torch_name(torch.dtype)),
    "layout": (torch.layout, str, _torch_name(torch.layout)),
    "memory_format": (torch.memory_format, str, _torch_name(torch.memory_format)),
    "device": (torch.device, str, torch.device),
    "float": ((), repr, float),
    "complex": (
        complex,
        lambda value: [repr(value.real), repr(value.imag)],
        lambda v: complex(float(v[0]), float(v[1])),
    ),
    "tuple": (
        tuple,
        lambda items: [encode(item) for item in items],
        lambda v: tuple(decode(item) for item in v),
    ),
    "dict": (
        dict,
        lambda items: [[encode(key), encode(item)] for key, item in items.items()],
        lambda v: {decode(key): decode(item) for key, item in v},
    ),
}
"""Tag → (Python types, value to JSON data, JSON data to value)."""


def _spec_out(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "dtype": spec.dtype, "shape": list(spec.shape), "strides": list(spec.strides)}


def _spec_in(data: dict[str, Any]) -> TensorSpec:
    shape, strides = read.sizes(data["shape"]), read.sizes(data["strides"])
    return TensorSpec(read.name(data["name"]), read.dtype(data["dtype"]), shape, strides)


def _step_out(step: Step) -> dict[str, Any]:
    if isinstance(step, AllocStep):
        return {"step": "alloc", **_spec_out(step.spec)}
    if isinstance(step, NativeStep):
        return {
            "step": "native",
            "function": step.function,
            "buffers": list(step.buffers),
            "sizes": list(step.sizes),
            "errors": [list(error) for error in step.errors],
        }
    if isinstance(step, ExternStep):
        return {
            "step": "extern",
            "target": step.target,
            "args": [encode(arg) for arg in step.args],
            "kwargs": [[name, encode(arg)] for name, arg in step.kwargs.items()],
            "outputs": list(step.outputs),
            "out": step.out,
            "symbol": step.symbol,
            "specs": [spec and _spec_out(spec) for spec in step.specs],
            "sizes": [list(each) for each in step.sizes],
            "bodies": [_plan_out(body) for body in step.bodies],
        }
    if isinstance(step, SizeStep):
        return {"step": "size", "symbol": step.symbol, "value": step.value}
    if isinstance(step, CheckStep):
        return {"step": "check", "condition": step.condition, "error": list(step.error)}
    return {"step": "free", "names": list(step.names)}


def _step_in(data: dict[str, Any]) -> Step:
    match data["step"]:
        case "alloc":
            return AllocStep(_spec_in(data))
        case "native":
            return NativeStep(
                read.identifier(data["function"]),
                read.each(read.name, data["buffers"]),
                read.sizes(data["sizes"]),
                read.each(read.error, data["errors"]),
            )
        case "extern":
            spec = read.optional(_spec_in)
            size = read.fields(read.identifier, read.index, read.optional(read.index))
            return ExternStep(
                read.target(data["target"]),
                read.each(decode, data["args"]),
                dict(read.each(read.fields(read.identifier, decode), data["kwargs"])),
                read.each(read.optional(read.name), data["outputs"]),
                read.truth(data["out"]),
                read.optional(read.identifier)(data["symbol"]),
                read.each(spec, data["specs"]),
                read.each(size, data["sizes"]),
                read.each(_plan_in, data["bodies"]),
            )
        case "size":
            return SizeStep(read.identifier(data["symbol"]), read.size(data["value"]))
        case "check":
            return CheckStep(read.condition(data["condition"]), read.error(data["error"]))
        case "free":
            return FreeStep(read.each(read.name, data["names"]))
        case kind:
            raise ValueError(f"unknown step {kind!r}")
