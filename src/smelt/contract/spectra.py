"""Fourier transforms as products with matrices of roots of unity, and complex products as real ones.

They are for other compilers, which have no kernels for either; smelt itself calls ATen's. Transforms are
computed in float64: a sum of ``n`` terms in float32 would be less accurate than a fast transform.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten
WIDE = torch.float64

# -- Fourier transforms ------------------------------------------------------------------------------------


def _roots(rows: Any, columns: Any, count: Any, sign: int) -> tuple[Tensor, Tensor]:
    """Real and imaginary parts of ``exp(sign * 2 pi i j k / count)`` at ``[j, k]``; real roots are exact."""
    turns = (torch.arange(rows).unsqueeze(1) * torch.arange(columns)) % count
    angle = turns.to(WIDE) * (2 * math.pi / count)
    sine = torch.where(2 * turns % count == 0, 0.0, sign * torch.sin(angle))
    return torch.cos(angle), sine


def _along(x: Tensor, table: Tensor, dim: int) -> Tensor:
    """The sum over ``dim`` of ``x[…, j, …] * table[j, k]``, with ``k`` as the new ``dim``."""
    return (x.movedim(dim, -1) @ table).movedim(-1, dim)


def _turned(real: Tensor, imaginary: Tensor, dim: int, sign: int) -> tuple[Tensor, Tensor]:
    """The transform along one dimension."""
    count = real.shape[dim]
    cosine, sine = _roots(count, count, count, sign)
    return (
        _along(real, cosine, dim) - _along(imaginary, sine, dim),
        _along(real, sine, dim) + _along(imaginary, cosine, dim),
    )


def _scale(sizes: Sequence[Any], normalization: int) -> Any:
    """The divisor of a transform: 1, the root of its size, or its size."""
    count = math.prod(sizes)
    return (1, count**0.5, count)[normalization]


def _parts(x: Tensor) -> tuple[Tensor, Tensor]:
    pairs = torch.view_as_real(x).to(WIDE)
    return pairs.select(-1, 0), pairs.select(-1, 1)


def _complex(real: Tensor, imaginary: Tensor, scale: Any, dtype: torch.dtype) -> Tensor:
    real, imaginary = ((part / scale).to(dtype) for part in (real, imaginary))
    return torch.complex(real, imaginary)


def _transform(self: Tensor, dim: Sequence[int], normalization: int, forward: bool) -> Tensor:
    """``aten._fft_c2c``."""
    real, imaginary = _parts(self)
    for each in dim:
        real, imaginary = _turned(real, imaginary, each, -1 if forward else 1)
    scale = _scale([self.shape[each] for each in dim], normalization)
    return _complex(real, imaginary, scale, self.dtype.to_real())


def _real_transform(self: Tensor, dim: Sequence[int], normalization: int, onesided: bool) -> Tensor:
    """``aten._fft_r2c``: half of the last dimension determines the result."""
    *others, last = dim
    count = self.shape[last]
    wide = self.to(WIDE)
    cosine, sine = _roots(count, count // 2 + 1 if onesided else count, count, -1)
    real, imaginary = _along(wide, cosine, last), _along(wide, sine, last)
    for each in others:
        real, imaginary = _turned(real, imaginary, each, -1)
    return _complex(real, imaginary, _scale([self.shape[each] for each in dim], normalization), self.dtype)


def _transform_to_real(self: Tensor, dim: Sequence[int], normalization: int, last_dim_size: Any) -> Tensor:
    """``aten._fft_c2r``: all but the first number, and the middle one of an even size, count twice."""
    *others, last = dim
    real, imaginary = _parts(self)
    for each in others:
        real, imaginary = _turned(real, imaginary, each, 1)
    half = last_dim_size // 2 + 1
    real, imaginary = real.narrow(last, 0, half), imaginary.narrow(last, 0, half)
    place = torch.arange(half)
    single = (place == 0) | (2 * place == last_dim_size)
    weight = torch.where(single, 1.0, 2.0).to(WIDE).unsqueeze(1)
    cosine, sine = _roots(half, last_dim_size, last_dim_size, 1)
    total = _along(real, cosine * weight, last) - _along(imaginary, sine * weight, last)
    sizes = [self.shape[each] for each in others]
    return (total / _scale([*sizes, last_dim_size], normalization)).to(self.dtype.to_real())


# -- products ----------------------------------------------------------------------------------------------


def _product(product: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Any]:
    """A product of complex operands by four real ones; the product itself for real operands."""

    def apart(x: Tensor, y: Tensor) -> Any:
        if not x.is_complex():
            return NotImplemented
        (a, b), (c, d) = (_halves(each) for each in (x, y))
        return torch.complex(product(a, c) - product(b, d), product(a, d) + product(b, c))

    return apart


def _halves(x: Tensor) -> tuple[Tensor, Tensor]:
    pairs = torch.view_as_real(x.resolve_conj())
    return pairs.select(-1, 0), pairs.select(-1, 1)


def _added(product: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Any]:
    """``beta * start + alpha * product`` of complex operands."""

    def apart(start: Tensor, x: Tensor, y: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Any:
        if not x.is_complex():
            return NotImplemented
        found = product(x, y) if alpha == 1 else alpha * product(x, y)
        if beta == 0:
            return found
        return found + (start if beta == 1 else beta * start)

    return apart


def _inner(x: Tensor, y: Tensor) -> Any:
    return (x * y).sum() if x.is_complex() else NotImplemented


def _inner_with_conjugate(x: Tensor, y: Tensor) -> Any:
    return (x.conj() * y).sum() if x.is_complex() else NotImplemented


SPECTRA: dict[Any, Callable[..., Any]] = {
    aten._fft_c2c.default: _transform,
    aten._fft_r2c.default: _real_transform,
    aten._fft_c2r.default: _transform_to_real,
    aten.mm.default: _product(torch.mm),
    aten.bmm.default: _product(torch.bmm),
    aten.mv.default: _product(torch.mv),
    aten.addmm.default: _added(torch.mm),
    aten.baddbmm.default: _added(torch.bmm),
    aten.addmv.default: _added(torch.mv),
    aten.dot.default: _inner,
    aten.vdot.default: _inner_with_conjugate,
}
"""Overload → its decomposition, which returns NotImplemented for calls that stay whole."""
