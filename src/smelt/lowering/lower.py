"""Contract graph → loop graph: one iteration over FX nodes, one table look-up per node."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from functools import cached_property, lru_cache
from typing import Any

import sympy
import torch
from sympy import Expr, Symbol
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx import Graph as FxGraph
from torch.fx import GraphModule
from torch.fx import Node as FxNode
from torch.utils._pytree import tree_leaves

from smelt.contract.devices import device_of
from smelt.contract.facts import REFUSED, environment_of, is_view, new_sizes, reads_number
from smelt.contract.horizontal_fusion import JOINED
from smelt.errors import SmeltError, Unsupported
from smelt.loops.ir import Extern, Graph, Mutation, Node, Origin, StridedView
from smelt.lowering.builder import Builder
from smelt.lowering.chosen import chosen, touches_complex, touches_foreign
from smelt.lowering.complex.elementwise import copied
from smelt.lowering.control import HigherOrder, is_custom
from smelt.lowering.dtypes import supported
from smelt.lowering.hints import hints_of, size_symbols
from smelt.lowering.layouts import (
    buffer_of,
    contiguous,
    is_dense,
    same_layout,
    shape_of,
    strides_of,
    with_strides,
)
from smelt.lowering.products.attention import ATTENTIONS
from smelt.lowering.products.contractions import contraction_of, keep_contraction
from smelt.lowering.registry import OWN, TABLE, Row, complex_row_of, row_of
from smelt.lowering.structural_hash import StructuralHash, Way
from smelt.lowering.tensor import Complex, HeldNumber, Tensor
from smelt.runtime.externs import is_mutating, is_random
from smelt.symbolic import as_expr, contiguous_strides, free_symbols, is_one, is_zero
from smelt.symbolic.expr import with_known_signs

_COPY_BACK = torch.ops.aten.copy_.default
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
_FUNCTIONALIZE = "functionalize the graph first"
_ROW_MAJOR = torch.contiguous_format
OnBug = Callable[[Exception, FxNode], str]
_RESERVED = re.compile(r"[a-z]{1,3}[0-9]*")


def lower(
    program: GraphModule | FxGraph,
    fallback_random: bool = False,
    frozen: Collection[str] = (),
    saved: Collection[int] = (),
    aliases: Collection[int] = (),
    on_bug: OnBug | None = None,
    own: bool = False,
) -> Graph:
    """The loop graph of a contract graph.

    Args:
        program: functional ATen with FakeTensor metadata on every node; the only mutation is a final
            ``aten.copy_(placeholder, value)``. ``node.meta["where"]``, if known, is the user's line.
        fallback_random: whether ATen draws all random numbers, so that they are eager's.
        frozen: names of placeholders that are the same at every call; those that the program overwrites, or
            whose sizes are not known, do not become `Graph.frozen`.
        saved: positions of outputs that only the backward reads: an output that is a whole buffer which no
        other output shares becomes one of `Graph.saved`.
        aliases: positions of outputs of which only sizes, strides and offset count.
        on_bug: gets an unexpected exception of a row, and the call; returns the reason for the fallback to
        ATen. None: the exception is raised.
        own: whether operators that ATen computes by choice have rows too (`smelt.lowering.registry.OWN`).

    Raises:
        SmeltError: SM0431 an operator mutates its arguments, SM0432 a node without metadata,
            SM0433 a node that is no ATen call.
        Unsupported: the graph holds a higher-order operator that smelt does not know.

    >>> from torch.fx.experimental.proxy_tensor import make_fx
    >>> traced = make_fx(lambda x: torch.ops.aten.t(x), tracing_mode="fake")(torch.ones(2, 3))
    >>> lower(traced).outputs
    [StridedView(buffer='x_1', shape=(3, 2), strides=(1, 3), offset=0, dtype=None)]
    """
    graph = program.graph if isinstance(program, GraphModule) else program
    lowered = _Lowering(graph, fallback_random, "", frozen, aliases, on_bug, own).run()
    lowered.saved = _saved(lowered, saved)
    return lowered


class _Lowering:
    """The lowering of one graph.

    ``values`` holds the result of each FX node: a Tensor, a size, a tuple of these, a constant.
    """

    def __init__(
        self,
        program: FxGraph,
        fallback_random: bool,
        path: str = "",
        frozen: Collection[str] = (),
        aliases: Collection[int] = (),
        on_bug: OnBug | None = None,
        own: bool = False,
    ) -> None:
        self.program, self.path, self.frozen, self.aliases = program, path, frozen, aliases
        self.on_bug = on_bug
        self.fallback_random = fallback_random
        self.graph = Graph()
        self.builder = Builder(self.graph, device_of(program), own)
        self.values: dict[FxNode, Any] = {}
        self.hashes = StructuralHash()
        self.bound: set[str] = set()
        self.held: dict[Symbol, HeldNumber] = {}
        self.mutated = {
            node.args[0] for node in program.nodes if node.op == "call_function" and node.target is _COPY_BACK
        }

    def run(self) -> Graph:
        builder = self.builder
        for node in self.program.nodes:
            call, named = self.hashes.call(node), builder.named
            builder.origin = self._origin(_operator(node.target), node)
            builder.expect(node.meta.get("val"), self.hashes.decided(call))
            builder.unbound = {}
            first = node.args[0] if node.args else None
            builder.operand = first.meta.get("val") if isinstance(first, FxNode) else None
            getattr(self, f"_{node.op}")(node)
            repeats = builder.named == named  # this call's own size is no other call's
            self.hashes.gives(node, self.values.get(node), self.graph, call if repeats else None)
        builder.drop_dead_draws()
        self.graph.hints.update(hints_of(self.program, size_symbols(self.graph)))
        return self.graph

    # -- one method for each kind of FX node ----------------------------------------------------------------

    def _placeholder(self, node: FxNode) -> None:
        meta = node.meta.get("val")
        if isinstance(meta, torch.Tensor):
            buffer = buffer_of(self._name(str(node.target)), meta.dtype, shape_of(meta), strides_of(meta))
            self.graph.buffers[buffer.name] = buffer
            self.graph.inputs.append(buffer.name)
            self.builder.offsets[buffer.name] = as_expr(meta.storage_offset()) * (2 if buffer.paired else 1)
            self.bound.update(symbol.name for symbol in free_symbols(buffer.shape))
            self.values[node] = self.builder.whole(buffer)
            sizes_known = not free_symbols((*buffer.shape, *buffer.strides))
            if node.name in self.frozen and node not in self.mutated and sizes_known:
                self.graph.frozen |= {buffer.name}
            if meta.is_conj() or meta.is_neg():
                self.values[node] = self._resolved(node, self.values[node])
            return
        value = _number(meta)
        self.values[node] = value
        self.graph.inputs.append(value if isinstance(value, Symbol) else None)
        if isinstance(value, Symbol):
            self.bound.add(value.name)

    def _resolved(self, node: FxNode, x: Tensor | Complex) -> Tensor | Complex:
        """An input, with the conjugate or negative bit of its memory resolved (`Plan.lazy`)."""
        if node in self.mutated:
            raise Unsupported("an input is overwritten whose memory holds conjugates or negatives")
        if isinstance(x, Complex):
            return x
        buffer = self.builder.new_buffer(x.dtype, x.shape, contiguous_strides(x.shape))
        body = Extern("aten.clone.default", (self.builder.strided(x),), {"memory_format": _ROW_MAJOR})
        self.graph.nodes.append(Node((buffer.name,), body, self.builder.origin))
        return Tensor(buffer.name, x.dtype, x.shape)

    def _get_attr(self, node: FxNode) -> None:
        value: Any = self.program.owning_module
        for part in str(node.target).split("."):
            value = getattr(value, part)
        if not isinstance(value, torch.Tensor):
            self.values[node] = value
            return
        name = self._name(f"{self.path}{node.target}")
        value = value.detach().resolve_conj().resolve_neg()
        buffer = buffer_of(name, value.dtype, shape_of(value), strides_of(value))
        self.graph.buffers[name] = buffer
        self.graph.constants[name] = value
        self.graph.constant_paths[name] = f"{self.path}{node.target}"
        self.values[node] = self.builder.whole(buffer)

    def _call_function(self, node: FxNode) -> None:
        args = [self._argument(arg) for arg in node.args]
        kwargs = {key: self._argument(value) for key, value in node.kwargs.items()}
        target, meta = node.target, node.meta.get("val")
        if isinstance(target, HigherOrderOperator):
            higher = HigherOrder(self.builder, self.values.__getitem__, self._strided_argument, self._body)
            symbols = tuple(new_sizes(node))
            self.values[node] = higher.lower(node)
            self._check_sizes(symbols, environment_of(meta))
            return
        if not isinstance(target, OpOverload):
            self.values[node] = self._python(node, args)
        elif target is _COPY_BACK:
            self.values[node] = self._copy_back(node, args)
        elif is_mutating(target):
            raise self._error("SM0431", node, f"{target} mutates its arguments", _FUNCTIONALIZE)
        elif "val" not in node.meta and target._schema.returns:
            raise self._error("SM0432", node, f"{target} has no metadata", "trace with fake tensors")
        elif isinstance(meta, _SYMBOLIC) and not reads_number(target):
            self.values[node] = _number(meta)
        elif self._as_strided(node) is not None and all(user.op == "output" for user in node.users):
            self.values[node] = self.values[node.args[0]]  # type: ignore[index]
        else:
            found = new_sizes(node).items()  # an assertion may have made a size one that is known already
            self.builder.unbound = {size: place for size, place in found if size.name not in self.bound}
            symbols = tuple(self.builder.unbound)
            if self.held:
                args, kwargs = self._held(args), {key: self._held(value) for key, value in kwargs.items()}
            self.values[node] = self._call(node, target, args, kwargs)
            if isinstance(meta, torch.SymFloat) and reads_number(target) and isinstance(args[0], Tensor):
                symbol = self.values[node]
                self.held[symbol] = HeldNumber(symbol.name, args[0])
            if symbols:
                self._check_sizes(symbols, environment_of(meta))

    def _origin(self, op: str, node: FxNode) -> Origin:
        names = (node.name, *node.meta.get(JOINED, ()))
        return Origin(op, node.meta.get("where"), tuple(f"{self.path}{name}" for name in names))

    def _body(self, name: str, module: GraphModule) -> Graph:
        """The loop graph of a branch or loop body. Its results have memory of their own."""
        path, own = f"{self.path}{name}.", self.builder.own
        inner = _Lowering(module.graph, self.fallback_random, path, on_bug=self.on_bug, own=own)
        return inner.run()

    def _output(self, node: FxNode) -> None:
        results = node.args[0]
        views: dict[FxNode, StridedView] = {}
        for position, result in enumerate(results if isinstance(results, (list, tuple)) else [results]):
            value = self._argument(result)
            if isinstance(value, (Tensor, Complex)) and isinstance(result, FxNode):
                self.builder.origin = self._origin("output", result)
                if result not in views:
                    views[result] = self._output_view(result, value, position in self.aliases)
                value = views[result]
            self.graph.outputs.append(value)

    def _call_method(self, node: FxNode) -> None:
        raise self._error("SM0433", node, f"method call {node.target}", "decompose to ATen first")

    _call_module = _call_method

    # -- calls ----------------------------------------------------------------------------------------------

    def _call(self, node: FxNode, target: OpOverload, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Lower a call by its row, or by ATen: without a row, after the row's refusal, on foreign dtypes."""
        decided, row = self.builder.decided, row_of(target)
        if decided.complex is None:
            decided.complex = touches_complex([args, kwargs], self.builder.result)
        if decided.complex:
            row = complex_row_of(target)
        if self.builder.own:
            row = OWN.get(target, row)
        if decided.way is None:
            decided.way, decided.reason = self._way(node, target, row, args, kwargs)
        if decided.way is Way.ROW:
            assert row is not None
            before = len(self.graph.nodes)
            value, reason = self._attempt(node, row, args, kwargs)
            if reason is None:
                return value if is_view(target) else self._of_its_own(value, before)
            decided.way, decided.reason = Way.ATEN, reason
        elif decided.way is Way.VIEW:
            assert row is not None
            value = self._foreign_view(node, row, args, kwargs)
            if value is not None:
                return value
        value = self._extern(node, target, decided.reason)
        if decided.way is Way.STRUCTURED:
            keep_contraction(self.builder, target, args, kwargs)
        return value

    def _way(
        self, node: FxNode, target: OpOverload, row: Row | None, args: list[Any], kwargs: dict[str, Any]
    ) -> tuple[Way, str | None]:
        """The way to lower a call; for a fallback also the reason."""
        if REFUSED in node.meta:
            return Way.ATEN, node.meta[REFUSED]
        if is_custom(target) and row is None and contraction_of(target) is None:
            return Way.ATEN, None
        if self.builder.decided.complex and row is None:
            return Way.ATEN, None if chosen(target) else f"complex numbers: {_no_row(target)}"
        if touches_foreign([*node.args, *node.kwargs.values()], self.builder.result):
            return Way.VIEW if row is not None and is_view(target) else Way.ATEN, None
        foreign = _foreign([args, kwargs, self.builder.result])
        if row is None:
            if chosen(target) is not None or contraction_of(target) is not None:
                return Way.ATEN if foreign and target not in ATTENTIONS else Way.STRUCTURED, None
            return Way.ATEN, _no_row(target)
        reason = foreign or (self._random(target) if is_random(target) else None)
        return Way.ATEN if reason else Way.ROW, reason

    def _attempt(
        self, node: FxNode, row: Row, args: list[Any], kwargs: dict[str, Any]
    ) -> tuple[Any, str | None]:
        """The result of a row, or the reason of its refusal, after which the graph is restored."""
        nodes, buffers, unbound = len(self.graph.nodes), len(self.graph.buffers), dict(self.builder.unbound)
        try:
            value = row(self.builder, *args, **kwargs)
            self.builder.require_bound()
            return value, None
        except Exception as error:
            reason = self._refusal(error, node, [args, kwargs])
            self.builder.unbound = unbound
            self.builder.memo.clear()
            del self.graph.nodes[nodes:]
            for added in list(self.graph.buffers)[buffers:]:
                del self.graph.buffers[added]
            return None, reason

    def _refusal(self, error: Exception, node: FxNode, arguments: Any) -> str:
        """The reason why a row failed."""
        if isinstance(error, Unsupported):
            return error.reason
        if isinstance(error, TypeError) and (of_sizes := _of_sizes(arguments)) is not None:
            return of_sizes
        if self.on_bug is None:
            raise error
        return self.on_bug(error, node)

    def _of_its_own(self, value: Any, before: int) -> Any:
        """Copies results that share memory with an argument or each other: the operator makes no views.

        ``before``: the number of nodes before the row ran.
        """
        made = {name for node in self.graph.nodes[before:] for name in node.outputs}

        def own(x: Any) -> Any:
            if not isinstance(x, Tensor):
                return x
            if x.buffer not in made:
                return self.builder.copy(x)
            made.discard(x.buffer)
            return x

        return tuple([own(x) for x in value]) if isinstance(value, (tuple, list)) else own(value)

    def _foreign_view(self, node: FxNode, row: Row, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """A view of a tensor on which loop functions cannot compute; None unless it is a strided view too."""

        def viewed(builder: Builder, *args: Any, **kwargs: Any) -> Any:
            nodes = len(builder.graph.nodes)
            value = row(builder, *args, **kwargs)
            views = value if isinstance(value, (list, tuple)) else [value]
            if len(builder.graph.nodes) > nodes or any(builder.try_strided(view) is None for view in views):
                raise Unsupported("a copy")
            return value

        return self._attempt(node, viewed, args, kwargs)[0]

    def _random(self, target: OpOverload) -> str | None:
        """The reason not to use a random operator's row, or None: then the run gets a seed."""
        if self.fallback_random:
            return "random: the option fallback_random is on"
        self.builder.initialize_generator()
        return None

    def _extern(self, node: FxNode, target: OpOverload, reason: str | None) -> Any:
        """Call ATen with the arguments that eager would pass.

        The result of a view would alias memory without the planner's knowledge, so the operator's copying
        variant is called.
        """
        if any(arg.alias_info is not None for arg in target._schema.arguments):
            twin = getattr(torch.ops.aten, f"{target._schema.name.split('::')[1]}_copy", None)
            if twin is not None and target._overloadname in twin.overloads():
                target = getattr(twin, target._overloadname)
                self.builder.result = contiguous(self.builder.result)
        exact = is_custom(target)
        args = [self._strided_argument(arg, exact) for arg in node.args]
        kwargs = {key: self._strided_argument(value, exact) for key, value in node.kwargs.items()}
        return self.builder.extern(target, args, kwargs, reason)

    def _strided_argument(self, arg: Any, exact: bool = True) -> Any:
        """An argument for ATen, tensors as strided views with eager's strides."""
        if isinstance(arg, (list, tuple)):
            return [self._strided_argument(each, exact) for each in arg]
        value = self._argument(arg)
        if not (isinstance(arg, FxNode) and isinstance(value, (Tensor, Complex))):
            return value
        known = self.hashes.view(arg, value.buffer, exact) if isinstance(value, Tensor) else None
        if known is not None:
            return known
        wanted = strides_of(arg.meta["val"])
        view = with_strides(self.builder.strided(value), wanted)
        if exact and view.strides != wanted and is_dense(value.shape, wanted):
            view = with_strides(self.builder.strided(self.builder.laid_out(value, wanted)), wanted)
        if isinstance(value, Tensor) and view.buffer == value.buffer:
            self.hashes.seen_as(arg, view, exact)
        return view

    def _python(self, node: FxNode, args: list[Any]) -> Any:
        """``getitem`` on several results; arithmetic on sizes, whose value the metadata holds."""
        if getattr(node.target, "__name__", "") == "getitem" and isinstance(args[0], (list, tuple)):
            return args[0][args[1]]
        meta = node.meta.get("val")
        if isinstance(meta, _SYMBOLIC):
            return _number(meta)
        if isinstance(meta, (int, float, bool)):
            return meta
        raise self._error("SM0433", node, f"{node.target} is no ATen operator", "decompose to ATen first")

    def _argument(self, arg: Any) -> Any:
        if isinstance(arg, FxNode):
            return self.values[arg]
        if isinstance(arg, (list, tuple)):
            return [self._argument(item) for item in arg]
        return _number(arg)

    def _held(self, arg: Any) -> Any:
        """Replaces floating numbers held by tensors by the form that rows load."""
        if isinstance(arg, (list, tuple)):
            return [self._held(each) for each in arg]
        return arg.xreplace(self.held) if isinstance(arg, Expr) else arg

    # -- sizes that depend on data ---------------------------------------------------------------------------

    def _check_sizes(self, symbols: Sequence[Symbol], environment: Any) -> None:
        """Check at run time what tracing assumed about the symbols that a call has just bound.

        Ranges are checked for numbers held by tensors only; a size satisfies its range already.
        """
        self.bound.update(symbol.name for symbol in symbols)
        if environment is None:
            return
        for symbol in symbols:
            for each in environment.deferred_runtime_asserts.get(symbol, ()):
                self._check(environment.replace(each.expr), str(each.msg))
            if isinstance(self.builder.result, torch.SymInt):
                span = environment.var_to_range[symbol]
                message = f"{symbol} is not in {span.lower}..{span.upper}"
                if span.lower.is_Integer:
                    self._check(sympy.Ge(symbol, span.lower), message)
                if span.upper.is_Integer:
                    self._check(sympy.Le(symbol, span.upper), message)

    def _check(self, condition: Any, message: str) -> None:
        known = {symbol.name for symbol in condition.free_symbols}
        if known <= self.bound:
            self.builder.check(condition, message)

    # -- mutations and outputs ------------------------------------------------------------------------------

    def _copy_back(self, node: FxNode, args: list[Any]) -> Tensor | Complex:
        """An input's new contents: a buffer of its shape and dtype, written back at the end."""
        target, source = args[0], args[1]
        if not (isinstance(node.args[0], FxNode) and node.args[0].op == "placeholder"):
            raise self._error("SM0431", node, "copy_ to something that is no input", _FUNCTIONALIZE)
        fresh = not any(name in self.graph.inputs or name in self.graph.constants for name in source.buffers)
        if isinstance(target, Complex):
            source = copied(self.builder, target, source)
            buffer = self.builder.joined(source).buffer
            self.graph.mutations.append(Mutation(target.real.buffer, buffer))
            return self.builder.whole(self.graph.buffers[buffer])
        if isinstance(source, Complex):
            source = copied(self.builder, target, source)
        if not (fresh and source.dtype == target.dtype and source.shape == target.shape):
            row, twin = TABLE[torch.ops.aten.copy.default], torch.ops.aten.copy.default
            foreign = _foreign([target, source]) is not None
            source = self._extern(node, twin, None) if foreign else row(self.builder, target, source)
        source = self.builder.realize(source)
        self.graph.mutations.append(Mutation(target.buffer, source.buffer))
        return source

    def _output_view(self, node: FxNode, x: Tensor | Complex, alias: bool) -> StridedView:
        """The output with eager's strides.

        A view stays one, unless it shows an overwritten input's old contents. An ``alias`` of the input's new
        contents may have strides that no new buffer has: it views the input.
        """
        wanted = strides_of(node.meta["val"])
        if node.target is _COPY_BACK:
            x = self.values[node.args[0]]  # type: ignore[index]
        given = {*self.graph.inputs, *self.graph.constants} if self.path else set()
        stale = node.target is not _COPY_BACK and not self._overwritten.isdisjoint(x.buffers)
        stale |= not given.isdisjoint(x.buffers)
        view = None if stale else self._as_strided(node) or self.builder.try_strided(x)
        if view is None or not same_layout(x.shape, view.strides, wanted):
            homes = [each.target for each in self.graph.mutations if each.source in x.buffers]
            if alias and homes and not is_dense(x.shape, wanted):
                return self._view_as_traced(homes[0], node)
            # Memory that eager leaves between elements stays as it is; elements that share memory are equal.
            repeated = any(is_zero(stride) and not is_one(size) for size, stride in zip(x.shape, wanted))
            strides = contiguous_strides(x.shape) if repeated else wanted
            view = self.builder.strided(self.builder.laid_out(x, strides))
        return with_strides(view, wanted)

    def _as_strided(self, node: FxNode) -> StridedView | None:
        """The view that ``as_strided`` makes of an input, even if it has no index transform.

        AOTAutograd makes the view anew from the strides and offset of the output.
        """
        base = node.args[0] if node.target is torch.ops.aten.as_strided.default else None
        source = self.values.get(base) if isinstance(base, FxNode) else None
        if not isinstance(source, (Tensor, Complex)) or base in self.mutated:
            return None
        if len(set(source.buffers)) != 1 or source.buffers[0] not in self.graph.inputs:
            return None
        return self._view_as_traced(source.buffers[0], node)

    def _view_as_traced(self, name: str, node: FxNode) -> StridedView:
        """The view of an input that has the sizes, strides and offset of a node."""
        meta = node.meta["val"]
        first = self.builder.offsets.get(name, sympy.Integer(0))
        dtype = meta.dtype if meta.dtype.is_complex else None
        offset = as_expr(meta.storage_offset()) - (first if dtype is None else first / 2)
        return StridedView(name, shape_of(meta), strides_of(meta), offset, dtype)

    @cached_property
    def _overwritten(self) -> set[str]:
        """The inputs whose contents are overwritten at the end."""
        values = [self.values.get(node) for node in self.mutated]
        return {name for value in values if isinstance(value, (Tensor, Complex)) for name in value.buffers}

    # -- small things ---------------------------------------------------------------------------------------

    def _name(self, wanted: str) -> str:
        """A C identifier that no other buffer has; short ones are kept for loop variables and sizes."""
        name = re.sub(r"\W", "_", wanted)
        if _RESERVED.fullmatch(name) or not name or name[0].isdigit():
            name = f"in_{name}"
        while name in self.graph.buffers:
            name += "_"
        return name

    def _error(self, code: str, node: FxNode, what: str, remedy: str) -> SmeltError:
        return SmeltError(code, what, where=node.meta.get("where"), remedy=remedy)


_operator = lru_cache(maxsize=4096)(str)
"""The operator of a node, as reports name it."""


def _saved(graph: Graph, positions: Collection[int]) -> frozenset[str]:
    """The buffers that are whole outputs at these positions and that no other output shares."""
    outside = {name for name in graph.inputs if isinstance(name, str)} | set(graph.constants)
    found: set[str] = set()
    for position, view in enumerate(graph.outputs):
        if isinstance(view, StridedView):
            buffer = graph.buffers[view.buffer]
            whole = (view.shape, view.strides, view.offset) == (buffer.shape, buffer.strides, 0)
            whole = whole and not buffer.paired
            (found if position in positions and whole else outside).add(view.buffer)
    return frozenset(found - outside)


def _number(value: Any) -> Any:
    """A size as rows get it: SymPy, or a number if constant; other values are unchanged.

    A condition keeps the symbols without assumptions: it may be there to check them.
    """
    if isinstance(value, torch.SymBool):
        condition = value.node.expr
        return bool(condition) if condition in (sympy.true, sympy.false) else condition
    if isinstance(value, torch.SymInt):
        return as_expr(value)
    if isinstance(value, torch.SymFloat):
        return with_known_signs(value.node.expr, value.node.shape_env)
    return value


def _of_sizes(arguments: Any) -> str | None:
    """The reason why a row failed that needs a Python number but got floating arithmetic on sizes."""
    floating = [each for each in tree_leaves(arguments) if isinstance(each, Expr) and not each.is_integer]
    return f"the number {floating[0]}, which depends on sizes" if floating else None


def _no_row(target: OpOverload) -> str:
    if is_random(target):
        return f"random: no lowering for {target}"
    return f"no lowering for {target}"


def _foreign(values: Any) -> str | None:
    """The reason why loop functions cannot compute on these (arguments or metadata), or None."""
    if isinstance(values, dict):
        return _foreign(list(values.values()))
    if isinstance(values, (list, tuple)):
        return next((reason for reason in map(_foreign, values) if reason is not None), None)
    if isinstance(values, (Tensor, Complex)):
        return None if supported(values.dtype) else f"{values.dtype} has no loop functions"
    if isinstance(values, torch.Tensor):
        if values.layout is not torch.strided:
            return f"layout {values.layout}"
        return None if supported(values.dtype) else f"{values.dtype} has no loop functions"
    return None
