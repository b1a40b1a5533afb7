"""Conversion of a user-written kernel."""

from __future__ import annotations

from smelt.loops.ir import Native
from smelt.nest.finish import finish
from smelt.nest.lanes import lower_for_gpu
from smelt.records import replace
from smelt.schedule.grouping.items import Item
from smelt.schedule.loops import Target
from smelt.schedule.nests import BuiltKernel, size_symbols


def native_kernel(item: Item, target: Target) -> BuiltKernel:
    """The kernel of a `Native` node, already arranged, on the node's buffers."""
    body = item.body
    assert isinstance(body, Native)
    kernel = lower_for_gpu(body.kernel) if target.blocks else finish(body.kernel, target.lanes)
    sizes = size_symbols(kernel.body, kernel.params)
    kernel = replace(kernel, sizes=sizes, origins=(item.node.origin,))
    results = tuple(name for name in item.writes if name is not None)
    assert len(results) == len(item.writes), "every result of a written kernel has its place"
    return BuiltKernel(kernel, (*body.reads, *results), arranged=True)
