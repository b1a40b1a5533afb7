"""The loop nest: an explicit tree of the order of computation and of the storage of values.

    Stmt = For(var, begin, end, body, kind, step) | Let(name, op, args) | Masked(name, mask, body)
         | Store(buffer, index, value, mode) | Alloc(buffer) | Accumulate(name, kind) | Update(acc, value)
         | Carry(name, initial) | Advance(carry, value) | SortRow(source, values, positions)
         | Prefetch(buffer, index) | Guard(condition, body) | Stage(name, axes, body, init, where)
         | Routine(name, reads, writes, numbers)

Values are names bound by Let (single assignment, visible in the rest of its block and below). Index
expressions are SymPy over loop variables, size symbols and indirect indices. `smelt.nest.primitives`
transforms these trees.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, NamedTuple

import torch
from sympy import Expr, Integer, Symbol
from sympy.logic.boolalg import Boolean

from smelt.loops.ir import Origin
from smelt.loops.straightline import Instruction
from smelt.records import dataclass, field
from smelt.symbolic import contiguous_strides, numel
from smelt.symbolic.affine import expand, remainder

Shape = tuple[Expr, ...]

FEW_COLUMNS = (2, 3, 4)
"""Numbers of adjacent elements that a vector loop stores at once for all of its lanes, if they fill memory.
"""
TABLE_LANES = 16
"""Values in a table that is looked up: one in each lane of a vector."""


class LoopKind(Enum):
    """The execution of a loop's iterations."""

    SERIAL = "serial"
    PARALLEL = "parallel"
    VECTOR = "vector"
    UNROLL = "unroll"
    JAM = "jam"
    TURN = "turn"


@dataclass(frozen=True, slots=True)
class For:
    """``for var in range(begin, end, step)``.

    A VECTOR loop has ``step`` lanes per iteration: its body is computed for ``var … var + step - 1`` at once;
    ``end - begin`` need not be a multiple (the printer adds the tail). It may contain SERIAL loops, which all
    lanes execute in lockstep. A JAM loop has few iterations, which are interleaved: its statements are
    repeated for each iteration, inner loops exist once (unroll and jam,
    `smelt.nest.primitives.side_by_side`). A TURN loop computes columns in the lanes of a VECTOR loop around
    it: their vectors are transposed in registers, and stored as rows (`smelt.nest.primitives.turn`).

    ``proved``: iterations were shown to touch different elements while indices had dimensions
    (`smelt.nest.claims.prove`); splits and fusions keep that.
    ``label``: the user's name of the loop, the variable's name if empty. ``thread``: the GPU index that the
    iterations are bound to (``blockIdx.x`` …) or None. ``notes``: annotations, which change no result. The
    printer reads two: ``function``, rows of vectors are a function of their own (`own_functions`);
    ``chains``, the vectors that a sum is made of.
    """

    var: Symbol
    begin: Expr
    end: Expr
    body: Block
    kind: LoopKind = LoopKind.SERIAL
    step: int = 1
    label: str = field(default="", compare=False)
    thread: str | None = None
    notes: tuple[tuple[str, Any], ...] = field(default=(), hash=False)
    proved: bool = False


Let = Instruction
"""``name: dtype = op(*args)``: an instruction of the recorder; ``read`` (accumulator name, output position;
or a carry's name and 0); or ``lookup`` (table, number): the value that the table, which is computed in a
vector loop of 16 iterations, has in iteration ``number mod 16``.
"""


@dataclass(frozen=True, slots=True)
class Masked:
    """``name = result of body where mask else other``; the body's loads happen only where the mask holds."""

    name: str
    dtype: torch.dtype
    mask: str
    body: Block
    result: str
    other: float | int | bool


@dataclass(frozen=True, slots=True)
class Store:
    """``buffer[index] = value``, or with a ``mode`` ``buffer[index] = mode(buffer[index], value)``.

    Modes are those of `smelt.loops.ir.ACCUMULATIONS`, and "atomic_add", which adds between threads.
    """

    buffer: str
    index: tuple[Expr, ...]
    value: str
    mode: str | None = None


@dataclass(frozen=True, slots=True)
class Accumulate:
    """Declares accumulator ``name`` (a reduction `kind` of `smelt.loops.ir.REDUCTIONS`) with its identity.

    Visible in the rest of the block; Update adds to it, ``Let(op="read")`` after the loops reads it.
    """

    name: str
    kind: str
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class Update:
    """``acc = kind(acc, value)``.

    ``position`` is the row-major position among the reduced elements (argmax/argmin), None otherwise. For
    ``merge`` (second half of a split reduction) ``value`` names another accumulator that is folded in.
    """

    acc: str
    value: str
    position: Expr | None = None
    merge: bool = False


@dataclass(frozen=True, slots=True)
class Carry:
    """Declares ``name``, a loop-carried value, with its initial value.

    Visible in the rest of the block. ``Let(op="read")`` gives the current value, Advance sets the next. Loops
    between the two statements run serially and in order: they may be neither parallel nor vector loops, nor
    be interchanged.
    """

    name: str
    dtype: torch.dtype
    initial: float | int | bool


@dataclass(frozen=True, slots=True)
class Combination:
    """``values = function(carries, elements)``, by an associative loop function of two states."""

    carries: tuple[str, ...]
    elements: tuple[str, ...]
    values: tuple[str, ...]
    function: Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Advance:
    """``carry = value``; ``by``: how the values of all parts of a state come about, if that is known."""

    carry: str
    value: str
    by: Combination | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Alloc:
    """A scratch buffer that lives inside the enclosing block (per iteration, per thread), row-major.

    ``scope``: the requested memory ("" any, "local", "shared"); ``aligned``: dimensions whose strides are
    padded, as (dimension, factor, offset): the stride is ``offset`` more than a multiple of ``factor``.

    >>> alloc = Alloc("B", torch.float32, (Integer(4), Integer(8)), aligned=((0, 32, 1),))
    >>> alloc.strides, alloc.count
    ((33, 1), 132)
    """

    buffer: str
    dtype: torch.dtype
    shape: Shape
    scope: str = ""
    aligned: tuple[tuple[int, int, int], ...] = ()

    @property
    def strides(self) -> Shape:
        """Strides by dimension, in elements."""
        if not self.aligned:
            return contiguous_strides(self.shape)
        padded = {dim: (factor, offset) for dim, factor, offset in self.aligned}
        strides: list[Expr] = []
        step: Expr = Integer(1)
        for dim in reversed(range(len(self.shape))):
            factor, offset = padded.get(dim, (1, 0))
            step = expand(step + remainder(step * (factor - 1) + offset, factor))
            strides.append(step)
            step = expand(step * self.shape[dim])
        return tuple(reversed(strides))

    @property
    def count(self) -> Expr:
        """The number of elements, with padding."""
        return expand(self.shape[0] * self.strides[0]) if self.aligned else numel(self.shape)


@dataclass(frozen=True, slots=True)
class SortRow:
    """Sorts the first ``limit`` of ``length`` elements of ``source`` from ``start`` on (see
    `smelt.loops.ir.Sort`): values go to ``values``, original positions to ``positions``, both from ``into``
    on. Either result may be missing.
    """

    source: str
    start: tuple[Expr, ...]
    length: Expr
    limit: Expr
    descending: bool
    values: str | None
    positions: str | None
    into: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Prefetch:
    """Prefetches ``buffer[index]`` into the caches. No value depends on it, and the index may be out of
    bounds.
    """

    buffer: str
    index: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Routine:
    """``name(*numbers, *reads, *writes)``: a function of the target's library, for what no loops say:
    factorizations, whose steps depend on one another and on data. It reads and writes whole parameters,
    row-major. ``part``: of the target's header. ``run(numbers, reads)`` computes the contents of ``writes``,
    on flat tensors.
    """

    name: str
    part: str
    numbers: tuple[Expr, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    run: Callable[[Sequence[int], Sequence[torch.Tensor]], Sequence[torch.Tensor]] = field(compare=False)


@dataclass(frozen=True, slots=True)
class Guard:
    """``if condition: body``: a condition over sizes and loop variables that no loop bound can express."""

    condition: Boolean
    body: Block


class AxisKind(Enum):
    """The kind of an axis: each iteration writes another element (spatial); all iterations add to one element
    (reduce); iterations run in order, or their dependences are unknown (opaque).
    """

    SPATIAL = "spatial"
    REDUCE = "reduce"
    OPAQUE = "opaque"


@dataclass(frozen=True, slots=True)
class Axis:
    """An index variable of a stage. Its range is ``range(begin, begin + extent)``; its value in an iteration
    is ``value``, an expression of the variables of the loops around the stage. ``label``: as for a loop.
    """

    var: Symbol
    extent: Expr
    value: Expr
    kind: AxisKind = AxisKind.SPATIAL
    begin: Expr = Integer(0)
    label: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Operand:
    """A buffer of a `Text`, whose code accesses it by the pointer ``name`` and the strides ``name_0`` … in
    elements.

    The pointer is the address of the body's access number ``access`` in the first iteration of its loops;
    dimension d advances with the body's loop number ``loops[d]``. ``strides``: required values, None for any.
    ``each``: the number of a loop without a stride, for each iteration of which there is a pointer: ``name``
    and the iteration's number.
    """

    name: str
    dtype: torch.dtype
    written: bool
    access: int
    loops: tuple[int, ...]
    strides: tuple[int | None, ...]
    each: int | None = None


@dataclass(frozen=True, slots=True)
class Text:
    """A target's code for the body of a stage: C++ statements over operands (``source``), or, without a
    source, the ``form`` of an intrinsic that targets know: its name, then its numbers
    (`smelt.nest.intrinsics`).

    ``counts``: the loops of the body whose numbers of iterations the code takes, by name. ``requires``:
    macros without which the stage's own body is printed instead (``__AVX512VNNI__``). ``parts``: the parts of
    the target's header that it uses.
    """

    name: str
    source: str
    operands: tuple[Operand, ...]
    requires: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    counts: tuple[tuple[str, int], ...] = ()
    form: tuple[str | int | float, ...] = ()


@dataclass(frozen=True, slots=True)
class Stage:
    """A computation with index variables of its own (TVM: a block). Its body refers to its axes alone, never
    to the loops around it.

    It runs once in each iteration of the loops around it in which all of ``where`` holds (conditions over
    these loops' variables). ``init`` runs before ``body`` where every reduce axis is at its first value: a
    reduction is in memory form, ``init`` stores the identity and ``body`` stores with a mode. A body may
    contain any statements, also loops and stages. ``notes``: the user's annotations, which change nothing.
    ``text``: a target's code for the body. ``found``: a cached result of `smelt.nest.regions.found_accesses`.
    """

    name: str
    axes: tuple[Axis, ...]
    body: Block
    init: Block | None = None
    where: tuple[Boolean, ...] = ()
    notes: tuple[tuple[str, Any], ...] = field(default=(), hash=False)
    text: Text | None = None
    found: tuple[Any, ...] | None = field(default=None, init=False, compare=False, repr=False)


Plain = Let | Masked | Store | Accumulate | Update | Carry | Advance | Alloc | SortRow | Prefetch | Routine
Stmt = For | Plain | Guard | Stage
Nested = For | Masked | Guard | Stage
"""The statements that contain blocks."""

NESTED = frozenset((For, Masked, Guard, Stage))


AnAccess = tuple[str, tuple[Expr, ...], bool]
"""Buffer name, index, and whether the access is a store."""


class BlockNames(NamedTuple):
    """The symbols and the buffers that a block uses or declares."""

    symbols: frozenset[Symbol]
    buffers: frozenset[str]


@dataclass(frozen=True, slots=True)
class Block:
    """Statements in order. ``nested``: the statements that contain a block; ``inside``, ``touched`` and
    ``names``: cached results of `smelt.nest.tree.walk`, `smelt.nest.tree.accesses` and
    `smelt.nest.tree.names_in`; ``sound``: surroundings in which `smelt.nest.verify` has found no problem.
    """

    stmts: tuple[Stmt, ...] = ()
    nested: tuple[Nested, ...] = field(init=False, compare=False, repr=False)
    inside: tuple[Stmt, ...] | None = field(default=None, init=False, compare=False, repr=False)
    touched: tuple[AnAccess, ...] | None = field(default=None, init=False, compare=False, repr=False)
    names: BlockNames | None = field(default=None, init=False, compare=False, repr=False)
    sound: tuple[Any, ...] | None = field(default=None, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        nested = tuple([stmt for stmt in self.stmts if type(stmt) in NESTED])
        object.__setattr__(self, "nested", nested)


@dataclass(frozen=True, slots=True)
class Param:
    """A buffer that a kernel reads or writes: dtype, and shape and strides in elements (for flattening).

    ``streamed``: stores to it are non-temporal, because it is larger than the caches.
    """

    name: str
    dtype: torch.dtype
    shape: Shape
    strides: Shape
    written: bool = False
    streamed: bool = False


@dataclass(frozen=True, slots=True)
class Kernel:
    """A fused loop nest: becomes one C++ or Triton function. ``sizes`` are the size symbols it needs;
    ``scalars`` the symbols that the user passes as numbers: (position among all arguments of a call, symbol).
    ``origins``: what it comes from, to whose positions its instructions refer (`Instruction.of`).
    """

    name: str
    params: tuple[Param, ...]
    sizes: tuple[Symbol, ...]
    body: Block
    origins: tuple[Origin, ...] = field(default=(), compare=False)
    scalars: tuple[tuple[int, Symbol], ...] = ()


@dataclass(frozen=True, slots=True)
class InArena:
    """A kernel's buffer is in the arena, ``offset`` bytes from its start."""

    offset: Expr


@dataclass(frozen=True, slots=True)
class Argument:
    """A kernel's buffer is the run's pointer argument number ``position``."""

    position: int


@dataclass(frozen=True, slots=True)
class Call:
    """A kernel with its buffers: ``args`` has one place for each of ``kernel.params``.

    ``origins``: this call's own; the kernel's are those of the first of equal calls.
    """

    kernel: Kernel
    args: tuple[InArena | Argument, ...]
    origins: tuple[Origin, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class Run:
    """Kernels that run one after another in ONE native call.

    Becomes ``extern "C" int64_t name(char* arena, void* p0, …, int64_t s0, …)`` with one pointer per name in
    ``arguments`` and one integer per symbol in ``sizes``; where these are very many, a table of them
    (`smelt.runtime.trampoline`). Returns 0, or k > 0 when the k-th (from 1) of
    ``checks`` failed.
    """

    name: str
    arguments: tuple[str, ...]
    sizes: tuple[Symbol, ...]
    calls: tuple[Call, ...]
