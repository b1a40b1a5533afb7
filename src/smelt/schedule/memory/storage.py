"""The storage of each buffer: the caller's memory, a tensor of its own, ATen's memory, or a place in the
arena.
"""

from __future__ import annotations

from smelt.loops.ir import Buffer, Extern, Scatter
from smelt.nest.tree import accesses
from smelt.records import replace
from smelt.runtime.externs import gives_fresh_memory, has_out_variant
from smelt.schedule.context import Context
from smelt.schedule.graph.zero_padding import with_zeros
from smelt.schedule.grouping.items import Item
from smelt.schedule.memory.arena import Lifetime, plan_arena
from smelt.schedule.memory.execution import Execution
from smelt.schedule.memory.reuse import reuse_inputs
from smelt.symbolic import numel, same
from smelt.symbolic.affine import expand, replaced

STREAMED_BYTES = 2**24
"""Results of at least this size are stored past the caches, which cannot hold them for a reader."""


def share_overwritten(execution: Execution, context: Context) -> Execution:
    """Gives the buffer that an ATen call overwrites, or a scatter appends to, and its result one place in
    memory.
    """
    del context
    roots, outputs, late = dict(execution.roots), set(execution.outputs), set(execution.late_buffers)
    for item in execution.work.items:
        body = item.body
        if isinstance(body, Scatter) and body.base != item.writes[0]:
            roots[str(item.writes[0])] = body.base
        if isinstance(body, Extern) and body.overwrites:
            for before, after in zip(body.overwrites, item.writes[-len(body.overwrites) :]):
                assert after is not None
                if after == before:
                    continue  # an input that ATen overwrites
                roots[after] = before
                if after in outputs:
                    outputs.add(before)
                if after in late:
                    late.add(before)
    return replace(execution, roots=roots, outputs=frozenset(outputs), late_buffers=frozenset(late))


def assign_storage(execution: Execution, context: Context) -> Execution:
    """Decides for each buffer whether it is given, a fresh tensor, made by ATen or in the arena."""
    device = context.target.device
    storage = dict.fromkeys((*execution.inputs, *execution.graph.constants), "given")
    for position, group in enumerate(execution.groups):
        if group.is_extern:
            item = group.items[0]
            for name in item.writes:
                if name is not None and name in execution.roots:
                    storage[name] = storage[execution.root(name)]
                elif name is not None:
                    storage[name] = "arena" if _writes_out(execution, item, name, device) else "aten"
        else:
            for name in execution.built[position].buffers:
                if name in execution.roots:
                    storage[name] = storage[execution.root(name)]
                elif name in group.writes and name not in storage:
                    alone = name in execution.outputs or name in execution.late_buffers
                    assert not (alone and execution.work.buffers[name].halo), f"{name} has no halo here"
                    storage[name] = "fresh" if alone else "arena"
    return replace(execution, storage=storage)


def _writes_out(execution: Execution, item: Item, name: str, device: str) -> bool:
    """Whether an ATen call can write its result into the arena."""
    body = item.body
    assert isinstance(body, Extern)
    if name in execution.outputs or name in execution.late_buffers:
        return False
    if len(item.writes) != 1 or body.reason is not None:
        return False
    if body.sizes:  # its length depends on data, whatever tracing assumes
        return False
    return has_out_variant(body.target, device) and is_contiguous(execution.work.buffers[name])


def is_contiguous(buffer: Buffer) -> bool:
    """Whether the buffer is row-major without holes."""
    expected = numel(())
    for size, stride in zip(reversed(buffer.shape), reversed(buffer.strides)):
        if size != 1 and not same(stride, expected):
            return False
        expected = expected * size
    return True


def reuse_memory(execution: Execution, context: Context) -> Execution:
    """Lets kernels write their results into inputs that are dead afterwards."""
    del context
    roots, storage, outputs = dict(execution.roots), dict(execution.storage), set(execution.outputs)
    built = dict(execution.built)
    found = replace(execution, roots=roots)
    last = {name: position for position, names in found.used() for name in names}
    first = {name: position for position, names in reversed(list(found.used())) for name in names}
    fresh = _fresh_results(execution)
    for position in execution.built:

        def may_overwrite(result: str, source: str, position: int = position) -> bool:
            root = found.root(source)
            if not _same_halo(execution, result, root):
                return False
            if last[root] != position or root in outputs or storage[result] == "given":
                return False
            if first[result] != position:  # it has contents already, as the destination of a scatter
                return False
            if storage[root] == "aten":
                return root in fresh
            return storage[root] == "arena" and result not in outputs

        built[position], taken = reuse_inputs(built[position], may_overwrite)
        for result, source in taken.items():
            root = found.root(source)
            roots[result] = root
            storage[result] = storage[root]
            last[root] = last.pop(result)
            if result in outputs:
                outputs.add(root)
    return replace(found, built=built, storage=storage, outputs=frozenset(outputs))


def _same_halo(execution: Execution, left: str, right: str) -> bool:
    """Whether two buffers have the same halo, if any, around the same shape."""
    a, b = execution.work.buffers[left], execution.work.buffers[right]
    return not (a.halo or b.halo) or (a.shape, a.strides, a.halo) == (b.shape, b.strides, b.halo)


def _fresh_results(execution: Execution) -> set[str]:
    """The results of ATen calls in memory that nothing else refers to."""
    return {
        name
        for group in execution.groups
        if isinstance(body := group.items[0].body, Extern) and gives_fresh_memory(body.target)
        for name in group.writes
        if name is not None
    }


def stream_results(execution: Execution, context: Context) -> Execution:
    """Stores large results past the caches if no kernel of the graph reads them again."""
    del context
    built = dict(execution.built)
    for position, each in built.items():
        read = {buffer for buffer, _, stores in accesses(each.kernel.body) if not stores}
        params = tuple(
            replace(param, streamed=param.name not in read and _is_streamed(execution, buffer))
            for param, buffer in zip(each.kernel.params, each.buffers)
        )
        built[position] = replace(each, kernel=replace(each.kernel, params=params))
    return replace(execution, built=built)


def _is_streamed(execution: Execution, name: str) -> bool:
    if execution.storage.get(name) != "fresh" or name in execution.readers or execution.root(name) != name:
        return False
    buffer = execution.work.buffers[name]
    return execution.work.hint_product(buffer.shape) * buffer.dtype.itemsize >= STREAMED_BYTES


def fill_halos(execution: Execution, context: Context) -> Execution:
    """Makes kernels whose loops are not arranged yet fill the zero halos of their outputs."""
    del context
    built = {
        position: each if each.arranged else with_zeros(each, execution.work.buffers)
        for position, each in execution.built.items()
    }
    return replace(execution, built=built)


def place_buffers(execution: Execution, context: Context) -> Execution:
    """Gives each arena buffer its place."""
    del context
    limits = execution.graph.limits
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for position, names in execution.used():
        for name in sorted(names):
            if execution.storage.get(name) == "arena":
                first.setdefault(name, position)
                last[name] = position
    lifetimes = []
    for name, start in first.items():
        buffer = execution.work.buffers[name]
        size = expand(numel(buffer.whole_shape) * buffer.dtype.itemsize)
        if limits:
            size = expand(replaced(size, limits))
        lifetimes.append(Lifetime(name, size, start, last[name]))
    return replace(execution, arena=plan_arena(lifetimes, execution.graph.hints))
