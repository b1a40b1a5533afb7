"""Copies of buffers close to the loops that use them, and the memory scopes of buffers."""

from __future__ import annotations

from collections.abc import Sequence

import sympy
from sympy import Expr, Symbol
from sympy.core.relational import Ge, Lt
from sympy.logic.boolalg import Boolean

from smelt.nest.ir import Alloc, Axis, AxisKind, Block, For, Guard, Kernel, Stage, Stmt
from smelt.nest.primitives.common import refusal, stage_place
from smelt.nest.primitives.compact import covered
from smelt.nest.primitives.copies import Values, copying
from smelt.nest.primitives.places import comparison
from smelt.nest.regions import Box, Facts, Interval, extent, touched
from smelt.nest.scopes import (
    Place,
    buffer_names,
    buffers,
    first_step,
    members,
    position,
    reads,
    scope_body,
    shapes_of,
    stage_names,
    unique_name,
    with_alloc,
    writes,
)
from smelt.nest.tree import exchanged, redirected, rewritten, walk, with_blocks, with_body
from smelt.records import dataclass, replace
from smelt.symbolic.affine import expand, symbols_in

ZERO = sympy.Integer(0)

SCOPES = ("global", "shared", "warp", "local", "texture", "wmma.", "m16n8k8.", "metal.")
"""Prefixes of memory scope names (TVM's storage scopes)."""


def cache_read(
    kernel: Kernel, stage: str, buffer: int | str, scope: str, consumers: Sequence[str] = ()
) -> tuple[Kernel, str]:
    """Copies the region of a buffer that is read into a new buffer, and reads it from there; returns the
    copy's block.

    for i: B[i] = f(A[i])   →   for ax0: A_local[ax0] = A[ax0]
                                for i: B[i] = f(A_local[i])

    ``buffer``: its name, or its position among the buffers that the block reads; ``scope``: the name of the
    memory; ``consumers``: the blocks that read the copy, by default all in the block's scope. The copy comes
    before the first of them, after the block that writes the buffer.

    Raises:
        ScheduleError: SM1002 there is no such block; SM1031 it reads no such buffer; SM1032 there is no such
        memory; SM1033 several blocks write the buffer, or it is written again before it is read.
    """
    what = f"cache_read of {stage}"
    target, place = stage_place(kernel, stage, what)
    name = chosen(buffer, reads(target), "reads", what)
    check_memory(scope, what)
    users = _users(kernel, place, name, consumers, what)
    for user in users:
        if name in writes(user) and _updates_repeatedly(user):
            raise refusal(
                "SM1033", what, f"{user.name} adds to {name}: its copy would not have what is added"
            )
    writer = _writer_before(kernel, place, name, users, what)
    copy = _Copy.of(kernel, place, name, scope, writer, users)
    changed = copy.inserted(copy.stage(into_cache=True))
    return copy.redirected(changed, users, loads=True, stores=False), copy.name


def cache_write(
    kernel: Kernel, stage: str, buffer: int | str, scope: str, consumers: Sequence[str] = ()
) -> tuple[Kernel, str]:
    """Makes a block write a new buffer, and copies that to the original buffer; returns the copy's block.

    for i: B[i] = f(A[i])   →   for i: B_local[i] = f(A[i])
                                for ax0: B[ax0] = B_local[ax0]

    ``buffer``, ``scope``: as for `cache_read`; ``consumers``: the blocks that read the new buffer instead of
    the original. The copy comes before the first block that still reads the original, or last.

    Raises:
        ScheduleError: SM1002 there is no such block; SM1031 it writes no such buffer; SM1032 there is no such
        memory; SM1033 other blocks write the buffer too, or read it before.
    """
    what = f"cache_write of {stage}"
    target, place = stage_place(kernel, stage, what)
    name = chosen(buffer, writes(target), "writes", what)
    check_memory(scope, what)
    order = members(scope_body(kernel, place.scope))
    for other in order:
        if other is not target and name in writes(other):
            raise refusal("SM1033", what, f"{name} has two producers: {other.name} writes it too")
    near = _users(kernel, place, name, consumers, what) if consumers else []
    here = position(order, target)
    others = [each for each in order if each is not target and name in reads(each)]
    far = [each for each in others if not any(each is user for user in near)]
    for each in others:
        if position(order, each) < here:
            raise refusal("SM1033", what, f"{each.name} reads {name} before the block writes it")
    declared = buffers(kernel)[name]
    held = Alloc(name, declared.dtype, declared.shape)
    if target.init is None and name in reads(target) and not covered(target.body, held, Facts(), {}):
        raise refusal("SM1033", what, f"the block reads {name} too, which the new memory does not hold")
    copy = _Copy.of(kernel, place, name, scope, target, far, last=not far)
    changed = copy.inserted(copy.stage(into_cache=False))
    changed = copy.redirected(changed, [target], loads=True, stores=True)
    return copy.redirected(changed, near, loads=True, stores=False), copy.name


def cache_inplace(kernel: Kernel, stage: str, buffer: int | str, scope: str) -> tuple[Kernel, str, str]:
    """Makes a block that reads and writes a buffer do so in a new buffer, copied in before and copied back
    after; returns the blocks of the two copies.

    for i: X[i] = f(X[i])   →   for i: X_local[i] = X[i]; X_local[i] = f(X_local[i]); X[i] = X_local[i]

    Raises:
        ScheduleError: SM1002 there is no such block; SM1031 it does not both read and write the buffer;
        SM1032 there is no such memory.
    """
    what = f"cache_inplace of {stage}"
    target, place = stage_place(kernel, stage, what)
    name = chosen(buffer, reads(target), "reads", what)
    if name not in writes(target):
        raise refusal("SM1031", what, f"it reads {name}, and does not write it")
    check_memory(scope, what)
    path: list[For | Stage] = [*([place.scope] if place.scope else []), *place.loops]
    parent = place.around[-1] if place.around else None
    around = kernel.body if parent is None else parent.body
    number = position(around.stmts, target)
    extents: dict[Symbol, Expr] = {each.var: each.end for each in path if isinstance(each, For)}
    outer = [each for each in place.around if isinstance(each, Stage)]
    extents |= {axis.var: axis.begin + axis.extent for each in outer for axis in each.axes}
    facts, shape = Facts(extents), shapes_of(kernel)[name]
    if isinstance(parent, Guard):
        raise refusal("SM1031", what, "it is computed under a condition")
    box = touched(target, name, facts, shape=shape)
    assert box is not None
    cache = unique_name(f"{name}_{scope.replace('.', '_')}", buffer_names(kernel) | stage_names(kernel))
    alloc = Alloc(cache, buffers(kernel)[name].dtype, shape, "" if scope == "global" else scope)
    spans = _sized(box, shape, facts)
    back = _Copy(kernel, name, alloc, tuple(path), number + 1, place.scope, spans, True, facts)
    second = back.stage(into_cache=False)
    written = back.inserted(second, unique_name(cache, {*stage_names(kernel), cache}))
    changed = back.redirected(written, [target], loads=True, stores=True)
    _, place = stage_place(changed, stage, what)  # the tree has changed on the way
    path = [*([place.scope] if place.scope else []), *place.loops]
    around = place.around[-1].body if place.around else changed.body
    number = position(around.stmts, place.stmt)
    first = _Copy(changed, name, alloc, tuple(path), number, place.scope, spans, True, facts)
    made = insert_at(changed, path, number, first.stage(into_cache=True), place.scope, None)
    return made, cache, unique_name(cache, {*stage_names(kernel), cache})


def set_scope(kernel: Kernel, stage: str, buffer: int | str, scope: str) -> Kernel:
    """Moves a buffer that a block writes to another memory scope.

    scratch B: f32[n]   →   scratch B: f32[n] in local memory

    Raises:
        ScheduleError: SM1002 there is no such block; SM1031 it writes no such buffer, or that is a parameter;
        SM1032 there is no such memory.
    """
    what = f"set_scope of {stage}"
    target, _ = stage_place(kernel, stage, what)
    name = chosen(buffer, writes(target), "writes", what)
    check_memory(scope, what)
    return _with_alloc(kernel, name, what, scope="" if scope == "global" else scope)


def storage_align(
    kernel: Kernel, stage: str, buffer: int | str, axis: int, factor: int, offset: int
) -> Kernel:
    """Pads a buffer, so that the stride of a dimension is ``offset`` more than a multiple of ``factor``.

    scratch B: f32[4, 8], B[i, j] at 8*i + j   →   B[i, j] at 33*i + j      (axis 0, factor 32, offset 1)

    Raises:
        ScheduleError: SM1002 there is no such block; SM1031 it writes no such buffer, or that is a parameter;
        SM1034 there is no such dimension, or the numbers are none to align to.
    """
    what = f"storage_align of {stage}"
    target, _ = stage_place(kernel, stage, what)
    name = chosen(buffer, writes(target), "writes", what)
    shape = shapes_of(kernel)[name]
    if not -len(shape) <= axis < len(shape):
        raise refusal("SM1034", what, f"{name} has {len(shape)} dimensions, not a dimension {axis}")
    if factor <= 0:
        raise refusal("SM1034", what, f"the factor of an alignment is positive, not {factor}")
    axis %= len(shape)
    kept = [each for each in _alloc_of(kernel, name, what).aligned if each[0] != axis]
    aligned = tuple(sorted([*kept, (axis, factor, offset % factor)]))
    return _with_alloc(kernel, name, what, aligned=aligned)


# -- the copy ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Copy:
    """A block that copies a box of a buffer to or from memory of its own.

    ``path``: the loops and stages around it; ``number``: the position in the innermost one. ``whole``: the
    new buffer has the old buffer's shape, otherwise the shape of the box.
    """

    kernel: Kernel
    buffer: str
    alloc: Alloc
    path: tuple[For | Stage, ...]
    number: int
    scope: Stage | None
    box: tuple[Interval, ...]
    whole: bool
    facts: Facts

    @property
    def name(self) -> str:
        return self.alloc.buffer

    @staticmethod
    def of(
        kernel: Kernel,
        place: Place,
        buffer: str,
        scope: str,
        writer: Stage | None,
        users: Sequence[Stage],
        last: bool = False,
    ) -> _Copy:
        body = scope_body(kernel, place.scope)
        outer = [each for each in place.around if isinstance(each, Stage)]
        shape = shapes_of(kernel)[buffer]
        path: list[For | Stage] = [place.scope] if place.scope else []
        piece: Block = body
        number = first_step(body)
        if writer is not None:
            if last:
                number, piece = len(body.stmts), Block((_child(body, writer)[1],))
            else:
                loops, number, child = meeting(body, writer, users)
                path, piece = [*path, *loops], Block((child,))
        facts = Facts(
            {axis.var: axis.begin + axis.extent for stage in outer for axis in stage.axes}
            | {each.var: each.end for each in path if isinstance(each, For)}
        )
        found = touched(piece, buffer, facts, stores=writer is not None, shape=shape)
        assert found is not None
        box = _sized(found, shape, facts)
        whole = any(isinstance(each, For) for each in path)
        names = buffer_names(kernel) | stage_names(kernel)
        cache = unique_name(f"{buffer}_{scope.replace('.', '_')}", names)
        sizes = shape if whole else tuple(high - low + 1 for low, high in box)
        alloc = Alloc(cache, buffers(kernel)[buffer].dtype, sizes, "" if scope == "global" else scope)
        return _Copy(kernel, buffer, alloc, tuple(path), number, place.scope, box, whole, facts)

    def stage(self, into_cache: bool) -> Stmt:
        """The copying block in its loops."""
        values = Values(self.kernel)
        shape = shapes_of(self.kernel)[self.buffer]
        axes: list[Axis] = []
        loops: list[For] = []
        where: list[Boolean] = []
        for dim, (low, high) in enumerate(self.box):
            count = expand(high - low + 1)
            loop = values.loop(dim, count)
            loops.append(loop)
            value = low + loop.var if self.whole else loop.var
            size = shape[dim] if self.whole else count
            axes.append(Axis(values.symbol(f"v{dim}"), size, value, AxisKind.SPATIAL, label=f"v{dim}"))
            place = low + loop.var
            if not self.facts.at_most(high, shape[dim] - 1):
                where.append(comparison(Lt, place, shape[dim]))
            if not self.facts.nonnegative(low):
                where.append(comparison(Ge, place, ZERO))
        near = tuple(axis.var for axis in axes)
        far = near if self.whole else tuple(low + axis.var for (low, _), axis in zip(self.box, axes))
        source, target = (self.buffer, far), (self.name, near)
        if not into_cache:
            source, target = target, source
        return copying(self.name, loops, axes, source, target, self.alloc.dtype, values, where)

    def inserted(self, nest: Stmt, name: str = "") -> Kernel:
        """The kernel with the copy inserted, under ``name`` if given, and its buffer allocated at the start
        of the scope.
        """
        if name:
            block = Block((nest,))
            (nest,) = rewritten(
                block, lambda stmt: (replace(stmt, name=name),) if isinstance(stmt, Stage) else None
            ).stmts
        return insert_at(self.kernel, self.path, self.number, nest, self.scope, self.alloc)

    def redirected(self, kernel: Kernel, users: Sequence[Stage], *, loads: bool, stores: bool) -> Kernel:
        """The kernel in which the accesses of some blocks use the copy."""
        names = {each.name for each in users}

        def moved(index: Sequence[Expr]) -> tuple[Expr, ...]:
            if self.whole:
                return tuple(index)
            return tuple(expand(expr - low) for expr, (low, _) in zip(index, self.box, strict=True))

        def inside(block: Block) -> Block:
            return redirected(block, self.buffer, self.name, moved, loads=loads, stores=stores)

        def visit(stmt: Stmt) -> Sequence[Stmt] | None:
            return [with_blocks(stmt, inside)] if isinstance(stmt, Stage) and stmt.name in names else None

        return with_body(kernel, rewritten(kernel.body, visit))


def insert_at(
    kernel: Kernel,
    path: Sequence[For | Stage],
    number: int,
    nest: Stmt,
    scope: Stage | None,
    alloc: Alloc | None,
) -> Kernel:
    """The kernel with a nest inserted before a statement inside ``path``, and a buffer allocated at the start
    of a scope.
    """

    def visit(block: Block, path: Sequence[For | Stage]) -> Block:
        stmts = list(block.stmts)
        if not path:
            stmts.insert(number, nest)
            return Block(tuple(stmts))
        for place, stmt in enumerate(stmts):
            if stmt is path[0]:
                assert isinstance(stmt, (For, Stage))
                stmts[place] = replace(stmt, body=visit(stmt.body, path[1:]))
            elif any(each is path[0] for each in walk(Block((stmt,)))):
                stmts[place] = with_blocks(stmt, lambda inner: visit(inner, path))
        return Block(tuple(stmts))

    body = visit(kernel.body, path)
    if alloc is None:
        return with_body(kernel, body)
    if scope is None:
        return with_body(kernel, with_alloc(body, alloc))
    name = scope.name

    def put(stmt: Stmt) -> Sequence[Stmt] | None:
        if isinstance(stmt, Stage) and stmt.name == name:
            return (replace(stmt, body=with_alloc(stmt.body, alloc)),)
        return None

    return with_body(kernel, rewritten(body, put))


def _child(block: Block, stage: Stage) -> tuple[int, Stmt]:
    """The statement of a block that contains a stage, and its position."""
    for number, stmt in enumerate(block.stmts):
        if any(each is stage for each in members(Block((stmt,)))):
            return number, stmt
    raise KeyError(stage.name)


def meeting(block: Block, writer: Stage, users: Sequence[Stage]) -> tuple[list[For | Stage], int, Stmt]:
    """The innermost common loops of a writer and its first user, the position of the copy there, and the
    statement that contains the writer.
    """
    order = members(block)
    first = min(users, key=lambda each: position(order, each)) if len(users) > 1 else users[0]
    number, child = _child(block, writer)
    other, _ = _child(block, first)
    if number == other and not isinstance(child, Stage):
        loops, place, piece = meeting(child.body, writer, [first])  # type: ignore[union-attr]
        return ([child, *loops] if isinstance(child, For) else loops), place, piece
    return [], other, child


def _sized(box: Box, shape: Sequence[Expr], facts: Facts) -> tuple[Interval, ...]:
    """The box with known bounds, and sizes that are constant over all iterations."""
    found: list[Interval] = []
    for dim, span in enumerate(box):
        whole = (ZERO, shape[dim] - 1)
        if span is None:
            found.append(whole)
            continue
        count = extent(span, facts)
        fixed = symbols_in(count).isdisjoint(facts.extents)
        found.append((span[0], expand(span[0] + count - 1)) if fixed else whole)
    return tuple(found)


# -- arguments -----------------------------------------------------------------------------------------------


def chosen(buffer: int | str, names: Sequence[str], verb: str, what: str) -> str:
    listed = ", ".join(names) or "nothing"
    if isinstance(buffer, str):
        if buffer not in names:
            raise refusal("SM1031", what, f"it {verb} {listed}, not {buffer}")
        return buffer
    if not 0 <= buffer < len(names):
        raise refusal(
            "SM1031", what, f"it {verb} {len(names)} buffers ({listed}), there is no number {buffer}"
        )
    return names[buffer]


def check_memory(scope: str, what: str) -> None:
    if not scope.startswith(SCOPES):
        raise refusal("SM1032", what, f"there is no memory {scope!r}", "global, shared or local")


def _users(kernel: Kernel, place: Place, buffer: str, names: Sequence[str], what: str) -> list[Stage]:
    """The blocks of the scope that read a buffer, restricted to the given names if there are any."""
    order = members(scope_body(kernel, place.scope))
    if not names:
        writers = [each for each in order if buffer in writes(each) and each is not place.stmt]
        return [each for each in order if buffer in reads(each) and not any(each is w for w in writers)]
    found = []
    for name in names:
        user = next((stage for stage in order if stage.name == name), None)
        if user is None or buffer not in reads(user):
            raise refusal("SM1031", what, f"{name} does not read {buffer}")
        found.append(user)
    return found


def _updates_repeatedly(stage: Stage) -> bool:
    """Whether a block, or one inside it, updates an element several times."""
    inner = (each for each in walk(stage.body) if isinstance(each, Stage))
    return any(axis.kind is not AxisKind.SPATIAL for each in (stage, *inner) for axis in each.axes)


def _writer_before(
    kernel: Kernel, place: Place, buffer: str, users: Sequence[Stage], what: str
) -> Stage | None:
    order = members(scope_body(kernel, place.scope))
    writers = [each for each in order if buffer in writes(each)]
    first = min(position(order, each) for each in users)
    last = max(position(order, each) for each in users)
    before = [each for each in writers if position(order, each) < first]
    if len(before) > 1:
        listed = ", ".join(each.name for each in before)
        raise refusal("SM1033", what, f"{buffer} has several producers: {listed}")
    for each in writers:
        if first <= position(order, each) <= last and not (len(users) == 1 and each is users[0]):
            raise refusal("SM1033", what, f"{each.name} writes {buffer} before it is read for the last time")
    return before[0] if before else None


def _alloc_of(kernel: Kernel, buffer: str, what: str) -> Alloc:
    for stmt in walk(kernel.body):
        if isinstance(stmt, Alloc) and stmt.buffer == buffer:
            return stmt
    raise refusal("SM1031", what, f"{buffer} is a parameter, whose memory the caller gives")


def _with_alloc(kernel: Kernel, buffer: str, what: str, **changes: object) -> Kernel:
    old = _alloc_of(kernel, buffer, what)
    new = replace(old, **changes)  # type: ignore[arg-type]
    return exchanged(kernel, old, new)
