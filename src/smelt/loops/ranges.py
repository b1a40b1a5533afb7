"""The value-range checker: a handler on intervals that proves indirect indices in range.

A proved index needs neither a check at run time nor the wrapping of negative values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import sympy
import torch
from sympy import Expr, Symbol

from smelt.loops.ir import Graph, Node, Pointwise
from smelt.loops.record import is_exact
from smelt.loops.straightline import MaskedInstruction, Recordable, replay
from smelt.ops import Handler, using
from smelt.records import dataclass, field, replace
from smelt.symbolic import loop_var
from smelt.symbolic.affine import expand
from smelt.symbolic.bounds import bounds, is_nonnegative


@dataclass(frozen=True, slots=True)
class Interval:
    """Integers from ``low`` to ``high``, both inclusive (SymPy expressions over sizes); None: unknown.

    ``dtype`` is their dtype, where known: values out of its range wrap around and become unknown.
    """

    low: Expr | None = None
    high: Expr | None = None
    dtype: torch.dtype | None = field(default=None, compare=False)

    def inside(self, size: Expr, extents: Mapping[Symbol, Expr] | None = None) -> bool:
        """Whether every number is in ``[0, size)``."""
        known = extents or {}
        if not self.nonnegative(known) or self.high is None:
            return False
        return is_nonnegative(expand(size - 1 - self.high), known)

    def nonnegative(self, extents: Mapping[Symbol, Expr] | None = None) -> bool:
        """Whether no number is negative."""
        return self.low is not None and is_nonnegative(self.low, extents or {})


UNKNOWN = Interval()


class RangeChecker(Handler):
    """Runs a loop function on intervals.

    Args:
        extents: loop variable → its extent.
        contents: known intervals of the numbers in a buffer, by name.

    ``proofs`` has one entry for each indirect index, in the order of the calls: (never negative, in range).

    >>> from smelt.ops import ops, using
    >>> i = loop_var("i")
    >>> checker = RangeChecker({i: sympy.Integer(8)})
    >>> with using(checker):
    ...     _ = ops.indirect_index(ops.index_expr(i, torch.int64), sympy.Integer(8))
    >>> checker.proofs
    [(True, True)]
    """

    def __init__(
        self, extents: Mapping[Symbol, Expr], contents: Mapping[str, Interval] | None = None
    ) -> None:
        self.extents: dict[Symbol, Expr] = dict(extents)
        self.contents = contents or {}
        self.proofs: list[tuple[bool, bool]] = []

    def elementwise(self, name: str, *args: Interval) -> Interval:
        if name in _BITS:
            return Interval(sympy.Integer(0), sympy.Integer(1), torch.bool)
        rule = _RULES.get(name)
        if rule is None:
            return UNKNOWN
        operands = args[1:] if name == "where" else args
        dtype = next((arg.dtype for arg in operands if arg.dtype is not None), None)
        found = rule(*args)
        return _fitting(found, dtype) if name in _GROWING else replace(found, dtype=dtype)

    def load(self, buffer: str, index: Sequence[Expr]) -> Interval:
        return self.contents.get(buffer, UNKNOWN)

    def constant(self, value: float | int | bool, dtype: torch.dtype) -> Interval:
        if isinstance(value, float):
            return UNKNOWN
        number = sympy.Integer(int(value))
        return Interval(number, number, dtype)

    def index_expr(self, expr: Expr, dtype: torch.dtype) -> Interval:
        low, high = bounds(expr, self.extents)
        return self.to_dtype(Interval(low, high, torch.int64), dtype)

    def to_dtype(self, x: Interval, dtype: torch.dtype) -> Interval:
        if dtype is torch.bool:
            return Interval(sympy.Integer(0), sympy.Integer(1), dtype)
        if x.dtype is not None and not dtype.is_floating_point and is_exact(x.dtype, dtype):
            return replace(x, dtype=dtype)
        return _fitting(x, dtype)

    def bitcast(self, x: Interval, dtype: torch.dtype) -> Interval:
        return UNKNOWN

    def masked(self, mask: Interval, body: Callable[[], Interval], other: float | int | bool) -> Interval:
        value = body()
        if isinstance(other, float):
            return UNKNOWN
        return replace(_union(value, self.constant(other, torch.int64)), dtype=value.dtype)

    def indirect_index(self, x: Interval, size: Expr, *, wrap: bool = True, check: bool | str = True) -> Expr:
        self.proofs.append((x.nonnegative(self.extents), x.inside(size, self.extents)))
        symbol = loop_var(f"range_at{len(self.proofs)}")
        self.extents[symbol] = size
        return symbol


def _fitting(x: Interval, dtype: torch.dtype | None) -> Interval:
    """The same integers after conversion to ``dtype``; unknown if they may wrap around.

    Symbolic bounds are expressions of sizes, which are only known to fit 64 bits.
    """
    if dtype is None or dtype.is_floating_point or x.low is None or x.high is None:
        return Interval(dtype=dtype)
    low, high = (0, 1) if dtype is torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    for end in (x.low, x.high):
        fits = low <= end <= high if end.is_Integer else dtype is torch.int64
        if not fits:
            return Interval(dtype=dtype)
    return Interval(x.low, x.high, dtype)


def _add(x: Interval, y: Interval) -> Interval:
    low = None if x.low is None or y.low is None else x.low + y.low
    return Interval(low, None if x.high is None or y.high is None else x.high + y.high)


def _neg(x: Interval) -> Interval:
    return Interval(None if x.high is None else -x.high, None if x.low is None else -x.low)


def _mul(x: Interval, y: Interval) -> Interval:
    ends = (x.low, x.high, y.low, y.high)
    if all(end is not None and end.is_Integer for end in ends):
        products = [a * b for a in ends[:2] for b in ends[2:]]  # type: ignore[operator]
        return Interval(min(products), max(products))
    if x.nonnegative() and y.nonnegative():
        high = None if x.high is None or y.high is None else x.high * y.high
        return Interval(x.low * y.low, high)  # type: ignore[operator]
    return UNKNOWN


def _below(x: Expr | None, y: Expr | None) -> bool:
    return x is not None and y is not None and is_nonnegative(expand(y - x), {})


def _minimum(x: Interval, y: Interval) -> Interval:
    if x.high is None or y.high is None:
        high = x.high if y.high is None else y.high
    else:
        high = x.high if _below(x.high, y.high) else y.high
    low = x.low if _below(x.low, y.low) else y.low if _below(y.low, x.low) else None
    return Interval(low, high)


def _maximum(x: Interval, y: Interval) -> Interval:
    return _neg(_minimum(_neg(x), _neg(y)))


def _union(x: Interval, y: Interval) -> Interval:
    low = x.low if _below(x.low, y.low) else y.low if _below(y.low, x.low) else None
    high = y.high if _below(x.high, y.high) else x.high if _below(y.high, x.high) else None
    return Interval(low, high)


def _remainder(x: Interval, y: Interval) -> Interval:
    if y.low is not None and y.low.is_positive and y.high is not None:  # the sign is that of y
        return Interval(sympy.Integer(0), y.high - 1)
    return UNKNOWN


def _quotient(x: Interval, y: Interval) -> Interval:
    if x.nonnegative() and y.low is not None and y.low.is_positive:
        return Interval(sympy.Integer(0), x.high)
    return UNKNOWN


_RULES: dict[str, Callable[..., Interval]] = {
    "add": _add,
    "sub": lambda x, y: _add(x, _neg(y)),
    "neg": _neg,
    "mul": _mul,
    "minimum": _minimum,
    "maximum": _maximum,
    "where": lambda _, x, y: _union(x, y),
    "remainder": _remainder,
    "floordiv": _quotient,
    "truncdiv": _quotient,
}
_GROWING = frozenset(("add", "sub", "neg", "mul"))
_BITS = frozenset(("eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "signbit"))


def contents_of(graph: Graph) -> dict[str, Interval]:
    """The known intervals of the integers in each buffer that the graph computes (``arange``, clamps …)."""
    contents: dict[str, Interval] = {}
    for node in graph.nodes:
        found = _contents(node, contents)
        if found != UNKNOWN and node.outputs and node.outputs[0] is not None:
            contents[node.outputs[0]] = found
    return contents


def _contents(node: Node, contents: Mapping[str, Interval]) -> Interval:
    body = node.body
    if not isinstance(body, Pointwise) or body.dtype.is_floating_point or body.dtype is torch.bool:
        return UNKNOWN
    variables = [loop_var(f"i{d}") for d in range(len(body.shape))]
    checker = RangeChecker(dict(zip(variables, body.shape)), contents)
    with using(checker):
        found = body.inner_fn(variables)
    return found if isinstance(found, Interval) else UNKNOWN


def relax_checks(
    steps: Iterable[Recordable],
    extents: Mapping[Symbol, Expr],
    contents: Mapping[str, Interval],
    outside: Iterable[str] = (),
) -> tuple[Recordable, ...]:
    """Recorded code without the checks and the wrapping that are proved needless.

    ``index(v, size, wrap, check)  →  index(v, size)`` where ``0 <= v < size`` is known. ``outside`` are
    values that the code uses and that are computed elsewhere.
    """
    kept = tuple(steps)
    if not _has_indirect(kept):
        return kept
    checker = RangeChecker(extents, contents)
    replay(kept, checker, dict.fromkeys(outside, UNKNOWN))
    return _relax(kept, iter(checker.proofs))


def _has_indirect(steps: Iterable[Recordable]) -> bool:
    return any(
        _has_indirect(step.body) if isinstance(step, MaskedInstruction) else step.op == "indirect_index"
        for step in steps
    )


def _relax(steps: Iterable[Recordable], proofs: Any) -> tuple[Recordable, ...]:
    result: list[Recordable] = []
    for step in steps:
        if isinstance(step, MaskedInstruction):
            step = replace(step, body=_relax(step.body, proofs))
        elif step.op == "indirect_index":
            nonnegative, inside = next(proofs)
            value, size, wrap, check = step.args
            args = (value, size, wrap and not nonnegative, False if inside else check)
            step = replace(step, args=args)
        result.append(step)
    return tuple(result)
