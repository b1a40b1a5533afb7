"""Index expressions as C++: text, and the step of an offset with one loop variable."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import sympy
from sympy import Expr, Symbol
from torch.utils._sympy.functions import FloorDiv, Mod, PythonMod

from smelt.errors import SmeltError, Unsupported
from smelt.records import dataclass
from smelt.symbolic import loop_var
from smelt.symbolic.affine import expand, order_text, symbols_in
from smelt.symbolic.floating import DIVISIONS, ROUNDINGS, is_floating
from smelt.symbolic.signs import never_negative

_ATOM, _PRODUCT, _SUM = 3, 2, 1

ITERATION = loop_var("iteration")
"""The variable of a loop that stands for several: always the same symbol, so that SymPy caches its quotients.
"""


@dataclass(frozen=True, slots=True)
class Spelling:
    """The words of a language that differ from those of C++, as templates. ``quotient``: of integers that are
    not negative. ``floats``: the language has floating arithmetic on sizes.
    """

    language: str = "C++"
    quotient: str = "{}/{}"
    both: str = " && "
    either: str = " || "
    negated: str = "!{}"
    chosen: str = "{} ? {} : {}"
    truths: tuple[str, str] = ("0", "1")
    floats: bool = True

    def unknown(self, what: str) -> Exception:
        """The error of something without a text: a bug in C++, a limit of other languages."""
        if self.language == "C++":
            return SmeltError("SM0802", f"codegen: no C++ for {what}")
        return Unsupported(f"{self.language} has no text for {what}")


CPP = Spelling()


def _spelling(names: Mapping[Symbol, str]) -> Spelling:
    return names.spelling if isinstance(names, Names) else CPP


class Names(dict[Symbol, str]):
    """The names of symbols in C++, or in a language of another ``spelling``. ``fixed``: symbols that are
    constant throughout the kernel.

    Division by an expression of fixed symbols uses a ``divider`` (``smelt_arithmetic.h``), which multiplies:
    ``dividers`` has the text of each divisor and the name of its divider. ``share`` may give a quotient of
    certain symbols a name. ``number`` prints numbers; divisors are always constants, except those that split
    an `ITERATION`. ``named`` may give every quotient, remainder, maximum and minimum a name. ``texts``:
    cached texts of expressions of fixed symbols.
    """

    def __init__(
        self,
        fixed: Mapping[Symbol, str] = MappingProxyType({}),
        share: Callable[[str, frozenset[Symbol]], str] | None = None,
        number: Callable[[int | str], str] = str,
        spelling: Spelling = CPP,
    ) -> None:
        super().__init__(fixed)
        self.spelling = spelling
        self.fixed = frozenset(fixed)
        self.dividers: dict[str, str] = {}
        self.share = share
        self.number = number
        self.named: Callable[[str], str] | None = None
        self.texts: dict[Expr, tuple[str, int]] = {}

    def divided(self, number: Expr, divisor: Expr, rest: bool) -> str | None:
        """The quotient, or the remainder; None if the divisor is a number or not fixed."""
        symbols = divisor.free_symbols
        if not symbols or not symbols <= self.fixed:
            return None
        by = index_text(divisor, self.in_lanes({}))  # dividers are made before all that is shared
        divider = self.dividers.setdefault(by, f"by{len(self.dividers)}")
        text = f"{divider}.{'rest' if rest else 'quotient'}({index_text(number, self)})"
        return text if self.share is None else self.share(text, symbols_in(number) - self.fixed)

    def in_lanes(self, texts: Mapping[Symbol, str]) -> Names:
        """The same where some symbols differ by lane: lane expressions are not shared."""
        names = copy(self)
        names.update(texts)
        names.share = None
        names.texts = {}
        return names


def index_text(expr: Expr, names: Mapping[Symbol, str]) -> str:
    """``expr`` in C++, in 64-bit integers.

    >>> i, j = sympy.symbols("i j", integer=True, nonnegative=True)
    >>> index_text(4 * i + j + 1, {i: "d0", j: "d1"})
    'd0*4 + d1 + 1'
    """
    return _print(expr, names)[0]


def _number(value: int, names: Mapping[Symbol, str]) -> str:
    text = names.number(abs(value)) if isinstance(names, Names) else str(abs(value))
    return text if value >= 0 else f"-{text}"


def _print(expr: Expr, names: Mapping[Symbol, str]) -> tuple[str, int]:
    if expr.is_Integer:
        value = int(expr)
        return _number(value, names), _ATOM if value >= 0 else _SUM
    if isinstance(expr, Symbol):
        try:
            return names[expr], _ATOM
        except KeyError:
            raise SmeltError("SM0801", f"codegen: index symbol {expr} is not defined here") from None
    if not isinstance(names, Names) or not symbols_in(expr) <= names.fixed:
        return _compound(expr, names)
    if expr not in names.texts:
        names.texts[expr] = _compound(expr, names)
    return names.texts[expr]


def _compound(expr: Expr, names: Mapping[Symbol, str]) -> tuple[str, int]:
    if is_floating(expr):
        return _floating(expr, names), _ATOM
    if isinstance(expr, sympy.Add):
        return _sum([_print(arg, names)[0] for arg in _constant_last(expr.args)]), _SUM
    if isinstance(expr, sympy.Mul):
        return _product(expr, names)
    if isinstance(expr, sympy.Pow) and expr.args[1].is_Integer and expr.args[1] > 0:
        base = _wrapped(expr.args[0], names, _PRODUCT)
        return "*".join([base] * int(expr.args[1])), _PRODUCT
    text, level = _function(expr, names)
    if isinstance(names, Names) and names.named is not None:
        return names.named(text), _ATOM
    return text, level


def _divisor(expr: Expr, number: Expr, names: Mapping[Symbol, str]) -> str:
    """The text of a divisor."""
    if expr.is_Integer and ITERATION not in number.free_symbols:
        return str(expr)
    text, level = _print(expr, names)
    return text if level == _ATOM else f"({text})"


def _constant_last(args: Sequence[Expr]) -> list[Expr]:
    return sorted(args, key=lambda arg: (bool(arg.is_number), order_text(arg)))


def _sum(terms: Sequence[str]) -> str:
    text = terms[0]
    for term in terms[1:]:
        text += f" - {term[1:]}" if term.startswith("-") and " " not in term else f" + {term}"
    return text


def _wrapped(expr: Expr, names: Mapping[Symbol, str], least: int) -> str:
    text, level = _print(expr, names)
    return text if level > least or (level == least == _PRODUCT and "/" not in text) else f"({text})"


def _product(expr: Expr, names: Mapping[Symbol, str]) -> tuple[str, int]:
    coefficient, rest = expr.as_coeff_Mul()
    factors = [_wrapped(arg, names, _PRODUCT) for arg in sympy.Mul.make_args(rest)]
    numerator, denominator = int(coefficient.p), int(coefficient.q)
    if numerator == -1 and denominator == 1:
        return "-" + "*".join(factors), _PRODUCT
    if numerator != 1:
        number = _number(numerator, names)
        factors.append(number if numerator > 0 else f"({number})")
    text = "*".join(factors)
    if denominator == 1:
        return text, _PRODUCT
    return _spelling(names).quotient.format(f"({text})", denominator), _PRODUCT


def _function(expr: Expr, names: Mapping[Symbol, str]) -> tuple[str, int]:
    if isinstance(expr, sympy.Piecewise):
        return _piecewise(expr, names), _ATOM
    kind = expr.func.__name__
    if kind in ("FloorDiv", "CleanDiv", "Mod", "PythonMod") and isinstance(names, Names):
        divided = names.divided(expr.args[0], expr.args[1], "Mod" in kind)
        if divided is not None:
            return divided, _ATOM
    if kind in ROUNDINGS and _spelling(names).floats:
        return f"int64_t({_ROUND[kind]}({_double(expr.args[0], names)}))", _ATOM
    if kind == "Identity":
        return _wrapped(expr.args[0], names, _PRODUCT), _ATOM
    if kind in _QUOTIENTS and all(map(never_negative, expr.args)):
        number, *divisors = expr.args
        args = [_wrapped(number, names, _PRODUCT), *(_divisor(each, number, names) for each in divisors)]
        template = _QUOTIENTS[kind][0].replace("{}/{}", _spelling(names).quotient)
        return template.format(*args), _ATOM
    if kind in _QUOTIENTS:
        number, *divisors = expr.args
        args = [index_text(number, names), *(_divisor(each, number, names) for each in divisors)]
        return _QUOTIENTS[kind][1].format(*args), _ATOM
    plain = [index_text(arg, names) for arg in expr.args]
    if kind == "CeilDiv":
        return f"(-floor_div(-({plain[0]}), {plain[1]}))", _ATOM
    if kind in ("Max", "Min"):
        text = plain[0]
        for other in plain[1:]:
            text = f"{kind.lower()}_of({text}, {other})"
        return text, _ATOM
    raise _spelling(names).unknown(f"index function {kind} in {expr}")


_DIVIDED = ("({}/{})", "floor_div({}, {})")
_REST = ("({} % {})", "floor_mod({}, {})")
_QUOTIENTS = {
    "FloorDiv": _DIVIDED,
    "CleanDiv": _DIVIDED,
    "Mod": _REST,
    "PythonMod": _REST,
    "ModularIndexing": ("(({}/{}) % {})", "floor_mod(floor_div({}, {}), {})"),
}
"""C++ of operators that divide, for nonnegative arguments, and for others."""

_ROUND = {
    "CeilToInt": "__builtin_ceil",
    "FloorToInt": "__builtin_floor",
    "RoundToInt": "__builtin_nearbyint",
    "TruncToInt": "",
}


def _double(expr: Expr, names: Mapping[Symbol, str]) -> str:
    return _floating(expr, names) if is_floating(expr) else f"double({index_text(expr, names)})"


def _floating(expr: Expr, names: Mapping[Symbol, str]) -> str:
    """Floating arithmetic on sizes, in double as Python has it."""
    if not _spelling(names).floats:
        raise _spelling(names).unknown(f"floating arithmetic on sizes: {expr}")
    kind = expr.func.__name__
    if isinstance(expr, sympy.Float):
        return f"({float(expr)!r})"
    args = [_double(arg, names) for arg in expr.args]
    if kind == "ToFloat":
        return args[0]
    if kind == "OpaqueUnaryFn_sqrt":
        return f"__builtin_sqrt({args[0]})"
    if kind == "FloatPow" or isinstance(expr, sympy.Pow):
        return f"__builtin_pow({', '.join(args)})"
    sign = "/" if kind in DIVISIONS else " + " if isinstance(expr, sympy.Add) else "*"
    return f"({sign.join(args)})"


def _piecewise(expr: sympy.Piecewise, names: Mapping[Symbol, str]) -> str:
    *others, (last, otherwise) = expr.args
    if otherwise != sympy.true:
        raise SmeltError("SM0802", f"codegen: {expr} has no value where none of its conditions holds")
    text = index_text(last, names)
    for value, condition in reversed(others):
        given = condition_text(condition, names), index_text(value, names), text
        text = _spelling(names).chosen.format(*given)
    return f"({text})"


def condition_text(expr: Any, names: Mapping[Symbol, str]) -> str:
    """A condition over symbols as C++, or as ``names`` spell it."""
    spelling = _spelling(names)
    if isinstance(expr, sympy.core.relational.Relational):
        return f"({index_text(expr.lhs, names)} {expr.rel_op} {index_text(expr.rhs, names)})"
    if isinstance(expr, (sympy.And, sympy.Or)):
        sign = spelling.both if isinstance(expr, sympy.And) else spelling.either
        return f"({sign.join(condition_text(arg, names) for arg in expr.args)})"
    if isinstance(expr, sympy.ITE):
        return f"({spelling.chosen.format(*(condition_text(arg, names) for arg in expr.args))})"
    if isinstance(expr, sympy.Not):
        return spelling.negated.format(condition_text(expr.args[0], names))
    if expr in (sympy.true, sympy.false):
        return spelling.truths[expr == sympy.true]
    raise spelling.unknown(f"the condition {expr}")


@dataclass(frozen=True, slots=True)
class Term:
    """``coefficient * factor * factor …``"""

    coefficient: int
    factors: tuple[Expr, ...]

    def text(self, names: Mapping[Symbol, str]) -> str:
        factors = [_wrapped(factor, names, _PRODUCT) for factor in self.factors]
        if not factors:
            return _number(self.coefficient, names)
        number = [] if abs(self.coefficient) == 1 else [_number(abs(self.coefficient), names)]
        return ("-" if self.coefficient < 0 else "") + "*".join(factors + number)

    def depends(self, symbols: set[Symbol]) -> bool:
        return any(not symbols.isdisjoint(symbols_in(factor)) for factor in self.factors)


@dataclass(frozen=True, slots=True)
class Offset:
    """An element offset as a sum of terms."""

    terms: tuple[Term, ...]

    def text(self, names: Mapping[Symbol, str]) -> str:
        ordered = [term for term in self.terms if term.factors] + [
            term for term in self.terms if not term.factors
        ]
        return _sum([term.text(names) for term in ordered]) if ordered else "0"

    def depends(self, symbols: set[Symbol]) -> bool:
        return any(term.depends(symbols) for term in self.terms)

    def split(self, var: Symbol) -> tuple[Offset, Offset] | None:
        """(base, coefficient) with ``self == base + coefficient * var``, or None where that is impossible."""
        base, coefficient = [], []
        for term in self.terms:
            if not term.depends({var}):
                base.append(term)
                continue
            rest = [factor for factor in term.factors if factor != var]
            if len(rest) != len(term.factors) - 1 or Term(1, tuple(rest)).depends({var}):
                return None
            coefficient.append(Term(term.coefficient, tuple(rest)))
        return Offset(tuple(base)), Offset(tuple(coefficient))

    @property
    def number(self) -> int | None:
        """The value, if it is a number."""
        if not self.terms:
            return 0
        return self.terms[0].coefficient if len(self.terms) == 1 and not self.terms[0].factors else None

    def is_number(self, number: int) -> bool:
        return self.number == number

    @property
    def is_one(self) -> bool:
        return self.is_number(1)


def flat_offset(index: Sequence[Expr], strides: Sequence[Expr]) -> Offset:
    """The element offset of a multi-dimensional index, like terms collected, without SymPy's slow arithmetic.

    >>> i, j = sympy.symbols("i j", integer=True, nonnegative=True)
    >>> flat_offset([i + 1, j], [sympy.Integer(8), sympy.Integer(1)]).text({i: "i", j: "j"})
    'i*8 + j + 8'
    """
    return _flat_offset(tuple(index), tuple(strides))


@lru_cache(maxsize=16384)
def _flat_offset(index: tuple[Expr, ...], strides: tuple[Expr, ...]) -> Offset:
    found: dict[tuple[Expr, ...], int] = {}
    for position, stride in zip(index, strides, strict=True):
        if position == 0 or stride == 0:
            continue
        number, factors = _factors(stride)
        for coefficient, own in _terms(position):
            key = _ordered((*own, *factors))
            found[key] = found.get(key, 0) + coefficient * number
    while any(isinstance(factor, FloorDiv) for key in found for factor in key) and _joined(found):
        pass
    return Offset(tuple(Term(coefficient, factors) for factors, coefficient in found.items() if coefficient))


def _joined(found: dict[tuple[Expr, ...], int]) -> bool:
    """Whether a remainder and a quotient could be combined in these terms; the divisor may be a sum, whole or
    expanded.

    >>> i, s = sympy.symbols("i s", integer=True, positive=True)
    >>> flat_offset([FloorDiv(i, 7), Mod(i, 7)], [sympy.Integer(7), sympy.Integer(1)]).text({i: "i"})
    'i'
    >>> flat_offset([FloorDiv(i, s + 1), Mod(i, s + 1)], [s + 1, sympy.Integer(1)]).text({i: "i"})
    'i'
    >>> flat_offset([FloorDiv(i, s + 1) * s + FloorDiv(i, s + 1) + Mod(i, s + 1)], [s]).text({i: "i", s: "s"})
    'i*s'
    """
    rests = [(key, rest) for key in found for rest in key if isinstance(rest, (Mod, PythonMod))]
    quotients = {factor.args: factor for key in found for factor in key if isinstance(factor, FloorDiv)}
    for key, rest in rests:
        if rest.args not in quotients:
            continue
        number, by = rest.args
        others = [factor for factor in key if factor is not rest]
        coefficient = found[key]
        for terms in ([_factors(by)], _terms(by)):
            quotient = {
                _ordered((*others, *factors, quotients[rest.args])): coefficient * times
                for times, factors in terms
            }
            if coefficient == 0 or not quotient.items() <= found.items():
                continue
            for each in (key, *quotient):
                del found[each]
            for times, factors in _terms(number):
                joined = _ordered((*factors, *others))
                found[joined] = found.get(joined, 0) + coefficient * times
            return True
    return False


def _ordered(factors: Iterable[Expr]) -> tuple[Expr, ...]:
    return tuple(sorted(factors, key=order_text))


def _terms(expr: Expr) -> list[tuple[int, tuple[Expr, ...]]]:
    terms = []
    for term in sympy.Add.make_args(expr):
        if isinstance(term, sympy.Mul) and any(isinstance(arg, sympy.Add) for arg in term.args):
            expanded = expand(term)
            if isinstance(expanded, sympy.Add):
                terms += _terms(expanded)
                continue
        terms.append(_factors(term))
    return terms


def _factors(term: Expr) -> tuple[int, tuple[Expr, ...]]:
    if term.is_Integer:
        return int(term), ()
    if not isinstance(term, sympy.Mul):
        return 1, (term,)
    coefficient, rest = term.as_coeff_Mul()
    if not coefficient.is_Integer:
        return 1, (term,)
    return int(coefficient), tuple(sympy.Mul.make_args(rest))
