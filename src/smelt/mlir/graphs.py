"""Evaluation of a loop graph by a target's operations: nodes in order, and the supported calls."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import sympy
import torch
from sympy import Expr, Symbol

from smelt.errors import Problem, Unsupported
from smelt.loops.dependencies import variables
from smelt.loops.ir import (
    Attentions,
    Bind,
    Check,
    Extern,
    Graph,
    Native,
    Node,
    Origin,
    Pointwise,
    StridedView,
)
from smelt.mlir.arrays.dialect import Array, Kind, Shape
from smelt.mlir.arrays.strided import index_of_view, is_whole, parts_of_view
from smelt.mlir.capabilities import ASSERTIONS, CALLS, SEED
from smelt.mlir.control import CONTROL
from smelt.mlir.external import is_external, is_unsigned, leaves, named_arguments, result_names
from smelt.mlir.target import Target
from smelt.ops import ops

Place = Callable[[str | None], AbstractContextManager[Any]]

_FAILED = ["Expected Tensor with single nonzero value, but got zero"]


def _draws_seed(body: Extern) -> bool:
    return body.target == SEED and body.args[2] == [] and body.kwargs.get("dtype") is torch.int64


def only_numbers(body: Extern) -> bool:
    """Whether a call returns no sizes, or is control flow whose only sizes are plain numbers."""
    return not body.sizes or (body.target in CONTROL and all(each.dim is None for each in body.sizes))


class MissingInputError(Unsupported):
    """A node reads the result of an unsupported node, which alone is reported."""


class Buffers(Mapping[str, Array]):
    """The arrays by buffer; buffers that could not be computed are missing."""

    def __init__(self) -> None:
        self.arrays: dict[str, Array] = {}

    def __getitem__(self, name: str) -> Array:
        if name not in self.arrays:
            raise MissingInputError(name)
        return self.arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.arrays)

    def __len__(self) -> int:
        return len(self.arrays)


class Evaluation:
    """Evaluates one loop graph. Everything that the target cannot express is added to ``problems``.

    ``place``: the user's line → a context manager for emitting a node.
    ``external``: operators that stay external calls (`smelt.mlir.external`).
    """

    def __init__(
        self,
        graph: Graph,
        dialect: Target,
        problems: list[Problem],
        place: Place | None = None,
        external: Collection[str] = (),
    ) -> None:
        self.graph, self.dialect, self.problems = graph, dialect, problems
        self.external = external
        self.place: Place = place or (lambda where: nullcontext())
        self.buffers = Buffers()
        self.bodies = dialect.bodies(graph, self.buffers, self.view)
        self.absent: dict[str, str] = {}  # buffer → why there is none; each call that reads it reports this

    def run(self, inputs: Sequence[Array | None]) -> tuple[list[Array], list[Array | None]]:
        """The final values of the mutated inputs, in the order of ``graph.mutations``, and the outputs.

        ``inputs``: an array for each graph input, None for an absent one. An output that is a number is an
        array of rank 0. Checks (`smelt.loops.ir.Check`) are omitted if the dialect cannot raise.
        """
        self._take(inputs)
        for name, tensor in self.graph.constants.items():
            path = self.graph.constant_paths.get(name, name)
            self.buffers.arrays[name] = literal(self.dialect, tensor, path)
        for node in self.graph.nodes:
            with self.place(node.origin.where):
                try:
                    self._node(node)
                except MissingInputError as missing:
                    if missing.reason in self.absent:
                        why = self.absent[missing.reason]
                        self.problems.append(Problem(f"{node.origin.op}: {why}", node.origin.where))
                except Unsupported as refusal:
                    self.problems.append(Problem(f"{node.origin.op}: {refusal.reason}", node.origin.where))
        if self.problems:
            return [], []
        mutated: list[Array] = []
        outputs: list[Array | None] = []
        try:
            for each in self.graph.mutations:
                mutated.append(self._shaped(each.source, each.target))
            for out in self.graph.outputs:
                outputs.append(None if out is None else self.argument(out))
        except Unsupported as refusal:
            self.problems.append(Problem(f"an output: {self.absent.get(refusal.reason, refusal.reason)}"))
        return mutated, outputs

    def _take(self, inputs: Sequence[Array | None]) -> None:
        dialect = self.dialect
        for name, array in zip(self.graph.inputs, inputs, strict=True):
            if isinstance(name, Symbol) and isinstance(array, Array):
                dialect.bind(name, array)
        for name, array in zip(self.graph.inputs, inputs, strict=True):
            if not isinstance(name, str) or array is None:
                continue
            shape = self.graph.buffers[name].shape
            for size, own in zip(shape, array.shape):
                if isinstance(size, Symbol) and size.name not in dialect.symbols:
                    dialect.bind(size, dialect.size(own))
            self.buffers.arrays[name] = self._inside(array, shape)

    def _inside(self, array: Array, shape: Shape) -> Array:
        """An array of ``shape`` as loops use it: complex numbers are pairs in a last dimension."""
        return self.dialect.relabel(self.dialect.pairs(array) if array.dtype.is_complex else array, shape)

    def _shaped(self, source: str, target: str) -> Array:
        """The final value of an input, in the caller's form."""
        _, own, strides = self.graph.buffers[source].outside
        dtype, shape, _ = self.graph.buffers[target].outside
        _, shape = self.dialect.outside(dtype, shape)
        view = StridedView(source, own, strides, sympy.Integer(0), dtype if dtype.is_complex else None)
        return self.dialect.relabel(self.view(view), shape)

    # -- nodes --------------------------------------------------------------------------------------

    def _node(self, node: Node) -> None:
        body = node.body.call if isinstance(node.body, Attentions) else node.body
        if isinstance(body, Check):
            if self.dialect.raises:
                self.dialect.require(self.dialect.size(body.condition), f"{body.kind}: {body.message}")
            return
        if isinstance(body, Bind):
            self.dialect.bind(body.symbol, self.dialect.size(body.value))
            return
        if isinstance(body, Extern):
            if _draws_seed(body):
                self._sow(node)
                return
            results: Sequence[Any] = self._call(body, node.outputs)
            if body.symbol is not None:
                self.dialect.bind(body.symbol, results[0])
                return
        else:
            assert not isinstance(body, Native)  # refused before (`Capabilities`)
            results = self.bodies.evaluate(body, node.origin)
        for name, result in zip(node.outputs, results):
            if name is not None:
                shape = self.graph.buffers[name].shape
                self.buffers.arrays[name] = self._inside(result, shape)

    def _sow(self, node: Node) -> None:
        """The seed of all random numbers. If the dialect has none, each call that needs it is a problem."""
        (name,) = node.outputs
        assert name is not None
        try:
            self.buffers.arrays[name] = self.dialect.seed()
        except Unsupported as refusal:
            self.absent[name] = refusal.reason

    def _call(self, body: Extern, outputs: Sequence[str | None]) -> list[Any]:
        if is_external(body, self.external):
            return self._external(body, outputs)
        if body.target in ASSERTIONS and self.dialect.raises:
            holds, *message = body.args
            truth = self.dialect.convert(self.dialect.item(self.view(holds)), torch.bool)
            self.dialect.require(truth, f"RuntimeError: {(message or _FAILED)[0]}")
            return []
        if body.target not in CALLS or body.overwrites or not only_numbers(body):
            raise Unsupported(body.reason or f"{body.target} has no loop functions")
        args = [self.argument(arg) for arg in body.args]
        if body.target == "aten.clone.default":
            return args
        if body.target == "aten._local_scalar_dense.default":
            return [self.number(args[0])]
        bodies = [lambda operands, each=each: self._inner(each, operands) for each in body.bodies]
        results = CONTROL[body.target](self.dialect, bodies, self._kinds(body, outputs), *args)
        for number in body.sizes:
            self.dialect.bind(number.symbol, results[number.output])
        return results

    def _kinds(self, body: Extern, outputs: Sequence[str | None]) -> list[Kind]:
        """Dtypes and shapes of the results of control flow; numbers are int64 of rank 0."""
        last = body.bodies[-1]
        stacked = {"higher_order.scan": len(leaves(body.args[0])), "higher_order.map_impl": 0}
        kinds: list[Kind] = []
        for place, (name, inner) in enumerate(zip(outputs, last.outputs, strict=True)):
            if name is not None:
                dtype, shape, _ = self.graph.buffers[name].outside
            elif isinstance(inner, StridedView):  # no node reads it
                dtype, shape = inner.dtype or last.buffers[inner.buffer].dtype, inner.shape
                if place >= stacked.get(body.target, len(outputs)):
                    shape = (sympy.Integer(1), *shape)
            else:
                dtype, shape = torch.int64, ()
            kinds.append(self.dialect.outside(dtype, shape))
        return kinds

    def _external(self, body: Extern, outputs: Sequence[str | None]) -> list[Any]:
        """The call of a declared function; its results have the types of the operator's results."""
        arguments: list[tuple[str, Any]] = []
        unsigned: list[bool] = []
        for name, given in named_arguments(body):
            arguments += [(name, each) for each in leaves(self.argument(given))]
            unsigned += [is_unsigned(self.graph, each) for each in leaves(given)]
        made = [self.graph.buffers[name].outside for name in result_names(outputs)]
        kinds = [self.dialect.outside(dtype, shape) for dtype, shape, _ in made]
        return self.dialect.external_call(body, arguments, kinds, unsigned)

    def _inner(self, graph: Graph, operands: Sequence[Array]) -> list[Any]:
        """A branch or loop body evaluated on its operands, in the current region."""
        inner = Evaluation(graph, self.dialect, self.problems, self.place, self.external)
        mutated, outputs = inner.run(operands)
        if self.problems:
            raise MissingInputError("a body that is not supported")
        assert not mutated
        return outputs

    def number(self, x: Array) -> Array:
        """A tensor of one element as a number: int64, float64 or bool."""
        if x.dtype.is_complex:
            raise Unsupported("a complex number that is no tensor")
        x = self.dialect.item(x)
        dtype = x.dtype
        if dtype is not torch.bool:
            dtype = torch.float64 if dtype.is_floating_point else torch.int64
        return self.dialect.convert(x, dtype)

    def argument(self, arg: Any) -> Any:
        """An argument of a call: views, numbers and lists of these as arrays; others are unchanged."""
        if isinstance(arg, StridedView):
            return self.view(arg)
        if isinstance(arg, (list, tuple)):
            return [self.argument(each) for each in arg]
        if isinstance(arg, (int, float, bool, Expr, sympy.logic.boolalg.Boolean)):
            return self.dialect.size(sympy.sympify(arg))
        return arg

    def view(self, view: StridedView) -> Any:
        """The array of a strided view of a buffer.

        Raises:
            Unsupported: no index transform gives the positions of the view's elements.
        """
        if view.dtype is not None and view.dtype.is_complex:
            return self.dialect.joined(*(self.view(part) for part in parts_of_view(view)))
        buffer, array = self.graph.buffers[view.buffer], self.buffers[view.buffer]
        if is_whole(view, buffer):
            return self.dialect.relabel(array, view.shape)
        if any(size == 0 for size in view.shape):
            return self.dialect.full(0, array.dtype, view.shape)
        place = index_of_view(view, buffer, variables("i", len(view.shape)))
        load = Pointwise(view.shape, array.dtype, lambda index: ops.load(view.buffer, tuple(place)))
        return self.bodies.evaluate(load, Origin("a view"))[0]


def literal(dialect: Target, tensor: torch.Tensor, name: str) -> Array:
    """A constant array; complex numbers are pairs of reals in the last dimension."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.detach().resolve_conj())
    return dialect.literal(tensor, name)
