"""Products of one tensor with frozen weights that meet in an attention become one product: q, k and v.

    q = addmm(a, x, A);  k = addmm(b, x, B);  v = addmm(c, x, C)
        →  y = addmm(cat(a, b, c), x, cat(A, B, C));  q, k, v = slices of y's columns

The joined weights depend on frozen inputs alone, so they are computed ahead
(`smelt.schedule.graph.constants`); a slice is an index map, so an attention reads q, k and v in the product's
memory. Only products whose results reach the same attention are joined. The products of a gated MLP are not:
their activations are computed on the tiles of each product, and would need a pass over memory of their own.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Iterable
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx._lazy_graph_module import _make_graph_module, _use_lazy_graph_module

from smelt.capture import Program
from smelt.contract.facts import is_view

aten = torch.ops.aten

JOINED = "smelt_joined"
"""The ``node.meta`` key of a joined product: the names of the nodes that read the other products' columns."""

_PRODUCTS: dict[Any, int] = {aten.addmm.default: 1, aten.mm.default: 0}
"""Product → position of its left operand; the argument before is the bias, the one after the weight."""

_ATTENTIONS = frozenset(
    {
        aten._scaled_dot_product_flash_attention_for_cpu.default,
        aten._scaled_dot_product_fused_attention_overrideable.default,
    }
)

_REGULAR_VIEWS = frozenset(
    {
        aten.alias.default,
        aten.detach.default,
        aten.expand.default,
        aten.permute.default,
        aten.reshape.default,
        aten.select.int,
        aten.slice.Tensor,
        aten.split.Tensor,
        aten.split_with_sizes.default,
        aten.squeeze.default,
        aten.squeeze.dim,
        aten.squeeze.dims,
        aten.t.default,
        aten.transpose.int,
        aten.unbind.int,
        aten.unsqueeze.default,
        aten.view.default,
        aten._unsafe_view.default,
    }
)
"""Views whose semantics do not depend on their base's strides."""

_ON_THE_WAY = frozenset(
    {
        aten._to_copy.default,
        aten.cat.default,
        aten.clone.default,
        aten.mean.dim,
        aten.native_layer_norm.default,
    }
)
"""Operators allowed between a projection and its attention, besides views and pointwise ones."""


def fuse_horizontally(program: Program) -> Program:
    """The program with sibling products of frozen weights joined; see the module. The old one stays as it is.

    Joined are ``aten.mm`` and ``aten.addmm`` (alpha and beta 1) with the same left operand, weights and
    biases (a number for each column) of static sizes that are views or conversions of
    `Program.frozen_inputs`, of one dtype, all with a bias or none, whose results nobody sees in memory
    (slices of the joined product have other strides) and each of which reaches the query, key or value of
    one ``aten._scaled_dot_product_*`` call. An attention that is written out as products is not recognized.

    >>> from smelt.capture import capture_function
    >>> from smelt.contract import contract
    >>> traced = contract(capture_function(lambda x, a, b: (x @ a) * (x @ b), [torch.ones(2, 2)] * 3))
    >>> fuse_horizontally(traced) is traced  # no input is frozen
    True
    """
    groups = _groups(program)
    if not groups:
        return program
    graph = _Joiner(groups).copy(program.graph_module.graph)
    with _use_lazy_graph_module(True):
        graph_module = _make_graph_module(program.graph_module, graph, "Siblings")
    assert isinstance(graph_module, GraphModule)
    return dataclasses.replace(program, graph_module=graph_module)


# -- which products ----------------------------------------------------------------------------------------


def _groups(program: Program) -> list[list[Node]]:
    """The products to join with each other, each in graph order."""
    graph = program.graph_module.graph
    names = program.frozen_inputs
    frozen = {node for node in program.placeholders if node.name in names}
    siblings: dict[Any, list[Node]] = {}
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        if node.target in _PRODUCTS and _can_be_joined(node, frozen):
            left = node.args[_PRODUCTS[node.target]]
            siblings.setdefault((node.target, left, node.meta["val"].dtype), []).append(node)
        elif set(node.all_input_nodes) <= frozen and _may_run_ahead(node.target):
            frozen.add(node)
    found: list[list[Node]] = []
    for products in siblings.values():
        if len(products) > 1:
            found += _meeting(products)
    return found


def _may_run_ahead(target: Any) -> bool:
    return is_view(target) or target is aten._to_copy.default


def _can_be_joined(node: Node, frozen: set[Node]) -> bool:
    *bias, left, weight = node.args
    if any(value != 1 for value in node.kwargs.values()) or left in frozen or weight not in frozen:
        return False
    shape = weight.meta["val"].shape  # type: ignore[union-attr]
    if not all(isinstance(size, int) for size in shape) or 0 in shape:
        return False
    for each in bias:
        if each not in frozen or tuple(each.meta["val"].shape) != (shape[1],):  # type: ignore[union-attr]
            return False
    return not _is_seen(node)


def _is_seen(product: Node) -> bool:
    """Whether the result's memory itself is observable.

    It is an output, or a user may depend on its strides: ``as_strided``, a user-defined operator, a branch's
    body.
    """
    views, seen = [product], {product}
    while views:
        for user in views.pop().users:
            if user.op == "output":
                return True
            if user in seen or user.op != "call_function":
                continue
            if user.target in _REGULAR_VIEWS or user.target is operator.getitem:
                views.append(user)
                seen.add(user)
            elif is_view(user.target) or not _is_aten(user.target):
                return True
    return False


def _is_aten(target: Any) -> bool:
    return isinstance(target, torch._ops.OpOverload) and target.namespace in ("aten", "prims")


def _meeting(products: list[Node]) -> Iterable[list[Node]]:
    """The products grouped by a common attention, if at least two reach it."""
    by_attention: dict[Node, list[Node]] = {}
    for product in products:
        for attention in _attentions_reached(product):
            by_attention.setdefault(attention, []).append(product)
    joined = set[Node]()
    for group in by_attention.values():
        rest = [product for product in group if product not in joined]
        if len(rest) > 1:
            joined.update(rest)
            yield rest


def _attentions_reached(product: Node) -> list[Node]:
    """The attentions whose query, key or value a product's result is, in the order of discovery."""
    reached: dict[Node, None] = {}
    ahead, seen = [product], {product}
    while ahead:
        node = ahead.pop()
        for user in node.users:
            if user in seen or user.op != "call_function":
                continue
            if user.target in _ATTENTIONS:
                if node in user.args[:3]:
                    reached[user] = None
            elif _is_on_the_way(user.target):
                ahead.append(user)
                seen.add(user)
    return list(reached)


def _is_on_the_way(target: Any) -> bool:
    if target is operator.getitem or target in _ON_THE_WAY or is_view(target):
        return True
    return isinstance(target, torch._ops.OpOverload) and torch.Tag.pointwise in target.tags


# -- the new graph -----------------------------------------------------------------------------------------


class _Joiner:
    """Copies a graph; the joined product replaces the first product of a group."""

    def __init__(self, groups: list[list[Node]]) -> None:
        self.group_of = {product: group for group in groups for product in group}
        self.new = Graph()
        self.env: dict[Node, Node] = {}

    def copy(self, old: Graph) -> Graph:
        for node in old.nodes:
            self._take(node)
        return self.new

    def _take(self, node: Node) -> Node:
        """The new node for a node of the old graph. A group's weights may move up."""
        if node not in self.env:
            if node in self.group_of:
                self._join(self.group_of[node])
            else:
                for each in node.all_input_nodes:
                    self._take(each)
                self.env[node] = self.new.node_copy(node, self.env.__getitem__)
        return self.env[node]

    def _join(self, group: list[Node]) -> None:
        first = group[0]
        position = _PRODUCTS[first.target]
        left = self._take(first.args[position])  # type: ignore[arg-type]
        operands: list[Any] = [
            left if place == position else self._side_by_side(group, place)
            for place in range(len(first.args))
        ]
        widths = [product.args[position + 1].meta["val"].shape[1] for product in group]  # type: ignore[union-attr]
        rows = left.meta["val"]
        value = first.meta["val"].new_empty((rows.shape[0], sum(widths)))
        product = self._call(first, first.target, tuple(operands), value, "joined")
        begin = 0
        for old, width in zip(group, widths):
            args = (product, 1, begin, begin + width)
            part = aten.slice.Tensor(value, *args[1:])
            self.env[old] = self._call(old, aten.slice.Tensor, args, part, old.name)
            begin += width
        product.meta[JOINED] = tuple(self.env[old].name for old in group[1:])

    def _side_by_side(self, group: list[Node], place: int) -> Node:
        """The concatenated weights, or biases, of a group."""
        parts = [self._take(product.args[place]) for product in group]  # type: ignore[arg-type]
        dim = parts[0].meta["val"].dim() - 1
        value = aten.cat.default([part.meta["val"] for part in parts], dim)
        return self._call(group[0], aten.cat.default, (parts, dim), value, "side_by_side")

    def _call(self, old: Node, target: Any, args: tuple[Any, ...], value: Any, name: str) -> Node:
        made = self.new.create_node("call_function", target, args, name=name)
        made.meta.update(old.meta, val=value)
        return made
