"""Folds a frozen factor for each channel of a contraction into its weight: batch norm into the convolution.

    c = start + sum of x * w;  y = (c - mean[k]) * scale[k] + shift[k]
        →  y = (start[k] - mean[k]) * scale[k] + shift[k] + sum of x * (w * scale[k])

The new weight and start depend on frozen inputs alone, so they are computed ahead
(`smelt.schedule.graph.constants`). The match is on loop functions, not on operators.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import sympy
import torch
from sympy import Expr, Symbol

from smelt.loops.dependencies import analyze, variables, views_in
from smelt.loops.ir import Buffer, Contraction, Extern, Graph, Index, Node, Pointwise, StridedView, Value
from smelt.loops.record import Recorder
from smelt.loops.straightline import Instruction, Recordable, prune, replay, used_names
from smelt.ops import ops
from smelt.records import dataclass, replace
from smelt.schedule.context import Context
from smelt.schedule.graph.constants import frozen_buffers
from smelt.symbolic import contiguous_strides, free_symbols, numel, same

ZERO = sympy.Integer(0)
_START = {"aten.convolution.default": 2, "aten.addmm.default": 0}
"""Argument number of the start for each channel (dimension 1 of the result), by call."""


def fold_scales(graph: Graph, context: Context) -> Graph:
    """Moves frozen factors of contractions into their weights, and frozen summands into their starts."""
    del context
    if not graph.frozen or not any(isinstance(node.body, Contraction) for node in graph.nodes):
        return graph
    return _Folder(graph).run()


@dataclass(frozen=True, slots=True)
class _Affine:
    """``value * scale + shift``, both for each element of one dimension: an affine function of a loaded
    value.

    ``operations``: its operations in order, as (operator, frozen value, whether that comes first); ``steps``
    compute the frozen values over ``variable``.
    """

    operations: tuple[tuple[str, str, bool], ...]
    steps: tuple[Recordable, ...]
    variable: Symbol

    @property
    def scales(self) -> bool:
        """Whether it does more than add."""
        return any(op in ("mul", "truediv") or (op == "sub" and first) for op, _, first in self.operations)

    def __call__(self, place: Expr, shift: Value | None, dtype: torch.dtype) -> tuple[Value, Value | None]:
        """(scale, shift) at ``place``; ``shift`` is the earlier summand, None for none."""
        values = replay(self.steps, ops, places={self.variable: place})
        scale: Value | None = None
        for op, name, first in self.operations:
            value = values[name]
            if op in ("add", "sub"):
                if first and op == "sub":
                    scale = ops.constant(-1.0, dtype) if scale is None else ops.neg(scale)
                    shift = value if shift is None else ops.sub(value, shift)
                elif shift is None:
                    shift = ops.neg(value) if op == "sub" else value
                else:
                    shift = getattr(ops, op)(shift, value)
            else:
                if op == "mul" and scale is None:
                    scale = value
                else:
                    before = ops.constant(1.0, dtype) if scale is None else scale
                    scale = getattr(ops, op)(before, value)
                shift = None if shift is None else getattr(ops, op)(shift, value)
        return ops.constant(1.0, dtype) if scale is None else scale, shift


class _Folder:
    def __init__(self, graph: Graph) -> None:
        self.graph = replace(graph, buffers=dict(graph.buffers), nodes=[])
        self.nodes = graph.nodes
        self.frozen = frozen_buffers(graph)
        self.readers: Counter[str] = Counter()
        self.reads = {id(node): analyze(node).buffers_read for node in graph.nodes}
        for names in self.reads.values():
            self.readers.update(names)
        self.readers.update(view.buffer for view in graph.outputs if isinstance(view, StridedView))
        self.readers.update(mutation.source for mutation in graph.mutations)
        self.made = {
            str(node.outputs[0]): node
            for node in graph.nodes
            if isinstance(node.body, Contraction) and node.body.results == 1
        }

    def run(self) -> Graph:
        for node in self.nodes:
            nodes = self._folded(node) or [node]
            self.graph.nodes.extend(nodes)
        return self.graph

    def _folded(self, node: Node) -> list[Node] | None:
        """The replacement of a node; the contraction that it scales is removed from its place."""
        if not isinstance(node.body, Pointwise):
            return None
        for name in self.reads[id(node)]:
            producer = self.made.get(name)
            if producer is not None and self.readers[name] == 1:
                nodes = self._into(producer, node, node.body)
                if nodes is not None:
                    self.graph.nodes = [each for each in self.graph.nodes if each is not producer]
                    return nodes
        return None

    def _into(self, producer: Node, node: Node, body: Pointwise) -> list[Node] | None:
        contraction = producer.body
        assert isinstance(contraction, Contraction)
        result = self.graph.buffers[str(producer.outputs[0])]
        if contraction.dtype not in (torch.float32, torch.float64):
            return None
        recorder = self._recorder(body.shape)
        last = recorder.run(body.inner_fn, variables("i", len(body.shape))).name
        steps = recorder.instructions
        chain = self._chain(steps, result.name)
        if chain is None:
            return None
        affine, load, end = chain
        index = variables("i", len(body.shape))
        channel = _dimension(load.args[1], affine.variable)
        if channel is None or not same(body.shape[index.index(affine.variable)], contraction.shape[channel]):
            return None
        weight, call = self._weight(contraction, channel), self._call(contraction, channel)
        if weight is None or call is None:
            return None
        producer = replace(producer, origin=producer.origin.joined([node.origin]))
        scaled = self._scaled(producer, contraction, call, affine, channel, weight)
        written = self.graph.buffers[str(node.outputs[0])]
        if end == last and load.args[1] == index and _same_layout(result, written):
            scaled[-1] = replace(scaled[-1], outputs=node.outputs)
            del self.graph.buffers[result.name]
            self.made[written.name] = scaled[-1]
            return scaled
        rest = prune([step for step in steps if step.name != end], [last])
        self.made[result.name] = scaled[-1]
        return [*scaled, replace(node, body=replace(body, inner_fn=_Rest(rest, end, load, last, index)))]

    def _recorder(self, *shapes: Sequence[Expr]) -> Recorder:
        dtypes = {name: buffer.dtype for name, buffer in self.graph.buffers.items()}
        extents = {v: s for p, shape in zip("ir", shapes) for v, s in zip(variables(p, len(shape)), shape)}
        return Recorder(dtypes, extents)

    def _chain(self, steps: list[Any], name: str) -> tuple[_Affine, Instruction, str] | None:
        """The frozen affine function applied to the only load of ``name``, the load, and the result."""
        if not all(isinstance(step, Instruction) for step in steps):
            return None
        loads = [step for step in steps if step.op == "load" and step.args[0] == name]
        if len(loads) != 1:
            return None
        users: dict[str, list[Instruction]] = {}
        for step in steps:
            for used in used_names(step):
                users.setdefault(used, []).append(step)
        end = loads[0].name
        operations: list[tuple[str, str, bool]] = []
        own: tuple[Recordable, ...] = ()
        while len(users.get(end, ())) == 1:
            (step,) = users[end]
            operation = self._operation(step, end, steps)
            values = [name for _, name, _ in operations]
            more = () if operation is None else prune(steps, [*values, operation[1]])
            if operation is None or len({symbol for each in more for symbol in _symbols(each)}) > 1:
                break
            operations.append(operation)
            own, end = more, step.name
        symbols = [symbol for step in own for symbol in _symbols(step)]
        return (_Affine(tuple(operations), own, symbols[0]), loads[0], end) if symbols else None

    def _operation(self, step: Instruction, end: str, steps: list[Any]) -> tuple[str, str, bool] | None:
        if step.op not in ("add", "sub", "mul", "truediv") or step.args[0] == step.args[1]:
            return None
        first = step.args[1] == end
        other = step.args[0] if first else step.args[1]
        if (first and step.op == "truediv") or not self._is_frozen(other, steps):
            return None
        return step.op, other, first

    def _is_frozen(self, name: str, steps: list[Any]) -> bool:
        """Whether a value depends on frozen buffers alone."""
        own = prune(steps, [name])
        loads = [step for step in own if isinstance(step, Instruction) and step.op == "load"]
        return all(step.args[0] in self.frozen for step in loads) and not any(
            step.op in ("indirect_index", "index_expr") for step in own if isinstance(step, Instruction)
        )

    # -- the contraction -----------------------------------------------------------------------------------

    def _weight(self, body: Contraction, channel: int) -> tuple[Instruction, int] | None:
        """The load that rhs is, of a frozen buffer, and the buffer's channel dimension."""
        recorder = self._recorder(body.shape, body.reduce_shape)
        index = variables("i", len(body.shape))
        value = recorder.run(body.rhs, index, variables("r", len(body.reduce_shape)))
        steps = recorder.instructions
        if len(steps) != 1 or steps[0].op != "load" or steps[0].name != value.name:
            return None
        load = steps[0]
        buffer = self.graph.buffers[load.args[0]]
        dimension = _dimension(load.args[1], index[channel])
        used_once = sum(view.buffer == buffer.name for view in views_in(body.call.args)) == 1
        if dimension is None or buffer.name not in self.frozen or buffer.dtype != body.dtype:
            return None
        return (load, dimension) if used_once and _is_dense(buffer) else None

    def _call(self, body: Contraction, channel: int) -> Extern | None:
        """ATen's call in a form that has a start for each channel."""
        call = body.call
        if call.target == "aten.mm.default":
            call = replace(call, target="aten.addmm.default", args=(None, *call.args))
        if call.target not in _START or channel != 1:
            return None
        if body.start is None:
            return call
        recorder = self._recorder(body.shape)
        recorder.run(body.start, variables("i", len(body.shape)))
        steps = recorder.instructions
        if not all(isinstance(step, Instruction) for step in steps):
            return None
        own = variables("i", len(body.shape))[channel]
        loads = [step for step in steps if step.op == "load"]
        known = all(step.args[0] in self.frozen for step in loads)
        return call if known and {s for step in steps for s in _symbols(step)} <= {own} else None

    def _scaled(
        self,
        node: Node,
        body: Contraction,
        call: Extern,
        affine: _Affine,
        channel: int,
        weight: tuple[Instruction, int],
    ) -> list[Node]:
        """The new weight (unless it is the old one), the new start, the contraction."""
        load, dimension = weight
        old = self.graph.buffers[load.args[0]]
        new = self._buffer(replace(old, name=f"{old.name}_scaled")) if affine.scales else old.name
        start, width, rank = body.start, body.shape[channel], len(body.shape)

        def scaled(index: Index) -> Value:
            factor, _ = affine(index[dimension], None, body.dtype)
            return ops.mul(ops.load(old.name, tuple(index)), factor)

        def started(index: Index) -> Value:
            place = [index[0] if d == channel else ZERO for d in range(rank)]
            _, shift = affine(index[0], None if start is None else start(place), body.dtype)
            return ops.constant(0.0, body.dtype) if shift is None else shift

        index, rindex = variables("i", rank), variables("r", len(body.reduce_shape))
        starts = self._buffer(Buffer(f"{new}_start", body.dtype, (width,), contiguous_strides((width,))))
        args = [_renamed(each, old.name, new) for each in call.args]
        args[_START[call.target]] = StridedView(starts, (width,), (sympy.Integer(1),), ZERO)
        kwargs = {name: value for name, value in call.kwargs.items() if name != "beta"}
        contraction = replace(
            body,
            rhs=_Load(new, load.args[1], (*index, *rindex)),
            start=lambda index: ops.load(starts, (index[channel],)),
            call=replace(call, args=tuple(args), kwargs=kwargs),
        )
        weights = [Node((new,), Pointwise(old.shape, old.dtype, scaled), node.origin)]
        return [
            *(weights if affine.scales else ()),
            Node((starts,), Pointwise((width,), body.dtype, started), node.origin),
            replace(node, body=contraction),
        ]

    def _buffer(self, buffer: Buffer) -> str:
        name = buffer.name
        while name in self.graph.buffers:
            name += "_"
        self.graph.buffers[name] = replace(buffer, name=name)
        self.frozen |= {name}
        return name


@dataclass(frozen=True, slots=True)
class _Load:
    """A loop function: the element of ``buffer`` at ``index`` over ``symbols``."""

    buffer: str
    index: tuple[Expr, ...]
    symbols: tuple[Symbol, ...]

    def __call__(self, index: Index, rindex: Index) -> Value:
        places = dict(zip(self.symbols, (*index, *rindex)))
        return ops.load(self.buffer, tuple(expr.xreplace(places) for expr in self.index))


@dataclass(frozen=True, slots=True)
class _Rest:
    """A loop function: the result of ``steps`` on the loaded value, replacing value ``end`` of them."""

    steps: tuple[Recordable, ...]
    end: str
    load: Instruction
    last: str
    symbols: tuple[Symbol, ...]

    def __call__(self, index: Index) -> Value:
        places = dict(zip(self.symbols, index))
        buffer, place = self.load.args
        value = ops.load(buffer, tuple(expr.xreplace(places) for expr in place))
        return replay(self.steps, ops, {self.end: value}, places)[self.last]


def _dimension(index: Sequence[Expr], variable: Expr | None) -> int | None:
    """The dimension that ``variable`` alone indexes, if it occurs in no other one."""
    found = [d for d, expr in enumerate(index) if variable in expr.free_symbols]
    return found[0] if len(found) == 1 and index[found[0]] == variable else None


def _symbols(step: Recordable) -> set[Symbol]:
    assert isinstance(step, Instruction)
    exprs = step.args[1] if step.op == "load" else [arg for arg in step.args if isinstance(arg, Expr)]
    return free_symbols(exprs)


def _renamed(argument: Any, old: str, new: str) -> Any:
    if isinstance(argument, StridedView) and argument.buffer == old:
        return replace(argument, buffer=new)
    return argument


def _same_layout(left: Buffer, right: Buffer) -> bool:
    return left.dtype == right.dtype and all(
        same(a, b) for a, b in zip((*left.shape, *left.strides), (*right.shape, *right.strides), strict=True)
    )


def _is_dense(buffer: Buffer) -> bool:
    """Whether the buffer fills its memory without holes."""
    reach = sum(((size - 1) * stride for size, stride in zip(buffer.shape, buffer.strides)), sympy.Integer(1))
    return same(reach, numel(buffer.shape))
