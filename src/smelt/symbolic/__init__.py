"""Sizes and indices: SymPy expressions, their conversion from PyTorch, and simplification rules."""

from smelt.symbolic.expr import (
    Expr,
    FloorDiv,
    Mod,
    Symbol,
    as_expr,
    evaluate,
    free_symbols,
    is_guarded_one,
    is_one,
    is_zero,
    loop_var,
    numel,
    same,
    size_hint,
)
from smelt.symbolic.index import contiguous_strides, flatten, refine, reshape_index, simplify, span, unflatten
from smelt.symbolic.signs import least

__all__ = [
    "Expr",
    "FloorDiv",
    "Mod",
    "Symbol",
    "as_expr",
    "contiguous_strides",
    "evaluate",
    "flatten",
    "free_symbols",
    "is_guarded_one",
    "is_one",
    "is_zero",
    "least",
    "loop_var",
    "numel",
    "refine",
    "reshape_index",
    "same",
    "simplify",
    "size_hint",
    "span",
    "unflatten",
]
