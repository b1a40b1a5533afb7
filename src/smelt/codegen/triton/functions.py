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
def digamma(a):
    x = a.to(tl.float64)
    low = x < 0
    angle = 3.141592653589793 * (x - libdevice.rint(x))
    total = tl.where(low, -3.141592653589793 * libdevice.cos(angle) / libdevice.sin(angle), 0.0)
    y = tl.where(low, 1.0 - x, x)
    for _ in range(10):
        total = tl.where(y < 10, total - 1.0 / y, total)
        y = tl.where(y < 10, y + 1.0, y)
    z = 1.0 / (y * y)
    rest = 1.0 / 132 - z * (691.0 / 32760 - z / 12)
    rest = 1.0 / 12 - z * (1.0 / 120 - z * (1.0 / 252 - z * (1.0 / 240 - z * rest)))
    result = total + tl.log(y) - 0.5 / y - z * rest
    pole = low & ((x == libdevice.trunc(x)) | (x < -4611686018427387904.0))
    result = tl.where(pole, float("nan"), result)
    return tl.where(x == 0, libdevice.copysign(x * 0.0 + float("inf"), -x), result).to(a.dtype)


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


@triton.jit
def order_of(a, word: tl.constexpr, most: tl.constexpr):
    """Signed integers in the order of floats: NaN is the largest, zeros are equal."""
    bits = tl.where(a == 0, 0.0, a).to(word, bitcast=True)
    bits = bits ^ ((bits >> (word.primitive_bitwidth - 1)) & most)
    return tl.where(a != a, most, bits).to(tl.int64)


@triton.jit
def places_of(order, place, inside):
    """The places of each row's elements in the order of 32-bit integers; equal elements keep their order."""
    order = tl.where(inside, order, 0x7FFFFFFF)
    return tl.sort((order << 32) | place, dim=1) & 0xFFFFFFFF


@triton.jit
def places_of_wide(order, place, inside):
    """The same of 64-bit integers: by their lower halves, then by the upper ones. Rows have at most 2**16."""
    order = tl.where(inside, order, 0x7FFFFFFFFFFFFFFF)
    first = tl.sort(((order & 0xFFFFFFFF) << 16) | place, dim=1) & 0xFFFF
    upper = tl.gather(order >> 32, first.to(tl.int32), 1)
    return tl.sort((upper << 32) | (place << 16) | first, dim=1) & 0xFFFF


@triton.jit
def combine_at(pointer, value, inside, combine: tl.constexpr, word: tl.constexpr):
    """Combines a number with the one in memory, until no other program has changed it in between."""
    old = tl.load(pointer, mask=inside, other=0)
    open = inside & tl.full(old.shape, 1, tl.int1)
    while tl.max(open.to(tl.int32)) > 0:
        new = tl.where(open, combine(old, value), old).to(word, bitcast=True)
        bits = old.to(word, bitcast=True)
        seen = tl.atomic_cas(pointer.to(tl.pointer_type(word), bitcast=True), bits, new)
        open = open & (seen != bits)
        old = seen.to(old.dtype, bitcast=True)


@triton.jit
def last_of(a, inside):
    """The column of the last active lane."""
    last = tl.sum((inside & tl.full([1, a.shape[1]], 1, tl.int1)).to(tl.int32), 1, keep_dims=True) - 1
    kept = tl.where(tl.arange(0, a.shape[1])[None, :] == last, a, 0)
    return tl.sum(kept, 1, keep_dims=True).to(a.dtype)
