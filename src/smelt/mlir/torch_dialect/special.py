"""The few operators that the Torch dialect, or torch-mlir's pipelines, want written otherwise than called."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Node

from smelt.errors import Unsupported
from smelt.mlir.torch_dialect import numbers
from smelt.mlir.torch_dialect.types import type_of
from smelt.symbolic import as_expr, contiguous_strides

aten = torch.ops.aten
Writer = Callable[[Any, Node], None]
WRITERS: dict[Any, Writer] = {}
"""ATen overload → ``writer(walk, node)``."""


def writes(*overloads: Any) -> Callable[[Writer], Writer]:
    """Register a writer for ATen overloads."""

    def add(writer: Writer) -> Writer:
        WRITERS.update(dict.fromkeys(overloads, writer))
        return writer

    return add


@writes(aten._local_scalar_dense.default, aten.item.default)
def _item(walk: Any, node: Node) -> None:
    """``item(x)`` → ``Int.Tensor``, ``Float.Tensor`` or ``Bool.Tensor``."""
    walk.values[node] = numbers.item(walk.value_of(node.args[0]), node.meta["val"])


@writes(aten.sym_size.int)
def _size(walk: Any, node: Node) -> None:
    tensor, dim = node.args
    walk.values[node] = numbers.size_of(walk.value_of(tensor), dim % tensor.meta["val"].dim(), walk.constants)  # type: ignore[operator,union-attr]


@writes(aten.sym_numel.default)
def _numel(walk: Any, node: Node) -> None:
    from torch_mlir import ir

    kind = [ir.Type.parse("!torch.int")]
    operand = walk.value_of(node.args[0])
    walk.values[node] = ir.Operation.create("torch.aten.numel", results=kind, operands=[operand]).results[0]


@writes(aten._assert_scalar.default)
def _assert(walk: Any, node: Node) -> None:
    """``_assert_scalar(condition, message)`` → ``torch.runtime.assert``."""
    from torch_mlir import ir

    condition, message = node.args[:2]
    value = walk.value_of(condition) if isinstance(condition, Node) else walk.constants.get(bool(condition))
    ir.Operation.create(
        "torch.runtime.assert", operands=[value], attributes={"message": ir.StringAttr.get(str(message))}
    )


@writes(
    aten.sym_constrain_range.default,
    aten.sym_constrain_range_for_size.default,
    aten._assert_tensor_metadata.default,
)
def _nothing(walk: Any, node: Node) -> None:
    """What the types, and the ranges of ``torch.symbolic_int``, say already."""


@writes(aten.split.Tensor, aten.split_with_sizes.default)
def _split(walk: Any, node: Node) -> None:
    """``split(x, …)`` → one ``slice.Tensor`` each: torch-mlir's pipelines know lists of tensors hardly."""
    source: Any = node.args[0]
    dim = int(node.args[2] if len(node.args) > 2 else node.kwargs.get("dim", 0))  # type: ignore[arg-type]
    dim %= source.meta["val"].dim()
    parts = node.meta["val"]
    if not all(isinstance(part.shape[dim], int) for part in parts):
        walk.call(node, node.target)
        return
    start, made = 0, []
    for part in parts:
        stop = start + part.shape[dim]
        made.append(_slice(walk, walk.value_of(source), part, dim, start, stop))
        start = stop
    walk.values[node] = made


@writes(aten.unbind.int)
def _unbind(walk: Any, node: Node) -> None:
    """``unbind(x)`` → one ``select.int`` each."""
    source: Any = node.args[0]
    dim = int(node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0))  # type: ignore[arg-type]
    dim %= source.meta["val"].dim()
    operand = walk.value_of(source)
    walk.values[node] = [
        _operation(
            "torch.aten.select.int", part, [operand, walk.constants.get(dim), walk.constants.get(place)]
        )
        for place, part in enumerate(node.meta["val"])
    ]


@writes(aten.as_strided.default, aten.as_strided_copy.default)
def _as_strided(walk: Any, node: Node) -> None:
    """A value tensor has no memory but that of its elements in row-major order."""
    source: Any = node.args[0]
    meta = source.meta["val"]
    strides = contiguous_strides(tuple(as_expr(size) for size in meta.shape))
    own = tuple(as_expr(stride) for stride in meta.stride())
    if any(a != b and as_expr(size) != 1 for a, b, size in zip(own, strides, meta.shape)):
        raise Unsupported("as_strided of a tensor that is not contiguous")
    walk.call(node, aten.as_strided.default)


def _slice(walk: Any, operand: Any, meta: Any, dim: int, start: int, stop: int) -> Any:
    bounds = [walk.constants.get(each) for each in (dim, start, stop, 1)]
    return _operation("torch.aten.slice.Tensor", meta, [operand, *bounds])


def _operation(name: str, meta: Any, operands: Sequence[Any]) -> Any:
    from torch_mlir import ir

    return ir.Operation.create(name, results=[type_of(meta)], operands=list(operands)).results[0]
