"""Index expressions as Triton: Python's text, in which integers divide as C does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sympy
from sympy import Expr, Symbol

from smelt.errors import Unsupported
from smelt.symbolic.floating import is_floating
from smelt.symbolic.signs import never_negative

_QUOTIENTS = {"FloorDiv": ("//", "floor_div"), "CleanDiv": ("//", "floor_div")}
_RESTS = {"Mod": ("%", "floor_mod"), "PythonMod": ("%", "floor_mod")}


def index_text(expr: Expr, names: Mapping[Symbol, str]) -> str:
    """``expr`` in Triton, in integers.

    >>> i, j = sympy.symbols("i j", integer=True, nonnegative=True)
    >>> index_text(4 * i + j + 1, {i: "x", j: "r"})
    '(r + 4*x + 1)'
    """
    if expr.is_Integer:
        return str(int(expr))
    if isinstance(expr, Symbol):
        return names[expr]
    if is_floating(expr):
        raise Unsupported(f"floating arithmetic on sizes: {expr}")
    texts = [index_text(arg, names) for arg in expr.args if isinstance(arg, Expr)]
    if isinstance(expr, sympy.Add):
        numbers = [text for text, arg in zip(texts, expr.args) if arg.is_Integer]
        return (
            f"({' + '.join([text for text, arg in zip(texts, expr.args) if not arg.is_Integer] + numbers)})"
        )
    if isinstance(expr, sympy.Mul):
        return "*".join(
            text if arg.is_Atom and arg.is_nonnegative else f"({text})" for text, arg in zip(texts, expr.args)
        )
    if isinstance(expr, sympy.Pow) and expr.args[1].is_Integer and expr.args[1] > 0:
        return "*".join([f"({texts[0]})"] * int(expr.args[1]))
    kind = expr.func.__name__
    if kind in _QUOTIENTS or kind in _RESTS:
        sign, function = (_QUOTIENTS | _RESTS)[kind]
        plain = all(map(never_negative, expr.args))
        return f"({texts[0]} {sign} ({texts[1]}))" if plain else f"{function}({', '.join(texts)})"
    if kind == "ModularIndexing" and all(map(never_negative, expr.args)):
        return f"({texts[0]} // ({texts[1]}) % ({texts[2]}))"
    if kind in ("Max", "Min"):
        text = texts[0]
        for other in texts[1:]:
            text = f"tl.{kind.lower()}imum({text}, {other})"
        return text
    if kind == "Identity":
        return texts[0]
    if isinstance(expr, sympy.Piecewise):
        *others, (last, _) = expr.args
        text = index_text(last, names)
        for value, condition in reversed(others):
            text = f"tl.where({condition_text(condition, names)}, {index_text(value, names)}, {text})"
        return text
    raise Unsupported(f"the index function {kind} in {expr}")


def condition_text(expr: Any, names: Mapping[Symbol, str]) -> str:
    """A condition over symbols in Triton."""
    if isinstance(expr, sympy.core.relational.Relational):
        return f"({index_text(expr.lhs, names)} {expr.rel_op} {index_text(expr.rhs, names)})"
    if isinstance(expr, (sympy.And, sympy.Or)):
        sign = " & " if isinstance(expr, sympy.And) else " | "
        return f"({sign.join(condition_text(arg, names) for arg in expr.args)})"
    if isinstance(expr, sympy.Not):
        return f"({condition_text(expr.args[0], names)} == 0)"
    if expr in (sympy.true, sympy.false):
        return "True" if expr == sympy.true else "False"
    raise Unsupported(f"the condition {expr}")
