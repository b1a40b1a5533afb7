"""smelt's C++ header; a unit contains the text of the parts it needs, so that its cache key covers them."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

_FOLDER = Path(__file__).parent / "include"

CORE_OPERATORS = frozenset(
    {
        "neg",
        "abs",
        "sign",
        "add",
        "sub",
        "mul",
        "maximum",
        "minimum",
        "truncdiv",
        "lshift",
        "rshift",
        "bitwise_and",
        "bitwise_or",
        "bitwise_xor",
        "bitwise_not",
        "reciprocal",
        "truediv",
        "copysign",
        "fmax",
        "fmin",
        "int_pow",
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
        "isnan",
        "isinf",
        "signbit",
        "logical_and",
        "logical_or",
        "logical_xor",
        "logical_not",
        "where",
    }
)
"""Operators that ``smelt.h`` itself defines."""

RANDOM_OPERATORS = frozenset({"philox"})
"""Operators that ``smelt_random.h`` defines; all others are in ``smelt_math.h``."""


@lru_cache(maxsize=8)
def header_text(
    *, math: bool = True, reduce: bool = True, random: bool = True, sort: bool = True, transpose: bool = True
) -> str:
    """The header: the core, with the elementary functions, the accumulators, the random number generator,
    sorting and transposition where wanted.
    """
    names = ["smelt.h"]
    if math or reduce:
        names.append("smelt_math.h")
    if reduce:
        names.append("smelt_reduce.h")
    if random:
        names.append("smelt_random.h")
    if sort:
        names.append("smelt_sort.h")
    if transpose:
        names.append("smelt_transpose.h")
    return "\n".join((_FOLDER / name).read_text() for name in names)
