"""Programs that smelt compiles in part: each cluster as a program, and PyTorch between them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.fx import GraphModule, Interpreter, Node

from smelt import logs
from smelt.capture import Program, by_pytorch
from smelt.capture.bugs import bug_of_program, is_bug, or_by_pytorch
from smelt.config import Config
from smelt.contract import Clustered, graph_key
from smelt.errors import Unsupported
from smelt.reporting import CompileReport, PartTime, Region
from smelt.runtime.deoptimize import at_first_call

Compiled = Callable[[list[Any]], Sequence[Any]]


def in_clusters(
    parts: Clustered,
    config: Config,
    report: CompileReport,
    compile_cluster: Callable[[Program, Config], Compiled],
) -> Compiled:
    """The executor of the program: a function of ONE list. ``report`` gets the regions.

    The first of several equal clusters is compiled; the others, at their first call, take its result from the
    cache. PyTorch runs a cluster whose compilation fails, but only that cluster: calls between clusters may
    have effects, and other processes wait for them to happen once.
    """
    report.regions = list(parts.regions)
    native = [position for position, region in enumerate(report.regions) if region.is_native]
    seen: set[str] = set()
    for position, cluster, call in zip(native, parts.clusters, parts.calls, strict=True):
        make = partial(_compiled, cluster.program, config, compile_cluster, report, position)
        key = graph_key(cluster.program)
        call.run = at_first_call(make) if key in seen else make()
        seen.add(key)
    for region in report.regions:
        for op in region.ops:
            report.add_fallback(op, str(region.reason), region.where)
    said = f"{len(native)} clusters of {sum(report.regions[each].nodes for each in native)} operators"
    logs.logger.info("smelt: %s: compiled in %s", report.graph_name, said)
    forward = parts.outer.forward
    if config.clocks:
        clock = _Clock(parts.outer, report)
        forward, report.clocks = clock.timed, clock.read

    def call_all(args: list[Any]) -> Sequence[Any]:
        with torch.no_grad():
            return forward(args)

    call_all.in_clusters = True  # type: ignore[attr-defined]
    return call_all


def is_in_clusters(compiled: Compiled) -> bool:
    """Whether a compiled program is a result of `in_clusters`, in which PyTorch can replace each cluster."""
    return hasattr(compiled, "in_clusters")


def _compiled(
    program: Program,
    config: Config,
    compile_cluster: Callable[[Program, Config], Compiled],
    report: CompileReport,
    position: int,
) -> Compiled:
    def leave(reason: str) -> None:
        region = report.regions[position]
        report.regions[position] = Region("PyTorch", region.nodes, (program.name,), reason)
        report.add_fallback(program.name, reason.splitlines()[0])

    try:
        compiled = compile_cluster(program, config)
        return or_by_pytorch(compiled, program, config, by_pytorch(program), leave)
    except Exception as error:
        if isinstance(error, Unsupported):
            reason = error.reason
        elif is_bug(error):
            reason = str(bug_of_program(error, program, config))
        else:
            raise
    leave(reason)
    return by_pytorch(program)


class _Clock(Interpreter):
    """Runs the outer graph call by call, and adds up the time of each region."""

    def __init__(self, module: GraphModule, report: CompileReport) -> None:
        super().__init__(module)
        self.report = report
        self.calls = 0

    def timed(self, args: list[Any]) -> Any:
        """A run of the program."""
        self.calls += 1
        return self.boxed_run(args)

    def run_node(self, n: Node) -> Any:
        start = time.perf_counter()
        result = super().run_node(n)
        region = n.meta.get("smelt_region")
        if region is not None:
            self.report.regions[region].seconds += time.perf_counter() - start
        return result

    def read(self) -> list[PartTime]:
        """The parts that PyTorch ran so far; clusters have clocks of their own."""
        left = [region for region in self.report.regions if not region.is_native]
        found = {", ".join(region.ops): PartTime(", ".join(region.ops), "aten") for region in left}
        for region in left:
            part = found[", ".join(region.ops)]
            part.calls += self.calls
            part.seconds += region.seconds
        return list(found.values())
