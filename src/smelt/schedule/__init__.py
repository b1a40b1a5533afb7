"""Loop functions → nests: what is fused, in which order loops run, where buffers live."""

from __future__ import annotations

from smelt.config import Config
from smelt.loops.ir import Extern, Graph
from smelt.schedule.assemble import Assembler, Scheduled
from smelt.schedule.fusion import fuse
from smelt.schedule.loops import Target
from smelt.schedule.prepare import prepare


def schedule(graph: Graph, config: Config, target: Target, prefix: str = "") -> Scheduled:
    """Schedule a loop graph: the native runs, and the plan that calls them and ATen.

    The bodies of its control flow are scheduled by themselves; their runs follow the graph's own. ``prefix``
    begins the names of the runs.
    """
    work = prepare(graph)
    groups = fuse(work, config.fusion)
    inner = [body for item in work.items if isinstance(item.body, Extern) for body in item.body.bodies]
    bodies = {
        id(body): schedule(body, config, target, f"{prefix}body{number}_")
        for number, body in enumerate(inner)
    }
    return Assembler(work, groups, config, target, bodies, prefix).run()


__all__ = ["Scheduled", "Target", "schedule"]
