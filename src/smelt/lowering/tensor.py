"""Tensors in lowering rows: a tensor is a way to load an element. A view is an index transform.

A tensor of complex numbers is two real ones (`Complex`); only rows for complex numbers get it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import sympy
import torch
from sympy import Expr, Symbol

from smelt.ops import ops
from smelt.records import dataclass

Index = Sequence[Expr]


@dataclass(frozen=True, slots=True)
class Tensor:
    """Element ``index`` of this tensor is element ``transform(index)`` of ``buffer``.

    ``reshaped``: the tensor of which this one is a reshape (the same elements in row-major order), or None.

    >>> import sympy
    >>> two, three = sympy.Integer(2), sympy.Integer(3)
    >>> x = Tensor("x", torch.float32, (two, three))
    >>> transposed = x.view((three, two), lambda index: (index[1], index[0]))
    >>> transposed.transform((sympy.Integer(2), sympy.Integer(1)))
    (1, 2)
    """

    buffer: str
    dtype: torch.dtype
    shape: tuple[Expr, ...]
    transform: Callable[[Index], Index] = tuple
    reshaped: Tensor | None = None

    @property
    def buffers(self) -> tuple[str, ...]:
        """The buffers that the elements are in."""
        return (self.buffer,)

    def load(self, index: Index) -> Any:
        """The value at ``index`` under the current `ops` handler."""
        return ops.load(self.buffer, tuple(self.transform(index)))

    def view(self, shape: Sequence[Expr], transform: Callable[[Index], Index]) -> Tensor:
        """A view of this view: ``transform`` maps an index of the new shape to one of the old."""
        outer = self.transform
        return Tensor(self.buffer, self.dtype, tuple(shape), lambda index: outer(transform(index)))


class Pair(NamedTuple):
    """A complex value under an `ops` handler."""

    real: Any
    imaginary: Any


@dataclass(frozen=True, slots=True)
class Complex:
    """A tensor of complex numbers: its real and imaginary parts, of one real dtype and one shape."""

    real: Tensor
    imaginary: Tensor

    @property
    def dtype(self) -> torch.dtype:
        return self.real.dtype.to_complex()

    @property
    def shape(self) -> tuple[Expr, ...]:
        return self.real.shape

    @property
    def parts(self) -> tuple[Tensor, Tensor]:
        return self.real, self.imaginary

    @property
    def buffers(self) -> tuple[str, ...]:
        """The buffers that the elements are in."""
        return self.real.buffer, self.imaginary.buffer

    def load(self, index: Index) -> Pair:
        """The value at ``index`` under the current `ops` handler."""
        return Pair(self.real.load(index), self.imaginary.load(index))


class HeldNumber(Symbol):
    """A floating number that a tensor of one element holds, as a symbol: loop functions load it.

    Python reads the number while the graph runs, and sees a plain symbol.
    """

    __slots__ = ("tensor",)
    tensor: Tensor

    def __new__(cls, name: str, tensor: Tensor) -> HeldNumber:
        made = Symbol.__xnew__(cls, name, real=True)
        made.tensor = tensor
        return made

    def load(self) -> Any:
        """The number, in the tensor's dtype."""
        return self.tensor.load((sympy.Integer(0),) * len(self.tensor.shape))
