"""The recipe of products of few rows on CPUs, as in text generation: the weight is read once, from memory.

for i in rows: for j in columns: for k: y[i, j] += x[i, k] * w[j, k]
    →  parallel for j in columns/4:
           for k in depth/lanes: for i in rows: for j' in 4: vector for l in lanes:
               sums[i, j', l] += x[i, lanes*k + l] * w[4*j + j', lanes*k + l]      in registers
           for i in rows: for j' in 4: for l in lanes: y[i, 4*j + j'] += sums[i, j', l]
           the epilogue
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from sympy import Expr

from smelt.nest.ir import Let, Stage
from smelt.nest.primitives.common import ScheduleError
from smelt.schedule.loops import Target
from smelt.schedule.recipes.contraction import Contraction, readers

SUMS = 16
"""Limit on the vectors of sums that registers hold at once."""
MOST_COLUMNS = 8
"""Limit on the columns that are summed at once."""
MOST_ROWS = 8
"""Limit on the rows for which a weight that is read once, as it is, is faster than packed panels of it."""
LINE_BYTES = 64


def columns_together(columns: Expr | int, rows: int | None) -> int:
    """The columns that are summed at once, for some rows; None: for one row after another."""
    most = MOST_COLUMNS if rows is None else max(1, min(MOST_COLUMNS, SUMS // rows))
    return next(n for n in range(most, 0, -1) if columns % n == 0)


def vectors_of(terms: int, groups: Sequence[int], lanes: int) -> list[int] | None:
    """The factors of a number of terms: groups, each of a multiple of the next, and the lanes of a vector;
    None if they do not divide it.
    """
    sizes = [*groups, lanes] if groups[-1] > lanes else [*groups]
    if any(a % b for a, b in pairwise([terms, *sizes])):
        return None
    return [*(a // b for a, b in pairwise(sizes)), sizes[-1]]


def line_of(load: Let) -> list[int]:
    """The elements in a line of memory."""
    return [LINE_BYTES // load.dtype.itemsize]


def has_few_rows(stage: Stage, target: Target) -> bool:
    """Whether `few_rows` is the recipe of a block: it has fewer rows than a register tile."""
    if why_no_few_rows(stage, target) is not None:
        return False
    product = Contraction.of(stage, "few_rows")
    return product.size(product.rows) <= MOST_ROWS


def why_no_few_rows(stage: Stage, target: Target) -> str | None:
    """The reason why a block is no product of few rows with a weight whose terms are contiguous."""
    try:
        product = Contraction.of(stage, "few_rows")
    except ScheduleError as error:
        return error.why
    if len(product.terms) > 1 or not all(axis.extent.is_Integer for axis in stage.axes):
        return "it has several axes of terms, or a size that is no number"
    (terms,) = product.terms
    if (rows := product.size(product.rows)) > SUMS:
        return f"it has {rows} rows, at most {SUMS} have sums in registers"
    weight = product.weight
    if weight is None or weight.args[1][-1] != terms.var:
        return f"{terms.label or terms.var} is not contiguous in the weight"
    if vectors_of(int(terms.extent), line_of(weight), target.lanes) is None:
        return f"{terms.extent} terms are no whole lines of memory"
    return None


def few_rows(sch: Any, target: Target, block: Any) -> None:
    """Schedules a product of few rows with a weight whose terms are contiguous, and what is computed from it.
    Elements of the weight may be computed, such as from their values before quantization.

    ``block``: ``C[…, i, j] = sum over k of x[…, i, k] * w[…, j, k]``; its sizes are numbers.

    Raises:
        ScheduleError: SM1049, the block is no such product, or has too many rows.
    """
    stage: Stage = sch.get(block).stmt
    if (why := why_no_few_rows(stage, target)) is not None:
        remedy = "recipes.matmul, or schedule it step by step"
        raise ScheduleError(f"few_rows of {stage.name}", why, code="SM1049", remedy=remedy)
    product = Contraction.of(stage, "few_rows")
    (terms,), weight = product.terms, product.weight
    factors = weight and vectors_of(int(terms.extent), line_of(weight), target.lanes)
    assert factors

    # A vector of sums for each row and some columns; all stay in registers.
    of = dict(zip((axis.var for axis in stage.axes), sch.get_loops(block), strict=True))
    groups = product.batch, product.columns, product.rows
    batch, across, down = ([of[axis.var] for axis in axes] for axes in groups)
    sch.reorder(*batch, *across, *down, of[terms.var])
    j = sch.fuse(*across) if len(across) > 1 else across[0]
    together = columns_together(product.size(product.columns), product.size(product.rows))
    j_0, _ = sch.split(j, factors=[None, together])
    *_, lane = sch.split(of[terms.var], factors=[None, *factors])
    sums = sch.rfactor(lane, factor_axis=len(stage.axes) - 1)
    sch.compute_at(sums, j_0)
    loops = sch.get_loops(sums)
    lane, *kept = loops[len(batch) + 1 : -len(factors)]
    sch.reorder(*loops[-len(factors) :], *kept, lane)
    sch.vectorize(lane)
    sch.reduce_in_lanes(sch.get_loops(block)[-1])
    for reader in readers(sch, block):
        sch.reverse_compute_at(reader, j_0)
    for loop in (*batch, j_0):
        sch.parallel(loop)
