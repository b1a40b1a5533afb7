"""Checks that the inputs of a call fit the exported program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sympy
import torch
from sympy import Expr, Symbol
from torch.utils._sympy.numbers import int_oo

from smelt.capture.program import Program, shape_env_of
from smelt.errors import SmeltError
from smelt.symbolic import as_expr, evaluate
from smelt.symbolic.affine import symbols_in
from smelt.symbolic.solving import solve_sizes


class InputCheck:
    """Rank, dtype and sizes of every input: an exported program is valid only for those.

    ``ranges``: the range of each size (``range_constraints`` of an ExportedProgram). Called with the user's
    inputs in order.

    Raises:
        SmeltError: SM0603, the first input that does not fit.
    """

    def __init__(self, program: Program, ranges: Mapping[Symbol, Any]) -> None:
        users = [n for n, each in zip(program.placeholders, program.inputs) if each.value is None]
        self.expected = [node.meta.get("val") for node in users]
        self.names = [node.name for node in users]
        self.ranges = dict(ranges)
        environment = shape_env_of(self.expected)
        guards = () if environment is None else environment.guards
        self.conditions = tuple(dict.fromkeys(guard.expr for guard in guards))
        tensors = [(n, each) for n, each in zip(self.names, self.expected) if isinstance(each, torch.Tensor)]
        self.solutions = solve_sizes([(n, [as_expr(size) for size in each.shape]) for n, each in tensors])

    def __call__(self, leaves: list[Any]) -> None:
        sizes = self._solved(leaves)
        for name, expected, leaf in zip(self.names, self.expected, leaves, strict=True):
            if not isinstance(expected, torch.Tensor):
                continue
            if not isinstance(leaf, torch.Tensor):
                raise SmeltError("SM0603", f"input {name} is a {type(leaf).__name__}, a tensor was exported")
            if leaf.dtype != expected.dtype or leaf.dim() != expected.dim():
                what = f"input {name} is {leaf.dtype} of rank {leaf.dim()}"
                raise SmeltError("SM0603", what, why=f"exported: {expected.dtype} of rank {expected.dim()}")
            for dim, (size, wanted) in enumerate(zip(leaf.shape, expected.shape)):
                self._size(name, dim, size, as_expr(wanted), sizes)
            if not _same_strides(leaf, expected, sizes):
                raise SmeltError(
                    "SM0603",
                    f"input {name} has the strides {tuple(leaf.stride())}",
                    why=f"exported: {tuple(expected.stride())}",
                    remedy="pass it through .contiguous() (or the memory format that was exported)",
                )
        self._conditions(sizes)

    def _solved(self, leaves: list[Any]) -> dict[Symbol, int]:
        """The size symbols that the inputs determine; their ranges are checked later."""
        given = dict(zip(self.names, leaves, strict=True))
        sizes: dict[Symbol, int] = {}
        for each in self.solutions:
            leaf = given[each.tensor]
            if isinstance(leaf, torch.Tensor) and each.dim < leaf.dim():
                known = {**sizes, each.size: leaf.shape[each.dim]}
                if symbols_in(each.value) <= known.keys():
                    sizes[each.symbol] = evaluate(each.value, known)
        return sizes

    def _conditions(self, sizes: dict[Symbol, int]) -> None:
        """Checks the assumptions of tracing on sizes, without which the program would differ."""
        for condition in self.conditions:
            if condition.free_symbols <= sizes.keys() and self._fails(condition, sizes):
                given = ", ".join(f"{s} = {sizes[s]}" for s in sorted(condition.free_symbols, key=str))
                raise SmeltError(
                    "SM0603",
                    f"sizes for which the program is another one: {given}",
                    why=f"exported for sizes with {condition}",
                    remedy="export it for such sizes as well",
                )

    @staticmethod
    def _fails(condition: Any, sizes: Mapping[Symbol, int]) -> bool:
        return condition.xreplace({s: sympy.Integer(n) for s, n in sizes.items()}) == sympy.false

    def _size(self, name: str, dim: int, size: int, wanted: Expr, sizes: dict[Symbol, int]) -> None:
        what = f"dimension {dim} of input {name} is {size}"
        bounds = self.ranges.get(wanted)
        if bounds is not None and not (bounds.lower <= size <= bounds.upper):
            raise SmeltError("SM0603", what, why=_range(bounds), remedy=_other(size, bounds))
        if wanted.free_symbols <= sizes.keys() and evaluate(wanted, sizes) != size:
            raise SmeltError("SM0603", what, why=f"exported: {wanted}")


def _range(bounds: Any) -> str:
    """The range of a size, in words."""
    if bounds.upper == int_oo:
        return f"exported for {bounds.lower} and more"
    return f"exported for {bounds.lower} to {bounds.upper}"


def _other(size: int, bounds: Any) -> str | None:
    """The remedy for a size of 0 or 1, if tracing assumed a size of 2 or more."""
    if size > 1 or bounds.lower != 2:
        return None
    return (
        "torch.export takes 0 and 1 for programs of their own where a size is Dim.AUTO or Dim.DYNAMIC: give "
        'it a name, Dim("n"), which holds for them too, or export again with an example of this size, fixed'
    )


def _same_strides(leaf: torch.Tensor, expected: torch.Tensor, sizes: dict[Symbol, int]) -> bool:
    """Whether the strides are the exported ones; SymInts are never compared, because that would specialize
    them. Strides of a tensor without elements do not matter.
    """
    if leaf.numel() == 0:
        return True
    for size, have, stride in zip(leaf.shape, leaf.stride(), expected.stride()):
        wanted = as_expr(stride)
        if isinstance(wanted, Symbol):
            wanted = as_expr(sizes.setdefault(wanted, have))
        if size != 1 and wanted.free_symbols <= sizes.keys() and evaluate(wanted, sizes) != have:
            return False
    return True
