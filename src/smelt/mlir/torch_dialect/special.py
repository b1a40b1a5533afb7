"""The few operators that the Torch dialect, or torch-mlir's pipelines, want written otherwise than called."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Node

from smelt.contract.facts import is_view
from smelt.errors import Unsupported
from smelt.mlir.bindings import ir
from smelt.mlir.torch_dialect import numbers
from smelt.mlir.torch_dialect.literals import literal
from smelt.mlir.torch_dialect.types import type_of
from smelt.symbolic import as_expr, same

aten = torch.ops.aten
Writer = Callable[[Any, Node], None]
WRITERS: dict[Any, Writer] = {}
"""ATen overload → ``writer(walk, node)``."""

_INTEGERS = aten.reshape.default._schema.arguments[1].type.getElementType()
"""The type of an element of a list of sizes, as schemas have it."""


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
    kind = [ir.Type.parse("!torch.int")]
    operand = walk.value_of(node.args[0])
    walk.values[node] = ir.Operation.create("torch.aten.numel", results=kind, operands=[operand]).results[0]


@writes(aten._assert_scalar.default)
def _assert(walk: Any, node: Node) -> None:
    """``_assert_scalar(condition, message)`` → ``torch.runtime.assert``."""
    condition, message = node.args[:2]
    value = walk.value_of(condition) if isinstance(condition, Node) else walk.constants.get(bool(condition))
    ir.Operation.create(
        "torch.runtime.assert", operands=[value], attributes={"message": ir.StringAttr.get(str(message))}
    )


@writes(aten._assert_async.default, aten._assert_async.msg)
def _assert_tensor(walk: Any, node: Node) -> None:
    """``_assert_async(condition, message)`` → ``torch.runtime.assert`` of its number."""
    condition: Any = node.args[0]
    message = str(node.args[1]) if len(node.args) > 1 else "an assertion does not hold"
    operand = walk.value_of(condition)
    meta = condition.meta["val"]
    if meta.dtype is not torch.bool:
        none, truth = walk.constants.get(0), torch.empty(meta.shape, dtype=torch.bool, device="meta")
        operand = _operation("torch.aten.ne.Scalar", truth, [operand, none])
    ir.Operation.create(
        "torch.runtime.assert",
        operands=[numbers.item(operand, True)],
        attributes={"message": ir.StringAttr.get(message)},
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
    """``as_strided(x, size, stride, offset)`` → elements of ``x``, flat, by their numbers.

    A value tensor has no memory but that of its elements, and torch-mlir's pipelines have no rule.
    """
    source: Any = node.args[0]
    offset: Any = node.args[3] if len(node.args) > 3 else node.kwargs.get("storage_offset")
    offset = source.meta["val"].storage_offset() if offset is None else offset
    while source.op == "call_function" and is_view(source.target):
        source = source.args[0]  # it counts from where the memory begins that all views of it share
    meta, result = source.meta["val"], node.meta["val"]
    everything = (*meta.shape, *meta.stride(), *result.shape, *result.stride(), offset)
    if not all(isinstance(size, int) for size in everything):
        raise Unsupported("as_strided with sizes that are not known")
    numbers_of = torch.arange(math.prod(meta.shape)).reshape(meta.shape)
    places = _places(meta.shape, meta.stride(), 0)
    memory = torch.full((int(places.max()) + 1 if places.numel() else 0,), -1)
    memory[places.reshape(-1)] = numbers_of.reshape(-1)
    wanted = _places(result.shape, result.stride(), offset - meta.storage_offset())
    inside = (wanted >= 0) & (wanted < len(memory))
    if not bool(inside.all()) or bool((memory[wanted] < 0).any()):
        raise Unsupported("as_strided that reaches memory beside the tensor")
    flat = torch.empty(meta.numel(), dtype=meta.dtype, device="meta")
    shape = walk.operands.list_of([-1], _INTEGERS, node)
    whole = _operation("torch.aten.reshape", flat, [walk.value_of(source), shape])
    chosen = literal(memory[wanted], f"{node.name}_elements")
    indices = numbers.list_of([chosen], "optional<vtensor>")
    walk.take(node, _operation("torch.aten.index.Tensor", result, [whole, indices]))


def _places(shape: Sequence[int], strides: Sequence[int], start: int) -> torch.Tensor:
    """Where in memory each element of a strided tensor is."""
    places = torch.full(tuple(shape), start)
    for dim, (size, stride) in enumerate(zip(shape, strides)):
        along = torch.arange(size) * stride
        places = places + along.reshape([-1 if each == dim else 1 for each in range(len(shape))])
    return places


@writes(aten.view.default, aten._unsafe_view.default, aten.reshape.default)
def _view(walk: Any, node: Node) -> None:
    """The one size of a ``view`` that is only known at run time is -1: the others say what it is."""
    sizes: Any = node.args[1]
    source: Any = node.args[0]
    operand, meta = walk.value_of(source), source.meta["val"]
    unknown = [place for place, size in enumerate(sizes) if isinstance(size, Node)]
    merges = _unknown(meta.shape) > _unknown(node.meta["val"].shape)
    if not merges and (len(unknown) != 1 or any(size in (-1, 0) for size in sizes if isinstance(size, int))):
        walk.call(node, node.target)
        return
    if merges:  # torch-mlir's view takes all unknown sizes that become one, but the first, for 1
        bounds = [walk.constants.get(0), walk.constants.get(-1)]
        operand = _operation("torch.aten.flatten.using_ints", meta.flatten(), [operand, *bounds])
    wanted = list(sizes)
    if len(unknown) == 1 and -1 not in wanted:
        wanted[unknown[0]] = -1
    operands = [operand, walk.operands.list_of(wanted, _INTEGERS, node)]
    walk.take(
        node, _operation(f"torch.{str(node.target).removesuffix('.default')}", node.meta["val"], operands)
    )


def _unknown(shape: Sequence[Any]) -> int:
    """How many sizes are only known at run time."""
    return sum(not as_expr(size).is_Integer for size in shape)


@writes(aten.expand.default)
def _expand(walk: Any, node: Node) -> None:
    """A size that ``expand`` leaves as it is is -1."""
    source, sizes, *_ = node.args
    own, result = source.meta["val"].shape, node.meta["val"].shape  # type: ignore[union-attr]
    added = len(result) - len(own)
    kept = [
        place >= added and same(as_expr(result[place]), as_expr(own[place - added]))
        for place in range(len(result))
    ]
    if not any(keep and isinstance(size, Node) for keep, size in zip(kept, sizes)):  # type: ignore[arg-type]
        walk.call(node, node.target)
        return
    wanted = [-1 if keep and isinstance(size, Node) else size for keep, size in zip(kept, sizes)]  # type: ignore[arg-type]
    lengths = walk.operands.list_of(wanted, _INTEGERS, node)
    operands = [walk.value_of(source), lengths, walk.constants.get(False)]
    walk.take(node, _operation("torch.aten.expand", node.meta["val"], operands))


@writes(aten.addmm.default, aten.baddbmm.default, aten.addmv.default)
def _product_and_sum(walk: Any, node: Node) -> None:
    """``addmm(x, a, b, beta=0)`` → ``mm(a, b)``: with beta 0, NaN in ``x`` is no NaN in the result."""
    beta: Any = node.args[3] if len(node.args) > 3 else node.kwargs.get("beta", 1)
    alpha: Any = node.args[4] if len(node.args) > 4 else node.kwargs.get("alpha", 1)
    if isinstance(beta, Node) or beta != 0:
        walk.call(node, node.target)
        return
    names = {aten.addmm.default: "mm", aten.baddbmm.default: "bmm", aten.addmv.default: "mv"}
    name = next(name for overload, name in names.items() if overload is node.target)
    factors = [walk.value_of(each) for each in node.args[1:3]]
    made = _operation(f"torch.aten.{name}", node.meta["val"], factors)
    if isinstance(alpha, Node) or alpha != 1:
        factor = walk.value_of(alpha) if isinstance(alpha, Node) else walk.constants.get(alpha)
        made = _operation("torch.aten.mul.Scalar", node.meta["val"], [made, factor])
    walk.take(node, made)


@writes(aten.empty_permuted.default)
def _empty_permuted(walk: Any, node: Node) -> None:
    """Value tensors have no strides: ``empty_permuted`` is ``empty``."""
    size = walk.operands.list_of(list(node.args[0]), _INTEGERS, node)  # type: ignore[arg-type]
    none = walk.constants.get(None)
    dtype = walk.constants.get(node.meta["val"].dtype)
    walk.take(
        node, _operation("torch.aten.empty.memory_format", node.meta["val"], [size, dtype, *[none] * 4])
    )


@writes(aten.arange.default, aten.arange.start, aten.arange.start_step)
def _arange(walk: Any, node: Node) -> None:
    """An ``arange`` of uint8 is one of int64, converted: torch-mlir's pipelines abort the process on it."""
    meta = node.meta["val"]
    if meta.dtype is not torch.uint8:
        walk.call(node, node.target)
        return
    operands = walk.operands.of_call(node, node.target)
    names = [argument.name for argument in node.target._schema.arguments]  # type: ignore[union-attr]
    operands[names.index("dtype")] = walk.constants.get(torch.int64)
    wide = torch.empty(meta.shape, dtype=torch.int64, device="meta")
    made = _operation(f"torch.{str(node.target).removesuffix('.default')}", wide, operands)
    dtype = walk.constants.get(torch.uint8)
    walk.take(node, _operation("torch.prims.convert_element_type", meta, [made, dtype]))


@writes(aten.avg_pool2d.default, aten._adaptive_avg_pool2d.default)
def _pool_of_image(walk: Any, node: Node) -> None:
    """Pooling of one image (C, H, W) → of a batch of one: torch-mlir's pipelines know no other."""
    source: Any = node.args[0]
    meta, result = source.meta["val"], node.meta["val"]
    if meta.dim() != 3:
        walk.call(node, node.target)
        return
    operands = walk.operands.of_call(node, node.target)
    first = walk.constants.get(0)
    operands[0] = _operation("torch.aten.unsqueeze", _batched(meta), [operands[0], first])
    name = str(node.target).removesuffix(".default")
    made = _operation(f"torch.{name}", _batched(result), operands)
    walk.take(node, _operation("torch.aten.squeeze.dim", result, [made, first]))


@writes(aten.max_pool2d_with_indices.default, aten.max_pool3d_with_indices.default)
def _max_pool(walk: Any, node: Node) -> None:
    """Maximal pooling whose positions nobody wants → ``max_pool2d``: TOSA's pipeline knows no other."""
    if any(user.args[1] != 0 for user in node.users):
        walk.call(node, node.target)
        return
    operands = walk.operands.of_call(node, node.target)
    name = str(node.target).removesuffix("_with_indices.default")
    walk.values[node] = [_operation(f"torch.{name}", node.meta["val"][0], operands), None]


def _batched(meta: Any) -> Any:
    """The metadata of a batch of one."""
    return meta.unsqueeze(0)


@writes(aten._fft_r2c.default)
def _rfft(walk: Any, node: Node) -> None:
    """``_fft_r2c(x, [dim], 0, True)`` → ``fft_rfft(x, None, dim, None)``."""
    source, dims, normalization, onesided = node.args
    if len(dims) != 1 or normalization != 0 or not onesided:  # type: ignore[arg-type]
        walk.call(node, node.target)
        return
    none = walk.constants.get(None)
    operands = [walk.value_of(source), none, walk.constants.get(dims[0]), none]  # type: ignore[index]
    walk.take(node, _operation("torch.aten.fft_rfft", node.meta["val"], operands))


@writes(aten._linalg_slogdet.default, aten._linalg_det.default)
def _determinant(walk: Any, node: Node) -> None:
    """``_linalg_slogdet(x)`` → ``linalg_slogdet(x)``: without the factors, where nobody wants them."""
    results = 2 if node.target is aten._linalg_slogdet.default else 1
    if any(user.args[1] >= results for user in node.users):  # type: ignore[operator]
        walk.call(node, node.target)
        return
    name = f"torch.aten.linalg_{'slogdet' if results == 2 else 'det'}"
    kinds = [type_of(meta) for meta in node.meta["val"][:results]]
    made = ir.Operation.create(name, results=kinds, operands=[walk.value_of(node.args[0])])
    walk.values[node] = list(made.results)


@writes(aten._embedding_bag_forward_only.default, aten._embedding_bag.default)
def _embedding_bag(walk: Any, node: Node) -> None:
    """``_embedding_bag`` → ``embedding_bag.padding_idx``, whose "no padding" is None instead of -1."""
    operands = walk.operands.of_call(node, node.target)
    padding = node.args[8] if len(node.args) > 8 else node.kwargs.get("padding_idx", -1)
    operands[8] = walk.constants.get(None if padding == -1 else padding)
    kinds = [type_of(meta) for meta in node.meta["val"]]
    made = ir.Operation.create("torch.aten.embedding_bag.padding_idx", results=kinds, operands=operands)
    walk.values[node] = list(made.results)


def _slice(walk: Any, operand: Any, meta: Any, dim: int, start: int, stop: int) -> Any:
    bounds = [walk.constants.get(each) for each in (dim, start, stop, 1)]
    return _operation("torch.aten.slice.Tensor", meta, [operand, *bounds])


def _operation(name: str, meta: Any, operands: Sequence[Any]) -> Any:
    return ir.Operation.create(name, results=[type_of(meta)], operands=list(operands)).results[0]
