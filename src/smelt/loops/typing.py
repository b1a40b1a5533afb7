"""The dtype checker: a handler whose values are dtypes. It collects all violations of typing rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from sympy import Expr

from smelt.ops import TABLE, Handler, Rule, result_dtype
from smelt.symbolic import loop_var

_INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)


class TypeChecker(Handler):
    """Runs a loop function on dtypes; ``problems`` lists all errors, in order.

    >>> from smelt.ops import ops, using
    >>> checker = TypeChecker({"x": torch.float32, "n": torch.int64})
    >>> with using(checker):
    ...     ops.add(ops.load("x", []), ops.load("n", []))
    torch.float32
    >>> checker.problems
    ['add: argument dtypes differ: torch.float32, torch.int64']
    """

    def __init__(self, buffers: Mapping[str, torch.dtype], ranks: Mapping[str, int] | None = None) -> None:
        self.buffers = buffers
        self.ranks = ranks
        self.problems: list[str] = []
        self._indirect = 0

    def elementwise(self, name: str, *args: torch.dtype) -> torch.dtype:
        spec = TABLE[name]
        try:
            return result_dtype(spec, list(args))
        except TypeError as error:
            self.problems.append(str(error))
        if spec.rule in (Rule.COMPARE, Rule.FLOAT_TEST, Rule.LOGICAL) or not args:
            return torch.bool
        return args[1] if spec.rule is Rule.WHERE and len(args) > 1 else args[0]

    def load(self, buffer: str, index: Sequence[Expr]) -> torch.dtype:
        dtype = self.buffers.get(buffer)
        if dtype is None:
            self.problems.append(f"load of the unknown buffer {buffer!r}")
            return torch.float32
        if self.ranks is not None and len(index) != self.ranks[buffer]:
            rank = self.ranks[buffer]
            self.problems.append(f"load of {buffer} with {len(index)} indices, it has {rank} dimensions")
        for expr in index:
            self._index(expr)
        return dtype

    def constant(self, value: float | int | bool, dtype: torch.dtype) -> torch.dtype:
        fits = isinstance(value, bool) or dtype.is_floating_point
        if not fits and (dtype is torch.bool or not isinstance(value, int)):
            self.problems.append(f"constant {value!r} is no {dtype}")
        return dtype

    def index_expr(self, expr: Expr, dtype: torch.dtype) -> torch.dtype:
        self._index(expr)
        if dtype is torch.bool:
            self.problems.append("index_expr gives numbers, not torch.bool")
        return dtype

    def to_dtype(self, x: torch.dtype, dtype: torch.dtype) -> torch.dtype:
        return dtype

    def bitcast(self, x: torch.dtype, dtype: torch.dtype) -> torch.dtype:
        if x.itemsize != dtype.itemsize:
            self.problems.append(f"bitcast from {x} to {dtype}: the widths differ")
        return dtype

    def masked(
        self, mask: torch.dtype, body: Callable[[], torch.dtype], other: float | int | bool
    ) -> torch.dtype:
        if mask is not torch.bool:
            self.problems.append(f"a mask is bool, not {mask}")
        dtype = body()
        if isinstance(other, float) and other != int_or(other) and not dtype.is_floating_point:
            self.problems.append(f"masked gives {dtype}, else {other!r}")
        return dtype

    def indirect_index(
        self, x: torch.dtype, size: Expr, *, wrap: bool = True, check: bool | str = True
    ) -> Expr:
        if x not in _INTEGERS:
            self.problems.append(f"an indirect index is an integer, not {x}")
        if check not in (True, False, "IndexError", "RuntimeError"):
            self.problems.append(f"an indirect index raises no {check}")
        self._index(size)
        self._indirect += 1
        return loop_var(f"at{self._indirect - 1}")

    def _index(self, expr: Expr) -> None:
        if expr.is_integer is False:
            self.problems.append(f"the index {expr} is no integer")


def int_or(value: float) -> float:
    """The integer nearest to zero, or NaN where there is none (inf, NaN)."""
    return float(int(value)) if abs(value) < float("inf") else float("nan")
