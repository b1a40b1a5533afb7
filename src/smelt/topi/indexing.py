"""Elements at positions held by tensors, windows, sums over named indices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from smelt.te.errors import refuse
from smelt.te.functions import cast
from smelt.te.index import reduce_axis
from smelt.te.reductions import prod, sum
from smelt.te.tensor import Tensor, compute
from smelt.te.value import Value
from smelt.topi.reduction import axes_of
from smelt.topi.rows import Program, call, compose
from smelt.topi.transform import reshape
from smelt.topi.written import Labels

aten = torch.ops.aten


def adv_index(data: Tensor, indices: Sequence[Tensor]) -> Any:
    """Elements at positions along the first dimensions; positions broadcast against one another."""

    def function(program: Program, x: Any, *at: Any) -> Any:
        kinds = [each.kind in (torch.int32, torch.int64) for each in indices]
        wide = [a if k else program(aten._to_copy.default, a, dtype=torch.int64) for a, k in zip(at, kinds)]
        return program(aten.index.Tensor, x, wide)

    return compose("adv_index", Labels("advanced_index", tag="injective"), function, data, *indices)


index_tensor = adv_index


def slice_scatter(input_tensor: Tensor, src: Tensor, start: int, end: int, step: int, axis: int) -> list[Any]:
    """The tensor with a slice along an axis replaced by ``src``; a list of it."""
    (dim,) = axes_of("slice_scatter", input_tensor.ndim, axis)
    given = [input_tensor, src, dim, int(start), int(end), int(step)]
    return [
        call("slice_scatter", aten.slice_scatter.default, given, Labels("slice_scatter", tag="injective"))
    ]


def sliding_window(data: Tensor, axis: int, window_shape: Sequence[int], strides: Sequence[int]) -> Any:
    """Windows over the dimensions from an axis on: first the windows' positions, then their elements."""
    (dim,) = axes_of("sliding_window", data.ndim, axis)
    if len(window_shape) != data.ndim - dim or len(strides) != data.ndim - dim:
        refuse("SM1121", f"topi.sliding_window: {len(window_shape)} sizes for {data.ndim - dim} dimensions")

    def function(program: Program, x: Any) -> Any:
        for number, (size, step) in enumerate(zip(window_shape, strides)):
            x = program(aten.unfold.default, x, dim + number, int(size), int(step))
        return x

    return compose("sliding_window", Labels("T_sliding_window", tag="injective"), function, data)


def tensor_size(array: Tensor, dtype: Any = "int32") -> Any:
    """The number of elements, as a tensor."""
    count: Any = 1
    for size in array.shape:
        count = count * size
    return compute((), lambda: cast(dtype, count), "tensor_size", "injective")


def searchsorted(
    sorted_sequence: Tensor, values: Tensor, right: bool = False, out_dtype: Any = "int64"
) -> Any:
    """The number of elements below each value (with ``right``: not above it) in ascending rows."""
    if sorted_sequence.ndim not in (1, values.ndim):
        refuse("SM1121", f"topi.searchsorted: {sorted_sequence.ndim} and {values.ndim} dimensions")
    k = reduce_axis((0, sorted_sequence.shape[-1]), "k")

    def element(*index: Any) -> Any:
        row = () if sorted_sequence.ndim == 1 else index[:-1]
        element, value = sorted_sequence(*row, k), values(*index)
        return sum(cast(out_dtype, element <= value if right else element < value), axis=k)

    return compute(
        values.shape, element, "searchsorted", varargs_names=[f"ax{d}" for d in range(values.ndim)]
    )


def cumprod(data: Tensor, axis: int | None = None, dtype: Any = None, exclusive: Any = None) -> Any:
    """The cumulative products along an axis: each is a product over the elements before it."""
    if exclusive:
        refuse("SM1123", "topi.cumprod: exclusive")
    if axis is None:
        data, axis = reshape(data, [-1]), 0
    (dim,) = axes_of("cumprod", data.ndim, axis)
    k = reduce_axis((0, data.shape[dim]), "k")

    def element(*index: Any) -> Any:
        value = cast(data.dtype if dtype is None else dtype, data(*index[:dim], k, *index[dim + 1 :]))
        return prod(value, axis=k, where=k <= index[dim])

    return compute(data.shape, element, "cumprod", varargs_names=[f"ax{d}" for d in range(data.ndim)])


def einsum(subscripts: str, *operand: Tensor) -> Any:
    """The sum of products over the indices that the result lacks: ``"ij,jk->ik"``."""
    inputs, arrow, output = subscripts.replace(" ", "").partition("->")
    terms = inputs.split(",")
    if "." in subscripts:
        refuse("SM1123", "topi.einsum: an ellipsis", remedy="write all indices")
    if not arrow:
        output = "".join(sorted(letter for letter in set(inputs) - {","} if inputs.count(letter) == 1))
    if len(terms) != len(operand) or any(len(term) != x.ndim for term, x in zip(terms, operand)):
        refuse("SM1121", f"topi.einsum: {subscripts} of tensors of {[x.ndim for x in operand]} dimensions")
    sizes: dict[str, Any] = {}
    for letter, size in ((c, s) for term, x in zip(terms, operand) for c, s in zip(term, x.shape)):
        if letter in sizes and not bool(sizes[letter] == size):
            refuse("SM1121", f"topi.einsum: {letter} is {sizes[letter]} and {size}")
        sizes[letter] = size
    if len(set(output)) != len(output) or not set(output) <= set(sizes):
        refuse("SM1121", f"topi.einsum: {output} is no result of {inputs}")
    over = {letter: reduce_axis((0, size), letter) for letter, size in sizes.items() if letter not in output}

    def element(*index: Any) -> Any:
        at = {**dict(zip(output, index)), **over}
        value: Any = None
        for term, x in zip(terms, operand):
            one: Value = x(*(at[letter] for letter in term))
            value = one if value is None else value * one
        return sum(value, axis=list(over.values())) if over else value

    shape = [sizes[letter] for letter in output]
    return compute(shape, element, "T_einsum", "einsum", varargs_names=[f"ax{d}" for d in range(len(output))])


__all__ = [
    *("adv_index", "cumprod", "einsum", "index_tensor", "searchsorted", "slice_scatter", "sliding_window"),
    "tensor_size",
]
