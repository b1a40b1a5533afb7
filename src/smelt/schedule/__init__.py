"""Loop functions → nests: what is fused, in which order loops run, where buffers live."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from smelt.config import Config
from smelt.loops.ir import Contractions, Extern, Graph
from smelt.nest.ir import Kernel
from smelt.records import replace
from smelt.runtime.plan import Folded, FoldedUse
from smelt.schedule.assemble import Assembler, Scheduled
from smelt.schedule.constants import split_constants
from smelt.schedule.contractions import Choose, choose_kernels
from smelt.schedule.fusion import fuse
from smelt.schedule.loops import Target
from smelt.schedule.merging import merge
from smelt.schedule.prepare import prepare
from smelt.schedule.product_groups import ProductKernels, attach

AHEAD = "ahead"
"""Runs whose names begin so (after the prefix) compute constants; they are not part of a call."""


def schedule(
    graph: Graph,
    config: Config,
    target: Target,
    prefix: str = "",
    choose: Choose | None = None,
    alone: Sequence[Contractions] = (),
    ready: Callable[[Kernel], None] | None = None,
) -> Scheduled:
    """Schedule a loop graph: the native runs, and the plan that calls them and ATen.

    Every contraction gets its kernel (what scales it is in its weight already, `smelt.schedule.scales`); what
    depends on frozen inputs alone leaves the graph and runs ahead (`Plan.folded`). The bodies of control
    flow are scheduled by themselves; their runs follow the graph's own. ``prefix`` begins the names of the
    runs; ``choose`` says which products run in kernels of our own (None: a rule). Each of those in ``alone``
    gets a run of its own besides (`Scheduled.alone`); of bodies' products none does. ``ready`` is called with
    kernels as soon as they are as they will run.
    """
    whole, parts = split_constants(choose_kernels(graph, config, target, choose))
    scheduled = _schedule(whole, config, target, prefix, alone, ready)
    positions = {name: position for position, name in enumerate(graph.inputs)}
    for number, part in enumerate(parts):
        ahead = _schedule(part.graph, config, target, f"{prefix}{AHEAD}{number}_", (), ready)
        scheduled.runs += ahead.runs
        scheduled.plain += ahead.plain
        scheduled.kernels += ahead.kernels
        uses = (FoldedUse(tuple(positions[name] for name in u.sources), u.results) for u in part.uses)
        folded = Folded(ahead.plan, part.digest, tuple(uses))
        scheduled.plan = replace(scheduled.plan, folded=(*scheduled.plan.folded, folded))
    return scheduled


def _schedule(
    graph: Graph,
    config: Config,
    target: Target,
    prefix: str,
    alone: Sequence[Contractions],
    ready: Callable[[Kernel], None] | None,
) -> Scheduled:
    work = prepare(graph)
    products = ProductKernels(work, target)
    groups = attach(work, fuse(work, config.fusion), products)
    if config.fusion:
        groups = merge(work, groups)
    inner = [body for item in work.items if isinstance(item.body, Extern) for body in item.body.bodies]
    bodies = {
        id(body): _schedule(body, config, target, f"{prefix}body{number}_", (), ready)
        for number, body in enumerate(inner)
    }
    assembler = Assembler(work, groups, products, config, target, bodies, prefix, alone, ready)
    return replace(assembler.run(), graph=graph)


__all__ = ["AHEAD", "Choose", "Scheduled", "Target", "schedule"]
