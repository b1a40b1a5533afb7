"""Higher-order operators → Externs: control flow with its bodies, mutating operators on copies, print."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import sympy
import torch
from sympy import Expr, Symbol
from torch._library import utils as library
from torch._ops import OpOverload
from torch.fx import GraphModule, Node

from smelt.contract.facts import new_sizes
from smelt.contract.higher_order import BODIES, FUNCTIONALIZED, higher_order_name
from smelt.errors import Unsupported
from smelt.loops.ir import Graph, StridedView
from smelt.lowering.builder import Builder
from smelt.lowering.layouts import is_dense, shape_of, strides_of
from smelt.lowering.products.flex import lower_flex_attention, lower_flex_gradients
from smelt.lowering.tensor import Complex, Tensor
from smelt.records import replace
from smelt.symbolic import as_expr, contiguous_strides

ZERO = sympy.Integer(0)

_KNOWN = frozenset({"aten", "prims", "prim", "quantized", "quantized_decomposed", "mkldnn", "smelt"})


def is_custom(target: OpOverload) -> bool:
    """Whether an operator is user-defined (``torch.library``): its author's kernel is called, by choice.

    >>> is_custom(torch.ops.aten.add.Tensor)
    False
    """
    return target.namespace not in _KNOWN


class HigherOrder:
    """Lowers one higher-order node.

    ``value`` maps an FX node to its lowered value; ``argument`` maps an FX argument to an ATen argument
    (tensors as strided views with eager's strides); ``lower_body``: a body's name and module → its loop
    graph.
    """

    def __init__(
        self,
        builder: Builder,
        value: Callable[[Node], Any],
        argument: Callable[[Any], Any],
        lower_body: Callable[[str, GraphModule], Graph],
    ) -> None:
        self.builder, self.value, self.argument, self.lower_body = builder, value, argument, lower_body

    def lower(self, node: Node) -> Any:
        """The values of the node: a list with one entry per result.

        Raises:
            Unsupported: there is no way to lower the node.
        """
        name = higher_order_name(node.target)
        self.builder.unbound = new_sizes(node)
        if name in BODIES:
            return self._control(name, node)
        if name in FUNCTIONALIZED:
            return self._functionalized(name, node)
        if name in ("flex_attention", "flex_attention_backward"):
            lowering = lower_flex_attention if name == "flex_attention" else lower_flex_gradients
            return lowering(node, self.builder, self.value, self.argument, self.lower_body)
        if name == "print":
            args = [self.argument(arg) for arg in node.args]
            kwargs = {key: self.argument(value) for key, value in node.kwargs.items()}
            return self.builder.extern("higher_order.print", args, kwargs)
        raise Unsupported(f"higher-order operator {name}")

    def _control(self, name: str, node: Node) -> Any:
        """The operands as new lists; sizes that bodies use and no operand determines are appended."""
        places = BODIES[name]
        bodies, missing = [], {}
        for place in places:
            body = node.args[place]
            assert isinstance(body, Node)
            module = self.value(body)
            bodies.append(self.lower_body(str(body.target), module))
            missing.update({symbol.name: symbol for symbol in free_sizes(module, bodies[-1])})
        extra = [missing[key] for key in sorted(missing)]
        for body_graph in bodies:
            body_graph.inputs += extra
        rest = [arg for place, arg in enumerate(node.args) if place not in places]
        if name == "map_impl" and len(rest) == 1:
            rest.append(())
        args = [self.argument(arg) for arg in rest]
        args[-1] = [*args[-1], *extra]
        return self.builder.extern(f"higher_order.{name}", args, {}, None, bodies)

    # -- mutating operators ----------------------------------------------------------------------------------

    def _functionalized(self, name: str, node: Node) -> Any:
        """``op`` on copies of the arguments that it mutates; the copies follow the operator's own results."""
        target, *_ = node.args
        if not isinstance(target, OpOverload):
            raise Unsupported(f"{name} of {target}")
        if self.builder.unbound:
            raise Unsupported(f"{target} writes to its arguments and returns sizes that depend on data")
        kwargs: dict[str, Any] = dict(node.kwargs)
        arguments = target._schema.arguments
        mutable = [arg for arg in arguments if arg.alias_info is not None and arg.alias_info.is_write]
        given: dict[str, Any] = {}
        if name == "auto_functionalized":
            bases = [base for arg in mutable for base in _flat(kwargs[arg.name])]
            copies = {base: self._copy_of(base) for base in bases}
            for arg in mutable:
                value = kwargs.pop(arg.name)
                given[arg.name] = _mapped(value, copies.__getitem__)
            nests = [node.kwargs[arg.name] for arg in mutable]
        else:
            bases = list(kwargs.pop("_all_bases"))
            copies = {base: self._copy_of(base) for base in bases}
            for arg in mutable:
                given[arg.name] = self._views(arg, kwargs, bases, copies)
            nests = bases
        for arg in arguments:
            if arg.name in kwargs:
                given[arg.name] = self.argument(kwargs.pop(arg.name))
        kwargs.pop("_only_clone_these_bases", None)
        if kwargs:
            raise Unsupported(f"{name} of {target} with {', '.join(kwargs)}")
        return self._call(target, given, node.meta["val"], bases, copies, nests)

    def _call(
        self,
        target: OpOverload,
        given: dict[str, Any],
        metas: Sequence[Any],
        bases: list[Node],
        copies: dict[Node, Tensor | Complex],
        nests: list[Any],
    ) -> list[Any]:
        returns = target._schema.returns
        if any(each.alias_info is not None for each in returns):
            raise Unsupported(f"{target} returns what it writes to")
        order = list(dict.fromkeys(bases))
        own = list(metas[: len(returns)])
        if any(isinstance(each, (list, tuple)) for each in own):
            raise Unsupported(f"{target} writes to its arguments and returns a list")
        builder = self.builder
        builder.result = (*own, *(base.meta["val"] for base in order))
        reason = None if is_custom(target) else f"{target} writes to its arguments"
        written = [copies[base].buffers[0] for base in order]
        results = builder.extern(str(target), [], given, reason, overwrites=written)
        changed = dict(zip(order, results[len(own) :]))
        values = results[: len(own)] or [None]
        return [*values, *(_mapped(nest, changed.__getitem__) for nest in nests)]

    def _copy_of(self, base: Node) -> Tensor | Complex:
        """A copy in memory of its own, with the base's layout."""
        whole, meta = self.value(base), base.meta["val"]
        wanted = strides_of(meta)
        strides = wanted if is_dense(shape_of(meta), wanted) else contiguous_strides(shape_of(meta))
        return self.builder.laid_out(whole, strides)

    def _views(
        self, arg: Any, kwargs: dict[str, Any], bases: list[Node], copies: dict[Node, Tensor | Complex]
    ) -> Any:
        """The mutated argument as views of the copies; their keys are removed from ``kwargs``."""
        if library.is_tensorlist_like_type(arg.type):
            length = kwargs.pop(f"_{arg.name}_length")
            if length is None:
                return None
            return [self._view(f"_{arg.name}_{n}", kwargs, bases, copies) for n in range(length)]
        return self._view(f"_{arg.name}", kwargs, bases, copies)

    def _view(
        self, prefix: str, kwargs: dict[str, Any], bases: list[Node], copies: dict[Node, Tensor | Complex]
    ) -> StridedView | None:
        position = kwargs.pop(f"{prefix}_base_index")
        if position is None:
            return None
        base = bases[position]
        meta = base.meta["val"]
        buffer = self.builder.graph.buffers[copies[base].buffers[0]]
        dtype, whole, steps = buffer.outside
        view = StridedView(buffer.name, whole, steps, ZERO, dtype if buffer.paired else None)
        kwargs.pop(f"{prefix}_alias", None)
        if f"{prefix}_slice_dim" in kwargs:
            dim = kwargs.pop(f"{prefix}_slice_dim")
            start, end = (self._size(kwargs.pop(f"{prefix}_slice_{which}")) for which in ("start", "end"))
            sliced = (*view.shape[:dim], end - start, *view.shape[dim + 1 :])
            return replace(view, shape=sliced, offset=start * steps[dim])
        if f"{prefix}_storage_offset" in kwargs:
            if steps != strides_of(meta):
                raise Unsupported("a strided view of memory with gaps is written to")
            shape, strides = (
                tuple(self._size(each) for each in kwargs.pop(f"{prefix}_{which}"))
                for which in ("size", "stride")
            )
            offset = self._size(kwargs.pop(f"{prefix}_storage_offset"))
            first = as_expr(meta.storage_offset())
            return replace(view, shape=shape, strides=strides, offset=offset - first)
        return view

    def _size(self, value: Any) -> Expr:
        return as_expr(self.argument(value))


def free_sizes(module: GraphModule, graph: Graph) -> Iterator[Symbol]:
    """The sizes that a body uses and that none of its own inputs or calls defines."""
    known = {each.name for each in graph.inputs if isinstance(each, Symbol)}
    for name in graph.inputs:
        if isinstance(name, str):
            known |= {size.name for size in graph.buffers[name].shape if isinstance(size, Symbol)}
    for node in module.graph.nodes:
        known |= {symbol.name for symbol in new_sizes(node)}
    for node in module.graph.nodes:
        for symbol in _symbols(node.meta.get("val")):
            if symbol.name not in known:
                known.add(symbol.name)
                yield symbol


def _symbols(value: Any) -> set[Symbol]:
    if isinstance(value, torch.Tensor):
        sizes = [*value.shape, *value.stride(), value.storage_offset()]
        return set().union(*(as_expr(size).free_symbols for size in sizes))  # type: ignore[return-value]
    if isinstance(value, torch.SymInt):
        return as_expr(value).free_symbols  # type: ignore[return-value]
    if isinstance(value, (torch.SymBool, torch.SymFloat)):
        return value.node.expr.free_symbols
    if isinstance(value, (list, tuple)):
        return set().union(*(_symbols(each) for each in value))
    return set()


def _flat(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return [each for each in value if each is not None]
    return [] if value is None else [value]


def _mapped(value: Any, function: Callable[[Any], Any]) -> Any:
    if isinstance(value, (list, tuple)):
        return [None if each is None else function(each) for each in value]
    return None if value is None else function(value)
