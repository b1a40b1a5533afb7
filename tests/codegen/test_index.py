"""Index expressions as C++ text mean what SymPy means: run as Python, which has the same precedences."""

from __future__ import annotations

import itertools

import pytest
import sympy
from sympy import Expr
from torch.utils._sympy.functions import FloorDiv, Mod, ModularIndexing

from smelt.codegen.cpp.index import index_text

A, B, C = sympy.symbols("a b c", integer=True, positive=True)
NAMES = {A: "a", B: "b", C: "c"}


@pytest.mark.parametrize(
    "expr",
    [
        FloorDiv(A, B * B),
        FloorDiv(A, B**2),
        FloorDiv(A, B * C) * B * C,
        FloorDiv(A * B, C),
        FloorDiv(A + B, B + C),
        FloorDiv(FloorDiv(A, B), C),
        Mod(A, B * C),
        Mod(A * B, C),
        Mod(A + B, C) * B,
        ModularIndexing(A, B * C, B),
        ModularIndexing(A, B, B * C),
        ModularIndexing(A, B**2, B + C),
        A - (B - C),
        A * (B + C) ** 2,
        FloorDiv(A, B) ** 2,
        sympy.Max(A, B) - sympy.Min(B, C) * 2,
    ],
    ids=str,
)
def test_operands_of_division_keep_their_parentheses(expr: Expr) -> None:
    text = index_text(expr, NAMES).replace("/", "//")
    functions = {
        "max_of": max,
        "min_of": min,
        "floor_div": lambda x, y: x // y,
        "floor_mod": lambda x, y: x % y,
    }
    for a, b, c in itertools.product((1, 5, 60, 97), (1, 2, 3), (1, 3, 4)):
        wanted = expr.subs({A: a, B: b, C: c})
        assert eval(text, functions, {"a": a, "b": b, "c": c}) == wanted, text
