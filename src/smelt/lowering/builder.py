"""What a lowering row may ask for: new loop functions, extern calls, the result's metadata."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch
from sympy import Expr, Symbol
from torch.fx.experimental.symbolic_shapes import CallMethodKey
from torch.utils._pytree import SequenceKey
from torch.utils._sympy.functions import Max

from smelt.contract.facts import environment_of
from smelt.errors import Unsupported
from smelt.loops.ir import (
    REDUCTIONS,
    Bind,
    Body,
    Buffer,
    Check,
    Contraction,
    Extern,
    Fold,
    Graph,
    Native,
    Node,
    Origin,
    Pointwise,
    Reduction,
    Scan,
    Scatter,
    Shape,
    SizeOf,
    Sort,
    StridedView,
)
from smelt.lowering.dtypes import supported
from smelt.lowering.numbers import symbolic_number
from smelt.lowering.structural_hash import Decided
from smelt.lowering.tensor import Complex, Index, Tensor
from smelt.ops import ops
from smelt.symbolic import FloorDiv, Mod, as_expr, contiguous_strides, flatten, loop_var, same
from smelt.symbolic.affine import affine, expand
from smelt.symbolic.expr import with_known_signs
from smelt.symbolic.index import simplify


class Builder:
    """Adds nodes to a loop graph, one FX node at a time; ``origin`` and ``result`` are the current one's."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.origin = Origin("?")
        self.offsets: dict[str, Expr] = {}
        """Where an input starts in its storage, if not at 0 (what ``as_strided`` counts from)."""
        self.memo: dict[Any, Any] = {}
        """What rows have made of tensors and can use again."""
        self.named = 0
        """How many sizes have been given names of their own."""
        self.seed: Node | None = None
        self.random_keys = 0
        self._result: Any = None
        self.decided = Decided()
        """What is known about the call that is being lowered."""
        self.operand: Any = None
        """Metadata of that node's first argument."""
        self.unbound: dict[Symbol, tuple[Any, ...]] = {}
        """The sizes that this node has to bind (they depend on data), and where in its result they stand."""

    # -- metadata -----------------------------------------------------------------------------------------

    @property
    def result(self) -> Any:
        """FakeTensor metadata (``node.meta['val']``) of the FX node being lowered."""
        return self._result

    @result.setter
    def result(self, metadata: Any) -> None:
        self.expect(metadata, Decided())

    def expect(self, metadata: Any, decided: Decided) -> None:
        """The metadata of the current node's result, and what is known about calls that are like it."""
        self._result, self.decided = metadata, decided

    def _results(self) -> list[tuple[Shape, Shape]]:
        """Shape and strides of each tensor that the current node results in."""
        if self.decided.results is None:
            results = self._result if isinstance(self._result, (list, tuple)) else [self._result]
            metas = [meta for meta in results if isinstance(meta, torch.Tensor)]
            self.decided.results = [(shape_of(meta), strides_of(meta)) for meta in metas]
        return self.decided.results

    @property
    def shape(self) -> tuple[Expr, ...]:
        """The shape of the current node's (only or first) result."""
        return self._results()[0][0]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the current node's (only or first) result; that of each part, of complex numbers."""
        return real_dtype(self._first().dtype)

    def _first(self) -> torch.Tensor:
        return self.result if isinstance(self.result, torch.Tensor) else self.result[0]

    # -- loop functions ------------------------------------------------------------------------------------

    def pointwise(
        self,
        inner_fn: Callable[[Index], Any],
        *,
        shape: Sequence[Expr] | None = None,
        dtype: torch.dtype | None = None,
        strides: Sequence[Expr] | None = None,
    ) -> Tensor:
        """A new buffer computed element by element; shape and dtype default to the current node's result."""
        shape = self.shape if shape is None else tuple(shape)
        dtype = self.dtype if dtype is None else dtype
        return self._add(Pointwise(shape, dtype, inner_fn), [dtype], [shape], [strides])[0]

    def reduction(
        self,
        kind: str,
        inner_fn: Callable[[Index, Index], Any],
        *,
        shape: Sequence[Expr],
        reduce_shape: Sequence[Expr],
        dtype: torch.dtype,
    ) -> tuple[Tensor, ...]:
        """New buffers (one per output of ``kind``), each of ``shape``: reduce ``inner_fn(index, rindex)``."""
        body = Reduction(kind, tuple(shape), tuple(reduce_shape), dtype, inner_fn)
        out = torch.int64 if kind in ("argmax", "argmin") else dtype
        count = REDUCTIONS[kind]
        return self._add(body, [out] * count, [tuple(shape)] * count, [None] * count)

    def scan(
        self,
        inner_fn: Callable[[Index, Sequence[Any]], tuple[Sequence[Any], Sequence[Any]]],
        *,
        shape: Sequence[Expr],
        dim: int,
        state: Sequence[tuple[torch.dtype, float | int | bool]],
        dtypes: Sequence[torch.dtype],
    ) -> tuple[Tensor, ...]:
        """New buffers of ``shape`` and of ``dtypes``, made while a state is handed on along ``dim``.

        ``state`` has each part's dtype and what it is at first; ``inner_fn(index, parts)`` gives what the
        parts are after ``index``, and the buffers' elements there.
        """
        body = Scan(tuple(shape), dim, tuple(state), tuple(dtypes), inner_fn)
        return self._add(body, dtypes, [tuple(shape)] * len(dtypes), [None] * len(dtypes))

    def fold(
        self,
        inner_fn: Callable[[Index, Expr, Sequence[Any]], Sequence[Any]],
        *,
        shape: Sequence[Expr],
        turns: Expr | int,
        state: Sequence[tuple[torch.dtype, float | int | bool]],
    ) -> tuple[Tensor, ...]:
        """New buffers of ``shape``, one for each part of the state: what it is after ``turns`` turns.

        ``state`` has each part's dtype and what it is at first; ``inner_fn(index, turn, parts)`` gives what
        the parts are after a turn.
        """
        body = Fold(tuple(shape), as_expr(turns), tuple(state), inner_fn)
        dtypes = [dtype for dtype, _ in state]
        return self._add(body, dtypes, [tuple(shape)] * len(dtypes), [None] * len(dtypes))

    def sort(
        self,
        keys: Callable[[Index], Any],
        *,
        shape: Sequence[Expr],
        dtype: torch.dtype,
        descending: bool = False,
        limit: Expr | None = None,
    ) -> tuple[Tensor, Tensor]:
        """``(values, positions)`` of ``[*shape[:-1], limit]``: the first ``limit`` (None: all) of each row in
        order.

        ``keys(index)`` gives the elements of ``shape``; they are stored row after row first.
        """
        rows = self.pointwise(keys, shape=shape, dtype=dtype, strides=contiguous_strides(shape))
        results = (*shape[:-1], shape[-1] if limit is None else limit)
        body = Sort(rows.buffer, results, dtype, descending)
        strides = contiguous_strides(results)
        values, positions = self._add(body, [dtype, torch.int64], [results, results], [strides, strides])
        return values, positions

    def contraction(self, body: Contraction) -> Tensor:
        """What a contraction gives, row-major."""
        return self._add(body, [body.dtype], [body.shape], [contiguous_strides(body.shape)])[0]

    def native(
        self,
        kernel: Any,
        reads: Sequence[Tensor],
        results: Sequence[tuple[torch.dtype, Shape]],
        run: Callable[[Any, Any], None],
    ) -> tuple[Tensor, ...]:
        """What a kernel that somebody has written stores (`smelt.loops.ir.Native`); it gets its operands
        row-major.
        """
        given = tuple(self.realize_row_major(x).buffer for x in reads)
        dtypes, shapes = tuple(dtype for dtype, _ in results), tuple(shape for _, shape in results)
        body = Native(kernel, given, shapes, dtypes, run)
        return self._add(body, dtypes, shapes, [contiguous_strides(shape) for shape in shapes])

    def realize_row_major(self, x: Tensor) -> Tensor:
        """``x`` as a row-major buffer of its own shape: itself where it is one, else a copy."""
        found = self.realize(x)
        wanted = contiguous_strides(found.shape)
        have = self.graph.buffers[found.buffer].strides
        return found if have == wanted else self.copy(found, wanted)

    def scatter(
        self,
        base: Tensor,
        inner_fn: Callable[[Index], Any],
        place: Callable[[Index], Index],
        *,
        shape: Sequence[Expr],
        mode: str | None = None,
    ) -> Tensor:
        """A copy of ``base`` with elements stored (or combined, by ``mode``) at ``place(index)``."""
        source = self.realize(base)
        body = Scatter(source.buffer, tuple(shape), base.dtype, inner_fn, place, mode)
        return self._add(body, [base.dtype], [base.shape], [None])[0]

    def whole(self, buffer: Buffer) -> Tensor | Complex:
        """All of a buffer, as rows get it."""
        if not buffer.paired:
            return Tensor(buffer.name, buffer.dtype, buffer.shape)
        return Complex(*pair(Tensor(buffer.name, buffer.dtype, buffer.shape)))

    def realize(self, x: Tensor) -> Tensor:
        """``x`` as a buffer of its own shape: itself where it is one, else a copy."""
        buffer = self.graph.buffers[x.buffer]
        probe = tuple(loop_var(f"p{d}") for d in range(len(x.shape)))
        if buffer.shape == x.shape and tuple(x.transform(probe)) == probe:
            return x
        return self.copy(x)

    def copy(self, x: Tensor, strides: Sequence[Expr] | None = None) -> Tensor:
        """``x`` in a buffer of its own; ATen copies what loop functions cannot hold (float8 …)."""
        if supported(x.dtype):
            return self.pointwise(x.load, shape=x.shape, dtype=x.dtype, strides=strides)
        view = self.try_strided(x)
        if view is None:
            raise Unsupported(f"a copy of {x.dtype} elements that no strides reach")
        layout = self._layout(x.shape) if strides is None else tuple(strides)
        buffer = self.new_buffer(x.dtype, x.shape, layout)
        body = Extern("aten.clone.default", (view,), {"memory_format": torch.contiguous_format})
        self.graph.nodes.append(Node((buffer.name,), body, self.origin))
        return Tensor(buffer.name, x.dtype, x.shape)

    # -- random numbers -------------------------------------------------------------------------------------

    def initialize_generator(self) -> None:
        """Have the seed of this run's random numbers drawn: one call of torch's default generator, first."""
        if self.seed is not None:
            return
        buffer = self.new_buffer(torch.int64, (), ())
        limits = torch.iinfo(torch.int64)
        options = {"dtype": torch.int64, "device": torch.device("cpu")}
        body = Extern("aten.randint.low", (limits.min, limits.max, []), options)
        self.seed = Node((buffer.name,), body, Origin("seed"))
        self.graph.nodes.insert(0, self.seed)

    def drop_dead_draws(self) -> None:
        """Take the seed back where no row has asked for random numbers."""
        if self.seed is not None and self.random_keys == 0:
            self.graph.nodes.remove(self.seed)
            del self.graph.buffers[str(self.seed.outputs[0])]

    def random_key(self) -> Tensor:
        """A key for `ops.philox` (int64, 0-d) that no other call of this run has; `initialize_generator`
        comes first.
        """
        assert self.seed is not None and self.seed.outputs[0] is not None
        seed, number = self.seed.outputs[0], self.random_keys
        self.random_keys += 1

        def key(index: Index) -> Any:
            zero = ops.constant(0, torch.int64)
            return ops.philox(ops.load(seed, ()), ops.constant(number, torch.int64), zero)

        return self.pointwise(key, shape=(), dtype=torch.int64)

    # -- ATen calls ----------------------------------------------------------------------------------------

    def extern(
        self,
        overload: torch._ops.OpOverload | str,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        reason: str | None = None,
        bodies: Sequence[Graph] = (),
        overwrites: Sequence[str] = (),
    ) -> Any:
        """Call ATen. Tensor arguments become strided views; results have the current node's metadata.

        ``reason`` None: a call that smelt chooses (matmul …); a text: a fallback, recorded with it.
        ``bodies``, ``overwrites``: see `smelt.loops.ir.Extern`.
        Returns a Tensor, a list of (Tensor, number or None), or a SymPy symbol where the operator returns a
        number.
        """
        encode = self._encode
        body_args = tuple(encode(arg) for arg in args)
        body_kwargs = {name: encode(value) for name, value in kwargs.items()}
        symbol = self._number_result(overload)
        sizes = self._sizes_of_result()
        within = (tuple(bodies), tuple(overwrites))
        body = Extern(str(overload), body_args, body_kwargs, reason, symbol, sizes, *within)
        if symbol is not None:
            self.graph.nodes.append(Node((), body, self.origin))
            return self._number_read(symbol)
        single = isinstance(self.result, torch.Tensor)
        results = [self.result] if single else list(self.result or ())
        laid_out = iter(self._results())
        names: list[str | None] = []
        tensors: list[Any] = []
        for meta in results:
            if isinstance(meta, (list, tuple)):
                raise Unsupported(f"{overload} returns lists beside other results")
            if not isinstance(meta, torch.Tensor):
                names.append(None)
                tensors.append(as_expr(meta) if isinstance(meta, (torch.SymInt, int)) else meta)
                continue
            buffer = self.new_buffer(meta.dtype, *next(laid_out))
            names.append(buffer.name)
            tensors.append(self.whole(buffer))
        self.graph.nodes.append(Node(tuple(names), body, self.origin))
        return tensors[0] if single else tensors

    def _number_result(self, overload: torch._ops.OpOverload | str) -> Symbol | None:
        """The symbol that receives the result, where that is a number; a truth value is 0 or 1."""
        if not isinstance(self.result, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return None
        expr = as_expr(self.result) if isinstance(self.result, torch.SymInt) else self.result.node.expr
        if isinstance(self.result, torch.SymInt) and not self.unbound:  # known already
            return self._named()
        symbols = [expr] if isinstance(expr, Symbol) else list(self.unbound)
        if len(symbols) != 1:
            raise Unsupported(f"{overload} returns the number {expr}")
        self.unbound.clear()
        return symbols[0]

    def _number_read(self, symbol: Symbol) -> Expr:
        """The number that an ATen call returns, which has put it into ``symbol``."""
        if isinstance(self.result, torch.SymBool):
            return self.result.node.expr
        known = as_expr(self.result) if isinstance(self.result, torch.SymInt) else symbol
        if known == symbol:
            return symbol
        message = f"Runtime assertion failed: a number that depends on data is not {known}"
        self.check(sympy.Eq(symbol, known), message)
        return known

    def _sizes_of_result(self) -> tuple[SizeOf, ...]:
        """What an ATen call has to bind. Where a result starts in memory does not count: it has its own."""
        found = []
        for symbol, path in self.unbound.items():
            output = 0
            if path and isinstance(path[0], SequenceKey) and not isinstance(self.result, torch.Tensor):
                output, path = path[0].idx, path[1:]
            if not path:
                found.append(SizeOf(self._symbol(symbol), output, None))
            elif len(path) == 2 and path[0] == _SIZE and isinstance(path[1], SequenceKey):
                found.append(SizeOf(self._symbol(symbol), output, path[1].idx))
            elif path != _OFFSET:
                raise Unsupported(f"a result from which {symbol} cannot be read")
        self.unbound.clear()
        return tuple(found)

    # -- sizes that depend on data -------------------------------------------------------------------------

    def bind(self, symbol: Symbol, value: Expr) -> None:
        """Give a symbol of ``unbound`` its value, an expression of sizes known so far."""
        place = self.unbound.pop(symbol)
        self.graph.nodes.append(Node((), Bind(self._symbol(symbol), value), self.origin))
        self._check_refined(symbol, place)

    def bind_item(self, symbol: Symbol, x: Tensor) -> None:
        """Give a symbol of ``unbound`` the number that a 0-d integer tensor holds."""
        place = self.unbound.pop(symbol)
        self._read(x, self._symbol(symbol))
        self._check_refined(symbol, place)

    def _check_refined(self, symbol: Symbol, place: tuple[Any, ...]) -> None:
        """A size that tracing has found out later (``torch._check``, an operand of that size) must be it."""
        value = self.result
        if place and isinstance(place[0], SequenceKey) and not isinstance(value, torch.Tensor):
            value, place = value[place[0].idx], place[1:]
        if len(place) == 2 and place[0] == _SIZE and isinstance(place[1], SequenceKey):
            own, size = self._symbol(symbol), as_expr(value.shape[place[1].idx])
            if own != size:
                self.check(
                    sympy.Eq(own, size), f"Runtime assertion failed for expression Eq({symbol}, {size})"
                )

    def item(self, x: Tensor) -> Symbol:
        """The number that an integer or boolean tensor of one element holds, under a name of its own."""
        return self._read(x, self._named())

    def _named(self) -> Symbol:
        """A new name for a number of which nothing is known."""
        self.named += 1
        return Symbol(f"sz{self.named}", integer=True)

    def _read(self, x: Tensor, symbol: Symbol) -> Symbol:
        body = Extern("aten._local_scalar_dense.default", (self.strided(x),), {}, None, symbol)
        self.graph.nodes.append(Node((), body, self.origin))
        return symbol

    def sized(self, value: Expr) -> Expr:
        """A size under a name of its own: for expressions too unwieldy to stand in loops. Never negative."""
        if value.is_Integer or isinstance(value, Symbol):
            return value
        self.named += 1
        symbol = loop_var(f"sz{self.named}")
        self.graph.nodes.append(Node((), Bind(symbol, value), self.origin))
        return symbol

    def check(self, condition: Any, message: str, kind: str = "RuntimeError") -> None:
        """Raise the built-in exception ``kind`` at run time where a condition on sizes does not hold."""
        if condition != sympy.true and ("check", condition) not in self.memo:
            self.memo["check", condition] = True
            self.graph.nodes.append(Node((), Check(condition, message, kind), self.origin))

    def unbound_size(self, dim: int, output: int | None = None) -> Symbol | None:
        """The symbol to be bound to the size of a result's dimension, if there is one."""
        path: tuple[Any, ...]
        path = (_SIZE, SequenceKey(dim)) if output is None else (SequenceKey(output), _SIZE, SequenceKey(dim))
        return next((symbol for symbol, place in self.unbound.items() if place == path), None)

    def unbound_offset(self) -> Symbol | None:
        """The symbol to be bound to where the result starts in its memory, if there is one."""
        return next((symbol for symbol, place in self.unbound.items() if place == _OFFSET), None)

    def require_bound(self) -> None:
        """The end of a row.

        Raises:
            Unsupported: the row left a size without its value.
        """
        if any(place != _OFFSET for place in self.unbound.values()):
            raise Unsupported("a size that depends on data")

    def _symbol(self, symbol: Symbol) -> Symbol:
        """The symbol as shapes have it."""
        env = environment_of(self.result)
        return symbol if env is None else with_known_signs(symbol, env)

    # -- complex numbers -----------------------------------------------------------------------------------

    def joined(self, x: Complex, strides: Sequence[Expr] | None = None) -> Tensor:
        """The parts of each number in one buffer, ``[*x.shape, 2]``, that ATen and the caller see as ``x``.

        ``strides``: the buffer's, counted in complex numbers.
        """
        steps = self._layout(x.shape) if strides is None else tuple(strides)
        key = ("joined", x.real.buffer, x.imaginary.buffer, steps)
        is_known = x.real.transform is tuple and x.imaginary.transform is tuple
        if is_known and key in self.memo:
            return self.memo[key]

        def inner(index: Index) -> Any:
            *place, part = index
            if part.is_Integer:
                return x.parts[int(part)].load(place)
            is_real = ops.eq(ops.index_expr(part, torch.int64), ops.constant(0, torch.int64))
            return ops.where(is_real, *x.load(place))

        shape = (*x.shape, sympy.Integer(2))
        buffer = self.new_buffer(x.dtype, x.shape, steps)
        body = Pointwise(shape, x.real.dtype, inner)
        self.graph.nodes.append(Node((buffer.name,), body, self.origin))
        found = Tensor(buffer.name, x.real.dtype, shape)
        if is_known:
            self.memo[key] = found
        return found

    def pairs(self, x: Complex) -> Tensor:
        """Real and imaginary parts side by side, ``[*x.shape, 2]``: a view where they lie so in memory."""
        view = self.try_strided(x)
        if view is None:
            return self.joined(x)
        real, two = x.real, sympy.Integer(2)
        zero = tuple(real.transform((sympy.Integer(0),) * len(x.shape)))
        one = tuple(x.imaginary.transform((sympy.Integer(0),) * len(x.shape)))
        places = [d for d, (a, b) in enumerate(zip(zero, one)) if a != b]
        if len(places) != 1 or one[places[0]] - zero[places[0]] != 1:
            return self.joined(x)

        def transform(index: Index) -> Index:
            at = list(real.transform(index[:-1]))
            at[places[0]] = at[places[0]] + index[-1]
            return at

        return Tensor(real.buffer, real.dtype, (*x.shape, two), transform)

    # -- views that ATen takes -------------------------------------------------------------------------------

    def strided(self, x: Tensor | Complex) -> StridedView:
        """``x`` as ATen takes it: a strided view of its buffer where the index is affine, else of a copy."""
        known = self.try_strided(x)
        return known or self.try_strided(self.laid_out(x, contiguous_strides(x.shape))) or _unreachable()

    def laid_out(self, x: Tensor | Complex, strides: Sequence[Expr]) -> Tensor | Complex:
        """``x`` in a buffer with these strides."""
        return Complex(*pair(self.joined(x, strides))) if isinstance(x, Complex) else self.copy(x, strides)

    def try_strided(self, x: Tensor | Complex) -> StridedView | None:
        """The strided view of ``x``'s buffer that ``x`` is, or None where its index is not affine."""
        if isinstance(x, Complex):
            return self._strided_pairs(x)
        buffer = self.graph.buffers[x.buffer]
        variables = tuple(loop_var(f"p{d}") for d in range(len(x.shape)))
        extents = dict(zip(variables, x.shape))
        flat = _joined(simplify(flatten(tuple(x.transform(variables)), buffer.strides), extents))
        found = affine(flat, variables)
        if found is None:
            return None
        strides = (sympy.Integer(1) if size == 1 else each for size, each in zip(x.shape, found[0]))
        return StridedView(x.buffer, x.shape, tuple(strides), found[1])

    def _strided_pairs(self, x: Complex) -> StridedView | None:
        """The view of complex numbers whose parts are real views side by side; None where they are not."""
        real, imaginary = self.try_strided(x.real), self.try_strided(x.imaginary)
        if real is None or imaginary is None or real.buffer != imaginary.buffer:
            return None
        if real.strides != imaginary.strides or expand(imaginary.offset - real.offset) != 1:
            return None
        strides = [sympy.Integer(1) if n == 1 else step / 2 for n, step in zip(real.shape, real.strides)]
        offset = expand(real.offset / 2)
        if not all(number.is_integer for number in (*strides, offset)):
            return None
        return StridedView(real.buffer, real.shape, tuple(strides), offset, x.dtype)

    def _encode(self, arg: Any) -> Any:
        if isinstance(arg, Tensor):
            return self.strided(arg)
        if isinstance(arg, (list, tuple)):
            return [self._encode(item) for item in arg]
        return arg

    # -- bookkeeping ---------------------------------------------------------------------------------------

    def _add(
        self,
        body: Body,
        dtypes: Sequence[torch.dtype],
        shapes: Sequence[tuple[Expr, ...]],
        strides: Sequence[Sequence[Expr] | None],
    ) -> tuple[Tensor, ...]:
        tensors = []
        for dtype, shape, stride in zip(dtypes, shapes, strides):
            layout = tuple(stride) if stride is not None else self._layout(shape)
            buffer = self.new_buffer(dtype, shape, layout)
            tensors.append(Tensor(buffer.name, dtype, shape))
        self.graph.nodes.append(Node(tuple(t.buffer for t in tensors), body, self.origin))
        return tuple(tensors)

    def _layout(self, shape: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """Eager's strides where the buffer has a result's shape (channels-last stays so), else row-major.

        A shape that differs from a result's by size-1 dimensions only (as before ``keepdim``) counts too.
        """
        found = self.decided.layouts.get(shape)
        if found is None:
            found = self.decided.layouts[shape] = self._like_a_result(shape) or contiguous_strides(shape)
        return found

    def _like_a_result(self, shape: Shape) -> Shape | None:
        for own, strides in self._results():
            if own == shape and is_dense(shape, strides):
                return strides
        for own, strides in self._results():
            wide = [(size, stride) for size, stride in zip(own, strides) if size != 1]
            if [size for size, _ in wide] == [size for size in shape if size != 1]:
                left = iter(stride for _, stride in wide)
                found = tuple(sympy.Integer(1) if size == 1 else next(left) for size in shape)
                if is_dense(shape, found):
                    return found
        return None

    def new_buffer(self, dtype: torch.dtype, shape: tuple[Expr, ...], strides: tuple[Expr, ...]) -> Buffer:
        """A fresh name in the graph; rows call `pointwise` and its like, which fill the buffer too."""
        buffer = buffer_of(f"b{len(self.graph.buffers)}", dtype, shape, strides)
        self.graph.buffers[buffer.name] = buffer
        return buffer


def real_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of the parts of complex numbers; other dtypes as they are.

    >>> real_dtype(torch.complex64), real_dtype(torch.int8)
    (torch.float32, torch.int8)
    """
    return dtype.to_real() if dtype.is_complex else dtype


def buffer_of(name: str, dtype: torch.dtype, shape: Shape, strides: Shape) -> Buffer:
    """A buffer for a tensor of this dtype and layout; of pairs, for complex numbers."""
    if not dtype.is_complex:
        return Buffer(name, dtype, shape, strides)
    steps = (*(2 * step for step in strides), sympy.Integer(1))
    return Buffer(name, dtype.to_real(), (*shape, sympy.Integer(2)), steps, paired=True)


def pair(x: Tensor) -> tuple[Tensor, Tensor]:
    """The elements 0 and 1 of the last dimension, as views."""

    def element(number: int) -> Tensor:
        return x.view(x.shape[:-1], lambda index: [*index, sympy.Integer(number)])

    return element(0), element(1)


_SIZE, _OFFSET = CallMethodKey("size"), (CallMethodKey("storage_offset"),)


def _joined(flat: Expr) -> Expr:
    """``d*(x//d) + x%d`` is ``x``: what a split dimension looks like once it is flattened again."""
    if flat.has(Mod):
        flat = flat.replace(Mod, lambda x, d: x - d * FloorDiv(x, d))
    return expand(flat)


def shape_of(meta: torch.Tensor) -> tuple[Expr, ...]:
    return tuple(as_expr(size) for size in meta.shape)


def strides_of(meta: torch.Tensor) -> tuple[Expr, ...]:
    """The strides; ``Max(1, n)``, which is not ``n`` only where the tensor is empty, counts as ``n``."""
    return tuple(_without_max(as_expr(stride)) for stride in meta.stride())


def _without_max(stride: Expr) -> Expr:
    if not stride.has(Max):
        return stride
    return stride.replace(Max, lambda *args: args[1] if len(args) == 2 and args[0] == 1 else Max(*args))


def is_dense(shape: Sequence[Expr], strides: Sequence[Expr]) -> bool:
    """Whether the strides are a permutation of row-major ones: every element has its own place, no holes."""
    return dense_order(shape, strides) is not None


def dense_order(shape: Sequence[Expr], strides: Sequence[Expr]) -> list[int] | None:
    """The dimensions of more than one element from the largest stride to the smallest; None unless dense.

    >>> two, three = sympy.Integer(2), sympy.Integer(3)
    >>> dense_order([two, three], [sympy.Integer(1), two]), dense_order([two, three], [three, three])
    ([1, 0], None)
    """
    dims = [d for d in range(len(shape)) if shape[d] != 1]
    remaining = {strides[d]: d for d in dims}
    if len(remaining) != len(dims):
        return None
    expected: Expr = sympy.Integer(1)
    order: list[int] = []
    for _ in dims:
        match = next((d for stride, d in remaining.items() if same(stride, expected)), None)
        if match is None:
            return None
        del remaining[strides[match]]
        expected = expand(expected * shape[match])
        order.insert(0, match)
    return order


def _unreachable() -> StridedView:
    raise AssertionError("a contiguous copy is always strided")


def constant(value: float | int | bool | Expr, dtype: torch.dtype) -> Any:
    """``ops.constant`` with the number brought into the dtype's kind first; or one that depends on sizes."""
    if isinstance(value, Expr):
        return symbolic_number(value, dtype)(())
    if dtype is torch.bool:
        return ops.constant(bool(value), dtype)
    return ops.constant(float(value) if dtype.is_floating_point else int(value), dtype)
