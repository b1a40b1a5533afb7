"""Loop functions → nests: what is fused, in which order loops run, where buffers live."""

from __future__ import annotations

from dataclasses import replace

from smelt.config import Config
from smelt.loops.ir import Extern, Graph
from smelt.schedule.assemble import Assembler, Scheduled
from smelt.schedule.contractions import choose_kernels
from smelt.schedule.fusion import fuse
from smelt.schedule.loops import Target
from smelt.schedule.merging import merge
from smelt.schedule.prepare import prepare
from smelt.schedule.product_groups import attach


def schedule(graph: Graph, config: Config, target: Target, prefix: str = "") -> Scheduled:
    """Schedule a loop graph: the native runs, and the plan that calls them and ATen.

    Every contraction gets its kernel first. The bodies of control flow are scheduled by themselves; their
    runs follow the graph's own. ``prefix`` begins the names of the runs.
    """
    return _schedule(choose_kernels(graph, config), config, target, prefix)


def _schedule(graph: Graph, config: Config, target: Target, prefix: str) -> Scheduled:
    work = prepare(graph)
    groups = attach(work, fuse(work, config.fusion))
    if config.fusion:
        groups = merge(work, groups)
    inner = [body for item in work.items if isinstance(item.body, Extern) for body in item.body.bodies]
    bodies = {
        id(body): _schedule(body, config, target, f"{prefix}body{number}_")
        for number, body in enumerate(inner)
    }
    return replace(Assembler(work, groups, config, target, bodies, prefix).run(), graph=graph)


__all__ = ["Scheduled", "Target", "schedule"]
