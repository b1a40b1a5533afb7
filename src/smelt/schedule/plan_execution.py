"""Groups → kernels, memory and the plan, by the passes of `PASSES`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from smelt.loops.ir import Attentions, Native, Sort
from smelt.nest.ir import Kernel
from smelt.nest.origins import numbers_in
from smelt.passes import run
from smelt.records import replace
from smelt.schedule import blocks, few_rows
from smelt.schedule.attention.kernels import AttentionKernels
from smelt.schedule.context import Context
from smelt.schedule.graph.zero_padding import with_zeros
from smelt.schedule.grouping.fusion import Group
from smelt.schedule.loops import NestContext
from smelt.schedule.memory.execution import Execution, Grouped, Scheduled, execution_of
from smelt.schedule.memory.steps import write_plan
from smelt.schedule.memory.storage import (
    assign_storage,
    fill_halos,
    place_buffers,
    reuse_memory,
    share_overwritten,
    stream_results,
)
from smelt.schedule.native import native_kernel
from smelt.schedule.nests import BuiltKernel, row_buffers, spilled
from smelt.schedule.sorts import sort_kernel


def plan_execution(grouped: Grouped, bodies: Mapping[int, Scheduled], context: Context) -> Scheduled:
    """The runs and the plan of a graph; ``bodies`` has the schedules of its control flow, by graph id."""
    return run(PASSES, execution_of(grouped, bodies), context, context.watch).scheduled


def build_nests(execution: Execution, context: Context) -> Execution:
    """Builds the nest of each group; recipes make arranged nests, others come as plain loops."""
    attentions = AttentionKernels(execution.work, context.target)
    nest = _nest_context(execution, context)
    built = {}
    for position, group in enumerate(execution.groups):
        if group.is_extern:
            continue
        stored = {name for name in group.writes if execution.is_external(name, position)}
        stored |= spilled(execution.work, group) - stored
        each = _built(group, stored, execution, attentions, context)
        plain = context.target.blocks and not isinstance(group.items[0].body, Native)
        if plain and not blocks.fits_registers(each.kernel, nest):
            stored |= set(row_buffers(execution.work, group))
            each = _built(group, stored, execution, attentions, context)
        if each.arranged:
            each = with_zeros(each, execution.work.buffers)
            _ready(each.kernel, context)
        built[position] = each
    return replace(execution, built=built)


def _built(
    group: Group, stored: set[str], execution: Execution, attentions: AttentionKernels, context: Context
) -> BuiltKernel:
    body = group.items[0].body
    if group.product is not None:
        return execution.products.build(group, stored)
    if isinstance(body, Attentions):
        return attentions.build(group.items[0], stored)
    if isinstance(body, Sort):
        return sort_kernel(execution.work, group.items[0])
    if isinstance(body, Native):
        return native_kernel(group.items[0], context.target)
    return execution.products.nests.build(group, stored)


def _ready(kernel: Kernel, context: Context) -> None:
    if context.ready is not None:
        context.ready(kernel)


def _nest_context(execution: Execution, context: Context) -> NestContext:
    return NestContext(context.config, context.target, execution.graph.hints, context.watch)


def arrange_nests(execution: Execution, context: Context) -> Execution:
    """Arranges plain loops for the target; nests that are equal except for their names are arranged once."""
    nest = _nest_context(execution, context)
    passes = blocks.PASSES if context.target.blocks else few_rows.PASSES
    arranged: dict[tuple[Kernel, Any], Kernel] = {}
    plain, kernels, built = [], [], {}
    for position, each in execution.built.items():
        key = replace(each.kernel, name=""), numbers_in(each.kernel)
        kernel = arranged.get(key)
        if kernel is None:
            plain.append(each.kernel)
            kernel = each.kernel if each.arranged else run(passes, each.kernel, nest, nest.watch)
            arranged[key] = kernel
            kernels.append(kernel)
            _ready(kernel, context)
        built[position] = replace(each, kernel=kernel, origins=each.kernel.origins)
    scheduled = replace(execution.scheduled, plain=plain, kernels=kernels)
    return replace(execution, built=built, scheduled=scheduled)


PASSES = (
    build_nests,
    share_overwritten,
    assign_storage,
    reuse_memory,
    stream_results,
    fill_halos,
    place_buffers,
    arrange_nests,
    write_plan,
)
