"""A loop graph on whole arrays: node after node, with the calls that arrays know how to make."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import sympy
import torch
from sympy import Expr, Symbol

from smelt.errors import Problem, Unsupported
from smelt.loops.ir import Attentions, Bind, Check, Extern, Graph, Native, Node, StridedView
from smelt.mlir.arrays.bodies import evaluate_arrays
from smelt.mlir.arrays.control import CONTROL
from smelt.mlir.arrays.determinants import determinants
from smelt.mlir.arrays.dialect import Array, ArrayDialect, Shape
from smelt.mlir.arrays.strided import parts_of_view, read_view
from smelt.mlir.external import is_external, is_unsigned, leaves, named_arguments, result_names

Place = Callable[[str | None], AbstractContextManager[Any]]

DETERMINANTS = ("aten._linalg_det.default", "aten._linalg_slogdet.default")

CALLS = frozenset({"aten.clone.default", "aten._local_scalar_dense.default", *CONTROL, *DETERMINANTS})
"""What arrays do of what the loop graph calls."""

SEED = "aten.randint.low"
"""How a loop graph draws the seed of its random numbers (`ArrayDialect.seed`)."""


def _draws_seed(body: Extern) -> bool:
    return body.target == SEED and body.args[2] == [] and body.kwargs.get("dtype") is torch.int64


def only_numbers(body: Extern) -> bool:
    """Whether a call gives no size but numbers, and these out of branches and loops."""
    return not body.sizes or (body.target in CONTROL and all(each.dim is None for each in body.sizes))


class MissingInputError(Unsupported):
    """A node reads what another one, that is not supported, should have made: told once, there."""


class Buffers(Mapping[str, Array]):
    """The arrays by buffer; one that could not be made is missing."""

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
    """One loop graph under a dialect. What the dialect cannot do is added to ``problems``, all of it.

    ``place``: gives a context manager for what is made of a node, from the user's line.
    ``external``: operators that stay calls (`smelt.mlir.external`).
    """

    def __init__(
        self,
        graph: Graph,
        dialect: ArrayDialect,
        problems: list[Problem],
        place: Place | None = None,
        external: Collection[str] = (),
    ) -> None:
        self.graph, self.dialect, self.problems = graph, dialect, problems
        self.external = external
        self.place: Place = place or (lambda where: nullcontext())
        self.buffers = Buffers()
        self.absent: dict[str, str] = {}  # buffer → why there is none, which each call that reads it tells

    def run(self, inputs: Sequence[Array | None]) -> tuple[list[Array], list[Array | None]]:
        """What the mutated inputs hold at the end, in the order of ``graph.mutations``, and the outputs.

        ``inputs``: one for each of the graph's, None where it has none. An output that is a number is an
        array of rank 0. Checks (`smelt.loops.ir.Check`) are left out where the dialect has no way to raise.
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
        symbols = self.dialect.symbols
        for name, array in zip(self.graph.inputs, inputs, strict=True):
            if isinstance(name, Symbol) and isinstance(array, Array):
                symbols[name] = array
        for name, array in zip(self.graph.inputs, inputs, strict=True):
            if not isinstance(name, str) or array is None:
                continue
            shape = self.graph.buffers[name].shape
            for size, own in zip(shape, array.shape):
                if isinstance(size, Symbol) and size not in symbols:
                    symbols[size] = self.dialect.size(own)
            self.buffers.arrays[name] = self._inside(array, shape)

    def _inside(self, array: Array, shape: Shape) -> Array:
        """An array of ``shape`` as loops see it: the parts of complex numbers in a last dimension of two."""
        if array.dtype.is_complex:
            line = (*array.shape, sympy.Integer(1))
            parts = [self.dialect.reshape(part, line) for part in self.dialect.parts(array)]
            array = self.dialect.concatenate(parts, len(line) - 1)
        return self.dialect.relabel(array, shape)

    def _shaped(self, source: str, target: str) -> Array:
        """What an input holds at the end, as the caller sees it."""
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
            self.dialect.symbols[body.symbol] = self.dialect.size(body.value)
            return
        if isinstance(body, Extern):
            if _draws_seed(body):
                self._sow(node)
                return
            results: Sequence[Any] = self._call(body, node.outputs)
            if body.symbol is not None:
                self.dialect.symbols[body.symbol] = results[0]
                return
        else:
            assert not isinstance(body, Native)  # refused before (`Capabilities`)
            results = evaluate_arrays(body, self.dialect, self.buffers, node.origin, self.view)
        for name, result in zip(node.outputs, results):
            if name is not None:
                shape = self.graph.buffers[name].shape
                self.buffers.arrays[name] = self._inside(result, shape)

    def _sow(self, node: Node) -> None:
        """The seed of all random numbers; where there is none, each call that wants it is a problem."""
        (name,) = node.outputs
        assert name is not None
        try:
            self.buffers.arrays[name] = self.dialect.seed()
        except Unsupported as refusal:
            self.absent[name] = refusal.reason

    def _call(self, body: Extern, outputs: Sequence[str | None]) -> list[Any]:
        if is_external(body, self.external):
            return self._external(body, outputs)
        if body.target not in CALLS or body.overwrites or not only_numbers(body):
            raise Unsupported(body.reason or f"{body.target} has no loop functions")
        args = [self.argument(arg) for arg in body.args]
        if body.target in DETERMINANTS:  # without the triangular parts that gradients ask for
            if args[0].dtype.is_complex:
                raise Unsupported("determinants of complex matrices")
            self.absent.update((str(name), "the triangular parts of a matrix") for name in outputs[-2:])
            found = determinants(self.dialect, args[0])
            return list(found[:1] if body.target == DETERMINANTS[0] else found[1:])
        if body.target == "aten.clone.default":
            return args
        if body.target == "aten._local_scalar_dense.default":
            return [self.number(args[0])]
        bodies = [lambda operands, each=each: self._inner(each, operands) for each in body.bodies]
        results = CONTROL[body.target](self.dialect, bodies, *args)
        for number in body.sizes:
            self.dialect.symbols[number.symbol] = results[number.output]
        return results

    def _external(self, body: Extern, outputs: Sequence[str | None]) -> list[Any]:
        """The call of a declared function; what it gives has the types of the operator's results."""
        arguments: list[tuple[str, Any]] = []
        unsigned: list[bool] = []
        for name, given in named_arguments(body):
            arguments += [(name, each) for each in leaves(self.argument(given))]
            unsigned += [is_unsigned(self.graph, each) for each in leaves(given)]
        made = [self.graph.buffers[name].outside for name in result_names(outputs)]
        kinds = [self.dialect.outside(dtype, shape) for dtype, shape, _ in made]
        return self.dialect.external_call(body, arguments, kinds, unsigned)

    def _inner(self, graph: Graph, operands: Sequence[Array]) -> list[Any]:
        """A branch or loop body on its operands, in the region that is open."""
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
        if x.rank:
            x = self.dialect.reshape(x, ())
        dtype = x.dtype
        if dtype is not torch.bool:
            dtype = torch.float64 if dtype.is_floating_point else torch.int64
        return x if x.dtype == dtype else self.dialect.convert(x, dtype)

    def argument(self, arg: Any) -> Any:
        """An argument of a call: views and numbers as arrays, lists of these; anything else as it is."""
        if isinstance(arg, StridedView):
            return self.view(arg)
        if isinstance(arg, (list, tuple)):
            return [self.argument(each) for each in arg]
        if isinstance(arg, (int, float, bool, Expr, sympy.logic.boolalg.Boolean)):
            return self.dialect.size(sympy.sympify(arg))
        return arg

    def view(self, view: StridedView) -> Any:
        """The array of a strided view of a buffer."""
        if view.dtype is not None and view.dtype.is_complex:
            return self.dialect.joined(*(self.view(part) for part in parts_of_view(view)))
        buffer = self.graph.buffers[view.buffer]
        return read_view(self.dialect, view, buffer, self.buffers[view.buffer])


def literal(dialect: ArrayDialect, tensor: torch.Tensor, name: str) -> Array:
    """A constant array; complex numbers are pairs of real ones, in the last dimension."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.detach().resolve_conj())
    return dialect.literal(tensor, name)
