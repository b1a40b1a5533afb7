"""Stages: from loop functions, back to loop functions, and down to plain loops.

`staged` writes a loop graph as one kernel in which every node is a stage in loops of its own, for the user to
schedule. `raised` is its inverse, for kernels without changes. `dissolve` substitutes the values of axes: its
result has only loops, guards and stores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import sympy
import torch
from sympy import Expr, Symbol
from sympy.logic.boolalg import Boolean

from smelt.errors import SmeltError
from smelt.loops.ir import (
    Body,
    Buffer,
    Contraction,
    Graph,
    Index,
    Node,
    Origin,
    Pointwise,
    Reduction,
    Scatter,
    StridedView,
)
from smelt.loops.record import Recorder
from smelt.loops.reductions import MODES, identity
from smelt.loops.straightline import MaskedInstruction, Recordable
from smelt.nest.ir import (
    Alloc,
    Axis,
    AxisKind,
    Block,
    For,
    Guard,
    Kernel,
    Let,
    LoopKind,
    Masked,
    Param,
    Stage,
    Stmt,
    Store,
)
from smelt.nest.tree import (
    accesses,
    exprs_of,
    named,
    names_in,
    nested,
    reduced_axes,
    substitute,
    variables_of,
    walk,
    with_blocks,
    with_body,
)
from smelt.ops import TABLE, ops
from smelt.records import dataclass, replace
from smelt.symbolic import contiguous_strides, free_symbols, loop_var
from smelt.symbolic.affine import replaced

ZERO = sympy.Integer(0)

_OF_BOOL = {"any": "max", "all": "min"}  # a reduction of bool in memory

KINDS = {mode: kind for kind, mode in MODES.items()}


@dataclass(frozen=True, slots=True)
class Names:
    """The user's names of a node's loops: those over its elements, those over its reduction."""

    spatial: tuple[str, ...] = ()
    reduce: tuple[str, ...] = ()


class Fresh:
    """Symbols for labels: each is unique, and has the label's name if that is free.

    >>> fresh = Fresh()
    >>> fresh("i"), fresh("i"), fresh("i_1")
    (i, i_1, i_1_1)
    """

    def __init__(self, used: Iterable[str] = ()) -> None:
        self.used = set(used)

    def __call__(self, label: str) -> Symbol:
        name, number = label, 0
        while name in self.used:
            number += 1
            name = f"{label}_{number}"
        self.used.add(name)
        return loop_var(name)


def names_of(kernel: Kernel) -> set[str]:
    """The names of all symbols of a kernel: sizes, loops, axes, positions."""
    return {symbol.name for symbol in (*kernel.sizes, *names_in(kernel.body).symbols)}


# -- loop functions → stages ---------------------------------------------------------------------------------


def staged(
    graph: Graph,
    name: str = "main",
    params: Sequence[str] | None = None,
    names: Mapping[str, Names] | None = None,
) -> Kernel:
    """The graph as one kernel: a stage for each node, in loops of its own, in the order of the graph.

    A scatter is two: its base is copied, then its elements are stored one after the other.

    ``params``: the parameters in order; by default the inputs and then the outputs. Other buffers are
    allocated at the start. ``names``: the loop names of a node, by the buffer that it writes.

    Raises:
        SmeltError: SM1040, a node is no loop function that a stage can hold.
    """
    if params is None:
        outputs = [out.buffer for out in graph.outputs if isinstance(out, StridedView)]
        given = [each for each in graph.inputs if isinstance(each, str)]
        params = list(dict.fromkeys([*given, *outputs]))
    written = {out for node in graph.nodes for out in node.outputs if out is not None}
    buffers = graph.buffers
    made = tuple(
        Param(each, buffers[each].dtype, buffers[each].shape, buffers[each].strides, each in written)
        for each in params
    )
    sizes = free_symbols([e for b in buffers.values() for e in (*b.shape, *b.strides)])
    maker = _Maker(graph, Fresh(size.name for size in sizes))
    inside = [Alloc(b.name, b.dtype, b.shape) for b in buffers.values() if b.name in written - set(params)]
    nests = [
        nest
        for node in graph.nodes
        for nest in maker.nests(node, (names or {}).get(node.outputs[0] or "", Names()))
    ]
    body = Block((*inside, *nests))
    sizes |= free_symbols(exprs_of(body)) - variables_of(body)
    return Kernel(name, made, tuple(sorted(sizes, key=lambda size: size.name)), body)


class _Maker:
    def __init__(self, graph: Graph, fresh: Fresh) -> None:
        self.graph, self.fresh, self.count = graph, fresh, 0
        self.dtypes = {buffer.name: buffer.dtype for buffer in graph.buffers.values()}

    def nests(self, node: Node, names: Names) -> list[Stmt]:
        body, out = node.body, node.outputs[0]
        if not isinstance(body, Scatter) or out is None:
            return [self._nest(node, names)]
        base, shape = body.base, self.graph.buffers[out].shape
        copy = Pointwise(shape, body.dtype, lambda index: ops.load(base, index))
        return [self._nest(replace(node, body=copy), names), self._nest(node, Names())]

    def _nest(self, node: Node, names: Names) -> Stmt:
        body, (out, *others) = node.body, node.outputs
        reduced: tuple[Expr, ...] = ()
        if isinstance(body, Reduction):
            body = replace(body, kind=_OF_BOOL.get(body.kind, body.kind))
        if isinstance(body, (Reduction, Contraction)):
            reduced = body.reduce_shape
        known = isinstance(body, (Pointwise, Contraction, Scatter)) or (
            isinstance(body, Reduction) and body.kind in MODES
        )
        if not known or others or out is None:
            what = getattr(body, "kind", type(body).__name__.lower())
            raise SmeltError("SM1040", f"{out or node.origin.op}: a stage cannot hold a {what}")
        kind = AxisKind.OPAQUE if isinstance(body, Scatter) else AxisKind.SPATIAL
        spatial = self._axes(body.shape, names.spatial, "i", kind)  # type: ignore[union-attr]
        reduce = self._axes(reduced, names.reduce, "k", AxisKind.REDUCE)
        index = [axis.var for axis in spatial]
        at = [axis.var for axis in reduce]
        extents = {axis.var: axis.extent for axis in (*spatial, *reduce)}
        init = None
        label = out
        if isinstance(body, Pointwise):
            block = self._block(node, extents, out, index, None, lambda: body.inner_fn(index))
        elif isinstance(body, Scatter):
            label = f"{out}_scatter"
            block = self._block(
                node, extents, out, index, body.mode, lambda: body.inner_fn(index), lambda: body.place(index)
            )
        elif isinstance(body, Reduction):
            mode = MODES[body.kind]
            block = self._block(node, extents, out, index, mode, lambda: body.inner_fn(index, at))
            first = identity(body.kind, body.dtype)
            init = self._block(node, extents, out, index, None, lambda: ops.constant(first, body.dtype))
        else:
            assert isinstance(body, Contraction)
            dtype, start = body.dtype, body.start

            def product() -> Any:
                return ops.to_dtype(ops.mul(body.lhs(index, at), body.rhs(index, at)), dtype)

            def begin() -> Any:
                return ops.constant(0, dtype) if start is None else ops.to_dtype(start(index), dtype)

            block = self._block(node, extents, out, index, "add", product)
            init = self._block(node, extents, out, index, None, begin)
        axes = [
            replace(axis, value=loop.var)
            for axis in (*spatial, *reduce)
            for loop in [For(self.fresh(axis.label.removeprefix("v_")), ZERO, axis.extent, Block())]
        ]
        nest: Stmt = Stage(label, tuple(axes), block, init)
        for axis in reversed(axes):
            assert isinstance(axis.value, Symbol)
            name = axis.label.removeprefix("v_")
            nest = For(axis.value, ZERO, axis.extent, Block((nest,)), label=name)
        return nest

    def _axes(self, shape: Sequence[Expr], labels: Sequence[str], default: str, kind: AxisKind) -> list[Axis]:
        axes = []
        for dim, extent in enumerate(shape):
            label = f"v_{labels[dim] if dim < len(labels) else f'{default}{dim}'}"
            axes.append(Axis(self.fresh(label), extent, ZERO, kind, label=label))
        return axes

    def _block(
        self,
        node: Node,
        extents: Mapping[Symbol, Expr],
        out: str,
        index: Sequence[Symbol],
        mode: str | None,
        value: Callable[[], Any],
        place: Callable[[], Sequence[Expr]] | None = None,
    ) -> Block:
        known = {axis: extent for axis, extent in extents.items() if extent != 1}  # its name stays
        recorder = Recorder(self.dtypes, known, origin=node.origin, first=self.count)
        result = recorder.run(value)
        at = tuple(index if place is None else recorder.run(place))
        stmts = statements(recorder.instructions)
        self.count += len(walk(Block(stmts))) + 1
        return Block((*stmts, Store(out, at, result.name, mode)))


def statements(steps: Iterable[Recordable]) -> tuple[Stmt, ...]:
    return tuple(
        Masked(s.name, s.dtype, s.mask, Block(statements(s.body)), s.result, s.other)
        if isinstance(s, MaskedInstruction)
        else s
        for s in steps
    )


# -- stages → loop functions ---------------------------------------------------------------------------------


Load = Callable[[str, Sequence[Expr]], Any]
"""The function that gives an element of a buffer: by default ``ops.load``."""


def raised(kernel: Kernel, load: Load | None = None) -> Graph | str:
    """The loop graph from which `staged` would make the kernel, or the reason why there is none.

    Inputs are the read-only parameters, outputs the written ones; both in order. Loop functions read elements
    of buffers by ``load``.
    """
    graph = Graph()
    for param in kernel.params:
        graph.buffers[param.name] = Buffer(param.name, param.dtype, param.shape, param.strides)
    there = {param.name for param in kernel.params if not param.written}
    for stmt in (each for nest in kernel.body.stmts for each in _fissioned(nest)):
        if isinstance(stmt, Alloc):
            if stmt.scope or stmt.aligned:
                return f"{stmt.buffer} has a memory or a layout of its own"
            strides = contiguous_strides(stmt.shape)
            graph.buffers[stmt.buffer] = Buffer(stmt.buffer, stmt.dtype, stmt.shape, strides)
            continue
        node = _node_of(stmt, graph, load)
        if isinstance(node, str):
            return node
        (out,) = node.outputs
        if out in there:
            return f"{out} is written more than once, or is no result"
        reads = {name for name, _, is_store in accesses(Block((stmt,))) if not is_store}
        if not reads <= there:
            return f"{min(reads - there)} is read before it is written"
        there.add(str(out))
        graph.nodes.append(node)
    for param in kernel.params:
        if param.name not in there:
            return f"{param.name} is not written"
        if param.written:
            graph.outputs.append(StridedView(param.name, param.shape, param.strides, ZERO))
        else:
            graph.inputs.append(param.name)
    return graph


def _fissioned(nest: Stmt) -> Sequence[Stmt]:
    """Each stage of a nest in loops of its own, where none reads a buffer that another one writes."""
    around, inside = nested(nest)
    if len(inside) < 2 or not all(isinstance(each, Stage) for each in inside):
        return (nest,)
    touched = accesses(Block(tuple(inside)))
    stored = {name for name, _, is_store in touched if is_store}
    if any(name in stored for name, _, is_store in touched if not is_store):
        return (nest,)
    found: list[Stmt] = list(inside)
    for loop in reversed(around):
        found = [replace(loop, body=Block((each,))) for each in found]
    return found


def _node_of(stmt: Stmt, graph: Graph, load: Load | None) -> Node | str:
    """The node of a nest made by `staged`, or the reason why there is none."""
    around: list[For] = []
    while isinstance(stmt, For) and len(stmt.body.stmts) == 1:
        plain = stmt.kind is LoopKind.SERIAL and stmt.thread is None and not stmt.notes
        if not plain or stmt.begin != 0 or stmt.step != 1:
            return f"the loop over {named(stmt)} is scheduled"
        around.append(stmt)
        (stmt,) = stmt.body.stmts
    if not isinstance(stmt, Stage):
        return "there is something else than stages in loops of their own"
    stage, name = stmt, stmt.name
    if stage.where or [axis.value for axis in stage.axes] != [loop.var for loop in around]:
        return f"{name} does not go through its axes one after the other"
    if any(axis.begin != 0 or axis.extent != loop.end for axis, loop in zip(stage.axes, around)):
        return f"{name} does not go through its axes from end to end"
    *steps, store = stage.body.stmts
    if not isinstance(store, Store) or not all(isinstance(step, (Let, Masked)) for step in steps):
        return f"{name} does more than to store one value"
    if stage.text is not None:
        return f"{name} has a text of its own"
    spatial = [axis for axis in stage.axes if axis.kind is AxisKind.SPATIAL]
    reduce = reduced_axes(stage)
    if list(store.index) != [a.var for a in spatial] or [*spatial, *reduce] != list(stage.axes):
        return f"{name} does not store its elements in order"
    buffer = graph.buffers.get(store.buffer)
    shape = tuple(axis.extent for axis in spatial)
    if buffer is None or buffer.shape != shape:
        return f"{name} does not store all of {store.buffer}"
    again = Replay(Block(tuple(steps)), store.value, load)
    variables = [axis.var for axis in spatial]
    if not reduce and stage.init is None and store.mode is None:
        body: Body = Pointwise(shape, buffer.dtype, lambda index: again(variables, index))
    elif reduce and store.mode in KINDS and _is_identity(stage.init, store, buffer.dtype):
        body = Reduction(
            KINDS[store.mode],
            shape,
            tuple(axis.extent for axis in reduce),
            buffer.dtype,
            lambda index, at: again([*variables, *(axis.var for axis in reduce)], [*index, *at]),
        )
    else:
        return f"{name} is no plain reduction"
    return Node((store.buffer,), body, Origin(f"stage {name}"))


def _is_identity(init: Block | None, store: Store, dtype: torch.dtype) -> bool:
    """Whether ``init`` stores the identity of the reduction of ``store``."""
    if init is None or len(init.stmts) != 2 or store.mode is None:
        return False
    constant, first = init.stmts
    return (
        isinstance(constant, Let)
        and constant.op == "constant"
        and constant.args[0] == identity(KINDS[store.mode], dtype)
        and isinstance(first, Store)
        and first == replace(store, value=constant.name, mode=None)
    )


@dataclass(frozen=True, slots=True)
class Replay:
    """Straight-line code as a loop function that runs under any handler, at any indices."""

    steps: Block
    result: str
    load: Load | None = None

    def __call__(self, variables: Sequence[Symbol], index: Index) -> Any:
        values: dict[str, Any] = {}
        self._run(self.steps, dict(zip(variables, index, strict=True)), values)
        return values[self.result]

    def _run(self, block: Block, symbols: dict[Symbol, Expr], values: dict[str, Any]) -> None:
        for step in block.stmts:
            assert isinstance(step, (Let, Masked)), step
            values[step.name] = self._value(step, symbols, values)

    def _value(self, step: Let | Masked, symbols: dict[Symbol, Expr], values: dict[str, Any]) -> Any:
        if isinstance(step, Masked):

            def body() -> Any:
                self._run(step.body, symbols, values)
                return values[step.result]

            return ops.masked(values[step.mask], body, step.other)
        if step.op in TABLE:
            return getattr(ops, step.op)(*(values[name] for name in step.args))
        if step.op == "load":
            index = [replaced(e, symbols) for e in step.args[1]]
            return ops.load(step.args[0], index) if self.load is None else self.load(step.args[0], index)
        if step.op == "index_expr":
            return ops.index_expr(replaced(step.args[0], symbols), step.dtype)
        if step.op == "constant":
            return ops.constant(step.args[0], step.dtype)
        if step.op == "indirect_index":
            name, size, wrap, check = step.args
            found = ops.indirect_index(values[name], replaced(size, symbols), wrap=wrap, check=check)
            assert step.index is not None
            symbols[step.index] = found
            return found
        return getattr(ops, step.op)(values[step.args[0]], step.dtype)


# -- stages → loops ------------------------------------------------------------------------------------------


def dissolve(kernel: Kernel) -> Kernel:
    """The kernel without stages: the values of axes substituted, conditions as guards. A stage with a
    target's text stays, without axes.

    stage C: spatial v = i, reduce r = k: init: C[v] = 0; C[v] += A[r]
        →   if k == 0: C[i] = 0; C[i] += A[k]
    """
    return with_body(kernel, _dissolved(kernel.body))


def _dissolved(block: Block) -> Block:
    stmts: list[Stmt] = []
    for stmt in block.stmts:
        if isinstance(stmt, Stage):
            stmts += _plain(stmt)
        else:
            stmts.append(with_blocks(stmt, _dissolved))
    return Block(tuple(stmts))


def _plain(stage: Stage) -> list[Stmt]:
    values = {axis.var: axis.value for axis in stage.axes}
    stmts: list[Stmt] = []
    if stage.init is not None:
        first = [
            sympy.Eq(axis.value, axis.begin)
            for axis in stage.axes
            if axis.kind is AxisKind.REDUCE and not (axis.extent == 1 or axis.value == axis.begin)
        ]
        init = _dissolved(substitute(stage.init, values))
        stmts += guarded(first, init)
    body = _dissolved(substitute(stage.body, values))
    stmts += body.stmts if stage.text is None else [Stage(stage.name, (), body, text=stage.text)]
    return guarded(stage.where, Block(tuple(stmts)))


def guarded(conditions: Sequence[Boolean], body: Block) -> list[Stmt]:
    """``body`` where all conditions hold."""
    condition = sympy.And(*conditions)
    if condition == sympy.true:
        return list(body.stmts)
    return [] if condition == sympy.false else [Guard(condition, body)]


__all__ = [
    *(
        "Fresh",
        "Names",
        "Replay",
        "dissolve",
        "guarded",
        "identity",
        "names_of",
        "raised",
        "staged",
        "statements",
    ),
]
