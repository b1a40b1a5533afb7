"""Symbolic sizes in the module: ``torch.symbolic_int`` and ``torch.bind_symbolic_shape``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import sympy
import torch
from sympy import Expr, Symbol

from smelt.contract.facts import environment_of
from smelt.mlir.bindings import ir
from smelt.symbolic import FloorDiv, Mod, as_expr

_MOST = (1 << 63) - 1


class Constraints:
    """The symbols of a function, declared at its start, and which sizes of which tensors they are."""

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
        """State the sizes of ``value``, if one is symbolic and all can be written as affine maps."""
        exprs = [as_expr(size) for size in meta.shape]
        symbols = sorted(
            {symbol for expr in exprs for symbol in expr.free_symbols},
            key=lambda each: (each.name[0], len(each.name), each.name),
        )
        if not symbols:
            return
        places = {symbol: ir.AffineExpr.get_symbol(number) for number, symbol in enumerate(symbols)}
        sizes = [_affine(expr, places) for expr in exprs]
        if any(size is None for size in sizes):
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


def _affine(expr: Expr, symbols: dict[Symbol, Any]) -> Any | None:
    """``expr`` as an affine expression of symbols; None where it is none."""
    if expr.is_Integer:
        return ir.AffineExpr.get_constant(int(expr))
    if isinstance(expr, Symbol):
        return symbols[expr]
    parts = [_affine(part, symbols) for part in expr.args]
    if any(part is None for part in parts):
        return None
    if isinstance(expr, (sympy.Add, sympy.Mul)):
        join = ir.AffineExpr.get_add if isinstance(expr, sympy.Add) else ir.AffineExpr.get_mul
        total = parts[0]
        for part in parts[1:]:
            total = join(total, part)
        return total
    if isinstance(expr, sympy.Pow) and expr.args[1].is_Integer and int(expr.args[1]) in (2, 3):
        total = parts[0]
        for _ in range(int(expr.args[1]) - 1):
            total = ir.AffineExpr.get_mul(total, parts[0])
        return total
    if isinstance(expr, FloorDiv):
        return ir.AffineExpr.get_floor_div(parts[0], parts[1])
    if isinstance(expr, Mod):
        return ir.AffineExpr.get_mod(parts[0], parts[1])
    return None
