"""Programs that later processes call without tracing them: what a caller's key means.

    program-<key>/program.json    the key of the entry with plan and library, the arguments by name
    program-<key>/constants       the bytes of its constants

The arguments that stay are bound: their addresses are taken once, and a call takes the others alone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from smelt.errors import CacheError
from smelt.records import dataclass
from smelt.reporting import CompileReport
from smelt.runtime import executor, plan_json, plan_schema
from smelt.runtime.cache import Cache
from smelt.runtime.library import load_entry
from smelt.runtime.plan import NativeStep, Plan

Call = Callable[[list[Any]], Sequence[Any]]

PREFIX = "program-"
"""Prefix of the keys of these entries."""
_PROGRAM, _CONSTANTS, _PLAN = "program.json", "constants", "plan.json"
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Kept:
    """A compiled program: ``entry``: the key of its plan and library; ``arguments``: the names of the plan's
    inputs; ``outputs``: their number; ``constants``: the tensors that the plan takes besides.
    """

    entry: str
    arguments: Sequence[str]
    outputs: int
    constants: Mapping[str, Tensor]

    def executor(self, cache: Cache, held: Mapping[str, Tensor], report: CompileReport | None) -> Call | None:
        """What runs the program with the tensors ``held``, of the arguments that have these names: its list
        has the other arguments, in order. None if the entry has gone, or does not fit. The report is filled.
        """
        entry = cache.get(self.entry)
        if entry is None or _PLAN not in entry.digests:
            return None
        plan = plan_json.from_json(entry.read(_PLAN))
        if (len(plan.inputs), len(plan.outputs)) != (len(self.arguments), self.outputs):
            return None  # a program with a check of its own (`smelt.runtime.deoptimize`)
        native = any(isinstance(step, NativeStep) for step in plan.steps)
        library = load_entry(entry) if native or plan.folded else None
        if report is not None:
            report.keep_text("plan", lambda: executor.render(plan))
            report.fill(plan.notes)
        if plan.folded or plan.layouts or plan.lazy:  # these ask for arguments by their positions
            whole = executor.build(plan, library, self.constants)
            places = [held.get(name) for name in self.arguments]

            def call(args: list[Any]) -> Sequence[Any]:
                given = iter(args)
                return whole([next(given) if each is None else each for each in places])

            return call
        plan, constants = _bound(plan, self.arguments, held)
        return executor.build(plan, library, {**self.constants, **constants})


def _bound(
    plan: Plan, arguments: Sequence[str], held: Mapping[str, Tensor]
) -> tuple[Plan, dict[str, Tensor]]:
    """The plan with the inputs that are held as constants, and these."""
    named = zip(plan.inputs, arguments)
    constants = {each: held[name] for each, name in named if each is not None and name in held}
    rest = tuple(each for each, name in zip(plan.inputs, arguments) if name not in held)
    return replace(plan, inputs=rest, constants=(*plan.constants, *constants)), constants


def keep(cache: Cache, key: str, kept: Kept) -> None:
    """Stores what ``key`` means, unless there is no room or a constant is no plain tensor in memory."""
    about: dict[str, Any] = {"smelt_program": _VERSION, "entry": kept.entry, "outputs": kept.outputs}
    about["arguments"] = list(kept.arguments)
    listed, data = [], bytearray()
    for name, each in kept.constants.items():
        if (
            type(each) not in (Tensor, torch.nn.Parameter)
            or each.layout is not torch.strided
            or not each.is_cpu
        ):
            return
        listed.append([name, str(each.dtype).removeprefix("torch."), list(each.shape), list(each.stride())])
        data += each.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    about["constants"] = listed
    with suppress(CacheError):
        cache.put(PREFIX + key, {_PROGRAM: json.dumps(about).encode(), _CONSTANTS: bytes(data)})


def find(cache: Cache, key: str) -> Kept | None:
    """What ``key`` means; None where no process has kept it, or it is damaged."""
    entry = cache.get(PREFIX + key)
    if entry is None:
        return None
    try:
        about = json.loads(entry.read(_PROGRAM))
        if about["smelt_program"] != _VERSION:
            raise ValueError(about["smelt_program"])
        arguments = plan_schema.each(plan_schema.name, about["arguments"])
        constants = _constants(about["constants"], entry.read(_CONSTANTS))
        return Kept(
            plan_schema.name(about["entry"]), arguments, plan_schema.index(about["outputs"]), constants
        )
    except (CacheError, ValueError, LookupError, TypeError, AttributeError, RuntimeError):
        forget(cache, key)
        return None


def forget(cache: Cache, key: str) -> None:
    """Removes what ``key`` means."""
    cache.remove(PREFIX + key)


def _constants(listed: Any, data: bytes) -> dict[str, Tensor]:
    found, at = {}, 0
    form = plan_schema.fields(plan_schema.name, plan_schema.dtype, plan_schema.indices, plan_schema.indices)
    for name, dtype, shape, strides in plan_schema.each(form, listed):
        kind = getattr(torch, dtype)
        size = math.prod(shape) * kind.itemsize
        made = torch.empty_strided(shape, strides, dtype=kind)
        if size:
            made.copy_(torch.frombuffer(bytearray(data[at : at + size]), dtype=kind).reshape(shape))
        found[name], at = made, at + size
    if at != len(data):
        raise ValueError("constants of another size")
    return found
