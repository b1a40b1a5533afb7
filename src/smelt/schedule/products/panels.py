"""The packed rhs of a matrix product: panels of as many columns as a register tile has, term by term."""

from __future__ import annotations

from collections.abc import Sequence

import sympy
import torch
from sympy import Expr

from smelt.loops.ir import Index, Value
from smelt.ops import ops
from smelt.records import dataclass
from smelt.schedule.products.matrix_tiles import PAIR
from smelt.schedule.products.operands import Product
from smelt.schedule.products.tiles import ceiling, clamped
from smelt.symbolic import contiguous_strides, flatten, unflatten
from smelt.symbolic.affine import divided, remainder


@dataclass(frozen=True, slots=True)
class Panels:
    """A loop function: rhs, with ``pairs`` in pairs of terms, read from ``buffer[*batch, column

    width, *terms, column % width]``.
    """

    buffer: str
    product: Product
    batch: tuple[int, ...]
    terms: tuple[int, ...]
    width: int

    @property
    def shape(self) -> tuple[Expr, ...]:
        product = self.product
        terms = [product.body.reduce_shape[t] for t in self.terms]
        panels, width = ceiling(product.extents[-1], self.width), sympy.Integer(self.width)
        if product.pairs:
            return (panels, terms[0] / PAIR, width, sympy.Integer(PAIR))
        return (*product.sizes(self.batch), panels, *terms, width)

    def place(self, batch: Sequence[Expr], panel: Expr, terms: Sequence[Expr], inside: Expr) -> list[Expr]:
        """The index in the buffer of column ``inside`` of a panel; ``batch`` in the order of the product,
        ``terms`` in the order of the contraction.
        """
        if self.product.pairs:
            return [panel, divided(terms[0], PAIR), inside, remainder(terms[0], PAIR)]
        own = [at for dim, at in zip(self.product.batch, batch, strict=True) if dim in self.batch]
        return [*own, panel, *(terms[t] for t in self.terms), inside]

    def __call__(self, index: Index, rindex: Index) -> Value:
        product = self.product
        sizes = product.sizes(product.columns)
        column = flatten([index[d] for d in product.columns], contiguous_strides(sizes))
        width = sympy.Integer(self.width)
        batch = [index[d] for d in product.batch]
        place = tuple(self.place(batch, divided(column, width), rindex, remainder(column, width)))
        found = ops.load(self.buffer, place)
        return ops.to_dtype(found, torch.float32) if product.pairs else found

    def fill(self, index: Index) -> Value:
        """The loop function of the buffer."""
        product = self.product
        if product.pairs:
            panel, pair, inside, term = index
            column = clamped(panel * self.width + inside, product.extents[-1], self.width)
            value = product.rhs_at({product.columns[0]: column}, {0: pair * PAIR + term})
            return ops.to_dtype(value, torch.bfloat16)
        count = len(self.batch)
        batch, panel, terms, inside = index[:count], index[count], index[count + 1 : -1], index[-1]
        column = clamped(panel * self.width + inside, product.extents[-1], self.width)
        where = dict(zip(self.batch, batch))
        where.update(zip(product.columns, unflatten(column, product.sizes(product.columns))))
        return product.rhs_at(where, dict(zip(self.terms, terms)))
