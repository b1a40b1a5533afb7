"""Symbolic sizes in the module: ``torch.symbolic_int`` and ``torch.bind_symbolic_shape``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from sympy import Symbol

from smelt.contract.facts import environment_of
from smelt.errors import Unsupported
from smelt.mlir.arrays.expressions import Numbers, evaluate_number
from smelt.mlir.bindings import ir
from smelt.symbolic import as_expr

_MOST = (1 << 63) - 1


class Constraints:
    """The symbols of a function, declared at its start, and the tensor sizes that they define."""

    def __init__(self, metas: Iterable[Any]) -> None:
        """``metas``: the metadata of every value of the function; their symbols are declared at the current
        insertion point."""
        self.values: dict[Symbol, Any] = {}
        ranges: dict[Symbol, tuple[int, int]] = {}
        for meta in metas:
            for tensor in meta if isinstance(meta, (list, tuple)) else (meta,):
                if isinstance(tensor, torch.Tensor):
                    _collect(tensor, ranges)
        for symbol in sorted(ranges, key=lambda each: (each.name[0], len(each.name), each.name)):
            self.values[symbol] = _symbolic_int(symbol, *ranges[symbol])

    def bind(self, value: Any, meta: torch.Tensor) -> None:
        """State the sizes of ``value``, if a size is symbolic and all sizes are affine."""
        exprs = [as_expr(size) for size in meta.shape]
        symbols = sorted(
            {symbol for expr in exprs for symbol in expr.free_symbols},
            key=lambda each: (each.name[0], len(each.name), each.name),
        )
        if not symbols:
            return
        places = {symbol: ir.AffineExpr.get_symbol(number) for number, symbol in enumerate(symbols)}
        try:
            sizes = [evaluate_number(expr, _Affine(places)) for expr in exprs]
        except Unsupported:
            return
        ir.Operation.create(
            "torch.bind_symbolic_shape",
            operands=[value, *(self.values[symbol] for symbol in symbols)],
            attributes={"shape_expressions": ir.AffineMapAttr.get(ir.AffineMap.get(0, len(symbols), sizes))},
        )


def _collect(tensor: torch.Tensor, ranges: dict[Symbol, tuple[int, int]]) -> None:
    environment = environment_of(tensor)
    known = getattr(environment, "var_to_range", {})
    for size in tensor.shape:
        for symbol in as_expr(size).free_symbols:
            if symbol not in ranges:
                bounds = next((known[each] for each in known if each.name == symbol.name), None)
                ranges[symbol] = (
                    (0, _MOST)
                    if bounds is None
                    else (_integer(bounds.lower, 0), _integer(bounds.upper, _MOST))
                )


def _integer(bound: Any, default: int) -> int:
    return min(int(bound), _MOST) if getattr(bound, "is_Integer", False) else default


def _symbolic_int(symbol: Symbol, least: int, most: int) -> Any:
    word = ir.IntegerType.get_signless(64)
    return ir.Operation.create(
        "torch.symbolic_int",
        results=[ir.Type.parse("!torch.int")],
        attributes={
            "symbol_name": ir.StringAttr.get(symbol.name),
            "min_val": ir.IntegerAttr.get(word, least),
            "max_val": ir.IntegerAttr.get(word, most),
        },
    ).results[0]


class _Affine(Numbers):
    """Affine expressions of symbols."""

    def __init__(self, symbols: dict[Symbol, Any]) -> None:
        self.symbols = symbols

    def symbol(self, symbol: Symbol) -> Any:
        return self.symbols[symbol]

    def constant(self, value: Any, dtype: torch.dtype) -> Any:
        return ir.AffineExpr.get_constant(value)

    def dtype_of(self, value: Any) -> torch.dtype:
        return torch.int64

    def elementwise(self, name: str, *args: Any) -> Any:
        if name not in _OPERATIONS:
            raise Unsupported(f"{name} is not affine")
        return getattr(ir.AffineExpr, f"get_{_OPERATIONS[name]}")(*args)


_OPERATIONS = {
    "add": "add",
    "mul": "mul",
    **dict.fromkeys(("floordiv", "truncdiv"), "floor_div"),
    **dict.fromkeys(("remainder", "fmod"), "mod"),
}
