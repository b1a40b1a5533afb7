"""All passes of the compiler in order, and the observers of the IR between them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from smelt import logs
from smelt.capture import Program
from smelt.capture.bugs import bug_of_program
from smelt.config import Config
from smelt.contract import fuse_horizontally
from smelt.contract import graph as contract_graph
from smelt.errors import SmeltError
from smelt.loops.ir import Graph
from smelt.loops.printer import print_graph
from smelt.loops.verify import verify as verify_loops
from smelt.lowering import lower
from smelt.nest import finish as nest_finish
from smelt.nest import lanes as nest_lanes
from smelt.nest.ir import Kernel
from smelt.nest.printer import print_kernel
from smelt.nest.verify import verify as verify_kernel
from smelt.passes import Pass, Watch, name_of
from smelt.passes import run as run_passes
from smelt.reporting import LOG, CompileReport
from smelt.schedule import PASSES as SCHEDULE
from smelt.schedule import Target, few_rows
from smelt.schedule.blocks import choose_blocks
from smelt.schedule.dots import choose_dots
from smelt.schedule.graph.scales import fold_scales
from smelt.schedule.graph.winograd import with_winograd
from smelt.schedule.grouping.items import Work
from smelt.schedule.memory.execution import Execution, Grouped
from smelt.schedule.printer import (
    print_execution,
    print_groups,
    print_work,
    verify_groups,
    verify_work,
)


@dataclass(frozen=True, slots=True)
class _Context:
    """The inputs that the passes from the contract to loops share."""

    config: Config
    target: Target


def lowered(program: Program, config: Config, target: Target, watch: Watch | None = None) -> Graph:
    """The loop graph of a program in the contract form, ready to be scheduled."""
    return run_passes(LOWERING, program, _Context(config, target), watch)


def join_products(program: Program, context: _Context) -> Program:
    """Fuses products of frozen weights with a common left operand horizontally, so that they run as one."""
    config = context.config
    joined = program.frozen_inputs and config.freezing and not config.deny
    return fuse_horizontally(program) if joined else program


def lower_calls(program: Program, context: _Context) -> Graph:
    """Lowers every call to loop functions by its row, or leaves it to ATen with a reason."""
    config = context.config
    frozen = program.frozen_inputs if config.freezing else frozenset()
    graph_module, saved, aliases = program.graph_module, program.saved_outputs, program.alias_outputs
    on_bug = None if config.strict else partial(_row_bug, program, config)
    return lower(graph_module, config.fallback_random, frozen, saved, aliases, on_bug, config.own)


def _row_bug(program: Program, config: Config, error: Exception, node: torch.fx.Node) -> str:
    """The report's text for a bug of a lowering row: ATen runs the one call."""
    found = bug_of_program(error, program, config)
    if LOG.first_time(found.what):
        logs.logger.warning("smelt: %s\n  ATen runs %s instead (said once)", found, node.target)
    return f"{found.code}: {found.what}"


LOWERING = (join_products, lower_calls, fold_scales, with_winograd)

PASSES: tuple[tuple[str, Sequence[Pass]], ...] = (
    ("captured graph → contract", contract_graph.PASSES),
    ("contract → loops", LOWERING),
    ("loops → runs and plan", SCHEDULE),
    ("one nest, inside arrange_nests", few_rows.PASSES),
    ("one nest for a GPU, in place of those", (choose_dots, choose_blocks)),
    ("a nest that a person scheduled", nest_finish.PASSES),
    ("a nest that a person scheduled for a GPU", nest_lanes.PASSES),
)
"""All passes in order, by subject. The text of the nests follows (`smelt.codegen`)."""


def watched(config: Config, report: CompileReport) -> Watch | None:
    """The observer of the IR before and after each pass: verifiers and printers.

    Raises:
        SmeltError: SM0102 there is no pass of that name.
    """
    wanted = {name.strip() for name in config.print_passes.split(";")} - {""}
    if not wanted and not config.verify and not config.clocks:
        return None
    known = [name_of(pass_) for _, passes in PASSES for pass_ in passes]
    for name in sorted(wanted.difference(known)):
        raise SmeltError("SM0102", f"no pass {name!r}", remedy="passes: " + ", ".join(known))

    begun: list[float] = []

    def watch(moment: str, pass_: Pass, ir: Any) -> None:
        if moment == "before":
            begun.append(time.perf_counter())
        elif config.clocks and not isinstance(ir, Kernel):  # nests have as many passes each
            report.spans.append((name_of(pass_), begun.pop(), time.perf_counter()))
        else:
            begun.pop()
        form = next(form for form in FORMS if isinstance(ir, form.kind))
        if config.verify and moment == "after":
            form.verify(ir)
        if name_of(pass_) in wanted:
            report.keep_pass(moment, name_of(pass_), form.text(ir))

    return watch


@dataclass(frozen=True, slots=True)
class Form:
    """A kind of IR: its printer and its verifier."""

    kind: type
    text: Callable[[Any], str]
    verify: Callable[[Any], None]


FORMS = (
    Form(Program, lambda program: program.graph_module.print_readable(print_output=False), lambda _: None),
    Form(Graph, print_graph, verify_loops),
    Form(Work, print_work, verify_work),
    Form(Grouped, print_groups, verify_groups),
    Form(Execution, print_execution, verify_groups),
    Form(Kernel, print_kernel, verify_kernel),
)
