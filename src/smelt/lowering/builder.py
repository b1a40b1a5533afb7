"""The builder that lowering rows get: loop functions, extern calls, the result's metadata."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch
from sympy import Expr, Symbol
from torch.fx.experimental.symbolic_shapes import CallMethodKey
from torch.utils._pytree import SequenceKey

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
from smelt.lowering.layouts import buffer_of, is_dense, pair, real_dtype, rejoined, shape_of, strides_of
from smelt.lowering.structural_hash import Decided
from smelt.lowering.tensor import Complex, Index, Tensor
from smelt.ops import ops
from smelt.records import replace
from smelt.symbolic import as_expr, contiguous_strides, flatten, loop_var
from smelt.symbolic.affine import affine, expand
from smelt.symbolic.expr import with_known_signs
from smelt.symbolic.index import simplify


class Builder:
    """Adds nodes to a loop graph for one FX node at a time (``origin``, ``result``)."""

    def __init__(self, graph: Graph, device: torch.device | None = None, own: bool = False) -> None:
        self.graph, self.device, self.own = graph, device or torch.device("cpu"), own
        self.origin = Origin("?")
        self.offsets: dict[str, Expr] = {}
        """The storage offset of each input that has one (``as_strided`` counts from it)."""
        self.memo: dict[Any, Any] = {}
        """Values that rows have derived from tensors, for reuse."""
        self.named = 0
        """The number of sizes that have been given names of their own."""
        self.seed: Node | None = None
        self.random_keys = 0
        self._result: Any = None
        self.decided = Decided()
        """Facts about the call that is being lowered."""
        self.operand: Any = None
        """Metadata of the current node's first argument."""
        self.unbound: dict[Symbol, tuple[Any, ...]] = {}
        """The data-dependent sizes that this node has to bind, and the place of each in its result."""

    # -- metadata -----------------------------------------------------------------------------------------

    @property
    def result(self) -> Any:
        """FakeTensor metadata (``node.meta['val']``) of the FX node being lowered."""
        return self._result

    @result.setter
    def result(self, metadata: Any) -> None:
        self.expect(metadata, Decided())

    def expect(self, metadata: Any, decided: Decided) -> None:
        """Set the current node's metadata, and the facts decided for structurally equal calls."""
        self._result, self.decided = metadata, decided

    def _results(self) -> list[tuple[Shape, Shape]]:
        """Shape and strides of each tensor that the current node returns."""
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
        """The dtype of the current node's (only or first) result; for complex numbers that of each part."""
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
        """New buffers of ``shape`` and of ``dtypes``, computed by a scan along ``dim``.

        ``state`` has the dtype and initial value of each part of the scan's state; ``inner_fn(index, parts)``
        returns the parts after ``index``, and the buffers' elements there.
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
        """New buffers of ``shape``, one for each part of the state: its value after ``turns`` iterations.

        ``state`` has each part's dtype and initial value; ``inner_fn(index, turn, parts)`` returns the parts
        after an iteration.
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

        ``keys(index)`` returns the elements of ``shape``; they are first stored row by row.
        """
        rows = self.pointwise(keys, shape=shape, dtype=dtype, strides=contiguous_strides(shape))
        results = (*shape[:-1], shape[-1] if limit is None else limit)
        body = Sort(rows.buffer, results, dtype, descending)
        strides = contiguous_strides(results)
        values, positions = self._add(body, [dtype, torch.int64], [results, results], [strides, strides])
        return values, positions

    def contraction(self, body: Contraction) -> Tensor:
        """The result of a contraction, row-major."""
        return self._add(body, [body.dtype], [body.shape], [contiguous_strides(body.shape)])[0]

    def native(
        self,
        kernel: Any,
        reads: Sequence[Tensor],
        results: Sequence[tuple[torch.dtype, Shape]],
        run: Callable[[Any, Any], None],
    ) -> tuple[Tensor, ...]:
        """The outputs of a user-written kernel (`smelt.loops.ir.Native`); its operands are made row-major."""
        given = tuple(self.realize_row_major(x).buffer for x in reads)
        dtypes, shapes = tuple(dtype for dtype, _ in results), tuple(shape for _, shape in results)
        body = Native(kernel, given, shapes, dtypes, run)
        return self._add(body, dtypes, shapes, [contiguous_strides(shape) for shape in shapes])

    def realize_row_major(self, x: Tensor) -> Tensor:
        """``x`` as a row-major buffer of its own shape: itself if it is one, else a copy."""
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
        """All of a buffer, in the form in which rows get tensors."""
        if not buffer.paired:
            return Tensor(buffer.name, buffer.dtype, buffer.shape)
        return Complex(*pair(Tensor(buffer.name, buffer.dtype, buffer.shape)))

    def realize(self, x: Tensor) -> Tensor:
        """``x`` as a buffer of its own shape: itself if it is one, else a copy."""
        buffer = self.graph.buffers[x.buffer]
        probe = tuple(loop_var(f"p{d}") for d in range(len(x.shape)))
        if buffer.shape == x.shape and tuple(x.transform(probe)) == probe:
            return x
        return self.copy(x)

    def copy(self, x: Tensor, strides: Sequence[Expr] | None = None) -> Tensor:
        """``x`` in a buffer of its own; ATen copies dtypes that loop functions cannot hold (float8 …)."""
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
        """Draw the seed of this run's random numbers: the run's first call of torch's default generator."""
        if self.seed is not None:
            return
        buffer = self.new_buffer(torch.int64, (), ())
        limits = torch.iinfo(torch.int64)
        options = {"dtype": torch.int64, "device": self.device}
        body = Extern("aten.randint.low", (limits.min, limits.max, []), options)
        self.seed = Node((buffer.name,), body, Origin("seed"))
        self.graph.nodes.insert(0, self.seed)

    def drop_dead_draws(self) -> None:
        """Remove the draw of the seed if no row has asked for random numbers."""
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
        drawn = replace(self.seed, origin=self.seed.origin.joined([self.origin]))
        self.graph.nodes[self.graph.nodes.index(self.seed)] = self.seed = drawn

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
        """The symbol that receives the result if it is a number; a truth value is 0 or 1."""
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
        """The number that an ATen call returns, read from ``symbol``, to which the call binds it."""
        if isinstance(self.result, torch.SymBool):
            return self.result.node.expr
        known = as_expr(self.result) if isinstance(self.result, torch.SymInt) else symbol
        if known == symbol:
            return symbol
        message = f"Runtime assertion failed: a number that depends on data is not {known}"
        self.check(sympy.Eq(symbol, known), message)
        return known

    def _sizes_of_result(self) -> tuple[SizeOf, ...]:
        """The sizes that an ATen call has to bind; no storage offset: the result has its own memory."""
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
        """Check that a size refined later by tracing (``torch._check``, an operand) has that value."""
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
        """A new name for a number about which nothing is known."""
        self.named += 1
        return Symbol(f"sz{self.named}", integer=True)

    def _read(self, x: Tensor, symbol: Symbol) -> Symbol:
        body = Extern("aten._local_scalar_dense.default", (self.strided(x),), {}, None, symbol)
        self.graph.nodes.append(Node((), body, self.origin))
        return symbol

    def sized(self, value: Expr) -> Expr:
        """A size under a name of its own, for expressions too long for loops. It is never negative."""
        if value.is_Integer or isinstance(value, Symbol):
            return value
        self.named += 1
        symbol = loop_var(f"sz{self.named}")
        self.graph.nodes.append(Node((), Bind(symbol, value), self.origin))
        return symbol

    def check(self, condition: Any, message: str, kind: str = "RuntimeError") -> None:
        """Raise the built-in exception ``kind`` at run time if a condition on sizes does not hold."""
        if condition != sympy.true and ("check", condition) not in self.memo:
            self.memo["check", condition] = True
            self.graph.nodes.append(Node((), Check(condition, message, kind), self.origin))

    def unbound_size(self, dim: int, output: int | None = None) -> Symbol | None:
        """The symbol to be bound to the size of a result's dimension, if there is one."""
        path: tuple[Any, ...]
        path = (_SIZE, SequenceKey(dim)) if output is None else (SequenceKey(output), _SIZE, SequenceKey(dim))
        return next((symbol for symbol, place in self.unbound.items() if place == path), None)

    def unbound_offset(self) -> Symbol | None:
        """The symbol to be bound to the result's storage offset, if there is one."""
        return next((symbol for symbol, place in self.unbound.items() if place == _OFFSET), None)

    def require_bound(self) -> None:
        """End a row.

        Raises:
            Unsupported: the row left a data-dependent size unbound.
        """
        if any(place != _OFFSET for place in self.unbound.values()):
            raise Unsupported("a size that depends on data")

    def _symbol(self, symbol: Symbol) -> Symbol:
        """The symbol as it appears in shapes."""
        env = environment_of(self.result)
        return symbol if env is None else with_known_signs(symbol, env)

    # -- complex numbers -----------------------------------------------------------------------------------

    def joined(self, x: Complex, strides: Sequence[Expr] | None = None) -> Tensor:
        """Both parts of each number interleaved in one buffer, ``[*x.shape, 2]``; ATen sees it as ``x``.

        ``strides``: the buffer's strides, counted in complex numbers.
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
        """Real and imaginary parts interleaved, ``[*x.shape, 2]``: a view if that is the layout in memory."""
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
        """``x`` as ATen takes it: a strided view of its buffer if the index is affine, else of a copy."""
        known = self.try_strided(x)
        return known or self.try_strided(self.laid_out(x, contiguous_strides(x.shape))) or _unreachable()

    def laid_out(self, x: Tensor | Complex, strides: Sequence[Expr]) -> Tensor | Complex:
        """``x`` in a buffer with these strides."""
        return Complex(*pair(self.joined(x, strides))) if isinstance(x, Complex) else self.copy(x, strides)

    def try_strided(self, x: Tensor | Complex) -> StridedView | None:
        """The strided view of ``x``'s buffer that ``x`` is, or None if its index is not affine."""
        if isinstance(x, Complex):
            return self._strided_pairs(x)
        buffer = self.graph.buffers[x.buffer]
        variables = tuple(loop_var(f"p{d}") for d in range(len(x.shape)))
        extents = dict(zip(variables, x.shape))
        flat = rejoined(simplify(flatten(tuple(x.transform(variables)), buffer.strides), extents))
        found = affine(flat, variables)
        if found is None:
            return None
        strides = (sympy.Integer(1) if size == 1 else each for size, each in zip(x.shape, found[0]))
        return StridedView(x.buffer, x.shape, tuple(strides), found[1])

    def _strided_pairs(self, x: Complex) -> StridedView | None:
        """The view of complex numbers whose parts are interleaved real views; None if they are not."""
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
        """Eager's strides if the buffer has a result's shape (channels-last stays so), else row-major.

        Shapes that differ from a result's by size-1 dimensions only (as before ``keepdim``) count as equal.
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
        """A buffer with a fresh name in the graph. `pointwise` and its kin also define its contents."""
        buffer = buffer_of(f"b{len(self.graph.buffers)}", dtype, shape, strides)
        self.graph.buffers[buffer.name] = buffer
        return buffer


_SIZE, _OFFSET = CallMethodKey("size"), (CallMethodKey("storage_offset"),)


def _unreachable() -> StridedView:
    raise AssertionError("a contiguous copy is always strided")
