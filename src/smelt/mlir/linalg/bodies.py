"""Loop bodies as operations of Linalg: generics, and loops that store elements."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from sympy import Expr, Symbol

from smelt.loops.dependencies import variables as loop_variables
from smelt.loops.ir import Graph, Reduction, Scatter
from smelt.loops.ranges import Interval, contents_of, relax_checks
from smelt.loops.record import RecordedValue, Recorder
from smelt.loops.reductions import identity
from smelt.loops.straightline import Instruction, Recordable, prune
from smelt.mlir.arrays.dialect import Array, ArrayDialect, Arrays
from smelt.mlir.arrays.loops import Dtypes, Extents, Inner, LoopBodies, Turn, View
from smelt.mlir.arrays.reductions import COMBINED
from smelt.mlir.bindings import tensor
from smelt.mlir.linalg.handler import ElementHandler
from smelt.mlir.linalg.operands import (
    Load,
    arranged,
    covered,
    loads_of,
    operand_of,
    plain_place,
    view_of,
)
from smelt.mlir.linalg.scalars import (
    ELEMENTWISE,
    Scalar,
    as_index,
    convert,
)
from smelt.mlir.linalg.writer import ONE, Operand, Writer, loop_index
from smelt.ops import using
from smelt.symbolic import numel

ZERO = sympy.Integer(0)
_FEW = 128
"""The maximal number of float32 summands added in float32; longer sums use float64."""


@dataclass(frozen=True, slots=True)
class Code:
    """A recorded loop function: its steps, and the names and dtypes of its results."""

    steps: tuple[Recordable, ...]
    results: tuple[tuple[str, torch.dtype], ...]

    @property
    def constant(self) -> float | int | bool | None:
        """The constant that is its only result, if it is one."""
        step = self._last()
        return step.args[0] if step is not None and step.op == "constant" else None

    @property
    def load(self) -> Load | None:
        """The load that is its only result, if it is one."""
        step = self._last()
        return (step.args[0], step.args[1]) if step is not None and step.op == "load" else None

    def _last(self) -> Instruction | None:
        if len(self.results) != 1 or len(self.steps) != 1:
            return None
        step = self.steps[0]
        return step if isinstance(step, Instruction) and step.name == self.results[0][0] else None


class Bodies(LoopBodies):
    """Evaluates the bodies of one loop graph as operations of Linalg."""

    view: View

    def __init__(
        self, dialect: ArrayDialect, writer: Writer, graph: Graph, buffers: Mapping[str, Array], view: View
    ) -> None:
        super().__init__(dialect, buffers, view)
        self.writer, self.graph = writer, graph
        self.dtypes = {name: buffer.dtype for name, buffer in graph.buffers.items()}
        self.contents: dict[str, Interval] = contents_of(graph)

    def wide(self, dtype: torch.dtype) -> torch.dtype:
        return torch.float64

    def tensor(self, name: str) -> Any:
        """The value of a buffer."""
        found = self.buffers[name]
        return self.writer.of_number(found) if isinstance(found, Scalar) else found.value

    # -- loop functions ----------------------------------------------------------------------------------

    def record(
        self,
        extents: Mapping[Symbol, Expr],
        function: Callable[[Recorder], Sequence[Any]],
        outside: Sequence[str] = (),
    ) -> Code:
        """The recorded code of a loop function, which ``function`` runs under a recorder."""
        recorder = Recorder(self.dtypes, extents, origin=self.origin)
        values = function(recorder)
        names = [value.name for value in values]
        steps = prune(recorder.instructions, names)
        steps = relax_checks(steps, recorder.extents, self.contents, outside)
        return Code(steps, tuple((value.name, value.dtype) for value in values))

    def expect(self, code: Code, *dtypes: torch.dtype) -> None:
        """Check the dtypes of the loop function's results against the node's."""
        for (_, found), wanted in zip(code.results, dtypes, strict=True):
            if found != wanted:
                raise self.wrong(found, wanted)

    def operands(
        self, code: Code, extents: Mapping[Symbol, Expr], known: Mapping[Symbol, Any] | None = None
    ) -> dict[Load, Operand]:
        """The loads that are operands of a generic over ``extents``; ``known``: as in `loop`."""
        found: dict[Load, Operand] = {}
        masks: dict[Load, bool] = {}
        for load, masked in loads_of(code.steps):
            masks[load] = masks.get(load, True) and masked
        for load, masked in masks.items():
            buffer, index = load
            tensor, shape = self.tensor(buffer), tuple(self.graph.buffers[buffer].shape)
            if known and not masked:
                tensor, shape, index = self._turn(tensor, shape, index, known)
            operand = operand_of(self.writer, tensor, shape, index, extents, masked)
            if operand is not None:
                found[load] = operand
        return found

    def _turn(
        self, tensor: Any, shape: tuple[Expr, ...], index: tuple[Expr, ...], known: Mapping[Symbol, Any]
    ) -> tuple[Any, tuple[Expr, ...], tuple[Expr, ...]]:
        """A tensor operand inside of surrounding loops: the slice at their current iteration if they index
        some dimensions."""
        kept = [d for d, expr in enumerate(index) if expr not in known]
        if kept and len(kept) < len(index):
            starts = [known.get(expr, ZERO) for expr in index]
            sizes = [size if d in kept else ONE for d, size in enumerate(shape)]
            tensor = self.writer.slice(tensor, starts, sizes, [ONE] * len(shape), kept)
            shape, index = tuple(shape[d] for d in kept), tuple(index[d] for d in kept)
        return tensor, shape, index

    def loop(
        self,
        code: Code,
        extents: Mapping[Symbol, Expr],
        outputs: Sequence[Operand],
        finish: Callable[[Sequence[Scalar], Sequence[Any], ElementHandler], Sequence[Any]],
        reduced: int = 0,
        known: Mapping[Symbol, Any] | None = None,
        given: Sequence[tuple[str, torch.dtype, Operand]] = (),
        carried: Sequence[tuple[str, torch.dtype]] = (),
    ) -> list[Any]:
        """A generic over ``extents`` that runs ``code``.

        ``finish``: the code's values and the outputs' elements → the yielded values. ``known``: the variables
        of surrounding loops. ``given``: operands whose elements the code uses by name; ``carried``: names for
        the elements of the first outputs.
        """
        operands = self.operands(code, extents, known)
        inputs = [*operands.values(), *(each for _, _, each in given)]
        missing = [v for v in extents if v not in covered([each.place for each in (*inputs, *outputs)])]
        if missing:  # a tensor that only provides the extents
            window = self.writer.empty(torch.float32, [extents[v] for v in missing])
            inputs.append(Operand(window, tuple(missing)))

        def body(seen: Sequence[Any], before: Sequence[Any]) -> Sequence[Any]:
            loads = {load: Scalar(value, self.dtypes[load[0]]) for load, value in zip(operands, seen)}
            places = dict(known or {}) | {v: loop_index(n) for n, v in enumerate(extents)}
            rest = zip(given, list(seen)[len(operands) :])
            outside = {name: Scalar(value, dtype) for (name, dtype, _), value in rest}
            outside |= {name: Scalar(value, dtype) for (name, dtype), value in zip(carried, before)}
            handler = ElementHandler(self.writer, _Sources(self), places, loads, outside)
            values = handler.run(code.steps)
            return finish([values[name] for name, _ in code.results], before, handler)

        return self.writer.generic(list(extents), reduced, inputs, outputs, body)

    # -- pointwise ---------------------------------------------------------------------------------------

    def mapped(
        self, extents: Extents, function: Inner, dtypes: Dtypes, given: Arrays = (), turn: Turn | None = None
    ) -> list[Array]:
        """One generic, which overwrites ``given`` inside of a loop; or only a fill or a view."""
        number: Any = None if turn is None else self.dialect.item(turn[1])
        known = {} if turn is None else {turn[0]: as_index(number)}
        space = {v: size for v, size in extents.items() if v not in known}
        index, shape = tuple(space), tuple(space.values())
        code, names = self._recorded(extents, given, function)
        self.expect(code, *dtypes)
        if code.constant is not None:
            made = [self.writer.fill(code.constant, dtypes[0], shape)]
        elif code.load is not None and not known and (whole := self._seen(code.load, space)) is not None:
            made = [self.writer.cast(whole, dtypes[0], shape)]
        else:
            seen = [Operand(each.value, index) for each in given]
            over = seen if known else []
            fresh = [self.writer.empty(dtype, shape) for dtype in dtypes[len(over) :]]
            made = self.loop(
                code,
                space,
                [*over, *(Operand(each, index) for each in fresh)],
                lambda found, *_: [each.value for each in found],
                known=known,
                given=[] if known else [(*name, each) for name, each in zip(names, seen)],
                carried=names if known else (),
            )
        return [Array(each, dtype, shape) for each, dtype in zip(made, dtypes, strict=True)]

    def _recorded(
        self, extents: Extents, given: Arrays, function: Inner
    ) -> tuple[Code, list[tuple[str, torch.dtype]]]:
        """The recorded code of a function of named values, and these names with their dtypes."""
        parts = [RecordedValue(f"given{n}", each.dtype) for n, each in enumerate(given)]
        names = [part.name for part in parts]

        def run(recorder: Recorder) -> list[Any]:
            for part in parts:
                recorder.adopt(part)
            return list(recorder.run(function, parts))

        return self.record(extents, run, names), [(part.name, part.dtype) for part in parts]

    def elements(
        self, function: Callable[..., Any], index: Sequence[Symbol], shape: Sequence[Expr], dtype: torch.dtype
    ) -> Any:
        """A tensor of ``shape`` with the elements of a loop function."""
        return self.mapped(dict(zip(index, shape)), lambda _: [function(index)], [dtype])[0].value

    def _seen(self, load: Load, extents: Extents) -> Any:
        """A load as a view of its buffer; None if the elements must be copied."""
        buffer, place = load
        tensor, shape = self.tensor(buffer), self.graph.buffers[buffer].shape
        found = plain_place(shape, place, extents)
        operand = Operand(tensor, found) if found is not None else None
        if operand is None or not all(isinstance(expr, Symbol) for expr in operand.place):
            operand = view_of(self.writer, tensor, shape, place, extents, copies=True)
        if operand is None:
            return None
        return arranged(self.writer, operand, tuple(extents), tuple(extents.values()))

    # -- reductions --------------------------------------------------------------------------------------

    def _domain(self, body: Reduction) -> tuple[tuple[Symbol, ...], tuple[Symbol, ...], dict[Symbol, Expr]]:
        index = loop_variables("i", len(body.shape))
        rindex = loop_variables("r", len(body.reduce_shape))
        return index, rindex, dict(zip((*index, *rindex), (*body.shape, *body.reduce_shape)))

    def reduced(
        self, kind: str, body: Reduction, value: Inner, given: Arrays = (), dtype: torch.dtype | None = None
    ) -> Array:
        """A reduction; long sums and products of float32 are computed in float64."""
        index, rindex, extents = self._domain(body)
        code, names = self._recorded(extents, given, lambda values: [value(index, rindex, *values)])
        if code.results[0][1] not in (body.dtype, dtype):
            raise self.wrong(code.results[0][1], body.dtype)
        within = dtype or _accumulator(kind, body)
        start = self.writer.fill(identity(kind, within), within, body.shape)

        def finish(values: Sequence[Scalar], before: Sequence[Any], _: ElementHandler) -> list[Any]:
            so_far, element = Scalar(before[0], within), values[0]
            if kind in ("any", "all"):
                element = convert(element, torch.bool)
            return [ELEMENTWISE[COMBINED[kind]](so_far, convert(element, within)).value]

        inputs = [(*name, Operand(each.value, index)) for name, each in zip(names, given)]
        made = self.loop(code, extents, [Operand(start, index)], finish, len(rindex), given=inputs)[0]
        wanted = dtype or body.dtype
        return Array(self.writer.converted(made, within, wanted, body.shape), wanted, body.shape)

    # -- scatters ----------------------------------------------------------------------------------------

    def scatter(self, body: Scatter) -> Array:
        """``scf.for`` over all elements in order, which stores each at its position."""
        index = loop_variables("i", len(body.shape))

        def put(at: list[Any], state: list[Any]) -> list[Any]:
            handler = ElementHandler(self.writer, _Sources(self), dict(zip(index, at)))
            with using(handler):
                value: Scalar = body.inner_fn(index)
                place = [handler.position(expr) for expr in body.place(index)]
                if value.dtype != body.dtype:
                    raise self.wrong(value.dtype, body.dtype)
                if body.mode is not None:
                    before = self.writer.element(state[0], place, body.dtype)
                    value = handler.elementwise(body.mode, before, value)
            return [tensor.insert(value.value, state[0], place)]

        (made,) = self.writer.loops(body.shape, [self.tensor(body.base)], put)
        return Array(made, body.dtype, self.graph.buffers[body.base].shape)


class _Sources(dict[str, tuple[Any, torch.dtype]]):
    """The tensors by buffer, with their dtypes, computed on first access."""

    def __init__(self, bodies: Bodies) -> None:
        super().__init__()
        self.bodies = bodies

    def __missing__(self, name: str) -> tuple[Any, torch.dtype]:
        return self.bodies.tensor(name), self.bodies.dtypes[name]


def _accumulator(kind: str, body: Reduction) -> torch.dtype:
    """The dtype in which a reduction accumulates."""
    if kind in ("sum", "prod") and body.dtype.is_floating_point:
        count = numel(body.reduce_shape)
        few = count.is_Integer and count <= _FEW
        if body.dtype in (torch.float16, torch.bfloat16):
            return torch.float32 if few else torch.float64
        return body.dtype if few else torch.float64
    return body.dtype
