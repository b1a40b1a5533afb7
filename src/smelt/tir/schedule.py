"""`Schedule`: the user's interface for transforming functions of loops."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from smelt.nest.primitives.common import ScheduleError
from smelt.nest.primitives.padding import decompose_padding
from smelt.nest.scopes import members
from smelt.pipeline.targets import machine_target
from smelt.runtime import toolchain
from smelt.schedule.loops import Target
from smelt.script.diff import diff_text
from smelt.script.html import html
from smelt.script.module import IRModule, PrimFunc
from smelt.tir.arguments import checked
from smelt.tir.loops import LoopMoves
from smelt.tir.places import PlaceMoves
from smelt.tir.references import BlockRV, LoopRV

Recipe = Callable[[Any, Target, BlockRV], None]
"""Steps of a schedule, for a target, on a block."""


@checked
class Schedule(LoopMoves, PlaceMoves):  # type: ignore[override]
    """Functions and transformations of their loops, step by step.

    Every step is checked first: a step that would change results is refused, with the reason
    (`smelt.tir.ScheduleError`), and the functions are unchanged. Names and semantics are TVM's.

    ``check``: also run the function before and after each step on random inputs (so does ``SMELT_VERIFY=1``).
    ``seed``: the seed of ``sample_…``. Other options of TVM's change nothing.

        sch = tir.Schedule(func)
        i, j, k = sch.get_loops(sch.get_block("matmul"))
        i0, i1 = sch.split(i, factors=[None, 8])
        sch.parallel(i0)
        print(sch.mod.script(), sch.trace)
    """

    def __init__(
        self,
        mod: PrimFunc | IRModule,
        check: bool | None = None,
        *,
        seed: int | None = None,
        debug_mask: str | int = "none",
        error_render_level: str = "detail",
        enable_check: bool = True,
    ) -> None:
        del debug_mask, error_render_level, enable_check
        wanted = os.environ.get("SMELT_VERIFY") == "1" if check is None else check
        super().__init__(mod, wanted, None if seed == -1 else seed)

    def can_decompose_padding(self, block: BlockRV | str, loop: LoopRV) -> bool:
        """Whether `decompose_padding` is legal; changes nothing."""
        try:
            decompose_padding(self._kernel, self._stage_name(block), self._loop_var(loop))
        except ScheduleError:
            return False
        return True

    def apply(self, recipe: Recipe, block: BlockRV | str | None = None, target: Target | None = None) -> None:
        """Schedules a block by a recipe (`smelt.tir.recipes`), step by step: the trace has its steps.

            tir.Schedule(func).apply(recipes.matmul)

        ``block``: the only one that sums by default; ``target``: this machine.

        Raises:
            ScheduleError: SM1049, the block is not of the recipe's kind.
        """
        if block is None:
            found = [each for each in members(self._kernel.body) if each.init is not None]
            if len(found) != 1:
                what, why = f"apply({recipe.__name__})", f"{len(found)} blocks sum, which one?"
                raise ScheduleError(what, why, code="SM1049", remedy="block=")
            block = found[0].name
        if isinstance(block, str):
            block = self.get_block(block)
        recipe(self, machine_target(toolchain.find()) if target is None else target, block)

    def show(self, *, diff: bool = False, **options: Any) -> None:
        """Prints the module and the trace; ``diff``: the changes of the last step."""
        if diff:
            (_, before), (_, after) = (list(self.steps[-2:]) * 2)[:2]
            print(diff_text(before.script(**options), after.script(**options)))
            return
        self.mod.show(**options)
        self.trace.show()

    def html(self) -> str:
        """A self-contained page: a tab for each step, with its changes and the module after it."""
        lines = dict(zip(self.trace.insts, self.trace.as_python()))
        steps = [("start" if inst is None else lines.get(inst, inst.kind), mod) for inst, mod in self.steps]
        return html(steps)
