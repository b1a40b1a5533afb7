"""Every elementwise operator, once: its arity, dtype rule and relative cost.

A row here plus one line in the interpreter and one in each target's printer is all an operator needs.
Semantics are ATen's unless the row says otherwise. All tensor arguments of one call have ONE dtype
(lowering converts first); the rule gives the result's dtype and which dtypes are legal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import torch


class Rule(Enum):
    """The dtypes of an operator's arguments and result."""

    SAME = "any dtype but bool, returns the same"
    SAME_ANY = "any dtype and bool, returns the same"
    FLOAT = "floating dtypes, returns the same"
    INT = "integer dtypes and bool, returns the same"
    INTEGER = "integer dtypes without bool, returns the same"
    WORD = "int64, returns int64"
    COMPARE = "any dtype, returns bool"
    FLOAT_TEST = "floating dtypes, returns bool"
    LOGICAL = "bool, returns bool"
    WHERE = "(bool, any, same), returns the second's dtype"


@dataclass(frozen=True, slots=True)
class OpSpec:
    """An elementwise operator. ``cost`` is in units of one float addition."""

    name: str
    arity: int
    rule: Rule
    cost: int
    doc: str


def _rows(rule: Rule, arity: int, **rows: tuple[int, str]) -> list[OpSpec]:
    return [OpSpec(name, arity, rule, cost, doc) for name, (cost, doc) in rows.items()]


_ALL = [
    *_rows(
        Rule.SAME,
        1,
        neg=(1, "-x; integers wrap"),
        abs=(1, "|x|; the least integer stays as it is"),
        sign=(2, "-1, 0 or 1; +0 for NaN and -0.0, as torch.sgn gives"),
    ),
    *_rows(
        Rule.SAME,
        2,
        add=(1, "x + y; integers wrap"),
        sub=(1, "x - y; integers wrap"),
        mul=(1, "x * y; integers wrap"),
        fmod=(10, "remainder with the sign of x (C's fmod, C's % on integers; by integer 0 is an error)"),
        remainder=(10, "remainder with the sign of y (Python's %; by integer 0 is an error)"),
        floordiv=(8, "floor(x / y) as torch.floor_divide (by integer 0 is an error)"),
    ),
    *_rows(
        Rule.SAME_ANY,
        2,
        maximum=(1, "the larger; NaN if either is NaN"),
        minimum=(1, "the smaller; NaN if either is NaN"),
    ),
    *_rows(
        Rule.INTEGER,
        2,
        truncdiv=(8, "integer quotient rounded to zero (by 0 is an error)"),
        lshift=(1, "x << y; 0 where y is negative or not less than the width, as ATen"),
        rshift=(1, "arithmetic x >> y; sign fill where y is negative or not less than the width, as ATen"),
    ),
    *_rows(
        Rule.INT,
        2,
        bitwise_and=(1, "x & y"),
        bitwise_or=(1, "x | y"),
        bitwise_xor=(1, "x ^ y"),
    ),
    *_rows(Rule.INT, 1, bitwise_not=(1, "~x; logical not on bool")),
    *_rows(
        Rule.FLOAT,
        1,
        sqrt=(4, "square root, correctly rounded"),
        rsqrt=(6, "1 / sqrt(x)"),
        reciprocal=(4, "1 / x"),
        exp=(10, "e**x"),
        exp2=(10, "2**x"),
        expm1=(14, "e**x - 1, accurate near 0"),
        log=(10, "natural logarithm"),
        log2=(10, "base 2 logarithm"),
        log10=(10, "base 10 logarithm"),
        log1p=(14, "log(1 + x), accurate near 0"),
        sin=(14, "sine"),
        cos=(14, "cosine"),
        tan=(18, "tangent"),
        asin=(16, "arc sine"),
        acos=(16, "arc cosine"),
        atan=(16, "arc tangent"),
        sinh=(16, "hyperbolic sine"),
        cosh=(16, "hyperbolic cosine"),
        tanh=(14, "hyperbolic tangent"),
        asinh=(20, "inverse hyperbolic sine"),
        acosh=(20, "inverse hyperbolic cosine"),
        atanh=(20, "inverse hyperbolic tangent"),
        erf=(16, "error function"),
        erfc=(20, "complementary error function"),
        erfinv=(24, "inverse error function"),
        ndtr=(10, "(1 + erf(x / sqrt(2))) / 2, to an absolute error; exactly 0 and 1 far out"),
        lgamma=(40, "log |gamma(x)|"),
        digamma=(40, "derivative of lgamma"),
        sigmoid=(12, "1 / (1 + exp(-x))"),
        floor=(1, "round down"),
        ceil=(1, "round up"),
        trunc=(1, "round to zero"),
        round=(1, "round half to even"),
    ),
    *_rows(
        Rule.FLOAT,
        2,
        truediv=(4, "x / y"),
        pow=(24, "x ** y, as C's pow"),
        atan2=(20, "angle of (y=x0, x=x1)"),
        hypot=(10, "sqrt(x*x + y*y) without overflow"),
        copysign=(1, "|x| with the sign of y"),
        nextafter=(6, "the next representable value after x towards y"),
        fmax=(1, "the larger; the other one where one is NaN"),
        fmin=(1, "the smaller; the other one where one is NaN"),
    ),
    *_rows(
        Rule.INTEGER, 2, int_pow=(16, "x ** y, wrapping; for negative y, as ATen: 0, or 1/-1 for x = 1/-1")
    ),
    *_rows(
        Rule.WORD,
        3,
        philox=(40, "64 random bits: words 0 and 1 of Philox4x32-10 at counter (y, z) under key x"),
    ),
    *_rows(Rule.FLOAT, 3, fma=(1, "x * y + z in one rounding")),
    *_rows(
        Rule.COMPARE,
        2,
        eq=(1, "x == y"),
        ne=(1, "x != y"),
        lt=(1, "x < y"),
        le=(1, "x <= y"),
        gt=(1, "x > y"),
        ge=(1, "x >= y"),
    ),
    *_rows(
        Rule.FLOAT_TEST,
        1,
        isnan=(1, "whether x is NaN"),
        isinf=(1, "whether x is +inf or -inf"),
        signbit=(1, "whether the sign bit is set (also of -0.0 and NaN)"),
    ),
    *_rows(
        Rule.LOGICAL,
        2,
        logical_and=(1, "x and y"),
        logical_or=(1, "x or y"),
        logical_xor=(1, "x != y"),
    ),
    *_rows(Rule.LOGICAL, 1, logical_not=(1, "not x")),
    *_rows(Rule.WHERE, 3, where=(1, "y where x, else z")),
]

TABLE: dict[str, OpSpec] = {spec.name: spec for spec in _ALL}


def _is_int(dtype: torch.dtype) -> bool:
    return dtype in (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)


_LEGAL: dict[Rule, Callable[[torch.dtype], bool]] = {
    Rule.SAME: lambda dtype: dtype is not torch.bool,
    Rule.SAME_ANY: lambda dtype: True,
    Rule.FLOAT: lambda dtype: dtype.is_floating_point,
    Rule.INT: lambda dtype: _is_int(dtype) or dtype is torch.bool,
    Rule.INTEGER: _is_int,
    Rule.WORD: lambda dtype: dtype is torch.int64,
    Rule.COMPARE: lambda dtype: True,
    Rule.FLOAT_TEST: lambda dtype: dtype.is_floating_point,
    Rule.LOGICAL: lambda dtype: dtype is torch.bool,
    Rule.WHERE: lambda dtype: dtype is torch.bool,
}
"""Whether a rule allows a first argument of a dtype."""


def result_dtype(spec: OpSpec, args: list[torch.dtype]) -> torch.dtype:
    """The dtype that ``spec`` gives for arguments of these dtypes.

    Raises:
        TypeError: the dtypes differ from one another, or the rule does not allow them.
    """
    operands = args[1:] if spec.rule is Rule.WHERE else args
    if len(args) != spec.arity:
        raise TypeError(f"{spec.name} takes {spec.arity} arguments, not {len(args)}")
    dtype = operands[0]
    if any(other != dtype for other in operands):
        raise TypeError(f"{spec.name}: argument dtypes differ: {', '.join(map(str, args))}")
    if not _LEGAL[spec.rule](args[0]):
        raise TypeError(f"{spec.name} does not take {', '.join(map(str, args))}: {spec.rule.value}")
    if spec.rule in (Rule.COMPARE, Rule.FLOAT_TEST, Rule.LOGICAL):
        return torch.bool
    return dtype
