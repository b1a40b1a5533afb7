"""A loop graph as operations on tensors: node after node, and the calls that Linalg knows how to make."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import sympy
import torch
from sympy import Expr, Symbol

from smelt.errors import Problem, Unsupported
from smelt.loops.dependencies import variables
from smelt.loops.ir import (
    Attentions,
    Bind,
    Body,
    Buffer,
    Check,
    Contraction,
    Extern,
    Fold,
    Graph,
    Node,
    Pointwise,
    Reduction,
    Scan,
    Scatter,
    Sort,
    StridedView,
)
from smelt.mlir.arrays.graphs import only_numbers
from smelt.mlir.arrays.strided import index_of_view, is_whole, parts_of_view
from smelt.mlir.external import call, is_external, is_unsigned, leaves, named_arguments, result_names
from smelt.mlir.linalg.bodies import Bodies
from smelt.mlir.linalg.contractions import contract
from smelt.mlir.linalg.control import CONTROL
from smelt.mlir.linalg.determinants import WIDE, determinants
from smelt.mlir.linalg.literals import literal
from smelt.mlir.linalg.scalars import Scalar, compare, constant, convert, require, word
from smelt.mlir.linalg.sorting import sort
from smelt.mlir.linalg.writer import Writer
from smelt.ops import ops

Place = Callable[[str | None], AbstractContextManager[Any]]
ZERO = sympy.Integer(0)

SEED = "aten.randint.low"
"""How a loop graph draws the seed of its random numbers."""

DETERMINANTS = ("aten._linalg_det.default", "aten._linalg_slogdet.default")

ASSERTIONS = ("aten._assert_async.default", "aten._assert_async.msg")

_SIMPLE = {"aten.clone.default", "aten._local_scalar_dense.default", *CONTROL}
CALLS = frozenset({*_SIMPLE, SEED, *DETERMINANTS, *ASSERTIONS})
"""What Linalg does of what the loop graph calls."""


_FAILED = ["Expected Tensor with single nonzero value, but got zero"]


class MissingInputError(Unsupported):
    """A node reads what another one, that is not supported, should have made: told once, there."""


class Tensors(Mapping[str, Any]):
    """The tensors by buffer; one that could not be made is missing."""

    def __init__(self) -> None:
        self.made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self.made:
            raise MissingInputError(name)
        return self.made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.made)

    def __len__(self) -> int:
        return len(self.made)


class Evaluation:
    """One loop graph under a writer. What Linalg cannot express is added to ``problems``, all of it.

    ``place``: gives a context manager for what is made of a node, from the user's line. ``seed``: writes a
    new random number. ``external``: operators that stay calls (`smelt.mlir.external`).
    """

    def __init__(
        self,
        graph: Graph,
        writer: Writer,
        problems: list[Problem],
        place: Place,
        seed: Callable[[], Scalar],
        external: Collection[str] = (),
    ) -> None:
        self.graph, self.writer, self.problems, self.place, self.seed = graph, writer, problems, place, seed
        self.external = external
        self.tensors = Tensors()
        self.bodies = Bodies(writer, graph, self.tensors)

    def run(self, inputs: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """What the mutated inputs hold at the end, in the order of ``graph.mutations``, and the outputs:
        tensors, numbers (`Scalar`) and None.

        ``inputs``: one for each of the graph's: a tensor, a `Scalar`, or None where it has none.
        """
        self._take(inputs)
        for name, tensor in self.graph.constants.items():
            try:
                self.tensors.made[name] = literal(tensor, self.graph.constant_paths.get(name, name))
            except Unsupported as refusal:
                self.problems.append(Problem(f"{name}: {refusal.reason}"))
        for node in self.graph.nodes:
            with self.place(node.origin.where):
                try:
                    self._node(node)
                except MissingInputError:
                    pass
                except Unsupported as refusal:
                    self.problems.append(Problem(f"{node.origin.op}: {refusal.reason}", node.origin.where))
        if self.problems:
            return [], []
        mutated = [self._shaped(each.source, each.target) for each in self.graph.mutations]
        outputs: list[Any] = []
        for out in self.graph.outputs:
            try:
                outputs.append(None if out is None else self.argument(out))
            except Unsupported as refusal:
                self.problems.append(Problem(f"an output: {refusal.reason}"))
        return mutated, outputs

    def _take(self, inputs: Sequence[Any]) -> None:
        for name, value in zip(self.graph.inputs, inputs, strict=True):
            if isinstance(name, Symbol) and value is not None:
                self.writer.sizes.know(name.name, value)
        for name, value in zip(self.graph.inputs, inputs, strict=True):
            if not isinstance(name, str) or value is None:
                continue
            buffer = self.graph.buffers[name]
            for dim, size in enumerate(buffer.shape):
                if isinstance(size, Symbol) and size.name not in self.writer.sizes.symbols:
                    self.writer.sizes.know(size.name, self.writer.dimension(value, dim))
            self.tensors.made[name] = self._inside(value, buffer)

    def _inside(self, value: Any, buffer: Buffer) -> Any:
        """What the caller, or a body, gives, as loops see it; literals are so already."""
        if buffer.paired and value.type.rank < len(buffer.shape):
            value = self.writer.pairs(value, buffer.dtype, buffer.shape)
        return self.writer.cast(value, buffer.dtype, buffer.shape)

    def _shaped(self, source: str, target: str) -> Any:
        """What an input holds at the end, as the caller sees it."""
        dtype, shape, _ = self.graph.buffers[target].outside
        _, own, strides = self.graph.buffers[source].outside
        kind = dtype if dtype.is_complex else None
        return self.writer.cast(self.view(StridedView(source, own, strides, ZERO, kind)), dtype, shape)

    # -- nodes -------------------------------------------------------------------------------------------

    def _node(self, node: Node) -> None:
        body = node.body.call if isinstance(node.body, Attentions) else node.body
        sizes = self.writer.sizes
        self.bodies.origin = node.origin
        if isinstance(body, Check):
            require(Scalar(sizes.number(body.condition).value, torch.bool), f"{body.kind}: {body.message}")
            return
        if isinstance(body, Bind):
            sizes.know(body.symbol.name, sizes.number(body.value))
            return
        if isinstance(body, Extern):
            results: Sequence[Any] = self._call(body, node)
            if body.symbol is not None:
                sizes.know(body.symbol.name, results[0])
                return
        else:
            results = self._loops(body)
        for name, result in zip(node.outputs, results):
            if name is not None:
                buffer = self.graph.buffers[name]
                given = isinstance(body, Extern) and buffer.paired
                whole = self._inside(result, buffer) if given else result
                self.tensors.made[name] = self.writer.cast(whole, buffer.dtype, buffer.shape)

    def _loops(self, body: Body) -> list[Any]:
        bodies = self.bodies
        if isinstance(body, Pointwise):
            return bodies.pointwise(body)
        if isinstance(body, Reduction):
            return bodies.reduction(body)
        if isinstance(body, Contraction):
            return contract(bodies, body, self.view)
        if isinstance(body, Scan):
            return bodies.scan(body)
        if isinstance(body, Fold):
            return bodies.fold(body)
        if isinstance(body, Sort):
            return sort(bodies, body)
        assert isinstance(body, Scatter)
        return bodies.scatter(body)

    def _call(self, body: Extern, node: Node) -> list[Any]:
        if body.target == SEED and body.args[2] == [] and body.kwargs.get("dtype") is torch.int64:
            return [self.writer.fill(self.seed(), torch.int64, ())]
        if body.target in DETERMINANTS and isinstance(body.args[0], StridedView):
            whole, sign, logarithm = determinants(self.bodies, body.args[0], self.view(body.args[0]))
            dtype = self.graph.buffers[body.args[0].buffer].dtype
            found = [whole] if body.target == "aten._linalg_det.default" else [sign, logarithm]
            shape = body.args[0].shape[:-2]
            return [self.bodies.converted(each, WIDE, dtype, shape) for each in found]
        if body.target in ASSERTIONS:
            holds, *message = body.args
            require(convert(self.number(holds), torch.bool), f"RuntimeError: {(message or _FAILED)[0]}")
            return []
        if is_external(body, self.external):
            return self._external(body, node)
        if body.target not in _SIMPLE or body.overwrites or not only_numbers(body):
            raise Unsupported(body.reason or f"{body.target} has no loop functions")
        args = [self.argument(arg) for arg in body.args]
        if body.target == "aten.clone.default":
            return [args[0]]
        if body.target == "aten._local_scalar_dense.default":
            (view,) = body.args
            return [self.number(view)]
        inner = [lambda operands, each=each: self._inner(each, operands) for each in body.bodies]
        made = [None if name is None else self._made(name) for name in node.outputs]
        results = CONTROL[body.target](self.writer, inner, made, *args)
        for number in body.sizes:
            self.writer.sizes.know(number.symbol.name, results[number.output])
        return results

    def _external(self, body: Extern, node: Node) -> list[Any]:
        """The call of a declared function; what it gives has the types of the operator's results."""
        arguments: list[tuple[str, Any]] = []
        unsigned: list[bool] = []
        for name, given in named_arguments(body):
            made = self.argument(given)
            arguments += [(name, each.value if isinstance(each, Scalar) else each) for each in leaves(made)]
            unsigned += [is_unsigned(self.graph, each) for each in leaves(given)]
        kinds = [self._made(name) for name in result_names(node.outputs)]
        results = call(body, arguments, [self.writer.type(*kind) for kind in kinds], unsigned)
        sizes = self.writer.sizes
        for result, (_, shape) in zip(results, kinds):
            for dim, size in enumerate(shape):
                if not size.is_Integer:
                    fits = compare("eq", self.writer.dimension(result, dim), sizes.number(size))
                    require(fits, f"RuntimeError: a result of {body.target} is not of the size {size}")
        return results

    def _made(self, name: str) -> tuple[torch.dtype, Sequence[Expr]]:
        dtype, shape, _ = self.graph.buffers[name].outside
        return dtype, shape

    def _inner(self, graph: Graph, operands: Sequence[Any]) -> list[Any]:
        """A branch or loop body on its operands, in the region that is open."""
        inner = Evaluation(graph, self.writer, self.problems, self.place, self.seed, self.external)
        mutated, outputs = inner.run(operands)
        if self.problems:
            raise MissingInputError("a body that is not supported")
        assert not mutated
        return outputs

    # -- arguments ---------------------------------------------------------------------------------------

    def number(self, view: StridedView) -> Scalar:
        """The element of a view of one element, as a number: int64, float64 or bool."""
        from torch_mlir.dialects import arith
        from torch_mlir.ir import IndexType

        tensor, dtype = self.view(view), self.graph.buffers[view.buffer].dtype
        zero = [arith.constant(IndexType.get(), 0) for _ in view.shape]
        found = self.writer.element(tensor, zero, dtype)
        if dtype is torch.bool:
            return found
        return convert(found, torch.float64 if dtype.is_floating_point else torch.int64)

    def argument(self, arg: Any) -> Any:
        """An argument of a call: views as tensors, numbers as `Scalar`, lists of these; else as it is."""
        if isinstance(arg, StridedView):
            return self.view(arg)
        if isinstance(arg, (list, tuple)):
            return [self.argument(each) for each in arg]
        if isinstance(arg, bool):
            return constant(arg, torch.bool)
        if isinstance(arg, (int, float, Expr, sympy.logic.boolalg.Boolean)):
            return word(self.writer.sizes.number(sympy.sympify(arg)))
        return arg

    def view(self, view: StridedView) -> Any:
        """The tensor of a strided view of a buffer.

        Raises:
            Unsupported: no index transform tells where its elements are.
        """
        buffer, tensor = self.graph.buffers[view.buffer], self.tensors[view.buffer]
        if view.dtype is not None and view.dtype.is_complex:
            real, imaginary = (self.view(each) for each in parts_of_view(view))
            return self.writer.complex(real, imaginary, view.dtype, view.shape)
        if is_whole(view, buffer):
            return self.writer.cast(tensor, buffer.dtype, view.shape)
        if any(size == 0 for size in view.shape):
            return self.writer.empty(buffer.dtype, view.shape)
        index = variables("i", len(view.shape))
        place = index_of_view(view, buffer, index)
        return self.bodies.elements(
            lambda _: ops.load(view.buffer, tuple(place)), index, view.shape, buffer.dtype
        )
