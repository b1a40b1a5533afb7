"""What the recipes of products know of a block: its sum of products, and the axes of each factor."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch

from smelt.nest.ir import Axis, Block, Let, Masked, Stage, Store
from smelt.nest.primitives.common import ScheduleError
from smelt.nest.tree import needed, other_axes, reduced_axes, symbols_of, walk
from smelt.records import dataclass


@dataclass(frozen=True, slots=True)
class Contraction:
    """A sum of products of two factors; each may be computed. ``lhs`` and ``rhs``: the steps of the factors,
    the last one the factor itself. ``batch``: the axes of both; ``rows``: those of ``lhs`` alone;
    ``columns``: those of ``rhs``, of which one is the result's last; ``terms``: those that are summed over.
    """

    lhs: Block
    rhs: Block
    batch: tuple[Axis, ...]
    rows: tuple[Axis, ...]
    columns: tuple[Axis, ...]
    terms: tuple[Axis, ...]

    @staticmethod
    def of(stage: Stage, recipe: str) -> Contraction:
        """The contraction that a block computes.

        Raises:
            ScheduleError: SM1049, it is none.
        """
        *steps, store = stage.body.stmts or (None,)
        made = steps[-1] if steps else None
        sums = isinstance(store, Store) and store.mode == "add" and stage.init is not None
        product = isinstance(made, Let) and made.op == "mul" and made.dtype.is_floating_point
        if not (sums and product) or not all(isinstance(each, (Let, Masked)) for each in steps):
            raise no_product(stage, "it is no sum of products", f"{recipe} of")
        assert isinstance(made, Let) and isinstance(store, Store)
        body, terms, spatial = Block(tuple(steps[:-1])), reduced_axes(stage), other_axes(stage)
        lhs, rhs = (needed(body, name) for name in made.args)
        last = spatial[-1].var if spatial else None
        if last in symbols_of(lhs):
            lhs, rhs = rhs, lhs
        left, right = symbols_of(lhs), symbols_of(rhs)
        batch = tuple(axis for axis in spatial if axis.var in left and axis.var in right)
        rows = tuple(axis for axis in spatial if axis.var in left and axis.var not in right)
        columns = tuple(axis for axis in spatial if axis.var in right and axis.var not in left)
        if not terms or not columns or len(batch) + len(rows) + len(columns) != len(spatial):
            why = "its factors have no rows and columns of their own"
            raise no_product(stage, why, f"{recipe} of")
        return Contraction(lhs, rhs, batch, rows, columns, tuple(terms))

    @staticmethod
    def size(axes: Sequence[Axis]) -> int:
        """The elements of axes whose sizes are numbers."""
        return prod(int(axis.extent) for axis in axes)

    @property
    def weight(self) -> Let | None:
        """The load of ``rhs`` with the most dimensions; None if it loads nothing."""
        return max(loads_of(self.rhs), key=lambda load: len(load.args[1]), default=None)

    @property
    def narrow(self) -> bool:
        """Whether all elements that the factors are computed from are 16-bit floats."""
        loads = (*loads_of(self.lhs), *loads_of(self.rhs))
        return all(each.dtype in (torch.bfloat16, torch.float16) for each in loads)


def no_product(stage: Stage, why: str, of: str = "a product in") -> ScheduleError:
    """The error for a block that a recipe is not for."""
    return ScheduleError(f"{of} {stage.name}", why, code="SM1049", remedy="schedule it step by step")


def loads_of(block: Block) -> list[Let]:
    """The elements that are loaded in a block."""
    return [each for each in walk(block) if isinstance(each, Let) and each.op == "load"]


def readers(sch: Any, block: Any) -> list[Any]:
    """The blocks that are computed from a block's result, one from the other, as long as it is one, and no
    reduction.
    """
    found = []
    while len(after := sch.get_consumers(block)) == 1 and sch.get(after[0]).stmt.init is None:
        (block,) = after
        found.append(block)
    return found
