"""A sort → its nest: one row after the other, rows in parallel."""

from __future__ import annotations

from sympy import Integer

from smelt.loops.ir import Sort
from smelt.nest.ir import Block, For, Kernel, Param, SortRow
from smelt.schedule.grouping.items import Item, Work
from smelt.schedule.names import kernel_name
from smelt.schedule.nests import BuiltKernel, size_symbols
from smelt.symbolic import loop_var

ZERO = Integer(0)


def sort_kernel(work: Work, item: Item) -> BuiltKernel:
    """The plain nest of a sort.

    for i0 in rows: values[i0, 0…], positions[i0, 0…] = first limit of length of source[i0, 0…]

    with a loop for each dimension but the last.
    """
    body = item.body
    assert isinstance(body, Sort)
    names = dict(zip(("values", "positions"), item.writes))
    buffers = (body.source, *(name for name in item.writes if name is not None))
    params = tuple(
        Param(f"p{number}", info.dtype, info.shape, info.strides, number > 0)
        for number, info in enumerate(work.buffers[name] for name in buffers)
    )
    called = {buffer: param.name for buffer, param in zip(buffers, params)}
    variables = [loop_var(f"i{d}") for d in range(len(body.shape) - 1)]
    place = (*variables, ZERO)
    length = work.buffers[body.source].shape[-1]
    results = {key: called[name] if name is not None else None for key, name in names.items()}
    block = Block((SortRow("p0", place, length, body.shape[-1], body.descending, into=place, **results),))
    for variable, size in reversed(list(zip(variables, body.shape))):
        block = Block((For(variable, ZERO, size, block),))
    origin = item.node.origin
    kernel = Kernel(kernel_name([origin]), params, size_symbols(block, params), block, (origin,))
    return BuiltKernel(kernel, buffers)
