"""``flex_attention`` → `Attention`: its bodies, graphs on single numbers, are loop functions of an index."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from sympy import Expr, Symbol
from torch.fx import GraphModule, Node

from smelt.errors import Unsupported
from smelt.loops.ir import Attention, Extern, Graph, Pointwise, StridedView
from smelt.loops.record import RecordedValue, Recorder
from smelt.loops.straightline import Instruction
from smelt.lowering.builder import Builder
from smelt.lowering.dims import convert
from smelt.lowering.products.attention import inner_of, keep_gradients_of, values_of
from smelt.lowering.tensor import Index, Tensor
from smelt.ops import Handler, current, ops, using
from smelt.records import replace
from smelt.symbolic import FloorDiv, loop_var, same

_POSITION, _F32 = torch.int32, torch.float32
_LOG_2 = math.log(2.0)


Way = tuple[Callable[[Node], Any], Callable[[Any], Any], Callable[[str, GraphModule], Graph]]
"""``value``, ``argument`` and ``lower_body`` of `HigherOrder`."""


def lower_flex_attention(node: Node, builder: Builder, *way: Any) -> list[Any]:
    """The values of a call of the operator: the attention's result, and log2 of the sums.

    query (N, H, L, E); key and value (N or 1, H or fewer, S, E). ``way`` is that of `HigherOrder`.

    Raises:
        Unsupported: a body contains more than arithmetic and look-ups.
    """
    args: tuple[Any, ...] = node.args
    score_body, (mask_body,), scale, _, held, mask_held = args[3:]
    call = _Call(node, builder, way)
    query, key, wide = map(call.value, args[:3])
    modify, mask = call.body(score_body, held), call.body(mask_body, mask_held)
    body = call.attention(query, key, wide, scale, modify, mask)
    metas = builder.result
    found, total = call.extern(metas[:2])
    _check(body, builder)
    builder.graph.nodes[-1] = replace(builder.graph.nodes[-1], body=replace(body, call=call.made()))
    halved = builder.pointwise(
        lambda index: ops.mul(total.load(index), ops.constant(1.0 / _LOG_2, _F32)),
        shape=total.shape,
        dtype=_F32,
    )
    return [found, halved, *(None for _ in metas[2:])]


def lower_flex_gradients(node: Node, builder: Builder, *way: Any) -> list[Any]:
    """The values of a call of ``flex_attention_backward``: the gradients by query, key and value.

    The arguments are those of the call and its results, log2 of the sums, the gradients by these, and the
    bodies: of a score, of the gradient by it, of the mask.

    Raises:
        Unsupported: as `lower_flex_attention`.
    """
    args: tuple[Any, ...] = node.args
    call = _Call(node, builder, way)
    query, key, wide, out, total, upstream = map(call.value, args[:6])
    by_total = None if args[6] is None else call.value(args[6])
    score_body, joint_body, (mask_body,), scale, _, held, mask_held = args[7:]
    modify, joint = (call.body(each, held) for each in (score_body, joint_body))
    mask = call.body(mask_body, mask_held)
    body = call.attention(query, key, wide, scale, modify, mask)
    found = call.extern(builder.result)
    body = replace(body, call=call.made())
    sums = inner_of(builder, upstream, out)

    def inner(index: Index) -> Any:
        if by_total is None:
            return sums(index)
        share = ops.mul(by_total.load(index), ops.constant(1.0 / _LOG_2, _F32))
        return ops.sub(sums(index), share)

    def logsumexp(index: Index) -> Any:
        """Where no key is visible P is 0."""
        known, (least, most) = total.load(index), (ops.constant(sign * math.inf, _F32) for sign in (-1, 1))
        return ops.where(ops.eq(known, least), most, ops.mul(known, ops.constant(_LOG_2, _F32)))

    def derivative(index: Index, product: Any, above: Any) -> Any:
        factor = ops.constant(float(scale), _F32)
        by_score = ops.mul(joint(index, ops.mul(product, factor), after=(above,)), factor)
        return ops.where(mask(index), by_score, ops.constant(0.0, _F32)) if call.masks else by_score

    _check(body, builder, derivative)
    keep_gradients_of(builder, body, upstream, inner, logsumexp, derivative, key.shape[1])
    return found


class _Call:
    """A call of one of the two operators: its operands and bodies as loop functions."""

    def __init__(self, node: Node, builder: Builder, way: Way) -> None:
        self.node, self.builder = node, builder
        self.value, self.argument, self.lower_body = way
        self.masks = True

    def body(self, body: Any, held: Any) -> Body:
        return Body(body, self.value, self.lower_body, held)

    def extern(self, metas: Any) -> list[Any]:
        """The results, of a call of PyTorch's in a new node."""
        tensors = [each for each in self.node.all_input_nodes if isinstance(self.value(each), Tensor)]
        self.builder.result = metas
        found: list[Any] = self.builder.extern(
            f"higher_order.{self.node.target.name()}",  # type: ignore[union-attr]
            [self.argument(each) for each in tensors],
            {},
        )
        return found

    def made(self) -> Extern:
        """The body of the node that `extern` made."""
        call = self.builder.graph.nodes[-1].body
        assert isinstance(call, Extern)
        return call

    def attention(
        self, queries: Tensor, keys: Tensor, wides: Tensor, scale: Any, modify: Body, mask: Body
    ) -> Attention:
        """The attention, but for its ``call``."""

        def of_group(index: Index) -> Index:
            n, head, *rest = index
            if not same(queries.shape[1], keys.shape[1]):
                head = FloorDiv(head, FloorDiv(queries.shape[1], keys.shape[1]))
            return (n * 0 if same(keys.shape[0], n * 0 + 1) else n, head, *rest)

        self.masks = masks = not mask.is_true(queries.shape)

        def visible(index: Index) -> Any:
            return mask(index)

        def score(index: Index, product: Any) -> Any:
            found = modify(index, ops.mul(product, ops.constant(float(scale), _F32)))
            return ops.where(mask(index), found, ops.constant(-math.inf, _F32)) if masks else found

        return Attention(
            (*queries.shape[:-1], wides.shape[-1]),
            (keys.shape[-2], queries.shape[-1]),
            queries.dtype,
            lambda index, depth: values_of(queries)((*index, *depth)),
            lambda index, depth: values_of(keys)(of_group((*index, *depth))),
            score,
            lambda index: values_of(wides)(of_group(index)),
            None,
            Extern("", (), {}),
            visible=visible if masks else None,
            blind=-math.inf,
        )


class Body:
    """A body as a loop function of a score's index, and of the score if that is its first operand."""

    def __init__(
        self,
        body: Node,
        value: Callable[[Node], Any],
        lower_body: Callable[[str, GraphModule], Graph],
        held: Sequence[Any],
    ) -> None:
        graph = lower_body(str(body.target), value(body))
        if graph.constants or not all(isinstance(node.body, Pointwise) for node in graph.nodes):
            raise Unsupported("a body that is more than arithmetic and look-ups")
        self.made: dict[str, Pointwise] = {
            str(node.outputs[0]): node.body for node in graph.nodes if isinstance(node.body, Pointwise)
        }
        (result,) = graph.outputs
        assert isinstance(result, StridedView)
        self.result = result.buffer
        self.dtype = graph.buffers[result.buffer].dtype
        own = len(graph.inputs) - len(held)
        self.own = [str(name) for name in graph.inputs[:own]]
        self.held: dict[str, Tensor] = {}
        for name, each in zip(graph.inputs[own:], held, strict=True):
            given = value(each) if isinstance(each, Node) else each
            if isinstance(name, str) and isinstance(given, Tensor):
                self.held[name] = given
            elif isinstance(name, Symbol) and not (isinstance(given, Expr) and same(name, given)):
                raise Unsupported("a body with a size of its own")

    def __call__(self, index: Index, *score: Any, after: Sequence[Any] = ()) -> Any:
        """The result for a score's index; ``after``: the operands that follow the positions."""
        outer = current()

        def position(place: Expr) -> Callable[[], Any]:
            return lambda: ops.index_expr(place, _POSITION)

        before, behind = ([partial(_itself, each) for each in values] for values in (score, after))
        given: list[Callable[[], Any]] = [*before, *map(position, index), *behind]
        inside = _Inside(outer, self.made, self.held, dict(zip(self.own, given, strict=True)))
        with using(inside):
            found = inside.load(self.result, ())
        return convert(found, self.dtype, _F32) if self.dtype.is_floating_point else found

    def is_true(self, shape: Sequence[Expr]) -> bool:
        """Whether a mask is true everywhere."""
        recorder = Recorder({each.buffer: each.dtype for each in self.held.values()}, {})
        result = recorder.run(self, [loop_var(f"p{dim}") for dim in range(len(shape))])
        made = {step.name: step for step in recorder.instructions}[result.name]
        return isinstance(made, Instruction) and made.op == "constant" and made.args == (True,)


def _itself(value: Any) -> Any:
    return value


class _Inside(Handler):
    """Runs a body's loop functions under another handler and maps their loads of the operands."""

    def __init__(
        self,
        outer: Handler,
        made: Mapping[str, Pointwise],
        held: Mapping[str, Tensor],
        given: Mapping[str, Callable[[], Any]],
    ) -> None:
        self.outer, self.made, self.held, self.given = outer, made, held, given
        self.known: dict[str, Any] = {}

    def load(self, buffer: str, index: Sequence[Expr]) -> Any:
        if buffer in self.held:
            with using(self.outer):
                return self.held[buffer].load(index)
        if buffer not in self.known:
            given = self.given.get(buffer)
            self.known[buffer] = self.made[buffer].inner_fn(()) if given is None else given()
        return self.known[buffer]

    def elementwise(self, name: str, *args: Any) -> Any:
        return self.outer.elementwise(name, *args)

    def constant(self, value: float | int | bool, dtype: torch.dtype) -> Any:
        return self.outer.constant(value, dtype)

    def index_expr(self, expr: Expr, dtype: torch.dtype) -> Any:
        return self.outer.index_expr(expr, dtype)

    def to_dtype(self, x: Any, dtype: torch.dtype) -> Any:
        return self.outer.to_dtype(x, dtype)

    def bitcast(self, x: Any, dtype: torch.dtype) -> Any:
        return self.outer.bitcast(x, dtype)

    def masked(self, mask: Any, body: Callable[[], Any], other: float | int | bool) -> Any:
        raise Unsupported("a body that looks only where it may")

    def indirect_index(self, x: Any, size: Expr, *, wrap: bool = True, check: bool | str = True) -> Expr:
        return self.outer.indirect_index(x, size, wrap=wrap, check=check)


def _check(
    body: Attention, builder: Builder, derivative: Callable[[Index, Any, Any], Any] | None = None
) -> None:
    """Run the bodies once, to refuse unsupported operations while another lowering is possible."""
    dtypes = {name: buffer.dtype for name, buffer in builder.graph.buffers.items()}
    index = [loop_var(f"p{dim}") for dim in range(len(body.shape))]
    product, above = (RecordedValue(name, _F32) for name in ("product", "above"))
    checked = [lambda: body.score(index, product)]
    if derivative is not None:
        checked.append(lambda: derivative(index, product, above))
    for each in checked:
        recorder = Recorder(dtypes, {})
        recorder.adopt(product)
        recorder.adopt(above)
        found = recorder.run(each)
        if found.dtype != _F32:
            raise Unsupported(f"a score in {found.dtype}")
