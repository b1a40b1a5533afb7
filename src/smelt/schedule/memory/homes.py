"""Where each buffer lives: memory of the caller's, a tensor of its own, ATen's, or a place in the arena."""

from __future__ import annotations

from smelt.loops.ir import Buffer, Extern
from smelt.nest.tree import accesses
from smelt.records import replace
from smelt.runtime.externs import gives_fresh_memory, has_out_variant
from smelt.schedule.context import Context
from smelt.schedule.graph.zero_padding import with_zeros
from smelt.schedule.grouping.items import Item
from smelt.schedule.memory.arena import Lifetime, plan_arena
from smelt.schedule.memory.assembly import Assembly
from smelt.schedule.memory.reuse import reuse_inputs
from smelt.symbolic import numel, same
from smelt.symbolic.affine import expand

STREAMED_BYTES = 2**24
"""Results of this size and more are stored past the caches: their beginning has left these at their end."""


def share_overwritten(assembly: Assembly, context: Context) -> Assembly:
    """Gives what an ATen call overwrites and what it leaves there one place in memory."""
    del context
    roots, outputs, late = dict(assembly.roots), set(assembly.outputs), set(assembly.late_buffers)
    for item in assembly.work.items:
        body = item.body
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
    return replace(assembly, roots=roots, outputs=frozenset(outputs), late_buffers=frozenset(late))


def find_homes(assembly: Assembly, context: Context) -> Assembly:
    """Decides for each buffer whether it is given, a fresh tensor, made by ATen or in the arena."""
    del context
    homes = dict.fromkeys((*assembly.inputs, *assembly.graph.constants), "given")
    for position, group in enumerate(assembly.groups):
        if group.is_extern:
            item = group.items[0]
            for name in item.writes:
                if name is not None and name in assembly.roots:
                    homes[name] = homes[assembly.root(name)]
                elif name is not None:
                    homes[name] = "arena" if _writes_out(assembly, item, name) else "aten"
        else:
            for name in assembly.built[position].buffers:
                if name in group.writes and name not in homes:
                    alone = name in assembly.outputs or name in assembly.late_buffers
                    assert not (alone and assembly.work.buffers[name].border), f"{name} has no border here"
                    homes[name] = "fresh" if alone else "arena"
    return replace(assembly, homes=homes)


def _writes_out(assembly: Assembly, item: Item, name: str) -> bool:
    """Whether an ATen call can write its result into the arena."""
    body = item.body
    assert isinstance(body, Extern)
    if name in assembly.outputs or name in assembly.late_buffers:
        return False
    if len(item.writes) != 1 or body.reason is not None:
        return False
    if body.sizes:  # as long as what it finds, whatever tracing takes for granted
        return False
    return has_out_variant(body.target) and is_contiguous(assembly.work.buffers[name])


def is_contiguous(buffer: Buffer) -> bool:
    """Whether the buffer is row-major without holes."""
    expected = numel(())
    for size, stride in zip(reversed(buffer.shape), reversed(buffer.strides)):
        if size != 1 and not same(stride, expected):
            return False
        expected = expected * size
    return True


def reuse_memory(assembly: Assembly, context: Context) -> Assembly:
    """Lets kernels write their results where inputs lie that nothing reads afterwards."""
    del context
    roots, homes, outputs = dict(assembly.roots), dict(assembly.homes), set(assembly.outputs)
    built = dict(assembly.built)
    found = replace(assembly, roots=roots)
    last = {name: position for position, names in found.used() for name in names}
    first = {name: position for position, names in reversed(list(found.used())) for name in names}
    fresh = _fresh_results(assembly)
    for position in assembly.built:

        def may_overwrite(result: str, source: str, position: int = position) -> bool:
            root = found.root(source)
            if not _alike(assembly, result, root):
                return False
            if last[root] != position or root in outputs or homes[result] == "given":
                return False
            if first[result] != position:  # it holds something already, as what a scatter writes into
                return False
            if homes[root] == "aten":
                return root in fresh
            return homes[root] == "arena" and result not in outputs

        built[position], taken = reuse_inputs(built[position], may_overwrite)
        for result, source in taken.items():
            root = found.root(source)
            roots[result] = root
            homes[result] = homes[root]
            last[root] = last.pop(result)
            if result in outputs:
                outputs.add(root)
    return replace(found, built=built, homes=homes, outputs=frozenset(outputs))


def _alike(assembly: Assembly, left: str, right: str) -> bool:
    """Whether two buffers have the same border, if any: around one and the same shape."""
    a, b = assembly.work.buffers[left], assembly.work.buffers[right]
    return not (a.border or b.border) or (a.shape, a.strides, a.border) == (b.shape, b.strides, b.border)


def _fresh_results(assembly: Assembly) -> set[str]:
    """The results of ATen calls in memory that nothing else refers to."""
    return {
        name
        for group in assembly.groups
        if isinstance(body := group.items[0].body, Extern) and gives_fresh_memory(body.target)
        for name in group.writes
        if name is not None
    }


def stream_results(assembly: Assembly, context: Context) -> Assembly:
    """Stores large results past the caches where no kernel of the graph reads them again."""
    del context
    built = dict(assembly.built)
    for position, each in built.items():
        read = {buffer for buffer, _, stores in accesses(each.kernel.body) if not stores}
        params = tuple(
            replace(param, streamed=param.name not in read and _is_streamed(assembly, buffer))
            for param, buffer in zip(each.kernel.params, each.buffers)
        )
        built[position] = replace(each, kernel=replace(each.kernel, params=params))
    return replace(assembly, built=built)


def _is_streamed(assembly: Assembly, name: str) -> bool:
    if assembly.homes.get(name) != "fresh" or name in assembly.readers or assembly.root(name) != name:
        return False
    buffer = assembly.work.buffers[name]
    return assembly.work.hint_product(buffer.shape) * buffer.dtype.itemsize >= STREAMED_BYTES


def fill_borders(assembly: Assembly, context: Context) -> Assembly:
    """Has kernels whose loops are not arranged yet fill the zero borders of what they write."""
    buffers, target = assembly.work.buffers, context.target
    built = {
        position: each if each.arranged else with_zeros(each, buffers, target)
        for position, each in assembly.built.items()
    }
    return replace(assembly, built=built)


def place_buffers(assembly: Assembly, context: Context) -> Assembly:
    """Gives each buffer that lives in the arena its place there."""
    del context
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for position, names in assembly.used():
        for name in sorted(names):
            if assembly.homes.get(name) == "arena":
                first.setdefault(name, position)
                last[name] = position
    lifetimes = []
    for name, start in first.items():
        buffer = assembly.work.buffers[name]
        size = expand(numel(buffer.whole_shape) * buffer.dtype.itemsize)
        lifetimes.append(Lifetime(name, size, start, last[name]))
    return replace(assembly, arena=plan_arena(lifetimes, assembly.graph.hints))
