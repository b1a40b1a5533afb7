"""Random numbers for rows: the bits of an index, and plain distributions made of them.

Element ``i`` (row-major) of a random tensor comes from `ops.philox` at counter ``i`` under the key of its
call, whatever the strides, the order of the loops, the lanes and the threads. The keys of a run come from one
seed that torch's default generator draws (`Builder.initialize_generator`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch
from sympy import Expr

from smelt.errors import Unsupported
from smelt.loops.philox import LAST_FOLD, MIXED, SPREAD
from smelt.lowering.builder import Builder
from smelt.lowering.tensor import Index, Tensor
from smelt.ops import ops
from smelt.records import dataclass
from smelt.symbolic import contiguous_strides, flatten

_WIDE = torch.int64
_ALL = 1 << 64
_LOW = (1 << 32) - 1
DIGITS = {torch.float64: 53, torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}
"""The number of binary digits of a floating dtype."""


@dataclass(frozen=True, slots=True)
class Draw:
    """The random numbers of one call, one or more for each index of ``shape``.

    ``lane``: a call that needs more than 64 bits for an element takes them from several lanes.
    """

    key: Tensor
    shape: tuple[Expr, ...]

    def bits(self, index: Index, lane: int = 0) -> Any:
        """64 random bits, as int64."""
        position = flatten(tuple(index), contiguous_strides(self.shape))
        return ops.philox(self.key.load(()), ops.index_expr(position, _WIDE), ops.constant(lane, _WIDE))

    def uniform(self, index: Index, dtype: torch.dtype, lane: int = 0) -> Any:
        """Multiples of ``2**-DIGITS[dtype]`` in [0, 1), in the compute dtype of ``dtype``."""
        return _fraction(self.bits(index, lane), DIGITS[dtype])

    def fraction(self, index: Index, digits: int) -> Any:
        """Multiples of ``2**-digits`` in [0, 1): in float32 for up to 24 digits, else in float64."""
        return _fraction(self.bits(index), digits)

    def positive(self, index: Index, compute: torch.dtype) -> Any:
        """A number in (0, 1]; the finest steps near 0 are ``2**-32`` (float32) or ``2**-64`` (float64)."""
        return _positive(self.bits(index), compute)

    def normal(self, index: Index, compute: torch.dtype) -> Any:
        """The standard normal distribution (Box and Muller, 1958); |x| < 6.7 in float32, 9.5 in float64."""
        first = self.bits(index)
        second = self.bits(index, 1) if compute is torch.float64 else _shifted(first, 32)
        square = ops.mul(ops.constant(-2.0, compute), ops.log(_positive(first, compute)))
        turn = ops.mul(_fraction(second, DIGITS[compute]), ops.constant(2 * math.pi, compute))
        return ops.mul(ops.sqrt(square), ops.cos(turn))

    def chance(self, index: Index, probability: float) -> Any:
        """True with a probability that is rounded to 63 binary digits; 0 is never, 1 is always."""
        return _chance(self.bits(index), probability)

    def below(self, index: Index, count: int | Expr) -> Any:
        """An int64 in [0, count), for ``1 <= count <= 2**64`` (as if unsigned).

        It is the high half of the product of bits and count: no division (D. Lemire, 2019). The probabilities
        of two numbers differ by at most ``count / 2**64``, relative to each.
        """
        bits = self.bits(index)
        if isinstance(count, Expr):
            factor = ops.index_expr(count, _WIDE)
            return _high_product(bits, _masked(factor, 32), _shifted(factor, 32))
        if count == _ALL:
            return bits
        if count > 1 << 32:
            return _high_product(bits, _word(count & _LOW), _word(count >> 32))
        factor = _word(count)
        carried = _shifted(ops.mul(_masked(bits, 32), factor), 32)
        return _shifted(ops.add(ops.mul(_shifted(bits, 32), factor), carried), 32)


def scattered_chance(bits: Any, position: Expr, probability: float) -> Any:
    """True with a probability rounded to 31 binary digits, for each position.

    All positions share ``bits`` (64 of them, as int64), which is far cheaper than own bits for each. It is
    `smelt.loops.philox.scattered` under a handler.
    """
    narrow = torch.int32

    def folded(x: Any, count: int) -> Any:
        return ops.bitwise_xor(x, _shifted(x, count, 32))

    x = ops.mul(ops.index_expr(position, narrow), _word(SPREAD, 32))
    for part in (ops.to_dtype(bits, narrow), ops.to_dtype(_shifted(bits, 32), narrow)):
        x = ops.bitwise_xor(x, part)
        for count, factor in MIXED:
            x = ops.mul(folded(x, count), _word(factor, 32))
        x = folded(x, LAST_FOLD)
    return _chance(x, probability, 32)


def draw(ctx: Builder, generator: Any = None, shape: Sequence[Expr] | None = None) -> Draw:
    """Random numbers for the current node's result, or for ``shape``.

    Raises:
        Unsupported: the call has the user's own generator.
    """
    if generator is not None:
        raise Unsupported("random: a generator is given")
    return Draw(ctx.random_key(), ctx.shape if shape is None else tuple(shape))


def require(ctx: Builder, holds: Callable[[Index], Any], shape: Sequence[Expr], message: str) -> None:
    """Raise RuntimeError with ``message`` at run time unless ``holds`` at every index of ``shape``."""
    found = ctx.reduction(
        "all", lambda index, rindex: holds(rindex), shape=(), reduce_shape=shape, dtype=torch.bool
    )
    ctx.check(sympy.Ne(ctx.item(found[0]), 0), message)


def refuse(condition: bool, what: str) -> None:
    """Leave a call to ATen, which raises eager's error.

    Raises:
        Unsupported: the condition holds.
    """
    if condition:
        raise Unsupported(f"random: {what}, which ATen refuses")


def _chance(bits: Any, probability: float, width: int = 64) -> Any:
    """True with a probability that is rounded to ``width - 1`` binary digits."""
    limit = int(probability * (1 << (width - 1))) - 1
    return ops.le(_masked(bits, width - 1, width), _word(limit, width))


def _word(value: int, width: int = 64) -> Any:
    """An integer constant with the low bits of ``value``, ``width`` of them: 64 or 32."""
    half = 1 << (width - 1)
    return ops.constant((value + half) % (2 * half) - half, _WIDE if width == 64 else torch.int32)


def _masked(bits: Any, count: int, width: int = 64) -> Any:
    return ops.bitwise_and(bits, _word((1 << count) - 1, width))


def _shifted(bits: Any, count: int, width: int = 64) -> Any:
    """A logical shift to the right."""
    return _masked(ops.rshift(bits, _word(count, width)), width - count, width)


def _high_product(bits: Any, low: Any, high: Any) -> Any:
    """The high 64 of the 128 bits of ``bits * (high * 2**32 + low)``, all unsigned; ``low, high < 2**32``."""
    first, second = _masked(bits, 32), _shifted(bits, 32)
    one, two = ops.mul(first, high), ops.mul(second, low)
    middle = ops.add(_shifted(ops.mul(first, low), 32), ops.add(_masked(one, 32), _masked(two, 32)))
    top = ops.add(ops.mul(second, high), ops.add(_shifted(one, 32), _shifted(two, 32)))
    return ops.add(top, _shifted(middle, 32))


def _fraction(bits: Any, digits: int) -> Any:
    """The lowest ``digits`` bits as a fraction in [0, 1): float64 if float32 is too narrow."""
    compute = torch.float32 if digits <= 24 else torch.float64
    return ops.mul(_floating(_masked(bits, digits), compute), ops.constant(0.5**digits, compute))


def _positive(bits: Any, compute: torch.dtype) -> Any:
    digits = 63 if compute is torch.float64 else 31
    whole = ops.add(_floating(_masked(bits, digits), compute), ops.constant(0.5, compute))
    return ops.mul(whole, ops.constant(0.5**digits, compute))


def _floating(word: Any, compute: torch.dtype) -> Any:
    """A non-negative int64 (below 2**31 for float32) as a floating number."""
    return ops.to_dtype(ops.to_dtype(word, torch.int32) if compute is torch.float32 else word, compute)
