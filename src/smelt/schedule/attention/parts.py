"""Shared parts of the nests of attention and its gradients: blocks, tile heights, the exponential."""

from __future__ import annotations

import math
from typing import Any

import sympy
import torch
from sympy import Expr

from smelt.ops import ops
from smelt.records import dataclass
from smelt.schedule.products.tiles import ceiling
from smelt.symbolic import least

ROWS, MORE_ROWS = 6, 8
"""Rows of a register tile with 16 and with 32 vector registers."""
REGISTERS = 2
"""Adjacent vector registers in a tile of scores."""
ROUNDS = 1.5 * 2.0**23 + 127
"""A small number plus this constant has its nearest integer n in the last bits, as an exponent of 2**n has
it.
"""
LN2 = (-0.693145751953125, -1.428606765330187e-06)
"""Minus the logarithm of 2, as its leading bits and the rest."""
EXP = (0.49999994, 0.1666652, 0.041668396, 0.008368786, 0.0013814402)
"""Coefficients of (exp(r) - 1 - r) / r**2 for the absolute value of r at most ln(2) / 2."""
LEAST = -87.33
"""The smallest x for which exp(x) is a normal number."""


def divides(block: int, size: Expr) -> bool:
    """Whether all blocks of ``size`` elements are certainly full."""
    return size.is_Integer and int(size) % block == 0


def length_of_block(size: Expr, block: int, number: Expr) -> Expr:
    """The number of elements of block ``number``, of ``size`` elements in blocks of ``block``.

    >>> last = sympy.Symbol("last", integer=True)
    >>> length_of_block(sympy.Integer(48), 16, last), length_of_block(sympy.Integer(40), 16, last)
    (16, Min(16, 40 - 16*last))
    """
    full = sympy.Integer(block)
    return full if divides(block, size) else least(full, size - number * block)


@dataclass(slots=True)
class Blocks:
    """A dimension split into blocks: ``block`` of ``size`` elements each, in pieces of ``step``.

    ``count``: the number of blocks; None if it is certainly one.
    """

    size: Expr
    block: int
    step: int
    count: Expr | None

    def length(self, number: Expr) -> Expr:
        """The number of elements of block ``number``."""
        return self.size if self.count is None else length_of_block(self.size, self.block, number)

    @property
    def pieces(self) -> int:
        """The pieces of a full block."""
        return self.block // self.step


def tile_rows(many_registers: bool) -> int:
    """Rows of a register tile that is `REGISTERS` wide.

    >>> tile_rows(False), tile_rows(True)
    (6, 8)
    """
    return MORE_ROWS if many_registers else ROWS


def score_width(keys: Expr, lanes: int) -> int:
    """Adjacent keys in a tile of scores: `REGISTERS` full registers, or one register if that suffices.

    >>> score_width(sympy.Integer(12), 16), score_width(sympy.Integer(17), 16)
    (16, 32)
    """
    return lanes if keys.is_Integer and int(keys) <= lanes else REGISTERS * lanes


def blocks(size: Expr, most: int, step: int) -> Blocks:
    """Blocks of at most ``most`` elements, of equal length as far as ``step`` permits."""
    if not size.is_Integer:
        return Blocks(size, most, step, ceiling(size, most))
    count = max(1, -(-int(size) // most))
    block = max(1, -(-int(size) // (count * step))) * step
    return Blocks(size, block, step, ceiling(size, block) if count > 1 else None)


def exp_below_one(x: Any) -> Any:
    """``exp(x)`` in float32 for x <= 0, to one unit in the last place; 0 where it would be below 1.2e-38.

    2**n * exp(r) with x = n * ln 2 + r. The further steps of `ops.exp` are for large or denormal results,
    which do not matter next to the 1 of a row's largest score.
    """
    f32, i32 = torch.float32, torch.int32

    def number(value: float) -> Any:
        return ops.constant(value, f32)

    shifted = ops.fma(x, number(1 / math.log(2)), number(ROUNDS))
    n = ops.sub(shifted, number(ROUNDS))
    r = ops.fma(n, number(LN2[1]), ops.fma(n, number(LN2[0]), x))
    p = number(EXP[-1])
    for coefficient in reversed(EXP[:-1]):
        p = ops.fma(r, p, number(coefficient))
    p = ops.add(ops.fma(ops.mul(r, r), p, r), number(1.0))
    scale = ops.bitcast(ops.lshift(ops.bitcast(shifted, i32), ops.constant(23, i32)), f32)
    return ops.where(ops.lt(x, number(LEAST)), number(0.0), ops.mul(p, scale))  # NaN stays NaN
