"""The methods of `smelt.tir.Schedule` on loops and reductions: each resolves its arguments, calls one
primitive of `smelt.nest.primitives`, and records the step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from sympy import Expr

from smelt.nest.primitives import kinds, orders, padding, reductions, turn
from smelt.nest.primitives.common import ScheduleError
from smelt.nest.primitives.loops import add_unit_loop, fuse, partition, split
from smelt.nest.primitives.tighten import tighten
from smelt.tir.core import Core
from smelt.tir.references import BlockRV, ExprRV, LoopRV

Factor = Any
"""A number, an expression of sizes, a reference to a drawn number, or None."""


class LoopMoves(Core):
    """Changes of the number, order and kinds of loops. A part of `smelt.tir.Schedule`."""

    # -- loops -------------------------------------------------------------------------------------------

    def split(
        self,
        loop: LoopRV,
        factors: Sequence[Factor],
        preserve_unit_iters: bool = True,
        disable_predication: bool = False,
    ) -> list[LoopRV]:
        """Splits a loop (`smelt.nest.primitives.loops.split`)."""
        var = self._loop_var(loop)
        sizes = [self._number(factor) for factor in factors]
        kernel, made = split(self._kernel, var, sizes, predicated=not disable_predication)
        given = {"loop": loop, "factors": list(factors), "preserve_unit_iters": preserve_unit_iters}
        given["disable_predication"] = disable_predication
        return self._step(kernel, "split", given, made, several=True)

    def fuse(self, *loops: LoopRV, preserve_unit_iters: bool = True) -> LoopRV:
        """Fuses perfectly nested loops (`smelt.nest.primitives.loops.fuse`)."""
        variables = [self._loop_var(loop) for loop in loops]
        kernel, made = fuse(self._kernel, variables)
        given = {"loops": loops, "preserve_unit_iters": preserve_unit_iters}
        return self._one(self._step(kernel, "fuse", given, [made], spread="loops"))

    def merge(self, *loops: LoopRV) -> LoopRV:
        """Fuses consecutive loops (`smelt.nest.primitives.orders.join`)."""
        variables = [self._loop_var(loop) for loop in loops]
        kernel, made = orders.join(self._kernel, variables)
        return self._one(self._step(kernel, "merge", {"loops": loops}, [made], spread="loops"))

    def reorder(self, *ordered_loops: LoopRV, parting: bool = False) -> None:
        """Reorders loops of a nest (`smelt.nest.primitives.orders.reorder`)."""
        variables = [self._loop_var(loop) for loop in ordered_loops]
        kernel = orders.reorder(self._kernel, variables, parting)
        given = {"ordered_loops": ordered_loops, "parting": parting}
        self._step(kernel, "reorder", given, spread="ordered_loops")

    def fission(self, loop: LoopRV, after: int = 1) -> tuple[LoopRV, LoopRV]:
        """Splits a loop into two, each with a part of the body (`smelt.nest.primitives.orders.fission`)."""
        var = self._loop_var(loop)
        kernel, first, second = orders.fission(self._kernel, var, after)
        given = {"loop": loop, "after": after}
        made = self._step(kernel, "fission", given, [first, second], several=True)
        return made[0], made[1]

    def loop_partition(
        self, loop: LoopRV, factors: Sequence[Factor], preserve_unit_iters: bool = True
    ) -> list[LoopRV]:
        """Splits a loop into consecutive ones (`smelt.nest.primitives.loops.partition`)."""
        var = self._loop_var(loop)
        kernel, made = partition(self._kernel, var, [self._number(factor) for factor in factors])
        given = {"loop": loop, "factors": list(factors), "preserve_unit_iters": preserve_unit_iters}
        return self._step(kernel, "loop_partition", given, made, several=True)

    def tighten(self, loop: LoopRV) -> None:
        """Decides conditions by the ranges of loops (`smelt.nest.primitives.tighten.tighten`)."""
        var = self._loop_var(loop)
        self._step(tighten(self._kernel, var), "tighten", {"loop": loop})

    def add_unit_loop(self, block_or_loop: LoopRV | BlockRV) -> LoopRV:
        """Adds a loop of one iteration (`smelt.nest.primitives.loops.add_unit_loop`)."""
        target = self._target(block_or_loop)
        kernel, made = add_unit_loop(self._kernel, target)
        return self._one(self._step(kernel, "add_unit_loop", {"block_or_loop": block_or_loop}, [made]))

    # -- how they run ------------------------------------------------------------------------------------

    def parallel(self, loop: LoopRV) -> None:
        """Runs the iterations on threads (`smelt.nest.primitives.kinds.parallelize`)."""
        var = self._loop_var(loop)
        self._step(kinds.parallelize(self._kernel, var), "parallel", {"loop": loop})

    def vectorize(self, loop: LoopRV) -> None:
        """Runs the iterations in lanes (`smelt.nest.primitives.kinds.vectorize`)."""
        var = self._loop_var(loop)
        self._step(kinds.vectorize(self._kernel, var), "vectorize", {"loop": loop})

    def reduce_in_lanes(self, loop: LoopRV) -> None:
        """Reduces the iterations in lanes (`smelt.nest.primitives.kinds.reduce_in_lanes`)."""
        var = self._loop_var(loop)
        self._step(kinds.reduce_in_lanes(self._kernel, var), "reduce_in_lanes", {"loop": loop})

    def turn(self, loop: LoopRV) -> None:
        """Stores columns as rows (`smelt.nest.primitives.turning.turn`)."""
        var = self._loop_var(loop)
        self._step(turn(self._kernel, var), "turn", {"loop": loop})

    def unroll(self, loop: LoopRV) -> None:
        """Unrolls the iterations (`smelt.nest.primitives.kinds.unroll`)."""
        var = self._loop_var(loop)
        self._step(kinds.unroll(self._kernel, var), "unroll", {"loop": loop})

    def bind(self, loop: LoopRV, thread_axis: str) -> None:
        """Binds the iterations to an index of a GPU's threads (`smelt.nest.primitives.kinds.bind`)."""
        var = self._loop_var(loop)
        kernel = kinds.bind(self._kernel, var, thread_axis)
        self._step(kernel, "bind", {"loop": loop, "thread_axis": thread_axis})

    def annotate(self, block_or_loop: BlockRV | LoopRV, ann_key: str, ann_val: Any) -> None:
        """Annotates a loop or a stage (`smelt.nest.primitives.kinds.annotate`).

        Raises:
            ScheduleError: SM1011, a value that the text of a script cannot say.
        """
        if not isinstance(ann_val, ExprRV) and not _is_plain(ann_val):
            what, why = (
                f"annotate(ann_val={type(ann_val).__name__})",
                "a number, a text, a list or a dict is wanted",
            )
            raise ScheduleError(what, why, code="SM1011")
        target = self._target(block_or_loop)
        value = self._referent(ann_val, ExprRV).what if isinstance(ann_val, ExprRV) else ann_val
        kernel = kinds.annotate(self._kernel, target, ann_key, value)
        given = {"block_or_loop": block_or_loop, "ann_key": ann_key, "ann_val": ann_val}
        self._step(kernel, "annotate", given)

    def unannotate(self, block_or_loop: BlockRV | LoopRV, ann_key: str) -> None:
        """Removes an annotation (`smelt.nest.primitives.kinds.unannotate`)."""
        target = self._target(block_or_loop)
        kernel = kinds.unannotate(self._kernel, target, ann_key)
        self._step(kernel, "unannotate", {"block_or_loop": block_or_loop, "ann_key": ann_key})

    # -- reductions --------------------------------------------------------------------------------------

    def decompose_reduction(self, block: BlockRV | str, loop: LoopRV) -> BlockRV:
        """Initializes a reduction in loops of its own
        (`smelt.nest.primitives.reductions.decompose_reduction`). The block is the update from here on.
        """
        name, var = self._stage_name(block), self._loop_var(loop)
        kernel, begun, rest = reductions.decompose_reduction(self._kernel, name, var)
        given = {"block": block, "loop": loop}
        made = self._step(kernel, "decompose_reduction", given, [begun], renamed={name: rest})
        return self._one(made)

    def decompose_padding(self, block: BlockRV | str, loop: LoopRV) -> BlockRV:
        """Stores the padding in loops of its own (`smelt.nest.primitives.padding.decompose_padding`)."""
        kernel, made = padding.decompose_padding(self._kernel, self._stage_name(block), self._loop_var(loop))
        return self._one(self._step(kernel, "decompose_padding", {"block": block, "loop": loop}, [made]))

    def rfactor(self, loop: LoopRV, factor_axis: int) -> BlockRV:
        """Splits a reduction by a loop (`smelt.nest.primitives.reductions.rfactor`)."""
        var = self._loop_var(loop)
        kernel, made = reductions.rfactor(self._kernel, var, factor_axis)
        return self._one(self._step(kernel, "rfactor", {"loop": loop, "factor_axis": factor_axis}, [made]))

    # -- draws -------------------------------------------------------------------------------------------

    def sample_categorical(
        self, candidates: Sequence[int], probs: Sequence[float], decision: int | None = None
    ) -> ExprRV:
        """Draws one of several numbers; ``decision`` is the position of the drawn one.

        Raises:
            ScheduleError: SM1012, the numbers of candidates and probabilities differ, or there is no such
            position.
        """
        if len(candidates) != len(probs) or not candidates:
            why = f"{len(candidates)} numbers, {len(probs)} chances"
            raise ScheduleError("sample_categorical", why, code="SM1012")
        if decision is None:
            decision = self._random.choices(range(len(candidates)), list(probs))[0]
        if not 0 <= decision < len(candidates):
            why = f"there is no number in the place {decision} of {len(candidates)}"
            raise ScheduleError("sample_categorical", why, code="SM1012")
        made = self._new(int(candidates[decision]), "")
        given = {"candidates": list(candidates), "probs": list(probs)}
        self._draw("sample_categorical", given, [made], int(decision))
        return made  # type: ignore[no-any-return]

    def sample_perfect_tile(
        self,
        loop: LoopRV,
        n: int,
        max_innermost_factor: int = 16,
        decision: Sequence[int] | None = None,
    ) -> list[ExprRV]:
        """Draws ``n`` factors with a loop's extent as their product, the last at most
        ``max_innermost_factor`` if possible. ``decision``: the factors; if they do not fit, the first is
        adapted.

        Raises:
            ScheduleError: SM1012, the extent is no number, or the decision has other than ``n`` factors.
        """
        extent = self.get(loop).extent
        if not extent.is_Integer or extent < 1 or n < 1 or (decision is not None and len(decision) != n):
            why = f"{n} factors of {extent} are wanted, given is {decision}"
            raise ScheduleError("sample_perfect_tile", why, code="SM1012")
        whole = int(extent)
        if decision is None:
            decision = self._tile(whole, n, max_innermost_factor)
        elif math.prod(decision) != whole:
            rest = math.prod(decision[1:])
            decision = [-(-whole // rest), *decision[1:]]
        made = [self._new(int(factor), "") for factor in decision]
        given = {"loop": loop, "n": n, "max_innermost_factor": max_innermost_factor}
        self._draw("sample_perfect_tile", given, made, list(decision))
        return made

    def sample_partitioned_tile(
        self,
        loop: LoopRV,
        n: int,
        partition_pos: int = 0,
        innerpart_factor: int = 1,
        decision: Sequence[int] | None = None,
    ) -> list[ExprRV]:
        """Draws ``n`` factors with a loop's extent as their product; the product of those from
        ``partition_pos`` on is a multiple of ``innerpart_factor``. ``decision``: the factors.

        Raises:
            ScheduleError: SM1012, there are no such factors, or the decision does not fit.
        """
        extent = self.get(loop).extent
        fits = extent.is_Integer and innerpart_factor > 0 and int(extent) % innerpart_factor == 0
        if not fits or not 0 <= partition_pos < n:
            why = f"{n} factors of {extent}, from {partition_pos} on a multiple of {innerpart_factor}"
            raise ScheduleError("sample_partitioned_tile", why, code="SM1012")
        whole = int(extent)
        if decision is None:
            rest = whole // innerpart_factor if partition_pos else 1
            outer = self._random.choice([d for d in range(1, rest + 1) if rest % d == 0])
            front = self._tile(outer, partition_pos, outer) if partition_pos else []
            decision = [*front, *self._tile(whole // outer, n - partition_pos, whole)]
        inner = math.prod(decision[partition_pos:])
        if len(decision) != n or math.prod(decision) != whole or inner % innerpart_factor:
            raise ScheduleError("sample_partitioned_tile", f"{list(decision)} are none", code="SM1012")
        made = [self._new(int(factor), "") for factor in decision]
        given = {"loop": loop, "n": n, "partition_pos": partition_pos, "innerpart_factor": innerpart_factor}
        self._draw("sample_partitioned_tile", given, made, list(decision))
        return made

    def _tile(self, whole: int, n: int, most: int) -> list[int]:
        divisors = [d for d in range(1, whole + 1) if whole % d == 0]
        inner = [d for d in divisors if d <= most] or [1]
        found = [self._random.choice(inner) if n > 1 else whole]
        rest = whole // found[0]
        for place in range(n - 1, 0, -1):
            factor = rest if place == 1 else self._random.choice([d for d in divisors if rest % d == 0])
            found.insert(0, factor)
            rest //= factor
        return found

    def enter_postproc(self) -> None:
        """Marks the following steps as postprocessing after the search."""
        self._record("enter_postproc", {})

    # -- help --------------------------------------------------------------------------------------------

    def _draw(self, method: str, given: dict[str, Any], made: Sequence[ExprRV], decision: Any) -> None:
        self._record(method, given, made, decision=decision, several=method != "sample_categorical")

    @staticmethod
    def _one(made: Sequence[Any]) -> Any:
        (found,) = made
        return found


def _is_plain(value: Any) -> bool:
    """Whether a value is data: numbers, texts, and lists and dicts of them."""
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(each) for key, each in value.items())
    return value is None or isinstance(value, (bool, int, float, str, Expr))
