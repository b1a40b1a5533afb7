"""Calls that smelt leaves to ATen by choice: they are no fallbacks and carry no reason."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves

from smelt.lowering.tensor import Complex

_BY_NAME: dict[str, tuple[str, ...]] = {
    "a matrix product": (
        "mm",
        "addmm",
        "bmm",
        "baddbmm",
        "mv",
        "addmv",
        "dot",
        "vdot",
        "_int_mm",
        "_grouped_mm",
    ),
    "a product with weights in a layout of ATen's own": (
        *("_weight_int8pack_mm", "_weight_int4pack_mm", "_weight_int4pack_mm_for_cpu"),
        *("_convert_weight_to_int4pack", "_convert_weight_to_int4pack_for_cpu"),
        *("_dyn_quant_matmul_4bit", "_dyn_quant_pack_4bit_weight"),
    ),
    "a convolution": ("convolution", "convolution_backward"),
    "a Fourier transform": ("_fft_c2c", "_fft_c2r", "_fft_r2c"),
    "attention": ("attention_with_dropout", "attention_with_dropout_backward"),
    "linear algebra": (
        *("cholesky", "cholesky_inverse", "cholesky_solve", "_cholesky_solve_helper"),
        *("geqrf", "ormqr", "lu_unpack", "triangular_solve"),
    ),
    "the host reads a number, or is told something": (
        *("_local_scalar_dense", "item", "_assert_async", "_print"),
    ),
}
_BY_PREFIX = {
    "_scaled_dot_product": "attention",
    "linalg_": "linear algebra",
    "_linalg_": "linear algebra",
}
_REASONS = {name: reason for reason, names in _BY_NAME.items() for name in names}


def chosen(target: OpOverload) -> str | None:
    """The name of ``target`` if smelt prefers ATen's kernel for it; else None.

    >>> chosen(torch.ops.aten._linalg_svd.default), chosen(torch.ops.aten.add.Tensor)
    ('linear algebra', None)
    """
    name = target._schema.name.split("::")[1]
    if name in _REASONS:
        return _REASONS[name]
    return next((reason for prefix, reason in _BY_PREFIX.items() if name.startswith(prefix)), None)


def foreign_kind(values: Any) -> str | None:
    """``"sparse"`` if one of these values (nested in sequences) is sparse; else None.

    ATen computes on sparse tensors: loop functions need strided memory.

    >>> foreign_kind([torch.ones(2), [torch.ones(2).to_sparse()]])
    'sparse'
    """
    if isinstance(values, (list, tuple)):
        return next((kind for kind in map(foreign_kind, values) if kind is not None), None)
    return "sparse" if isinstance(values, torch.Tensor) and values.layout is not torch.strided else None


def touches_complex(arguments: Any, results: Any) -> bool:
    """Whether complex numbers go into a call or come out of it: arguments of rows, metadata of results.

    >>> touches_complex([[2, 1j]], torch.ones(3)), touches_complex([2], torch.ones(3))
    (True, False)
    """
    values = tree_leaves([arguments, results])
    return any(
        isinstance(each, (complex, Complex)) or (isinstance(each, torch.Tensor) and each.dtype.is_complex)
        for each in values
    )


def touches_foreign(arguments: Sequence[Any], results: Any) -> str | None:
    """`foreign_kind` of a call, from its FX arguments and the metadata of its results."""
    return foreign_kind([_metadata(arguments), results])


def _metadata(argument: Any) -> Any:
    if isinstance(argument, (list, tuple)):
        return [_metadata(each) for each in argument]
    return argument.meta.get("val") if isinstance(argument, torch.fx.Node) else argument
