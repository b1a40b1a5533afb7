"""The table of Torch dialect operations that torch-mlir's pipelines compile correctly or incorrectly.

Calls for which they are wrong, hang, crash or lack support are written by their loop functions if possible
(`smelt.mlir.torch_dialect.loops`); `refuse` reports the others before a module is run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from smelt.errors import Problem, SmeltError
from smelt.mlir.bindings import ir
from smelt.mlir.isolated import IsolatedExecutable
from smelt.mlir.locations import where_of
from smelt.mlir.modules import operations
from smelt.mlir.torch_dialect.order import LONG_SUM
from smelt.symbolic import as_expr

FAULT = "fault"
"""The attribute with the reason why torch-mlir's pipelines are wrong about an operation."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of torch-mlir's pipelines (``what``) for ``operations`` (names without ``torch.aten.``) on
    tensors of ``dtypes`` with at least ``least`` elements. ``silent``: a module with such an operation must
    not run if there is no other form."""

    operations: frozenset[str]
    dtypes: frozenset[torch.dtype]
    what: str
    silent: bool = True
    least: int = 0


INTEGERS = frozenset({torch.int8, torch.int16, torch.int32, torch.int64})
HALVES = frozenset({torch.float16, torch.bfloat16})
FLOATS = frozenset({torch.float32, torch.float64})
COMPLEX = frozenset({torch.complex64, torch.complex128})
REAL = frozenset({*INTEGERS, *HALVES, *FLOATS, torch.bool, torch.uint8})


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


MOVES = _names(
    """
    alias broadcast_to cat clone detach diagonal empty.memory_format expand flatten.using_ints imag
    lift_fresh_copy permute real reshape select.int slice.Tensor squeeze squeeze.dim squeeze.dims t
    transpose.int unflatten.int unfold unsqueeze view view_as_complex view_as_real _unsafe_view
    _reshape_alias
    """
)
"""Operations that read no element values: correct for every dtype."""

PLAIN = _names(
    """
    add.Tensor add.Scalar sub.Tensor sub.Scalar rsub.Scalar mul.Tensor mul.Scalar neg eq.Tensor
    eq.Scalar ne.Tensor ne.Scalar lt.Tensor lt.Scalar le.Tensor le.Scalar gt.Tensor gt.Scalar ge.Tensor
    ge.Scalar where.self where.ScalarOther where.ScalarSelf where.Scalar full full_like zeros zeros_like
    ones ones_like empty_like new_full new_zeros new_ones fill.Scalar fill.Tensor scalar_tensor arange
    arange.start arange.start_step _local_scalar_dense item logical_and logical_or logical_xor
    logical_not bitwise_and.Tensor bitwise_or.Tensor bitwise_xor.Tensor bitwise_not any all _to_copy
    to.dtype copy masked_fill.Scalar masked_fill.Tensor max_pool2d_with_indices max_pool3d_with_indices
    max_pool2d max_pool3d sym_size.int sym_numel torch.prims.convert_element_type
    """
)
"""Operations that are correct for float32, float64, int32, int64 and truth values."""

OF_FLOATS = _names(
    """
    div.Tensor div.Scalar abs sqrt rsqrt exp exp2 expm1 log log2 log10 log1p sin cos tan asin
    acos atan sinh cosh tanh asinh acosh atanh atan2 erf sigmoid floor ceil trunc round sign relu
    leaky_relu remainder.Tensor remainder.Scalar pow.Tensor_Tensor pow.Scalar sum sum.dim_IntList mean
    mean.dim amax amin _softmax _log_softmax var.correction std.correction mm bmm addmm baddbmm mv addmv
    dot matmul linear convolution _convolution convolution_backward avg_pool1d avg_pool2d avg_pool3d
    native_layer_norm native_group_norm native_batch_norm _native_batch_norm_legit
    _native_batch_norm_legit_no_training upsample_nearest1d upsample_nearest2d upsample_nearest1d.vec
    upsample_nearest2d.vec pixel_shuffle pixel_unshuffle rand rand_like randn randn_like bernoulli
    bernoulli.p bernoulli.Tensor uniform normal_functional native_dropout dropout
    """
)
"""Operations that are correct for float32 and float64."""


ALL = frozenset({"*"})
"""All operations except those that `MOVES`, `PLAIN` and `OF_FLOATS` list for these dtypes."""

FAULTS: tuple[Fault, ...] = (
    Fault(
        _names(
            "index.Tensor index_put _index_put_impl _unsafe_index.Tensor _unsafe_index_put gather "
            "index_select embedding scatter.src scatter.value scatter_add scatter_reduce.two index_add "
            "index_copy take"
        ),
        REAL,
        "positions out of range, and negative ones, reach memory that is not the tensor's",
    ),
    Fault(_names("eq.Tensor"), FLOATS, "x == x is folded to True, which it is not for NaN"),
    Fault(ALL, frozenset({torch.uint8}), "uint8 is taken for int8"),
    Fault(ALL, COMPLEX, "few operations take complex numbers", silent=False),
    Fault(ALL, HALVES, "each step is rounded to 16 bits", silent=False),
    Fault(
        ALL,
        frozenset({*INTEGERS, *FLOATS, torch.bool}),
        "NaN, ties or integers are not as eager's",
        silent=False,
    ),
    Fault(
        _names("sum sum.dim_IntList mean mean.dim"),
        FLOATS,
        "long sums lose digits",
        silent=False,
        least=LONG_SUM,
    ),
)


def reason_against(
    node: Node | None, name: str, dtypes: Collection[torch.dtype], count: int = 0
) -> Fault | None:
    """The fault of torch-mlir's pipelines for an operation (``torch.aten.add.Tensor``) on tensors of these
    dtypes, the largest with ``count`` elements, called by ``node``; None if they are correct.

    >>> reason_against(None, "torch.aten.add.Tensor", [torch.int64]) is None
    True
    >>> reason_against(None, "torch.aten.add.Tensor", [torch.uint8]).what
    'uint8 is taken for int8'
    """
    short = name.removeprefix("torch.aten.")
    if node is not None and short in _CALLS and _CALLS[short](node):
        return _OF_SOME_CALLS
    for fault in FAULTS:
        concerns = not fault.dtypes.isdisjoint(dtypes) and count >= fault.least
        if concerns and (
            short in fault.operations or (fault.operations is ALL and not _is_sound(short, dtypes))
        ):
            return fault
    return None


def _is_dynamic(node: Node) -> bool:
    """Whether an operand or result of a call has a dynamic size."""
    metas = [node.meta["val"], *(each.meta.get("val") for each in node.all_input_nodes)]
    return any(
        not all(as_expr(size).is_Integer for size in each.shape)
        for each in metas
        if isinstance(each, torch.Tensor)
    )


def _is_product_alone(node: Node) -> bool:
    """``addmm(x, a, b, beta=0)``, whose result ignores NaN in ``x``."""
    beta = node.args[3] if len(node.args) > 3 else node.kwargs.get("beta", 1)
    return not isinstance(beta, Node) and bool(beta == 0)


def _is_of_one_image(node: Node) -> bool:
    """Pooling of (C, H, W), which the pipelines support only with a batch dimension."""
    return bool(node.meta["val"].dim() == 3)


_CALLS: dict[str, Callable[[Node], bool]] = {
    **dict.fromkeys(("view", "_unsafe_view", "reshape", "expand"), _is_dynamic),
    **dict.fromkeys(("addmm", "baddbmm", "addmv"), _is_product_alone),
    "avg_pool2d": _is_of_one_image,
}
"""Operation → whether the pipelines are wrong about a call of an otherwise correct operation. In ``view``
they treat all dynamic result sizes but the first as 1."""

_OF_SOME_CALLS = Fault(ALL, REAL, "this call is not taken as eager means it", silent=False)


def _is_sound(short: str, dtypes: Collection[torch.dtype]) -> bool:
    if short in MOVES:
        return True
    floats = FLOATS.issuperset(dtype for dtype in dtypes if dtype is not torch.bool)
    return (short in PLAIN and _PLAIN.issuperset(dtypes)) or (short in OF_FLOATS and floats)


_PLAIN = frozenset({*FLOATS, torch.int64, torch.int32, torch.bool})


_TO_LINALG = (
    "builtin.module("
    "torchdynamo-export-to-torch-backend-pipeline,torch-backend-to-linalg-on-tensors-backend-pipeline)"
)


def executable(module: Any, calls: Mapping[str, Callable[..., Any]]) -> Callable[..., list[Any]]:
    """A module of the Torch dialect, compiled through torch-mlir's pipelines in a separate process.

    Raises:
        SmeltError: SM0742, the pipelines are wrong about operations; SM0740, SM0741 they crash or hang.
        PipelineError: SM0712, they fail.
    """
    assert not calls
    refuse(module)
    return IsolatedExecutable(module, [(_TO_LINALG, "bringing torch to Linalg")])


def refuse(module: Any) -> None:
    """Check that torch-mlir's pipelines either compile a module correctly or report their failure.

    Raises:
        SmeltError: SM0742, all operations that they are wrong about, each with its line and reason.
    """
    problems = [
        Problem(f"{each.name}: {ir.StringAttr(each.attributes[FAULT]).value}", where_of(each.location))
        for each in operations(module)
        if FAULT in each.attributes
    ]
    if problems:
        listed = "\n".join(f"    - {each}" for each in problems)
        what = f"torch-mlir's pipelines are wrong about {len(problems)} operation(s)\n{listed}"
        raise SmeltError("SM0742", what, remedy='export to "linalg", "stablehlo" or "tosa"')
