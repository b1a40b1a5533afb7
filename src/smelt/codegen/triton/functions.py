"""Functions that kernels of the Triton target call; they are the first part of each unit's text.

Integers divide as C does in Triton; maxima and minima propagate NaN, as ATen's do.
"""

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def floor_div(a, b):
    rest = a % b
    return a // b - ((rest != 0) & ((rest < 0) != (b < 0))).to(a.dtype)


@triton.jit
def floor_mod(a, b):
    rest = a % b
    return rest + tl.where((rest != 0) & ((rest < 0) != (b < 0)), b, 0).to(rest.dtype)


@triton.jit
def remainder(a, b):
    rest = libdevice.fmod(a, b)
    return tl.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)


@triton.jit
def floordiv(a, b):
    rest = libdevice.fmod(a, b)
    quotient = (a - rest) / b
    quotient = tl.where((rest != 0) & ((rest < 0) != (b < 0)), quotient - 1.0, quotient)
    rounded = libdevice.floor(quotient)
    rounded = tl.where(quotient - rounded > 0.5, rounded + 1.0, rounded)
    found = tl.where(quotient != 0, rounded, libdevice.copysign(quotient * 0.0, a / b))
    return tl.where(b == 0, a / b, found)


@triton.jit
def sign(a):
    return (a > 0).to(a.dtype) - (a < 0).to(a.dtype)


@triton.jit
def int_pow(a, b):
    result = a * 0 + 1
    base = a
    left = tl.where(b < 0, 0, b)
    for _ in range(64):
        result = tl.where(left & 1 != 0, result * base, result)
        base = base * base
        left = left >> 1
    odd = tl.where(b & 1 != 0, a, a * a)
    return tl.where(b < 0, tl.where(a == 1, a, tl.where(a == -1, odd, a * 0)), result)


@triton.jit
def shift_left(a, b, width: tl.constexpr):
    inside = (b >= 0) & (b < width)
    return tl.where(inside, a << tl.where(inside, b, 0), a * 0)


@triton.jit
def shift_right(a, b, width: tl.constexpr):
    inside = (b >= 0) & (b < width)
    return a >> tl.where(inside, b, width - 1)


@triton.jit
def max_of(a, b):
    return tl.maximum(a, b)


@triton.jit
def min_of(a, b):
    return tl.minimum(a, b)


@triton.jit
def maximum(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def minimum(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def plus(a, b):
    return a + b


@triton.jit
def times(a, b):
    return a * b


@triton.jit
def either(a, b):
    return a | b


@triton.jit
def both(a, b):
    return a & b


@triton.jit
def exclusive(a, b):
    return a ^ b


@triton.jit
def first_greatest(a, i, b, j):
    nan, other = a != a, b != b
    left = (a > b) | (nan & (other == 0)) | (((a == b) | (nan & other)) & (i < j))
    left = left & ((other == 0) | nan)
    return tl.where(left, a, b), tl.where(left, i, j)


@triton.jit
def first_least(a, i, b, j):
    nan, other = a != a, b != b
    left = (a < b) | (nan & (other == 0)) | (((a == b) | (nan & other)) & (i < j))
    left = left & ((other == 0) | nan)
    return tl.where(left, a, b), tl.where(left, i, j)


@triton.jit
def welford(mean, squares, weight, other, others, count):
    total = weight + count
    part = tl.where(total == 0, 0.0, count / tl.where(total == 0, 1.0, total))
    step = other - mean
    return mean + step * part, squares + others + step * step * weight * part, total


@triton.jit
def softmax_parts(top, total, other, others):
    both = maximum(top, other)
    left = tl.where(top == both, total, total * tl.exp(top - both))
    right = tl.where(other == both, others, others * tl.exp(other - both))
    return both, left + right


@triton.jit
def philox(key, counter, stream):
    mask: tl.constexpr = 0xFFFFFFFF
    a = counter & mask
    b = (counter >> 32) & mask
    c = stream & mask
    d = (stream >> 32) & mask
    left = key & mask
    right = (key >> 32) & mask
    for _ in range(10):
        one = a * 0xD2511F53
        two = c * 0xCD9E8D57
        a = ((two >> 32) & mask) ^ b ^ left
        b = two & mask
        c = ((one >> 32) & mask) ^ d ^ right
        d = one & mask
        left = (left + 0x9E3779B9) & mask
        right = (right + 0xBB67AE85) & mask
    return a | (b << 32)
