"""A training graph → forward and backward, by torch's min-cut partitioner."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch._functorch import config
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._ops import OpOverload
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import CheckpointPolicy

from smelt.runtime.externs import is_collective, is_dequantization, is_mutating, is_random


def partition(joint: GraphModule, inputs: Sequence[Any], **options: Any) -> tuple[GraphModule, GraphModule]:
    """Min-cut, except that no random operator is recomputed: the backward must see the forward's numbers.
    Collectives are not recomputed either, unless activation checkpointing asks for it: each process finds a
    cut of its own. Values of quantized weights are recomputed: saved, they would be the model in floats.

    The partitioner alone recomputes most of them under activation checkpointing and under
    ``aggressive_recomputation``; for the former it would pass generator states to the backward.

    Equal nodes are merged here and not by the partitioner, which would import the whole of Inductor for it.
    """
    for node in joint.graph.nodes:
        if is_collective(node.target):
            node.meta.setdefault("recompute", CheckpointPolicy.MUST_SAVE)
        if is_dequantization(node.target):
            node.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE
        if is_random(node.target):
            results = [user for user in node.users if user.target is operator.getitem]
            for each in results or [node]:
                each.meta["recompute"] = CheckpointPolicy.MUST_SAVE
            node.meta["recompute"] = CheckpointPolicy.MUST_SAVE
    if config.cse:
        merge_equal_nodes(joint.graph)
    with config.patch(cse=False):
        return min_cut_rematerialization_partition(joint, inputs, **options)


def merge_equal_nodes(graph: Graph) -> None:
    """Common subexpression elimination: of several calls of one operator with equal arguments the first
    remains.

    Calls whose results alias an output are not merged: two outputs of eager are two tensors. Neither are
    random and uninitialized values, collectives, and calls with a write between them.
    """
    returned = {storage for node in graph.output_node().all_input_nodes for storage in _storages(node)}
    first: dict[Any, Node] = {}
    for node in graph.nodes:
        if is_mutating(node.target):
            first.clear()
        if not _is_pure(node) or not returned.isdisjoint(_storages(node)):
            continue
        arguments = _key(node.args), _key(tuple(sorted(node.kwargs.items())))
        try:
            earlier = first.setdefault((node.target, arguments), node)
        except TypeError:  # an argument that cannot be hashed
            continue
        if earlier is not node:
            node.replace_all_uses_with(earlier)
            graph.erase_node(node)


def _is_pure(node: Node) -> bool:
    if isinstance(node.target, OpOverload):
        if is_mutating(node.target) or is_random(node.target) or is_collective(node.target):
            return False
        if node.target.name().startswith("aten::empty"):
            return False
    elif getattr(node.target, "__module__", None) != "_operator":
        return False
    value = node.meta.get("val")
    # data-dependent sizes have symbols of their own, which later nodes name
    return value is not None and (isinstance(value, torch.Tensor) or not free_unbacked_symbols(value))


def _storages(node: Node) -> Iterator[StorageWeakRef]:
    for value in tree_leaves(node.meta.get("val")):
        if isinstance(value, torch.Tensor) and value.layout == torch.strided:
            yield StorageWeakRef(value.untyped_storage())


def _key(value: Any) -> Any:
    """A key of an operator's arguments that is equal for equal arguments: 1, 1.0 and True differ, and so do
    0.0 and -0.0.
    """
    if isinstance(value, (list, tuple)):
        return tuple(map(_key, value))
    return type(value), repr(value) if isinstance(value, (float, complex)) else value
