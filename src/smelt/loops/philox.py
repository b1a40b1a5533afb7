"""Philox4x32-10, the counter-based random number generator, on torch tensors: the definition of
``ops.philox``.

J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw: "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011.
"""

from __future__ import annotations

import torch

Tensor = torch.Tensor

ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_WORD = 0xFFFFFFFF


def philox(key: Tensor, counter: Tensor, stream: Tensor) -> Tensor:
    """64 random bits (int64) for each element: a pure function of three int64 tensors that broadcast.

    The 64 bits of ``key`` are the generator's key, low word first; ``counter`` and ``stream`` are the low and
    the high half of its 128-bit counter. Of the four words of the result, word 0 is the low half of the value
    and word 1 the high half.

    >>> key, counter, stream = (torch.tensor(each) for each in (0, 0, 0))
    >>> hex(philox(key, counter, stream) & 0xFFFFFFFF), hex((philox(key, counter, stream) >> 32) & 0xFFFFFFFF)
    ('0x6627e8d5', '0xe169c58d')
    """
    first, second, _, _ = block((_low(counter), _high(counter), _low(stream), _high(stream)), _words(key))
    return first | (second << 32)


def block(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    """The generator itself: four words from four; words are int64 tensors with values in [0, 2**32)."""
    a, b, c, d = counter
    left, right = key
    for _ in range(ROUNDS):
        # a product of two words may exceed int64: it wraps, and the masks take the right bits all the same
        one, two = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]
        a, b, c, d = _high(two) ^ b ^ left, _low(two), _high(one) ^ d ^ right, _low(one)
        left, right = (left + _WEYL[0]) & _WORD, (right + _WEYL[1]) & _WORD
    return a, b, c, d


GENERATOR = (6364136223846793005, 1442695040888963407)
"""Factor and increment of Knuth's 64-bit generator (MMIX), by which a module with a seed updates its state.
"""

SPREAD = 0x9E3779B9
MIXED = ((16, 0x21F0AAAD), (15, 0xD35A2D97))
LAST_FOLD = 15
"""The shifts and factors of `scattered`: ``x = (x ^ x >> count) * factor`` for each, then ``x ^ x >>
LAST_FOLD`` (C. Wellons, "Prospecting for Hash Functions", 2018: the best function of two rounds that was
found).
"""


def scattered(bits: Tensor, position: Tensor) -> Tensor:
    """31 bits (int64) for each position, from 64 bits that several positions share; both int64, broadcast.

    The position is mixed with the low half of the bits, and then with the high half: other bits give another
    mixing.

    >>> bits = philox(*(torch.tensor(each) for each in (0, 0, 0)))
    >>> [hex(each) for each in scattered(bits, torch.arange(2)).tolist()]
    ['0x4f790bd', '0x5b2a45b8']
    """
    x = (position * SPREAD) & _WORD
    for part in _words(bits):
        x = x ^ part
        for count, factor in MIXED:
            x = ((x ^ (x >> count)) * factor) & _WORD
        x = x ^ (x >> LAST_FOLD)
    return x & (_WORD >> 1)


def _words(x: Tensor) -> tuple[Tensor, Tensor]:
    return _low(x), _high(x)


def _low(x: Tensor) -> Tensor:
    return x & _WORD


def _high(x: Tensor) -> Tensor:
    return (x >> 32) & _WORD
