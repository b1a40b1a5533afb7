"""`create_prim_func`: from tensors to a function of loops."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from sympy import Expr, Symbol
from torch.utils._sympy.functions import Min

from smelt.loops.ir import Buffer, Graph, Index, Node, Origin, Pointwise, Reduction, StridedView
from smelt.loops.reductions import identity
from smelt.nest.ir import Alloc, Block, For, Kernel, Stage, Stmt
from smelt.nest.scopes import unique_name
from smelt.nest.stages import Names, staged
from smelt.nest.tree import map_exprs, rewritten, with_body
from smelt.ops import ops
from smelt.records import replace
from smelt.script.inert import Word
from smelt.script.module import PrimFunc
from smelt.symbolic import contiguous_strides, free_symbols, loop_var
from smelt.symbolic.affine import replaced
from smelt.te.errors import refuse
from smelt.te.explicit import Explicit, nest_of
from smelt.te.index import Unknown, Var, as_index
from smelt.te.reductions import Combined, Reduced
from smelt.te.statements import ExternOp, ScanOp, statements_of, steps_of
from smelt.te.tensor import ComputeOp, Operation, PlaceholderOp, Tensor
from smelt.te.value import Place, Value


def create_prim_func(
    ops: Sequence[Tensor | Var | Symbol] | Tensor,
    index_dtype_override: str | None = None,
    *,
    name: str = "main",
) -> PrimFunc:
    """A function of loops with parameters ``ops``, in order: it fills the computed ones.

    Intermediate tensors that are no parameters are local memory. A `te.var` among them is a number that each
    call passes. ``index_dtype_override`` has no effect: indices are as wide as necessary.

    >>> from smelt import te
    >>> A = te.placeholder((4, 3), name="A")
    >>> B = te.compute((3, 4), lambda i, j: A[j, i] + 1.0, name="B")
    >>> [param.name for param in te.create_prim_func([A, B]).kernel.params]
    ['A', 'B']

    Raises:
        SmeltError: SM1106, an argument is no tensor or te.var, or given twice; a placeholder is read and not
            given; SM1101, nothing shows that an index is inside of its tensor; SM1111, an extern without a
            valid function of its tensors, or a scan without valid steps.
    """
    given = [ops] if isinstance(ops, Tensor) else list(ops)
    numbers = {place: as_index(each) for place, each in enumerate(given) if isinstance(each, (Var, Symbol))}
    scalars = {place: each for place, each in numbers.items() if isinstance(each, Symbol)}
    tensors: list[Any] = [each for place, each in enumerate(given) if place not in scalars]
    return _Maker(tensors, scalars).function(name)


def in_order(tensors: Sequence[Tensor]) -> list[Operation]:
    """The operations that compute tensors, each after those whose tensors it reads."""
    order: dict[int, Operation] = {}
    open_: list[tuple[Operation, bool]] = [(tensor.op, False) for tensor in reversed(tensors)]
    while open_:
        op, done = open_.pop()
        if id(op) in order:
            continue
        if done:
            order[id(op)] = op
        else:
            open_.append((op, True))
            open_ += [(each.op, False) for each in reversed(op.input_tensors)]
    return list(order.values())


class _Pool:
    """A pool of unique names."""

    def __init__(self) -> None:
        self.used: set[str] = set()

    def __call__(self, label: str) -> str:
        label = "".join(c if c.isalnum() or c == "_" else "_" for c in label) or "v"
        name = unique_name(label, self.used)
        self.used.add(name)
        return name


class _Maker:
    def __init__(self, tensors: Sequence[Tensor], scalars: Mapping[int, Symbol]) -> None:
        for tensor in tensors:
            if not isinstance(tensor, Tensor):
                refuse("SM1106", f"{tensor!r} is no tensor", remedy="give placeholders and computed tensors")
        if len({id(tensor) for tensor in tensors}) != len(tensors):
            refuse("SM1106", "a tensor is given twice")
        if len(set(scalars.values())) != len(scalars):
            refuse("SM1106", "a number is given twice")
        self.tensors, self.scalars = tensors, scalars
        self.order = in_order(tensors)
        for op in self.order:
            if op.open is not None:
                raise op.open
        self.names: dict[int, str] = {}
        self.pool = _Pool()
        self.symbols: dict[Symbol, Expr] = {}
        self.special: dict[str, Explicit] = {}
        self.called: dict[int, int] = {}
        """The number of statements of an operation that is a call."""
        self.graph = Graph()
        self.labels: dict[str, Names] = {}

    def function(self, name: str) -> PrimFunc:
        self._name()
        for op in self.order:
            for tensor in op.outputs:
                self._buffer(tensor)
            if isinstance(op, ComputeOp):
                self._compute(op)
            elif isinstance(op, ScanOp):
                self._scan(op)
            elif isinstance(op, ExternOp):
                self.called[id(op)] = 0
        params = [self.names[id(tensor)] for tensor in self.tensors]
        outputs = [tensor for tensor in self.tensors if not isinstance(tensor.op, PlaceholderOp)]
        for tensor in outputs:
            buffer = self.graph.buffers[self.names[id(tensor)]]
            self.graph.outputs.append(StridedView(buffer.name, buffer.shape, buffer.strides, Expr()))
        kernel = staged(self.graph, name, params, self.labels)
        if self.special or self.called:
            kernel = self._with_special(kernel)
        if self.scalars:
            scalars = tuple((place, self.symbols.get(each, each)) for place, each in self.scalars.items())
            sizes = dict.fromkeys((*kernel.sizes, *(symbol for _, symbol in scalars)))
            kernel = replace(kernel, sizes=tuple(sorted(sizes, key=str)), scalars=scalars)
        kernel = with_body(kernel, Block(tuple(self._nests(kernel.body.stmts))))
        attrs: dict[str, Any] = {"tir.noalias": True}
        for op in self.order:
            free = op.attrs.get("layout_free_placeholders", ())
            found = [number for number, each in enumerate(self.tensors) if any(each is one for one in free)]
            if found:
                attrs["layout_free_buffers"] = [*attrs.get("layout_free_buffers", []), *found]
        return PrimFunc(kernel, dict(sorted(attrs.items())))

    def _name(self) -> None:
        given = {id(tensor) for tensor in self.tensors}
        pool = self.pool
        shapes: list[Expr] = []
        for tensor in self.tensors:
            self.names[id(tensor)] = pool(tensor.name)
            shapes += tensor.sizes
        for op in self.order:
            for tensor in op.outputs:
                if id(tensor) not in given:
                    if isinstance(op, PlaceholderOp):
                        what = f"{tensor.name} is read, and is no parameter"
                        refuse("SM1106", what, remedy=f"create_prim_func([{tensor.name}, …])")
                    self.names[id(tensor)] = pool(tensor.name)
        shapes += self.scalars.values()
        known = free_symbols(shapes)
        for op in self.order:
            for symbol in _sizes_of(op):
                if symbol not in known:
                    what = f"the size {symbol.label} is in the shape of no parameter"
                    refuse("SM1106", what, remedy="give a tensor that has it, or the te.var itself")
        for expr in shapes:
            for symbol in sorted(free_symbols([expr]), key=lambda s: s.name):
                if isinstance(symbol, Unknown) and symbol not in self.symbols:
                    self.symbols[symbol] = loop_var(pool(symbol.label))

    def _buffer(self, tensor: Tensor) -> None:
        name = self.names[id(tensor)]
        shape = tuple(replaced(size, self.symbols) for size in tensor.sizes)
        self.graph.buffers[name] = Buffer(name, tensor.kind, shape, contiguous_strides(shape))
        if isinstance(tensor.op, PlaceholderOp):
            self.graph.inputs.append(name)

    def _place(self, symbols: Mapping[Symbol, Expr]) -> Place:
        return Place({**self.symbols, **symbols}, lambda tensor: self.names[id(tensor)])

    def _compute(self, op: ComputeOp) -> None:
        labels = Names(tuple(a.name for a in op.axis), tuple(a.name for a in op.reduce_axis))
        outs = [self.names[id(tensor)] for tensor in op.outputs]
        axes = [axis.symbol for axis in op.axis]
        shape = self.graph.buffers[outs[0]].shape
        first = op.body[0]
        variables = [axis.symbol for axis in op.reduce_axis]
        extents = [axis.extent for axis in op.reduce_axis]
        told = free_symbols(extents).isdisjoint((*axes, *variables))
        if isinstance(first, Reduced) and not (first.of.is_plain and len(outs) == 1 and told):
            reduced = tuple(replaced(extent, self.symbols) for extent in extents)

            def place(index: Index, at: Index) -> Place:
                return self._place({**dict(zip(axes, index)), **dict(zip(variables, at))})

            name = outs[0] if len(outs) == 1 else self.pool(op.name)
            self.special[outs[0]] = Explicit(name, outs, first.of, tuple(axes), shape, reduced, place, labels)
            return
        for out, body in zip(outs, op.body):
            self.labels[out] = labels
            loop = (
                self._reduction(op, body.of, shape)
                if isinstance(body, Reduced)
                else self._pointwise(op, body, shape)
            )
            self.graph.nodes.append(Node((out,), loop, Origin(f"te.{op.name}")))

    def _scan(self, op: ScanOp) -> None:
        """The nests of a scan: the first rows of each state, then the steps for all further rows."""
        for out, first, step, state in zip(op.outputs, op.init, op.update, op.states):
            name = self.names[id(out)]
            self.names.update({id(step): name, id(state): name})
            rows, *others = self.graph.buffers[name].shape
            shape = (Min(self.graph.buffers[self.names[id(first)]].shape[0], rows), *others)
            load = partial(ops.load, self.names[id(first)])
            self.graph.nodes.append(Node((name,), Pointwise(shape, out.kind, load), Origin(f"te.{op.name}")))
        for step in op.update:
            assert isinstance(step.op, ComputeOp)
            self._compute(step.op)

    def _nests_of(self, op: Operation) -> list[tuple[str, int]]:
        """The nests of an operation: the buffer that each writes first, and their number."""
        if isinstance(op, ComputeOp):
            out = self.names[id(op.outputs[0])]
            return [(out, 1 if out in self.special else len(op.outputs))]
        if isinstance(op, ScanOp):
            return [("", len(op.states)), *((self.names[id(step)], 1) for step in op.update)]
        return [("", self.called.get(id(op), 0))]

    def _pointwise(self, op: ComputeOp, body: Value, shape: tuple[Expr, ...]) -> Pointwise:
        axes = [axis.symbol for axis in op.axis]
        return Pointwise(shape, body.kind, lambda index: body.run(self._place(dict(zip(axes, index)))))

    def _reduction(self, op: ComputeOp, of: Combined, shape: tuple[Expr, ...]) -> Reduction:
        assert of.kind is not None
        symbols = [axis.symbol for axis in (*op.axis, *of.axes)]
        (value,) = of.values
        nothing = identity(of.kind, value.kind)
        where = of.where

        def inner(index: Index, at: Index) -> Any:
            place = self._place(dict(zip(symbols, (*index, *at))))
            if where is None:
                return value.run(place)
            return ops.masked(where.run(place), lambda: value.run(place.inside()), nothing)

        extents = tuple(replaced(axis.extent, self.symbols) for axis in of.axes)
        return Reduction(of.kind, shape, extents, value.kind, inner)

    def _nests(self, stmts: Sequence[Stmt]) -> Iterator[Stmt]:
        """The outputs of one operation in one nest, with the operation's annotations."""
        yield from (stmt for stmt in stmts if isinstance(stmt, Alloc))
        nests = iter([stmt for stmt in stmts if not isinstance(stmt, Alloc)])
        given = {id(tensor) for tensor in self.tensors}
        for op in self.order:
            own: Sequence[Stmt] = [next(nests) for _, count in self._nests_of(op) for _ in range(count)]
            if isinstance(op, ScanOp):
                own = steps_of(op, own, self.pool)
            elif isinstance(op, ComputeOp):
                own = _together(own)
            notes = {key: self._note(value, given) for key, value in op.attrs.items()}
            notes = {key: value for key, value in notes.items() if value is not None and value != ()}
            yield from _noted(Block(tuple(own)), tuple(notes.items())).stmts

    def _note(self, value: Any, given: set[int]) -> Any:
        """The user's annotation: tensors are replaced by their names, except for parameters."""
        if isinstance(value, Tensor):
            return None if id(value) in given or id(value) not in self.names else Word(self.names[id(value)])
        if isinstance(value, (list, tuple)):
            return tuple([each for each in (self._note(each, given) for each in value) if each is not None])
        return value

    def _with_special(self, kernel: Kernel) -> Kernel:
        """The kernel with the statements that loop functions cannot express, at their places."""
        written = {out for each in self.special.values() for out in each.outs}
        written |= {self.names[id(out)] for op in self.order if id(op) in self.called for out in op.outputs}
        params = tuple(replace(p, written=True) if p.name in written else p for p in kernel.params)
        given = {p.name for p in params}
        stmts = list(kernel.body.stmts)
        nests = iter([s for s in stmts if not isinstance(s, Alloc)])
        allocs = [s for s in stmts if isinstance(s, Alloc)]
        inside = [
            self.graph.buffers[out] for out in sorted(written - given, key=list(self.graph.buffers).index)
        ]
        allocs += [Alloc(b.name, b.dtype, b.shape) for b in inside]
        found = []
        kernel = replace(kernel, params=params)
        for op in self.order:
            if isinstance(op, ExternOp):
                more, own = statements_of(op, kernel, self.names, self.symbols, self.pool)
                self.called[id(op)] = len(own)
                kernel = with_body(kernel, Block((*kernel.body.stmts, *own)))
                allocs += more
                found += own
                continue
            for out, count in self._nests_of(op):
                if out in self.special:
                    nest = nest_of(self.special[out], kernel, self.graph, self.pool)
                    kernel = with_body(kernel, Block((*kernel.body.stmts, nest)))
                    found.append(nest)
                else:
                    found += [next(nests) for _ in range(count)]
        return with_body(kernel, replace(kernel.body, stmts=(*allocs, *found)))


def _together(nests: Sequence[Stmt]) -> Sequence[Stmt]:
    """Nests of equal loops, merged."""
    loops = [nest for nest in nests if isinstance(nest, For)]
    if len(nests) < 2 or len(loops) != len(nests):
        return nests
    var = loops[0].var
    bodies = [map_exprs(loop.body, partial(replaced, mapping={loop.var: var})) for loop in loops]
    inner = _together([stmt for body in bodies for stmt in body.stmts])
    return (replace(loops[0], body=Block(tuple(inner))),)


def _noted(block: Block, notes: tuple[tuple[str, Any], ...]) -> Block:
    """A nest with annotated stages."""
    if not notes:
        return block
    return rewritten(
        block, lambda stmt: (replace(stmt, notes=stmt.notes + notes),) if isinstance(stmt, Stage) else None
    )


def _sizes_of(op: Operation) -> set[Unknown]:
    """The sizes that an operation needs."""
    if isinstance(op, ScanOp):
        return {size for step in op.update for size in _sizes_of(step.op)}
    exprs = [size for tensor in op.outputs for size in tensor.sizes]
    exprs += [axis.extent for axis in op.reduce_axis] + [axis.begin for axis in op.reduce_axis]
    found = {s for s in free_symbols(exprs) if isinstance(s, Unknown) and s.is_size}
    open_, seen = list(op.body), set()
    while open_:
        value = open_.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        exprs = [
            e for e in (getattr(value, "expr", None), *getattr(value, "index", ())) if isinstance(e, Expr)
        ]
        found |= {s for s in free_symbols(exprs) if isinstance(s, Unknown) and s.is_size}
        open_ += value.of.expressions if isinstance(value, Reduced) else value.parts
    return found


__all__ = ["create_prim_func", "in_order"]
