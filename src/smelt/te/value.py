"""Expressions: trees that run under any handler of `ops`.

    Value = Number | Idx | Load | Elementwise | Cast | Bits | Choice | Reduced

Nothing is computed when an expression is written. `Value.run` issues it to the current handler, once for each
place (`Place`): loop functions, verifiers and the recorder of stages all run the same tree.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NoReturn

import torch
from sympy import Expr, Symbol

from smelt.ops import TABLE, Rule, ops, result_dtype
from smelt.symbolic.affine import replaced, symbols_in
from smelt.te.dtypes import NAMES, kind_of, number, promoted
from smelt.te.errors import refuse


class Place:
    """The context of a tree's run: values of symbols, and the names of the tensors' buffers."""

    def __init__(self, symbols: Mapping[Symbol, Expr], names: Callable[[Any], str]) -> None:
        self.symbols, self.names = symbols, names
        self.known: dict[int, tuple[Value, Any]] = {}

    def inside(self) -> Place:
        """The same place under a mask: values computed there are unknown outside."""
        made = Place(self.symbols, self.names)
        made.known = dict(self.known)
        return made

    def at(self, expr: Expr) -> Expr:
        """An index expression at this place."""
        found = lookups_in(expr)
        if not found:
            return replaced(expr, self.symbols)
        return replaced(expr, {**self.symbols, **{symbol: symbol.lookup.run(self) for symbol in found}})


class Found(Symbol):
    """An index that is looked up at run time: a value in an index expression."""

    __slots__ = ("lookup",)
    is_size = False
    lookup: Lookup

    def __new__(cls, lookup: Lookup) -> Found:
        made = Symbol.__xnew__(cls, f"at${next(_numbers):09}", integer=True, nonnegative=True)
        made.lookup = lookup
        return made

    def _sympystr(self, printer: Any) -> str:
        return repr(self.lookup.parts[0])


_numbers = itertools.count()


def lookups_in(expr: Expr) -> list[Found]:
    """The lookups in an index expression, in order."""
    if expr.is_Integer:
        return []
    found = [symbol for symbol in symbols_in(expr) if isinstance(symbol, Found)]
    return sorted(found, key=lambda symbol: symbol.name) if len(found) > 1 else found


class Value:
    """A number for each index: its dtype, its operands, and its operation under a handler."""

    parts: tuple[Value, ...] = ()
    __array_ufunc__ = None
    """NumPy's numbers then use the operators of this class."""

    def __init__(self, kind: torch.dtype, parts: Sequence[Value] = ()) -> None:
        self.kind, self.parts = kind, tuple(parts)

    @property
    def dtype(self) -> str:
        return NAMES[self.kind]

    def run(self, place: Place) -> Any:
        """The value under the current handler; shared values are issued once."""
        known = place.known.get(id(self))
        if known is None:
            known = place.known[id(self)] = (self, self.said(place))
        return known[1]

    def said(self, place: Place) -> Any:
        raise NotImplementedError

    def astype(self, dtype: Any, span: Any = None) -> Value:
        """The value converted as by ``Tensor.to``."""
        return cast(self, kind_of(dtype))

    # -- operators ------------------------------------------------------------------------------------------

    def __add__(self, other: Any) -> Value:
        return binary("add", self, other)

    def __radd__(self, other: Any) -> Value:
        return binary("add", other, self)

    def __sub__(self, other: Any) -> Value:
        return binary("sub", self, other)

    def __rsub__(self, other: Any) -> Value:
        return binary("sub", other, self)

    def __mul__(self, other: Any) -> Value:
        return binary("mul", self, other)

    def __rmul__(self, other: Any) -> Value:
        return binary("mul", other, self)

    def __truediv__(self, other: Any) -> Value:
        return binary("truediv", self, other)

    def __rtruediv__(self, other: Any) -> Value:
        return binary("truediv", other, self)

    def __floordiv__(self, other: Any) -> Value:
        return binary("floordiv", self, other)

    def __rfloordiv__(self, other: Any) -> Value:
        return binary("floordiv", other, self)

    def __mod__(self, other: Any) -> Value:
        return binary("remainder", self, other)

    def __rmod__(self, other: Any) -> Value:
        return binary("remainder", other, self)

    def __pow__(self, other: Any) -> Value:
        return binary("pow", self, other)

    def __rpow__(self, other: Any) -> Value:
        return binary("pow", other, self)

    def __lshift__(self, other: Any) -> Value:
        return binary("lshift", self, other)

    def __rlshift__(self, other: Any) -> Value:
        return binary("lshift", other, self)

    def __rshift__(self, other: Any) -> Value:
        return binary("rshift", self, other)

    def __rrshift__(self, other: Any) -> Value:
        return binary("rshift", other, self)

    def __and__(self, other: Any) -> Value:
        return binary("bitwise_and", self, other)

    def __rand__(self, other: Any) -> Value:
        return binary("bitwise_and", other, self)

    def __or__(self, other: Any) -> Value:
        return binary("bitwise_or", self, other)

    def __ror__(self, other: Any) -> Value:
        return binary("bitwise_or", other, self)

    def __xor__(self, other: Any) -> Value:
        return binary("bitwise_xor", self, other)

    def __rxor__(self, other: Any) -> Value:
        return binary("bitwise_xor", other, self)

    def __neg__(self) -> Value:
        return binary("mul", self, -1) if self.kind is torch.bool else unary("neg", self)

    def __abs__(self) -> Value:
        return unary("abs", self)

    def __invert__(self) -> Value:
        return unary("bitwise_not", self)

    def __lt__(self, other: Any) -> Value:
        return binary("lt", self, other)

    def __le__(self, other: Any) -> Value:
        return binary("le", self, other)

    def __gt__(self, other: Any) -> Value:
        return binary("gt", self, other)

    def __ge__(self, other: Any) -> Value:
        return binary("ge", self, other)

    def __eq__(self, other: Any) -> Value:  # type: ignore[override]
        return binary("eq", self, other) if is_operand(other) else NotImplemented

    def __ne__(self, other: Any) -> Value:  # type: ignore[override]
        return binary("ne", self, other) if is_operand(other) else NotImplemented

    def equal(self, other: Any) -> Value:
        """TVM's other name for ``==``."""
        return binary("eq", self, other)

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        decided = self.decided()
        if decided is None:
            what = f"the value of {self} is not known while a tensor expression is written"
            if not _speaks(self):
                what = "a value is not known while a tensor expression is written"
            refuse("SM1104", what, remedy="te.if_then_else(condition, a, b); te.all and te.any for and, or")
        return decided

    def decided(self) -> bool | None:
        """The truth value if it is constant, else None."""
        return None

    def converted(self, kind: torch.dtype) -> Value:
        """The value in another dtype."""
        return Cast(self, kind)

    def __iter__(self) -> Any:
        raise TypeError(f"{type(self).__name__} is no sequence")

    def __repr__(self) -> str:
        from smelt.te.text import text_of

        return text_of(self)


def _speaks(value: Value) -> bool:
    try:
        return len(repr(value)) < 100
    except Exception:
        return False


class Number(Value):
    """A constant. ``weak``: a Python number, which takes the other operand's dtype."""

    def __init__(self, value: float | int | bool, kind: torch.dtype, weak: bool = False) -> None:
        super().__init__(kind)
        self.value, self.weak = number(value, kind), weak

    def said(self, place: Place) -> Any:
        return ops.constant(self.value, self.kind)

    def decided(self) -> bool | None:
        return bool(self.value)

    def converted(self, kind: torch.dtype) -> Value:
        exact = kind.is_floating_point or not self.kind.is_floating_point
        return Number(self.value, kind) if exact else Cast(self, kind)

    def __int__(self) -> int:
        return int(self.value)

    def __float__(self) -> float:
        return float(self.value)


class Lookup(Value):
    """An integer as an index below ``size`` (`smelt.ops.handler.Handler.indirect_index`)."""

    def __init__(self, part: Value, size: Expr, wrap: bool = False, check: bool | str = True) -> None:
        super().__init__(torch.int64, (part,))
        self.size, self.wrap, self.check = size, wrap, check
        self.symbol = Found(self)

    def said(self, place: Place) -> Any:
        size = place.at(self.size)
        return ops.indirect_index(self.parts[0].run(place), size, wrap=self.wrap, check=self.check)


class Load(Value):
    """An element of a tensor."""

    def __init__(self, tensor: Any, index: Sequence[Expr]) -> None:
        super().__init__(tensor.kind, [found.lookup for at in index for found in lookups_in(at)])
        self.tensor, self.index = tensor, tuple(index)

    def said(self, place: Place) -> Any:
        return ops.load(place.names(self.tensor), tuple(place.at(at) for at in self.index))


class Elementwise(Value):
    """An operator of `smelt.ops.TABLE`."""

    def __init__(self, op: str, parts: Sequence[Value]) -> None:
        super().__init__(result_dtype(TABLE[op], [part.kind for part in parts]), parts)
        self.op = op

    def said(self, place: Place) -> Any:
        return getattr(ops, self.op)(*(part.run(place) for part in self.parts))

    _CONSTANT: ClassVar[dict[str, Callable[[Any, Any], Any]]] = {
        "eq": lambda a, b: a == b,
        "ne": lambda a, b: a != b,
        "lt": lambda a, b: a < b,
        "le": lambda a, b: a <= b,
        "gt": lambda a, b: a > b,
        "ge": lambda a, b: a >= b,
    }

    def decided(self) -> bool | None:
        compare = self._CONSTANT.get(self.op)
        if compare is not None and all(isinstance(part, Number) for part in self.parts):
            return bool(compare(*(part.value for part in self.parts)))  # type: ignore[attr-defined]
        if self.op in ("eq", "ne"):
            if self.parts[0] is self.parts[1]:
                return self.op == "eq"
            left, right = self.parts
            return _same_sizes(left, right, self.op == "eq")
        return None


def _same_sizes(left: Value, right: Value, equal: bool) -> bool | None:
    """Whether two sizes are the same expression, for the user's comparisons while a program is written."""
    from smelt.te.index import Idx, as_index

    if not isinstance(left, (Idx, Number)) or not isinstance(right, (Idx, Number)):
        return None
    a, b = as_index(left), as_index(right)
    if a is None or b is None:
        return None
    if a == b:
        return equal
    asked = [side for side in (left, right) if isinstance(side, Idx)]
    return (not equal) if all(side.is_size for side in asked) else None


class Cast(Value):
    """A value converted to another dtype."""

    def __init__(self, part: Value, kind: torch.dtype) -> None:
        super().__init__(kind, (part,))

    def said(self, place: Place) -> Any:
        return ops.to_dtype(self.parts[0].run(place), self.kind)


class Bits(Value):
    """The bits of a value as another dtype of the same width."""

    def __init__(self, part: Value, kind: torch.dtype) -> None:
        super().__init__(kind, (part,))

    def said(self, place: Place) -> Any:
        return ops.bitcast(self.parts[0].run(place), self.kind)


class Choice(Value):
    """``parts[1]`` if ``parts[0]``, else ``parts[2]``. ``lazy``: the other branch is not evaluated."""

    def __init__(self, condition: Value, then: Value, other: Value, lazy: bool) -> None:
        super().__init__(then.kind, (condition, then, other))
        self.lazy = lazy

    def said(self, place: Place) -> Any:
        condition, then, other = self.parts
        mask = condition.run(place)
        if not self.lazy or (_harmless(then) and _harmless(other)):
            return ops.where(mask, then.run(place), other.run(place))
        if isinstance(other, Number):
            return ops.masked(mask, lambda: then.run(place.inside()), other.value)
        first = self._taken(mask, then, place)
        second = other.run(place) if _harmless(other) else self._taken(ops.logical_not(mask), other, place)
        return ops.where(mask, first, second)

    def _taken(self, mask: Any, value: Value, place: Place) -> Any:
        """A branch under its condition; 0 elsewhere."""
        if _harmless(value):
            return value.run(place)
        return ops.masked(mask, lambda: value.run(place.inside()), number(0, self.kind))


def _harmless(value: Value) -> bool:
    """Whether a value may be evaluated although it is not needed: it reads nothing, and divides nothing."""
    if isinstance(value, (Load, Lookup)):
        return False
    if isinstance(value, Elementwise) and value.op in _DIVIDE and not value.kind.is_floating_point:
        return False
    return all(map(_harmless, value.parts))


_DIVIDE = ("floordiv", "truncdiv", "remainder", "fmod")


# -- how operands meet ---------------------------------------------------------------------------------------


def is_operand(value: Any) -> bool:
    """Whether something can be an operand of an expression."""
    return isinstance(value, (Value, int, float)) or getattr(value, "is_scalar", False) or _is_item(value)


def _is_item(value: Any) -> bool:
    """Whether something is a number of NumPy or torch."""
    return hasattr(value, "item") and getattr(value, "ndim", 1) == 0 and not hasattr(value, "op")


def as_value(value: Any, kind: torch.dtype | None = None) -> Value:
    """A value, a Python number or a tensor of one element as an operand; numbers become ``kind`` if given.

    Raises:
        SmeltError: SM1103, it is none of them.
    """
    if isinstance(value, Value):
        return value
    if isinstance(value, bool):
        return Number(value, kind or torch.bool, weak=kind is None)
    if isinstance(value, int):
        wide = not -(2**31) <= value < 2**31
        return Number(value, kind or (torch.int64 if wide else torch.int32), weak=kind is None)
    if isinstance(value, float):
        return Number(value, kind or torch.float32, weak=kind is None)
    if isinstance(value, Expr) and value.is_Integer:
        return as_value(int(value), kind)
    if _is_item(value):
        return as_value(value.item(), kind)
    if not getattr(value, "is_scalar", False):
        _no_value(value)
    return value()  # type: ignore[no-any-return]


def _no_value(value: Any) -> NoReturn:
    what = f"{type(value).__name__} {getattr(value, 'name', '')}".strip()
    refuse(
        "SM1103", f"{what} is no value", remedy="index a tensor: A[i, j]" if hasattr(value, "op") else None
    )


def cast(value: Value, kind: torch.dtype) -> Value:
    """``value`` converted to ``kind``; constants are converted at once."""
    return value if value.kind == kind else value.converted(kind)


def matched(left: Any, right: Any) -> tuple[Value, Value]:
    """Two operands in their common dtype.

    A Python number takes the dtype of a floating operand, and an integer that of an integer one.
    """
    a, b = as_value(left), as_value(right)
    weak_a, weak_b = getattr(a, "weak", False), getattr(b, "weak", False)
    if weak_a != weak_b:
        constant, other = (a, b) if weak_a else (b, a)
        if other.kind.is_floating_point or (
            other.kind is not torch.bool and not constant.kind.is_floating_point
        ):
            fixed = _fitting(constant, other.kind)
            return (fixed, b) if weak_a else (a, fixed)
    kind = promoted(a.kind, b.kind)
    return cast(a, kind), cast(b, kind)


def _fitting(constant: Value, kind: torch.dtype) -> Value:
    assert isinstance(constant, Number)
    if not kind.is_floating_point and isinstance(constant.value, int):
        limits = torch.iinfo(kind)
        if not limits.min <= constant.value <= limits.max:
            refuse(
                "SM1103",
                f"{constant.value} is no {NAMES[kind]}",
                remedy=f'te.const({constant.value}, "int64")',
            )
    return Number(constant.value, kind)


def binary(op: str, left: Any, right: Any) -> Any:
    """A binary operator on values converted to their common dtype.

    Raises:
        SmeltError: SM1103, the operator does not take that dtype; SM1107, ``/`` of integers.
    """
    if not (is_operand(left) or isinstance(left, Expr)) or not (is_operand(right) or isinstance(right, Expr)):
        return NotImplemented
    a, b = matched(left, right)
    kind, rule = a.kind, TABLE[op].rule
    if op == "truediv" and not kind.is_floating_point:
        refuse(
            "SM1107",
            f"{NAMES[kind]} / {NAMES[kind]} can mean several quotients",
            remedy="te.floordiv, te.truncdiv, or .astype(...) of an operand",
        )
    if op == "pow" and not kind.is_floating_point:
        op = "int_pow"
    if kind is torch.bool and rule is Rule.SAME:  # True + True is 2, as in Python
        a, b, kind = cast(a, torch.int32), cast(b, torch.int32), torch.int32
    return elementwise(op, a, b)


def unary(op: str, x: Any) -> Value:
    """A unary operator.

    Raises:
        SmeltError: SM1103, the operator does not take that dtype.
    """
    return elementwise(op, as_value(x))


def elementwise(op: str, *parts: Value) -> Value:
    try:
        return Elementwise(op, parts)
    except TypeError as error:
        kinds = ", ".join(part.dtype for part in parts)
        remedy = 'convert first: x.astype("float32")' if TABLE[op].rule is Rule.FLOAT else None
        refuse("SM1103", f"{op} does not take {kinds}", why=str(error).split(": ")[-1], remedy=remedy)
