"""The operators with a special form in the Torch dialect."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

from smelt.mlir.bindings import ir
from smelt.mlir.torch_dialect import loops, numbers
from smelt.mlir.torch_dialect.types import type_of

aten = torch.ops.aten


def _item(walk: Any, node: Node) -> None:
    """``item(x)`` → ``Int.Tensor``, ``Float.Tensor`` or ``Bool.Tensor``."""
    walk.take(node, numbers.item(walk.value_of(node.args[0]), node.meta["val"]))


def _assert(walk: Any, node: Node) -> None:
    """``_assert_scalar(condition, message)`` → ``torch.runtime.assert``; tensors become numbers."""
    condition: Any = node.args[0]
    message = str(node.args[1]) if len(node.args) > 1 else "an assertion does not hold"
    value = walk.value_of(condition) if isinstance(condition, Node) else walk.constants.get(bool(condition))
    meta = condition.meta["val"] if isinstance(condition, Node) else condition
    if isinstance(meta, torch.Tensor):
        if meta.dtype is not torch.bool:
            truth = torch.empty(meta.shape, dtype=torch.bool, device="meta")
            value = _operation("torch.aten.ne.Scalar", truth, [value, walk.constants.get(0)])
        value = numbers.item(value, True)
    attributes = {"message": ir.StringAttr.get(message)}
    ir.Operation.create("torch.runtime.assert", operands=[value], attributes=attributes)


def _nothing(walk: Any, node: Node) -> None:
    """No operation: the types and the ranges of ``torch.symbolic_int`` state this already."""


def _max_pool(walk: Any, node: Node) -> None:
    """Max pooling with unused positions → ``max_pool2d``, the only form that TOSA's pipeline supports."""
    if any(user.args[1] != 0 for user in node.users):
        walk.write(node, node.target)
        return
    operands = walk.operands.of_call(node, node.target)
    name = str(node.target).removesuffix("_with_indices.default")
    walk.values[node] = [_operation(f"torch.{name}", node.meta["val"][0], operands), None]


def _batch_norm(walk: Any, node: Node) -> None:
    """``_native_batch_norm_legit_no_training(x, …)`` → ``batch_norm``; its other results have no elements."""
    if any(user.args[1] != 0 for user in node.users):
        loops.write(walk, node)
        return
    *tensors, momentum, eps = walk.operands.of_call(node, node.target)
    no = walk.constants.get(False)
    operands = [*tensors, no, momentum, eps, no]
    walk.values[node] = [_operation("torch.aten.batch_norm", node.meta["val"][0], operands), None, None]


def _operation(name: str, meta: Any, operands: list[Any]) -> Any:
    return ir.Operation.create(name, results=[type_of(meta)], operands=operands).results[0]


WRITERS: dict[Any, Callable[[Any, Node], None]] = {
    **dict.fromkeys((aten._local_scalar_dense.default, aten.item.default), _item),
    **dict.fromkeys(
        (aten._assert_scalar.default, aten._assert_async.default, aten._assert_async.msg), _assert
    ),
    **dict.fromkeys(
        (
            aten.sym_constrain_range.default,
            aten.sym_constrain_range_for_size.default,
            aten._assert_tensor_metadata.default,
        ),
        _nothing,
    ),
    **dict.fromkeys((aten.max_pool2d_with_indices.default, aten.max_pool3d_with_indices.default), _max_pool),
    aten._native_batch_norm_legit_no_training.default: _batch_norm,
}
"""ATen overload → ``writer(walk, node)``."""
