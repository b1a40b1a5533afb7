"""References to stages, loops and numbers, and views of their current state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sympy import Expr

from smelt.nest.ir import For, Stage
from smelt.nest.tree import named, trip_count
from smelt.records import dataclass
from smelt.symbolic.text import python_text


class Reference:
    """An object that a schedule has found or made. It stays valid through later steps, as long as its target
    exists. ``hint``: its name in a printed trace.
    """

    prefix = "v"

    def __init__(self, hint: str = "") -> None:
        self.hint = hint

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.hint})"


class BlockRV(Reference):
    """A reference to a stage."""

    prefix = "b"


class LoopRV(Reference):
    """A reference to a loop."""

    prefix = "l"


def _as_number(name: str) -> Callable[[ExprRV, Any], Any]:
    """An operator of integers, on a drawn number."""
    return lambda self, other: getattr(self.value, name)(int(other) if isinstance(other, ExprRV) else other)


class ExprRV(Reference):
    """A number that a schedule has drawn; in arithmetic it is that number.

    >>> ExprRV("j", 4) * ExprRV("k", 8), 9 // ExprRV("j", 4)
    (32, 2)
    """

    def __init__(self, hint: str = "", value: int = 0) -> None:
        super().__init__(hint)
        self.value = value

    def __index__(self) -> int:
        return self.value

    __add__, __radd__ = _as_number("__add__"), _as_number("__radd__")
    __sub__, __rsub__ = _as_number("__sub__"), _as_number("__rsub__")
    __mul__, __rmul__ = _as_number("__mul__"), _as_number("__rmul__")
    __floordiv__, __rfloordiv__ = _as_number("__floordiv__"), _as_number("__rfloordiv__")
    __mod__, __rmod__ = _as_number("__mod__"), _as_number("__rmod__")


SBlockRV = BlockRV


@dataclass(frozen=True, slots=True)
class Name:
    """A variable in TVM's form, with the user's name."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class BlockView:
    """The current state of a stage."""

    stmt: Stage

    @property
    def name_hint(self) -> str:
        return self.stmt.name

    @property
    def annotations(self) -> Mapping[str, Any]:
        return dict(self.stmt.notes)

    @property
    def iter_vars(self) -> tuple[Name, ...]:
        return tuple(Name(named(axis)) for axis in self.stmt.axes)

    def same_as(self, other: Any) -> bool:
        return getattr(other, "stmt", other) is self.stmt


@dataclass(frozen=True, slots=True)
class LoopView:
    """The current state of a loop: begin, extent, kind."""

    stmt: For

    @property
    def loop_var(self) -> Name:
        return Name(named(self.stmt))

    @property
    def min(self) -> Expr:
        return self.stmt.begin

    @property
    def extent(self) -> Expr:
        return trip_count(self.stmt)

    @property
    def kind(self) -> str:
        return self.stmt.kind.value

    @property
    def thread_binding(self) -> str | None:
        return self.stmt.thread

    @property
    def annotations(self) -> Mapping[str, Any]:
        return dict(self.stmt.notes)

    def same_as(self, other: Any) -> bool:
        return getattr(other, "stmt", other) is self.stmt

    def __str__(self) -> str:
        return f"for {self.loop_var} in {self.kind}({python_text(self.extent)})"
