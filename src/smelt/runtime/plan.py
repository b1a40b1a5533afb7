"""The plan of a compiled graph: plain data that the schedule writes, the cache stores and the executor runs.

Sizes are Python expressions over the symbols' names as text (``"s0*128"``, ``"(s0//2)"``), or plain ints.
"""

from __future__ import annotations

from typing import Any

from smelt.records import dataclass, field

Size = int | str


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor to be made: dtype as ``"float32"``, shape and strides in elements."""

    name: str
    dtype: str
    shape: tuple[Size, ...]
    strides: tuple[Size, ...]


@dataclass(frozen=True, slots=True)
class ArenaTensor:
    """A tensor over the arena at ``offset`` bytes; only those that ATen calls touch become torch tensors."""

    spec: TensorSpec
    offset: Size


@dataclass(frozen=True, slots=True)
class AllocStep:
    """Make a fresh tensor (an output, which outlives the call)."""

    spec: TensorSpec


@dataclass(frozen=True, slots=True)
class NativeStep:
    """A native call: ``int64_t function(arena, pointers of buffers…, sizes…)``.

    Returns 0, or k > 0: then ``errors[k - 1]`` = (exception name, message) is raised.
    """

    function: str
    buffers: tuple[str, ...]
    sizes: tuple[Size, ...]
    errors: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Ref:
    """In an ExternStep's arguments: the whole tensor ``name``."""

    name: str


@dataclass(frozen=True, slots=True)
class ViewRef:
    """In an ExternStep's arguments or the plan's outputs: ``as_strided`` of the tensor ``name``.

    ``offset`` counts elements from the tensor's own first element. ``dtype``: of the view, where it is not
    the tensor's: complex numbers as pairs of real ones, or the other way.
    """

    name: str
    shape: tuple[Size, ...]
    strides: tuple[Size, ...]
    offset: Size
    dtype: str | None = None


@dataclass(frozen=True, slots=True)
class SizeRef:
    """A size in arguments or outputs: a Python expression over the symbols."""

    expr: str


@dataclass(frozen=True, slots=True)
class ExternStep:
    """Call the ATen overload ``target`` (``aten.addmm.default``) and bind its results.

    ``out``: call the overload's ``.out`` variant into the (arena) tensor ``outputs[0]``, bind nothing new.
    ``symbol``: the name that receives the result where that is a number. ``sizes``: (symbol, number of the
    result, dimension) of each size that is known from a result only. ``specs``: for each of ``outputs`` the
    layout that later steps need, or None (the default for all). A result with another layout is copied;
    another shape or dtype raises SM0406.
    """

    target: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: tuple[str | None, ...]
    out: bool = False
    symbol: str | None = None
    specs: tuple[TensorSpec | None, ...] = ()
    sizes: tuple[tuple[str, int, int | None], ...] = ()
    bodies: tuple[Plan, ...] = ()


@dataclass(frozen=True, slots=True)
class SizeStep:
    """``symbol = value``: a size that is computed from others."""

    symbol: str
    value: Size


@dataclass(frozen=True, slots=True)
class CheckStep:
    """Raises the built-in exception ``error`` = (name, message) unless ``condition`` holds."""

    condition: str
    error: tuple[str, str]


@dataclass(frozen=True, slots=True)
class FreeStep:
    """Drops the names of dead tensors that ATen made."""

    names: tuple[str, ...]


Step = AllocStep | NativeStep | ExternStep | SizeStep | CheckStep | FreeStep


@dataclass(frozen=True, slots=True)
class FoldedUse:
    """A run of a Folded's plan: the call's arguments that it takes, and the constants that its outputs
    are.
    """

    sources: tuple[int, ...]
    results: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Folded:
    """Constants that are computed ahead, from arguments that rarely change; see `smelt.runtime.folded`.

    ``plan`` takes the arguments in the order of a use's ``sources``. ``digest`` is equal for equal plans of
    all programs.
    """

    plan: Plan
    digest: str
    uses: tuple[FoldedUse, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything the executor needs besides the shared library and the constants.

    ``inputs``: the positional arguments: a tensor's name, a symbol's name for a size, or None where unused.
    ``outputs``: Ref, ViewRef, SizeRef, literal or None. ``shape_symbols``: (symbol, input, dimension) of each
    symbol that no input gives as a number. ``layouts``: inputs that may have another layout (a body's
    operands) and are copied then. ``folded``: the constants that are computed ahead, and their plans.
    ``lazy``: complex inputs, whose memory may hold their conjugates or negatives, or, if they were traced so,
    their values in another layout: they are copied then. ``orders``: (output, its dimensions in memory order,
    outermost first) of each saved output whose layout differs from the program's. ``device``: kernels are
    launched on this device, with a stream as the last argument of native calls; None: they are called.
    """

    inputs: tuple[str | None, ...]
    symbols: tuple[str, ...]
    constants: tuple[str, ...]
    arena_bytes: Size
    arena: tuple[ArenaTensor, ...]
    steps: tuple[Step, ...]
    outputs: tuple[Any, ...]
    shape_symbols: tuple[tuple[str, str, int], ...] = ()
    notes: dict[str, Any] = field(default_factory=dict)
    layouts: tuple[TensorSpec, ...] = ()
    folded: tuple[Folded, ...] = ()
    orders: tuple[tuple[int, tuple[int, ...]], ...] = ()
    lazy: tuple[TensorSpec, ...] = ()
    device: str | None = None

    @property
    def folded_constants(self) -> frozenset[str]:
        """Names of the constants that are computed ahead."""
        return frozenset(name for each in self.folded for use in each.uses for name in use.results)
