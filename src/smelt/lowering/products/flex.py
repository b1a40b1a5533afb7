"""``flex_attention`` → `Attention`: its bodies, graphs on single numbers, are loop functions of an index."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from sympy import Expr, Symbol
from torch.fx import GraphModule, Node

from smelt.errors import Unsupported
from smelt.loops.ir import Attention, Extern, Graph, Pointwise, StridedView
from smelt.loops.record import RecordedValue, Recorder
from smelt.loops.straightline import Instruction
from smelt.lowering.builder import Builder
from smelt.lowering.products.attention import values_of
from smelt.lowering.tensor import Index, Tensor
from smelt.ops import Handler, current, ops, using
from smelt.records import replace
from smelt.symbolic import FloorDiv, loop_var, same

_POSITION = torch.int32
_LOG_2 = math.log(2.0)


def lower_flex_attention(
    node: Node,
    builder: Builder,
    value: Callable[[Node], Any],
    argument: Callable[[Any], Any],
    lower_body: Callable[[str, GraphModule], Graph],
) -> list[Any]:
    """The values of a call of the operator: the attention's result, and log2 of the sums.

    query (N, H, L, E); key and value (N or 1, H or fewer, S, E). The arguments are those of `HigherOrder`.

    Raises:
        Unsupported: a body contains more than arithmetic and look-ups.
    """
    query, key, wide, score_body, blocks, scale, _, held, mask_held = node.args
    queries, keys, wides = (value(each) for each in (query, key, wide))  # type: ignore[arg-type]
    modify = Body(score_body, value, lower_body, held)  # type: ignore[arg-type]
    mask = Body(blocks[-1], value, lower_body, mask_held)  # type: ignore[index, arg-type]
    tensors = [each for each in node.all_input_nodes if isinstance(value(each), Tensor)]
    metas = builder.result
    builder.result = metas[:2]
    found, total = builder.extern("higher_order.flex_attention", [argument(each) for each in tensors], {})
    call = builder.graph.nodes[-1].body
    assert isinstance(call, Extern)
    f32 = torch.float32

    def of_group(index: Index) -> Index:
        n, head, *rest = index
        if not same(queries.shape[1], keys.shape[1]):
            head = FloorDiv(head, FloorDiv(queries.shape[1], keys.shape[1]))
        return (n * 0 if same(keys.shape[0], n * 0 + 1) else n, head, *rest)

    masks = not mask.is_true(queries.shape)

    def visible(index: Index) -> Any:
        return mask(index)

    def score(index: Index, product: Any) -> Any:
        scaled = ops.mul(product, ops.constant(float(scale), f32))  # type: ignore[arg-type]
        found = modify(index, scaled)
        return ops.where(mask(index), found, ops.constant(-math.inf, f32)) if masks else found

    body = Attention(
        (*queries.shape[:-1], wides.shape[-1]),
        (keys.shape[-2], queries.shape[-1]),
        f32,
        lambda index, depth: values_of(queries)((*index, *depth)),
        lambda index, depth: values_of(keys)(of_group((*index, *depth))),
        score,
        lambda index: values_of(wides)(of_group(index)),
        None,
        call,
        visible=visible if masks else None,
        blind=-math.inf,
    )
    _check(body, builder)
    builder.graph.nodes[-1] = replace(builder.graph.nodes[-1], body=body)
    halved = builder.pointwise(
        lambda index: ops.mul(total.load(index), ops.constant(1.0 / _LOG_2, f32)),
        shape=total.shape,
        dtype=f32,
    )
    return [found, halved, *(None for _ in metas[2:])]


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
        own = len(graph.inputs) - len(held)
        self.own = [str(name) for name in graph.inputs[:own]]
        self.held: dict[str, Tensor] = {}
        for name, each in zip(graph.inputs[own:], held, strict=True):
            given = value(each) if isinstance(each, Node) else each
            if isinstance(name, str) and isinstance(given, Tensor):
                self.held[name] = given
            elif isinstance(name, Symbol) and not (isinstance(given, Expr) and same(name, given)):
                raise Unsupported("a body with a size of its own")

    def __call__(self, index: Index, *score: Any) -> Any:
        outer = current()

        def position(place: Expr) -> Callable[[], Any]:
            return lambda: ops.index_expr(place, _POSITION)

        given = [*((lambda each=each: each) for each in score), *map(position, index)]
        inside = _Inside(outer, self.made, self.held, dict(zip(self.own, given, strict=True)))
        with using(inside):
            return inside.load(self.result, ())

    def is_true(self, shape: Sequence[Expr]) -> bool:
        """Whether a mask is true everywhere."""
        recorder = Recorder({each.buffer: each.dtype for each in self.held.values()}, {})
        result = recorder.run(self, [loop_var(f"p{dim}") for dim in range(len(shape))])
        made = {step.name: step for step in recorder.instructions}[result.name]
        return isinstance(made, Instruction) and made.op == "constant" and made.args == (True,)


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


def _check(body: Attention, builder: Builder) -> None:
    """Run the bodies once, to refuse unsupported operations while another lowering is possible."""
    dtypes = {name: buffer.dtype for name, buffer in builder.graph.buffers.items()}
    recorder = Recorder(dtypes, {})
    product = RecordedValue("product", torch.float32)
    recorder.adopt(product)
    index = [loop_var(f"p{dim}") for dim in range(len(body.shape))]
    found = recorder.run(lambda: body.score(index, product))
    if found.dtype != torch.float32:
        raise Unsupported(f"a score in {found.dtype}")
