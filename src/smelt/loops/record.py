"""The tracing handler: runs loop functions once and records them as straight-line code.

The instructions use the vocabulary of `smelt.nest.ir` (Let, Masked), so that building a nest is a copy. Equal
computations are merged as they are recorded; nothing computed inside a mask is visible outside of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import sympy
import torch
from sympy import Expr, Symbol

from smelt.errors import SmeltError
from smelt.loops.ir import Origin, Pointwise
from smelt.loops.straightline import RAISING, Instruction, MaskedInstruction, Recordable, canonical, prune
from smelt.ops import TABLE, Handler, result_dtype, using
from smelt.records import dataclass, field
from smelt.symbolic import simplify


@dataclass(frozen=True, slots=True)
class RecordedValue:
    """A value of a recording: its name and dtype."""

    name: str
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class Recorded:
    """Straight-line code and the values that it was recorded for."""

    instructions: tuple[Recordable, ...]
    results: tuple[RecordedValue, ...]


@dataclass(slots=True)
class RecordedBlock:
    """The instructions of one scope in order; a scheduler may append statements of its own."""

    instructions: list[Any] = field(default_factory=list)
    known: dict[Any, RecordedValue] = field(default_factory=dict)
    masked: bool = False

    def append(self, statement: Any) -> None:
        self.instructions.append(statement)


LoadHook = Callable[[str, tuple[Expr, ...]], RecordedValue | None]

_COMMUTATIVE = frozenset(
    {"add", "mul", "maximum", "minimum", "bitwise_and", "bitwise_or", "bitwise_xor"}
    | {"eq", "ne", "logical_and", "logical_or", "logical_xor"}
)


class Recorder(Handler):
    """Records loop functions; several functions in one recorder share equal values.

    Args:
        buffers: the dtype of every buffer that may be loaded.
        extents: loop variable → its extent; indices are simplified under ``0 <= variable < extent``.
        load_hook: called with every load's buffer and simplified index. A value that it returns replaces the
            load: an inlined producer (its loop function is run here), or a value that this loop stored
            before.
        origin: of the node being recorded, for messages; may be changed between bodies, as may ``of``, the
            positions of origins that instructions get. A value that others need too has more: ``shared``.
        first: the number of the first value's name, where several recorders work on one kernel.

    >>> from smelt.ops import ops
    >>> i = sympy.Symbol("i", integer=True, nonnegative=True)
    >>> recorder = Recorder({"x": torch.float32}, {i: sympy.Integer(8)})
    >>> result = recorder.run(lambda index: ops.mul(ops.load("x", index), ops.load("x", index)), (i,))
    >>> [(step.name, step.op, step.args) for step in recorder.instructions]
    [('v0', 'load', ('x', (i,))), ('v1', 'mul', ('v0', 'v0'))]
    """

    def __init__(
        self,
        buffers: Mapping[str, torch.dtype],
        extents: Mapping[Symbol, Expr],
        load_hook: LoadHook | None = None,
        *,
        origin: Origin | None = None,
        first: int = 0,
    ) -> None:
        self.buffers = buffers
        self.extents: dict[Symbol, Expr] = dict(extents)
        self.load_hook = load_hook
        self.origin = origin or Origin("?")
        self.of: tuple[int, ...] = ()
        self.shared: dict[str, tuple[int, ...]] = {}
        self._blocks = [RecordedBlock()]
        self._count = first
        self._depth: dict[str, int] = {}
        self._symbol_depth: dict[Symbol, int] = {}
        self._steps: dict[str, Instruction] = {}
        self._simplified: dict[Expr, Expr] = {}

    # -- running --------------------------------------------------------------------------------------------

    def run(self, inner_fn: Callable[..., Any], *indices: Sequence[Expr]) -> Any:
        """Records one loop function at the given indices; returns its result."""
        with using(self):
            return inner_fn(*indices)

    @property
    def instructions(self) -> list[Any]:
        """The instructions of the current block so far."""
        return self._blocks[-1].instructions

    @contextmanager
    def block(self, *variables: Symbol) -> Iterator[RecordedBlock]:
        """A nested scope: the body of a loop over ``variables``.

        Values of the outer scopes are visible in it; its own are not visible afterwards. Instructions that
        depend on none of the variables are hoisted to the outer scope, unless they may raise.
        """
        for variable in variables:
            self._symbol_depth[variable] = len(self._blocks)
        with self._scope(RecordedBlock()) as block:
            yield block

    @contextmanager
    def _scope(self, block: RecordedBlock) -> Iterator[RecordedBlock]:
        self._blocks.append(block)
        try:
            yield block
        finally:
            self._blocks.pop()

    def emit(self, statement: Any) -> None:
        """Appends a statement of the scheduler's own to the current block (a loop, a store …)."""
        self._blocks[-1].append(statement)

    def bind(self, op: str, args: tuple[Any, ...], dtype: torch.dtype) -> RecordedValue:
        """A new value by an operation that is never moved or merged (``read``)."""
        return self._append(len(self._blocks) - 1, op, args, dtype)

    @property
    def count(self) -> int:
        """The number in the name of the next value."""
        return self._count

    def reserve(self, dtype: torch.dtype) -> RecordedValue:
        """A value that the scheduler binds by a statement of its own, after this recording."""
        value = RecordedValue(self._fresh(), dtype)
        self.adopt(value)
        return value

    def adopt(self, value: RecordedValue) -> None:
        """Declares a value that is bound outside of this recording."""
        self._steps[value.name] = Instruction(value.name, value.dtype, "outside", ())
        self._depth[value.name] = 0

    def inlined(self, buffer: str, index: tuple[Expr, ...], producer: Pointwise) -> Any:
        """A producer's element, for a ``load_hook``: it is recorded once for several reads."""
        key = ("inlined", buffer, index)
        value = self._known(key)
        if value is None:
            value = self._blocks[-1].known[key] = producer.inner_fn(index)
        return value

    def simplified(self, expr: Expr) -> Expr:
        """An index expression, simplified under the extents as in a load."""
        return self._simplify(expr)

    # -- the protocol ---------------------------------------------------------------------------------------

    def elementwise(self, name: str, *args: RecordedValue) -> RecordedValue:
        try:
            dtype = result_dtype(TABLE[name], [arg.dtype for arg in args])
        except TypeError as error:
            raise SmeltError(
                "SM0503", str(error), where=self.origin.where, why=f"in {self.origin.op}"
            ) from error
        names = tuple(arg.name for arg in args)
        key_args = tuple(sorted(names)) if name in _COMMUTATIVE else names
        movable = name not in RAISING or dtype.is_floating_point
        return self._value(name, names, dtype, key=(name, key_args), movable=movable)

    def load(self, buffer: str, index: Sequence[Expr]) -> RecordedValue:
        place = tuple(self._simplify(expr) for expr in index)
        if self.load_hook is not None:
            value = self.load_hook(buffer, place)
            if value is not None:
                return value
        dtype = self.buffers.get(buffer)
        if dtype is None:
            what = f"load of the unknown buffer {buffer!r}"
            raise SmeltError("SM0504", what, where=self.origin.where, why=f"in {self.origin.op}")
        return self._value("load", (buffer, place), dtype, symbols=place)

    def constant(self, value: float | int | bool, dtype: torch.dtype) -> RecordedValue:
        number = _python_number(value, dtype)
        if number == 0 and repr(number) == "-0.0":  # it equals 0.0, and so would code that has it
            return self.elementwise("neg", self.constant(0.0, dtype))
        return self._value("constant", (number,), dtype, key=("constant", repr(number), dtype))

    def index_expr(self, expr: Expr, dtype: torch.dtype) -> RecordedValue:
        expr = self._simplify(expr)
        return self._value("index_expr", (expr,), dtype, symbols=(expr,))

    def to_dtype(self, x: RecordedValue, dtype: torch.dtype) -> RecordedValue:
        if x.dtype == dtype:
            return x
        step = self._steps[x.name]
        if step.op == "to_dtype":  # to_dtype(to_dtype(v: narrow, wide), narrow)  →  v
            (name,) = step.args
            source = RecordedValue(name, self._steps[name].dtype)
            if source.dtype == dtype and is_exact(source.dtype, x.dtype):
                return source
        return self._value("to_dtype", (x.name,), dtype)

    def bitcast(self, x: RecordedValue, dtype: torch.dtype) -> RecordedValue:
        return x if x.dtype == dtype else self._value("bitcast", (x.name,), dtype)

    def masked(
        self, mask: RecordedValue, body: Callable[[], RecordedValue], other: float | int | bool
    ) -> RecordedValue:
        if mask.dtype is not torch.bool:
            what = f"a mask is bool, not {mask.dtype}"
            raise SmeltError("SM0503", what, where=self.origin.where, why=f"in {self.origin.op}")
        with self._scope(RecordedBlock(masked=True)) as block:
            result = body()
        number = _python_number(other, result.dtype)
        if number == 0 and repr(number) == "-0.0":
            return self.elementwise(
                "where", mask, self.masked(mask, body, 0.0), self.constant(-0.0, result.dtype)
            )
        steps = tuple(block.instructions)
        key = ("masked", mask.name, canonical(steps, result.name), repr(number))
        known = self._known(key)
        if known is not None:
            return known
        value = RecordedValue(self._fresh(), result.dtype)
        step = MaskedInstruction(value.name, value.dtype, mask.name, steps, result.name, number)
        depth = len(self._blocks) - 1
        self._blocks[depth].append(step)
        self._blocks[depth].known[key] = value
        self._depth[value.name] = depth
        self._steps[value.name] = Instruction(value.name, value.dtype, "masked", (mask.name,))
        return value

    def indirect_index(
        self, x: RecordedValue, size: Expr, *, wrap: bool = True, check: bool | str = True
    ) -> Expr:
        args = (x.name, self._simplify(size), wrap, check)
        value = self._value("indirect_index", args, torch.int64, movable=False)
        symbol = self._steps[value.name].index
        assert symbol is not None
        return symbol

    # -- helpers --------------------------------------------------------------------------------------------

    def _simplify(self, expr: Expr | int) -> Expr:
        if not isinstance(expr, Expr):
            return sympy.Integer(expr)
        if not expr.args:
            return expr
        known = self._simplified.get(expr)
        if known is None:
            known = self._simplified[expr] = simplify(expr, self.extents)
        return known

    def _fresh(self) -> str:
        self._count += 1
        return f"v{self._count - 1}"

    def _known(self, key: Any) -> RecordedValue | None:
        for block in reversed(self._blocks):
            value = block.known.get(key)
            if value is not None:
                return value
        return None

    def _value(
        self,
        op: str,
        args: tuple[Any, ...],
        dtype: torch.dtype,
        *,
        key: Any = None,
        symbols: Sequence[Expr] = (),
        movable: bool = True,
    ) -> RecordedValue:
        key = (op, args, dtype) if key is None else key
        value = self._known(key)
        if value is None:
            depth = self._home(args, symbols) if movable else len(self._blocks) - 1
            value = self._append(depth, op, args, dtype)
            self._blocks[depth].known[key] = value
        elif self.of:
            before = self.shared.get(value.name) or self._steps[value.name].of
            if self.of[0] not in before:
                self.shared[value.name] = (*before, *self.of)
        return value

    def _append(self, depth: int, op: str, args: tuple[Any, ...], dtype: torch.dtype) -> RecordedValue:
        name = self._fresh()
        symbol = None
        if op == "indirect_index":
            symbol = Symbol(f"at_{name}", integer=True, nonnegative=True)
            self.extents[symbol] = args[1]
            self._symbol_depth[symbol] = depth
        step = Instruction(name, dtype, op, args, symbol, self.of)
        self._blocks[depth].append(step)
        self._depth[name] = depth
        self._steps[name] = step
        return RecordedValue(name, dtype)

    def _home(self, args: tuple[Any, ...], symbols: Sequence[Expr]) -> int:
        """The outermost block in which the arguments are defined, within the same mask."""
        last = len(self._blocks) - 1
        if last == 0:
            return 0
        depth = next((d for d in range(last, 0, -1) if self._blocks[d].masked), 0)
        for arg in args:
            if isinstance(arg, str):
                depth = max(depth, self._depth.get(arg, 0))
        for expr in symbols:
            for symbol in expr.free_symbols:
                depth = max(depth, self._symbol_depth.get(symbol, 0))  # type: ignore[arg-type]
        return depth


def record(
    inner_fn: Callable[..., Any],
    indices: Sequence[Sequence[Expr]],
    buffers: Mapping[str, torch.dtype],
    extents: Mapping[Symbol, Expr],
    origin: Origin | None = None,
) -> Recorded:
    """Records one loop function by itself.

    Raises:
        SmeltError: SM0503, dtypes that do not go together; SM0504, an unknown buffer.
    """
    recorder = Recorder(buffers, extents, origin=origin)
    result = recorder.run(inner_fn, *indices)
    return Recorded(prune(recorder.instructions, [result.name]), (result,))


def is_exact(narrow: torch.dtype, wide: torch.dtype) -> bool:
    """Whether ``wide`` has every number of ``narrow``, so that a conversion and back changes nothing.

    >>> is_exact(torch.bfloat16, torch.float32), is_exact(torch.int64, torch.float32)
    (True, False)
    """
    if narrow is torch.bool or narrow == wide:
        return True
    if wide is torch.bool:
        return False
    if narrow.is_floating_point:
        if not wide.is_floating_point:
            return False
        a, b = torch.finfo(narrow), torch.finfo(wide)
        return a.max <= b.max and a.eps >= b.eps and a.tiny >= b.tiny
    bits = torch.iinfo(narrow)
    if wide.is_floating_point:
        return max(abs(bits.min), bits.max) <= 2 / torch.finfo(wide).eps and bits.max <= torch.finfo(wide).max
    return torch.iinfo(wide).min <= bits.min and bits.max <= torch.iinfo(wide).max


def _python_number(value: float | int | bool, dtype: torch.dtype) -> float | int | bool:
    if dtype is torch.bool:
        return bool(value)
    return float(value) if dtype.is_floating_point else int(value)
