"""Products of matrices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from smelt.te.dtypes import kind_of
from smelt.te.errors import refuse
from smelt.te.tensor import Tensor
from smelt.topi import names
from smelt.topi.rows import Program, compose
from smelt.topi.written import Labels

aten = torch.ops.aten


def matmul(
    tensor_a: Tensor,
    tensor_b: Tensor,
    bias: Tensor | None = None,
    out_dtype: Any = None,
    transpose_a: bool = False,
    transpose_b: bool = False,
    auto_scheduler_rewritten_layout: str = "",
    meta_schedule_original_shape: Any = None,
) -> Any:
    """The product of matrices, with batch dimensions that broadcast, and a bias for each column.

    >>> from smelt import te
    >>> x, w = te.placeholder((3, 5), name="x"), te.placeholder((4, 5), name="w")
    >>> y = matmul(x, w, transpose_b=True)
    >>> y.op.name, y.shape, y.op.body[0]
    ('T_matmul_NT', (3, 4), sum(x[i0, k]*w[i1, k], axis=[k]))
    """
    kind = "".join("T" if turned else "N" for turned in (transpose_a, transpose_b))
    labels = Labels(f"T_matmul_{kind}", "i", ["k"], tag="matmul")
    product = _product("nn.matmul", labels, tensor_a, tensor_b, out_dtype, transpose_a, transpose_b)
    return product if bias is None else _biased(product, bias)


def dense(
    data: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    out_dtype: Any = None,
    auto_scheduler_rewritten_layout: str = "",
    meta_schedule_original_shape: Any = None,
) -> Any:
    """``data @ weight.T + bias``."""
    labels = Labels("T_matmul_NT", "i", ["k"], tag="dense")
    product = _product("nn.dense", labels, data, weight, out_dtype, False, True)
    product.op.attrs["layout_free_placeholders"] = [weight]
    return product if bias is None else _biased(product, bias)


def batch_matmul(
    tensor_a: Tensor,
    tensor_b: Tensor,
    oshape: Any = None,
    out_dtype: Any = None,
    transpose_a: bool = False,
    transpose_b: bool = True,
    auto_scheduler_rewritten_layout: str = "",
    meta_schedule_original_shape: Any = None,
) -> Any:
    """The products of a batch of matrices; the second ones are transposed by default."""
    if tensor_a.ndim != 3 or tensor_b.ndim != 3:
        refuse("SM1121", "topi.nn.batch_matmul: tensors of 3 dimensions")
    kind = "".join("T" if turned else "N" for turned in (transpose_a, transpose_b))
    labels = Labels(f"T_batch_matmul_{kind}", ["b", "i", "j"], ["k"], tag="batch_matmul")
    product = _product("nn.batch_matmul", labels, tensor_a, tensor_b, out_dtype, transpose_a, transpose_b)
    product.op.attrs["layout_free_placeholders"] = [tensor_b]
    return product


def _product(
    name: str, labels: Labels, a: Tensor, b: Tensor, out_dtype: Any, turned_a: bool, turned_b: bool
) -> Any:
    if min(a.ndim, b.ndim) < 2:
        refuse("SM1121", f"topi.{name}: tensors of at least 2 dimensions")
    kind = a.kind if out_dtype in (None, "") else kind_of(out_dtype)

    def operand(program: Program, x: Any, tensor: Tensor, turned: bool) -> Any:
        if tensor.kind != kind:
            x = program(aten._to_copy.default, x, dtype=kind)
        return program(aten.transpose.int, x, -2, -1) if turned else x

    def function(program: Program, x: Any, y: Any) -> Any:
        x, y = operand(program, x, a, turned_a), operand(program, y, b, turned_b)
        if a.ndim == b.ndim == 2:
            return program(aten.mm.default, x, y)
        batch = batch_shape(name, a, b)
        if len(batch) == 1:
            x, y = (program(aten.expand.default, each, [_size(program, batch[0]), -1, -1]) for each in (x, y))
            return program(aten.bmm.default, x, y)
        return _many(program, x, y, a, b, batch)

    return compose(name, labels, function, a, b)


def _size(program: Program, expr: Any) -> Any:
    return program.size(expr)


def batch_shape(name: str, a: Tensor, b: Tensor) -> list[Any]:
    """The broadcast sizes of the batch dimensions."""
    rank = max(a.ndim, b.ndim) - 2
    sizes = [[1] * (rank - t.ndim + 2) + list(t.sizes[:-2]) for t in (a, b)]
    found = []
    for left, right in zip(*sizes):
        if left != 1 and right != 1 and left != right:
            refuse("SM1121", f"topi.{name}: batches of {left} and {right}")
        found.append(a.sizes[0] * 0 + (right if left == 1 else left))
    return found


def _many(program: Program, x: Any, y: Any, a: Tensor, b: Tensor, batch: Sequence[Any]) -> Any:
    """A product of several batch dimensions, as a view of a product of one."""
    count = batch[0]
    for size in batch[1:]:
        count = count * size
    flat = []
    for each in (x, y):
        rows, columns = each.fake.shape[-2:]
        whole = [program.size(size) for size in batch]
        wide = program(aten.expand.default, each, [*whole, -1, -1])
        if not isinstance(rows, int) or not isinstance(columns, int):
            refuse("SM1123", "topi.nn.matmul: several batch dimensions, and sizes that are not known")
        flat.append(program(aten.reshape.default, wide, [program.size(count), rows, columns]))
    product = program(aten.bmm.default, *flat)
    whole = [program.size(size) for size in batch]
    return program(aten.reshape.default, product, [*whole, *product.fake.shape[-2:]])


def _biased(product: Tensor, bias: Tensor) -> Any:
    if bias.ndim != 1:
        refuse("SM1121", f"topi.nn.matmul: a bias of {bias.ndim} dimensions")
    return names.FUNCTIONS["add"](product, bias)


__all__ = ["batch_matmul", "dense", "matmul"]
