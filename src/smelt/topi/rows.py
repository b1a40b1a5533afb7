"""ATen overloads on te tensors, by the lowering row or contraction of the operator.

An operator is written once, in `smelt.lowering`. Here its loop functions become te expressions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sympy
import torch
from sympy import Expr, Integer, Symbol
from torch._dynamo.source import ConstantSource
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

import smelt.lowering.lower  # noqa: F401  (its rows fill the table)
from smelt.errors import Unsupported
from smelt.loops.dependencies import analyze
from smelt.loops.ir import Contraction, Graph, Origin
from smelt.lowering import tensor as loops
from smelt.lowering.builder import Builder
from smelt.lowering.layouts import buffer_of
from smelt.lowering.products.contractions import contraction_of, keep_contraction
from smelt.lowering.registry import row_of
from smelt.lowering.structural_hash import Decided
from smelt.records import dataclass
from smelt.symbolic import contiguous_strides, free_symbols
from smelt.symbolic.affine import replaced
from smelt.te.errors import refuse
from smelt.te.index import Idx, as_index
from smelt.te.tensor import Tensor
from smelt.te.value import Number
from smelt.topi.written import Labels, Writer, node_tensors, placeholder_symbols, stage


@functools.cache
def _static() -> FakeTensorMode:
    """The mode for tensors of static sizes."""
    return FakeTensorMode()


@dataclass(frozen=True, slots=True)
class Handle:
    """A value in a `Program`: in the form for rows, and as metadata."""

    loop: Any
    fake: Any


@dataclass(frozen=True, slots=True)
class Constant:
    """A number in place of an overload's tensor argument."""

    value: float | int | bool
    kind: torch.dtype


class Program:
    """A program of ATen overloads on te tensors: ``program(overload, *args)`` is one call.

    Views cost nothing: only computed values and results become stages.
    """

    def __init__(self, name: str, labels: Labels, args: Any) -> None:
        self.name, self.labels = name, labels
        self.graph = Graph()
        self.builder = Builder(self.graph)
        self.tensors: dict[str, Any] = {}
        self.symbols: dict[Symbol, Expr] = {}
        self.inner: dict[Symbol, Expr] = {}
        self.hints: dict[Symbol, Expr] = {}
        sizes = free_symbols(
            size
            for each in _leaves(args)
            for size in (each.sizes if isinstance(each, Tensor) else [each.expr])
        )
        self.env = ShapeEnv() if sizes else None
        self.mode = FakeTensorMode(shape_env=self.env) if sizes else _static()
        for symbol in sorted(sizes, key=lambda each: each.name):
            self._size(symbol)
        self.given: dict[int, Handle] = {}

    def __call__(self, overload: OpOverload, *args: Any, **options: Any) -> Any:
        """One call; results are handles.

        Raises:
            SmeltError: SM1120, smelt has no loop functions for it; SM1121, PyTorch refuses it.
        """
        fakes = _mapped((args, options), lambda x: x.fake if isinstance(x, Handle) else x)
        with self.mode:
            try:
                meta = overload(*fakes[0], **fakes[1])
            except (RuntimeError, IndexError, TypeError, ValueError, NotImplementedError) as error:
                first = str(error).strip().splitlines()[0] if str(error) else type(error).__name__
                refuse("SM1121", f"topi.{self.name}: {first}")
        self._no_guess()
        self.builder.expect(meta, Decided())
        self.builder.origin = Origin(f"topi.{self.name}")
        self.builder.operand = fakes[0][0] if fakes[0] else None
        given = _mapped((args, options), lambda x: x.loop if isinstance(x, Handle) else x)
        try:
            found = self._lowered(overload, *given)
        except Unsupported as error:
            refuse("SM1120", f"topi.{self.name}: {error.reason}")
        if isinstance(found, (tuple, list)):
            metas = meta if isinstance(meta, (tuple, list)) else [meta]
            return [Handle(*pair) for pair in zip(found, metas)]
        return Handle(found, meta)

    def _lowered(self, overload: OpOverload, args: Any, options: Any) -> Any:
        row = row_of(overload)
        if row is not None:
            return row(self.builder, *args, **options)
        if contraction_of(overload) is None:
            refuse("SM1120", f"topi.{self.name}: smelt has no loop functions for {overload}")
        strided = _mapped(args, lambda x: self.builder.strided(x) if isinstance(x, loops.Tensor) else x)
        found = self.builder.extern(overload, strided, options)
        keep_contraction(self.builder, overload, args, options)
        if not isinstance(self.graph.nodes[-1].body, Contraction):
            refuse("SM1120", f"topi.{self.name}: smelt has no loop functions for this {overload}")
        return found

    def _no_guess(self) -> None:
        """Refuses results that hold for some sizes only."""
        for guard in () if self.env is None else self.env.guards:
            if isinstance(guard.expr, sympy.Eq):
                said = guard.expr.xreplace(self.symbols)
                remedy = "give both tensors the same te.var"
                refuse(
                    "SM1121", f"topi.{self.name}: nothing shows that {said.lhs} == {said.rhs}", remedy=remedy
                )

    # -- arguments ------------------------------------------------------------------------------------------

    def _size(self, symbol: Symbol) -> None:
        """Create PyTorch's symbol for a size of te."""
        assert self.env is not None
        number = len(self.symbols)
        made = self.env.create_symbol(67 + 4 * number, ConstantSource(f"size{number}"), DimDynamic.DYNAMIC)
        self.symbols[made], self.inner[symbol] = symbol, made
        self.hints[made] = Integer(67 + 4 * number)

    def _number(self, expr: Expr) -> Any:
        """A size as fake tensors take it."""
        if expr.is_Integer:
            return int(expr)
        assert self.env is not None
        inside = replaced(expr, self.inner)
        return self.env.create_symintnode(inside, hint=int(inside.xreplace(self.hints)))

    def size(self, expr: Expr) -> Any:
        """A size as calls take it."""
        return int(expr) if expr.is_Integer else Handle(replaced(expr, self.inner), self._number(expr))

    def handle(self, x: Any) -> Any:
        """An argument as calls take it."""
        if isinstance(x, Idx):
            return self.size(x.expr)
        if isinstance(x, Constant):
            return self._tensor(Number(x.value, x.kind), x.kind, ())
        if not isinstance(x, Tensor):
            return x
        if id(x) not in self.given:
            self.given[id(x)] = self._tensor(x, x.kind, x.sizes)
        return self.given[id(x)]

    def _tensor(self, what: Any, kind: torch.dtype, sizes: Sequence[Expr]) -> Handle:
        name = f"in{len(self.tensors)}"
        shape = tuple(replaced(size, self.inner) for size in sizes)
        self.graph.buffers[name] = buffer_of(name, kind, shape, contiguous_strides(shape))
        self.graph.inputs.append(name)
        self.tensors[name] = what
        with self.mode:
            fake = torch.empty([self._number(size) for size in sizes], dtype=kind)
        return Handle(loops.Tensor(name, kind, shape), fake)

    # -- results --------------------------------------------------------------------------------------------

    def written(self, found: Any) -> Any:
        """Handles as te tensors: nodes become stages, and so do results that are views."""
        results = [each.loop for each in (found if isinstance(found, (tuple, list)) else [found])]
        buffers = [each.buffer for each in results if isinstance(each, loops.Tensor)]
        given, writer = set(self.tensors), Writer(self.tensors, self.symbols)
        for node in self._wanted(buffers):
            is_result = any(out in buffers for out in node.outputs if out)
            number = len(self.tensors) - len(given)
            name = self.labels.name if is_result else self.labels.before(number)
            made = node_tensors(writer, node, self.labels, name)
            self.tensors.update({out: one for out, one in zip(node.outputs, made) if out is not None})
        tensors = [self._result(writer, each, given) for each in results]
        return tensors if isinstance(found, (tuple, list)) else tensors[0]

    def _wanted(self, buffers: Sequence[str]) -> list[Any]:
        """The nodes from which results are computed, in order."""
        wanted, kept = set(buffers), []
        for node in reversed(self.graph.nodes):
            if wanted & {out for out in node.outputs if out}:
                kept.append(node)
                wanted |= set(analyze(node).buffers_read)
        return kept[::-1]

    def _result(self, writer: Writer, x: Any, given: set[str]) -> Any:
        if not isinstance(x, loops.Tensor):
            if x is None or isinstance(x, (int, float, bool, Expr)):
                return x
            refuse("SM1120", f"topi.{self.name}: gives {type(x).__name__}")
        probe = placeholder_symbols(len(x.shape))
        buffer = self.graph.buffers[x.buffer]
        whole = tuple(x.transform(probe)) == tuple(probe) and buffer.shape == x.shape
        if whole and x.buffer not in given:
            return self.tensors[x.buffer]
        return stage(writer, x.shape, x.load, self.labels, self.labels.name)


def _leaves(x: Any) -> list[Any]:
    if isinstance(x, (tuple, list)):
        return [leaf for each in x for leaf in _leaves(each)]
    if isinstance(x, Mapping):
        return _leaves(list(x.values()))
    return [x] if isinstance(x, (Tensor, Idx)) else []


def _mapped(x: Any, f: Callable[[Any], Any]) -> Any:
    if isinstance(x, (tuple, list)):
        return type(x)(_mapped(each, f) for each in x)
    if isinstance(x, dict):
        return {key: _mapped(each, f) for key, each in x.items()}
    return f(x)


def plain(x: Any) -> Any:
    """An argument as ATen takes it: constants of te as Python's numbers."""
    if isinstance(x, (list, tuple)):
        return [plain(each) for each in x]
    if isinstance(x, Number):
        return x.value
    if isinstance(x, (Tensor, float, bool, str, torch.dtype, Constant)) or x is None:
        return x
    expr = as_index(x)
    if expr is None:
        refuse("SM1122", f"{x!r} is neither a tensor nor a number")
    return int(expr) if expr.is_Integer else x


def compose(name: str, labels: Labels, function: Callable[..., Any], *args: Any) -> Any:
    """The result of ``function(program, *args)``, as te tensors; ``program(overload, …)`` calls ATen."""
    given = plain(args)
    program = Program(name, labels, given)
    return program.written(function(program, *_mapped(given, program.handle)))


def call(name: str, overload: OpOverload, args: Sequence[Any], labels: Labels, **options: Any) -> Any:
    """The result of one overload on te tensors, as te tensors.

    >>> from smelt import te
    >>> A, B = te.placeholder((4, 1), name="A"), te.placeholder((3,), name="B")
    >>> added = call("add", torch.ops.aten.add.Tensor, [A, B], Labels("T_add"))
    >>> added, added.op.body[0]
    (Tensor(shape=[4, 3], op.name=T_add), A[ax0, 0] + B[ax1])
    """
    return compose(name, labels, lambda program, *given: program(overload, *given, **options), *args)


__all__ = ["Constant", "Handle", "Program", "call", "compose", "plain"]
