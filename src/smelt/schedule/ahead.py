"""Where the next panel's columns are that a kernel will pack itself, to be fetched while one panel is used.

    rhs[column, term]:  columns 48 … 96, one after another in memory, while 0 … 48 are used:
                        tile t fetches rhs + 48*terms + (t*terms + term)*step with each term

A panel is packed from lines of several columns at once: short ones, far apart; no processor foresees them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sympy
from sympy import Expr, Symbol

from smelt.loops.dependencies import variables
from smelt.loops.ir import Graph
from smelt.records import dataclass
from smelt.schedule.items import ZERO
from smelt.schedule.operands import Product, affine, operand_place, together
from smelt.symbolic import least
from smelt.symbolic.affine import replaced


@dataclass(frozen=True, slots=True)
class Columns:
    """Columns of rhs that lie one after another in ``buffer``, each with all its terms, so many (``depth``).
    ``base``: where the first one is, over the variables of the batch.
    """

    buffer: str
    base: Expr
    depth: Expr

    def place(
        self, batch: Mapping[Symbol, Expr], first: Expr, count: int, tile: Expr, tiles: int, term: Expr
    ) -> Expr:
        """What is fetched with a term of one of so many tiles, so that ``count`` columns from the ``first``
        on are there after the last tile.
        """
        begin = replaced(self.base, batch) + first * self.depth
        last = sympy.Integer(min(tiles, count) - 1)
        return begin + (least(tile, last) * self.depth + term) * -(-count // tiles)


def columns_of(
    product: Product, graph: Graph, columns: Sequence[int], terms: Sequence[int]
) -> Columns | None:
    """Those along ``columns`` of the result with ``terms``, outermost first; None where they lie apart."""
    body = product.body
    found = operand_place(body.rhs, body, graph)
    if found is None:
        return None
    buffer, flat = found
    outer, summed = variables("i", len(body.shape)), variables("r", len(body.reduce_shape))
    symbols, sizes = (*outer, *summed), (*body.shape, *body.reduce_shape)
    order = [*columns, *(len(outer) + term for term in terms)]
    own = [dim for dim in order if sizes[dim] != 1]
    split = affine(flat, symbols)
    if split is None or len(together(flat, symbols, sizes, own)) != 1 or split[0][own[-1]] != 1:
        return None
    return Columns(buffer, replaced(flat, {symbols[dim]: ZERO for dim in order}), product.depth)
