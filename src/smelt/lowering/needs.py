"""What a lowering row asks of a target, read off its code: loop bodies, elementwise operators, calls.

Nothing is run: rows are Python functions, and what they may write is what they, and the functions that they
use, name. So the answer is for all cases of an operator together.
"""

from __future__ import annotations

import dis
import functools
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any, get_args

from torch._ops import OpOverload

from smelt.loops import ir
from smelt.lowering.builder import Builder
from smelt.lowering.chosen import chosen
from smelt.lowering.products.contractions import CONTRACTIONS, NAMED_CONTRACTIONS, contraction_of
from smelt.lowering.registry import NAMED, TABLE, row_of
from smelt.ops.handler import Handler
from smelt.ops.table import TABLE as ELEMENTWISE
from smelt.records import dataclass

BODIES: tuple[str, ...] = tuple(body.__name__ for body in get_args(ir.Body))
"""The kinds of loop bodies, by name."""

METHODS = frozenset(name for name in vars(Handler) if not name.startswith("_") and name != "elementwise")
"""What handlers do besides the elementwise operators."""

ANY_CALL = "aten"
"""In `Needs.calls`: an ATen call whose operator the code does not name."""

_BUILDERS = ("ctx", "self", "builder")
_REGISTRIES: tuple[Any, ...] = (TABLE, NAMED, CONTRACTIONS, NAMED_CONTRACTIONS)


@dataclass(frozen=True, slots=True)
class Needs:
    """``bodies``: names of classes of `smelt.loops.ir`. ``elementwise``: rows of `smelt.ops.table`.
    ``methods``: other methods of `Handler`. ``calls``: ATen operators that are called as they are."""

    bodies: frozenset[str]
    elementwise: frozenset[str] = frozenset()
    methods: frozenset[str] = frozenset()
    calls: frozenset[str] = frozenset()


@functools.cache
def needs_of(overload: OpOverload) -> Needs | None:
    """What the row of an operator may ask for; None where the operator has neither a row nor a meaning.

    >>> import torch
    >>> "tanh" in needs_of(torch.ops.aten.tanh.default).elementwise
    True
    >>> sorted(needs_of(torch.ops.aten.mm.default).bodies)
    ['Contraction']
    """
    row = row_of(overload)
    if row is not None:
        return _Reader().read(row)
    meaning = contraction_of(overload)
    if meaning is not None:
        found = _Reader().read(meaning)
        return Needs(found.bodies | {"Contraction"}, found.elementwise, found.methods, found.calls)
    if chosen(overload) is not None:
        return Needs(frozenset({"Extern"}), calls=frozenset({str(overload)}))
    return None


class _Reader:
    def __init__(self) -> None:
        self.seen: set[int] = set()
        self.bodies: set[str] = set()
        self.ops: set[str] = set()
        self.calls: set[str] = set()
        self.words: set[str] = set()
        self.by_name = False

    def read(self, function: Any) -> Needs:
        self._value(function)
        ops = self.ops | (self.words & ELEMENTWISE.keys() if self.by_name else set())
        return Needs(
            frozenset(self.bodies),
            frozenset(ops & ELEMENTWISE.keys()),
            frozenset(ops & METHODS),
            frozenset(self.calls),
        )

    def _value(self, value: Any) -> None:
        """Something that code names or holds: functions are read, words kept."""
        if isinstance(value, str):
            self.words.add(value)
        elif isinstance(value, functools.partial):
            self._value(value.func)
            for each in (*value.args, *value.keywords.values()):
                self._value(each)
        elif isinstance(value, (tuple, list, set, frozenset)):
            for each in value:
                self._value(each)
        elif isinstance(value, dict) and not any(value is known for known in _REGISTRIES):
            for each in value.values():
                self._value(each)
        elif isinstance(value, FunctionType) and (value.__module__ or "").startswith("smelt.lowering"):
            self._function(value)

    def _function(self, function: FunctionType) -> None:
        if id(function) in self.seen:
            return
        self.seen.add(id(function))
        for cell in function.__closure__ or ():
            self._value(cell.cell_contents)
        for default in function.__defaults__ or ():
            self._value(default)
        for code in _codes(function.__code__):
            self._code(code, function.__globals__)

    def _code(self, code: CodeType, scope: dict[str, Any]) -> None:
        words = [each for each in code.co_consts if isinstance(each, str)]
        self.words.update(words)
        self.by_name |= {"getattr", "ops"} <= set(code.co_names)
        for owner, name in _attributes(code):
            if owner == "ops":
                self.ops.add(name)
            elif owner in _BUILDERS and isinstance(vars(Builder).get(name), FunctionType):
                self._method(name)
        for name in _globals(code):
            if name in BODIES and scope.get(name) is getattr(ir, name):
                self.bodies.add(name)
                if name == "Extern":
                    self.calls.update([word for word in words if word.startswith("aten.")] or [ANY_CALL])
            elif name in scope:
                self._value(scope[name])

    def _method(self, name: str) -> None:
        if name == "extern":
            self.bodies.add("Extern")
            self.calls.add(ANY_CALL)
        else:
            self._function(vars(Builder)[name])


def _codes(code: CodeType) -> Iterator[CodeType]:
    """A function's code and that of the functions inside it."""
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _codes(each)


def _attributes(code: CodeType) -> Iterator[tuple[Any, str]]:
    """``(a, b)`` for each ``a.b``."""
    before = None
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            yield before, step.argval
        before = step.argval if step.opname.startswith("LOAD_") else None


def _globals(code: CodeType) -> set[str]:
    return {step.argval for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
