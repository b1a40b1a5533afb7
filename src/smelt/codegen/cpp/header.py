"""smelt's C++ header; a unit contains the text of the parts it needs, so that its cache key covers them."""

from __future__ import annotations

from collections.abc import Iterable
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
        "fma",
    }
)
"""Operators of the core (``smelt.h`` and ``smelt_arithmetic.h``), which every unit contains."""

CORE = ("smelt.h", "smelt_arithmetic.h")

RANDOM_OPERATORS = frozenset({"philox"})
"""Operators that ``smelt_random.h`` defines; all others are in ``smelt_math.h``."""


PARTS: dict[str, tuple[str, ...]] = {
    "math": (),
    "reduce": (),
    "softmax": ("math", "reduce"),
    "random": (),
    "sort": (),
    "transpose": (),
    "stream": (),
    "parallel": (),
    "fill": ("parallel",),
    "clock": (),
    "lookup": (),
    "integers": (),
    "linear": ("parallel",),
}
"""Part of the header, ``smelt_NAME.h``, → the parts that it needs: elementary functions, accumulators,
softmax accumulators, the random number generator, sorting, register transposes, non-temporal stores,
iterations among threads, fills, clocks, tables in registers, products of integers, linear algebra.
"""


ONCE = {"parallel": "smelt_team.h", "transpose": "smelt_transposed.h"}
"""Part of the header → the file with its definitions, which a program contains once, in any of its files."""


@lru_cache(maxsize=16)
def header_text(needs: frozenset[str] = frozenset(PARTS), once: bool = True) -> str:
    """The header: the core, with the `PARTS` that are wanted. ``once``: also with the definitions that a
    program contains once; otherwise another of its files must have them.
    """
    wanted = needs.union(*(PARTS[name] for name in needs))
    text = _joined([*CORE, *(f"smelt_{name}.h" for name in PARTS if name in wanted)])
    return f"{text}\n{once_text(wanted)}" if once and not wanted.isdisjoint(ONCE) else text


@lru_cache(maxsize=16)
def once_text(wanted: frozenset[str] = frozenset(ONCE)) -> str:
    """The definitions that follow the header in one file of a program."""
    return _joined([file for name, file in ONCE.items() if name in wanted])


def _joined(names: Iterable[str]) -> str:
    return "\n".join((_FOLDER / name).read_text() for name in names)
