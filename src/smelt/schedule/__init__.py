"""Loop functions → nests: fusion, loop order, storage."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from smelt.config import Config
from smelt.loops.ir import Contractions, Extern, Graph
from smelt.nest.ir import Kernel
from smelt.passes import Watch, run
from smelt.records import replace
from smelt.runtime.plan import Folded, FoldedUse
from smelt.schedule import plan_execution
from smelt.schedule.context import Choose, Context
from smelt.schedule.graph.constants import split_constants
from smelt.schedule.graph.contractions import choose_kernels
from smelt.schedule.grouping import prepare
from smelt.schedule.grouping.fusion import fuse
from smelt.schedule.grouping.items import Work
from smelt.schedule.grouping.merging import merge
from smelt.schedule.loops import Target
from smelt.schedule.memory.execution import Grouped, Scheduled
from smelt.schedule.products.groups import ProductKernels, attach

AHEAD = "ahead"
"""Prefix (after the schedule's own prefix) of runs that compute constants; they are not part of a call."""


def schedule(
    graph: Graph,
    config: Config,
    target: Target,
    prefix: str = "",
    choose: Choose | None = None,
    alone: Sequence[Contractions] = (),
    ready: Callable[[Kernel], None] | None = None,
    watch: Watch | None = None,
    constants: Target | None = None,
) -> Scheduled:
    """Schedules a loop graph: makes the native runs, and the plan that calls them and ATen.

    Every contraction gets its kernel (scales are folded into weights, `smelt.schedule.graph.scales`). Nodes
    that depend on frozen inputs alone leave the graph and run ahead (`Plan.folded`). The bodies of control
    flow are scheduled separately; their runs follow the graph's own. ``prefix`` begins the names of the runs;
    ``choose`` decides which products run in kernels of our own (None: a rule). Each product in ``alone`` also
    gets a run of its own (`Scheduled.alone`), except in bodies. ``ready`` is called with each kernel once it
    is final, ``watch`` around each of `PASSES`. ``constants``: the machine that the runs ahead are for, if it
    is another (packages: the one that makes the package).
    """
    context = Context(config, target, prefix, choose, alone, ready, watch)
    whole, parts = split_constants(run((choose_kernels,), graph, context, watch))
    scheduled = _schedule(whole, context)
    positions = {name: position for position, name in enumerate(graph.inputs)}
    ahead, folded = [], []
    machine = replace(context, target=constants or target, alone=())
    for number, part in enumerate(parts):
        made = _schedule(part.graph, replace(machine, prefix=f"{prefix}{AHEAD}{number}_"))
        uses = (FoldedUse(tuple(positions[name] for name in u.sources), u.results) for u in part.uses)
        ahead.append(made)
        folded.append(Folded(made.plan, part.digest, tuple(uses)))
    plan = replace(scheduled.plan, folded=(*scheduled.plan.folded, *folded))
    return replace(scheduled.followed_by(ahead), plan=plan)


def _schedule(graph: Graph, context: Context) -> Scheduled:
    work = run(prepare.PASSES, graph, context, context.watch)
    grouped = run(GROUPING, work, context, context.watch)
    inner = [body for item in work.items if isinstance(item.body, Extern) for body in item.body.bodies]
    bodies = {
        id(body): _schedule(body, replace(context, prefix=f"{context.prefix}body{number}_", alone=()))
        for number, body in enumerate(inner)
    }
    return replace(plan_execution.plan_execution(grouped, bodies, context), graph=graph)


def fuse_items(work: Work, context: Context) -> Grouped:
    """Groups items; each group shares a loop nest."""
    groups = fuse(work, context.config.fusion)
    return Grouped(work, groups, ProductKernels(work, context.target))


def attach_epilogues(grouped: Grouped, context: Context) -> Grouped:
    """Fuses each product with the pointwise group that reads its result, if there is only one."""
    del context
    return replace(grouped, groups=attach(grouped.work, grouped.groups, grouped.products))


def merge_groups(grouped: Grouped, context: Context) -> Grouped:
    """Merges groups that can share a nest although other groups run between them."""
    if not context.config.fusion:
        return grouped
    return replace(grouped, groups=merge(grouped.work, grouped.groups))


GROUPING = (fuse_items, attach_epilogues, merge_groups)
PASSES = (choose_kernels, *prepare.PASSES, *GROUPING, *plan_execution.PASSES)
"""The passes of a schedule, in order; the passes of a nest (`smelt.schedule.loops.PASSES`) run inside
``arrange_nests``.
"""

__all__ = ["AHEAD", "PASSES", "Choose", "Context", "Scheduled", "Target", "schedule"]
