"""Selection of the ``flex_attention`` calls that stay whole, because a kernel stores no scores for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses import FakeTensor
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx

from smelt.contract.facts import is_view, layout

aten = torch.ops.aten

FEWEST_QUERIES, FEWEST_KEYS, FEWEST_TERMS = 8, 16, 8
"""The least number of queries on a CPU; with fewer, register tiles would be half empty."""
MOST_TERMS = 256
"""The most terms and columns on a GPU, where they are rows in registers."""
BODIES = {"flex_attention": (3, 4), "flex_attention_backward": (7, 8, 9)}
"""Call → the positions of its bodies; the last one is the block mask, whose last part is a body."""
_SCORES = {"flex_attention": ((0,), ()), "flex_attention_backward": ((0,), (0, 5), ())}
"""The operands of each body that are scores, or gradients by them."""

_LOOK_UPS = (aten.index.Tensor, aten.full.default, aten.scalar_tensor.default, aten._to_copy.default)


def has_kernel(node: Node, blocks: bool = False) -> bool:
    """Whether a call is ``flex_attention`` on enough float32 numbers, with loop functions as bodies.

    ``blocks``: for a GPU, which also has a kernel for 16-bit floats, for few queries, and for gradients by
    query, key and value.
    """
    name = node.target.name() if isinstance(node.target, torch._ops.HigherOrderOperator) else ""
    if name not in BODIES:
        return False
    query, key, value = operands = [each.meta["val"] for each in node.args[:3]]  # type: ignore[union-attr]
    blocks = blocks or query.device.type != "cpu"
    dtypes = (torch.float32, torch.float16, torch.bfloat16) if blocks else (torch.float32,)
    if (
        any(layout(each) is None or each.dtype != query.dtype for each in operands)
        or query.dtype not in dtypes
    ):
        return False
    backward = name == "flex_attention_backward"
    bodies = _bodies(node, name)
    if not isinstance(node.args[BODIES[name][-1] + 1], (int, float)) or _most(node) > (3 if backward else 2):
        return False
    if backward and (not blocks or node.args[5] is None or query.shape[0] != key.shape[0]):
        return False
    if not all(isinstance(body, GraphModule) and _is_arithmetic(body) for body in bodies):
        return False
    if blocks:
        return all(
            isinstance(each.shape[-1], int) and each.shape[-1] <= MOST_TERMS for each in (query, value)
        )
    wanted = FEWEST_QUERIES, FEWEST_KEYS, FEWEST_TERMS
    sizes = query.shape[-2], key.shape[-2], query.shape[-1]
    return all(not isinstance(size, int) or size >= least for size, least in zip(sizes, wanted))


def kept_bodies(name: str, bodies: Sequence[GraphModule]) -> list[GraphModule]:
    """The bodies of a call that stays, on scores in float32, as PyTorch's definition calls them; of the joint
    graph the gradient by a score alone.
    """
    made = list(bodies)
    if name == "flex_attention_backward":
        made[1] = _by_score(made[1])
    return [_widened(body, places) for body, places in zip(made, _SCORES[name], strict=True)]


def _bodies(node: Node, name: str) -> list[Any]:
    module = node.graph.owning_module
    *places, last = BODIES[name]
    nodes = [*(node.args[place] for place in places), node.args[last][-1]]  # type: ignore[index]
    bodies = [getattr(module, str(each.target), None) for each in nodes]  # type: ignore[union-attr]
    if name == "flex_attention_backward" and isinstance(bodies[1], GraphModule):
        bodies[1] = _by_score(bodies[1])
    return bodies


def _by_score(joint: GraphModule) -> GraphModule:
    """``[by_score, *others] = joint(…)``  →  ``[by_score] = joint(…)``"""
    graph = Graph()
    results = graph.graph_copy(joint.graph, {})
    graph.output([results[0]])  # type: ignore[index]
    graph.eliminate_dead_code()
    return GraphModule(joint, graph, "ByScore")


def _widened(body: GraphModule, places: Sequence[int]) -> GraphModule:
    """The body on float32 numbers at ``places``."""
    examples = [node.meta["val"] for node in body.graph.find_nodes(op="placeholder")]
    if all(examples[place].dtype == torch.float32 for place in places):
        return body
    mode = next(each.fake_mode for each in examples if isinstance(each, FakeTensor))
    with mode:
        given = [each.float() if place in places else each for place, each in enumerate(examples)]
        made = make_fx(body)(*given)
    for node, example in zip(made.graph.find_nodes(op="placeholder"), given, strict=True):
        node.meta["val"] = example
    return made


def _most(node: Node) -> int:
    """The number of results of a call that are used: the first ones."""
    used = [user.args[1] for user in node.users if user.users]
    return max((place + 1 for place in used if isinstance(place, int)), default=0)


def _is_arithmetic(body: GraphModule) -> bool:
    """Whether a body has only elementwise operators and look-ups: no sums, random numbers or constants."""
    return all(
        node.op in ("placeholder", "output") or (node.op == "call_function" and _is_elementwise(node.target))
        for node in body.graph.nodes
    )


def _is_elementwise(target: Any) -> bool:
    if not isinstance(target, OpOverload):
        return False
    if torch.Tag.nondeterministic_seeded in target.tags:
        return False
    return torch.Tag.pointwise in target.tags or is_view(target) or target in _LOOK_UPS
