"""Loop functions → nests: what is fused, in which order loops run, where buffers live."""

from __future__ import annotations

from smelt.config import Config
from smelt.loops.ir import Graph
from smelt.schedule.assemble import Assembler, Scheduled
from smelt.schedule.fusion import fuse
from smelt.schedule.loops import Target
from smelt.schedule.prepare import prepare


def schedule(graph: Graph, config: Config, target: Target) -> Scheduled:
    """Schedule a loop graph: the native runs, and the plan that calls them and ATen."""
    work = prepare(graph)
    groups = fuse(work, config.fusion)
    return Assembler(work, groups, config, target).run()


__all__ = ["Scheduled", "Target", "schedule"]
