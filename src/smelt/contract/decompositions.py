"""Decisions about composite operators: decomposed or kept whole, one line each, with its reason.

The base is PyTorch's core ATen table. An operator that stays whole either has a row in `smelt.lowering` or
runs in ATen. All decisions were checked on PyTorch's own operator samples, float32 and bfloat16, forward and
backward, against eager and float64: a decomposed operator errs at most four times as much as eager.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import torch
from torch._decomp import core_aten_decompositions, get_decompositions

from smelt.contract import outside
from smelt.contract.attention import ATTENTION
from smelt.contract.composites import DECOMPOSITIONS
from smelt.contract.optimizers import optimizer_decompositions
from smelt.contract.portable import PORTABLE
from smelt.contract.quantized_decomposed import quantized_decomposed

aten = torch.ops.aten
Table = dict[Any, Callable[..., Any]]

_WHOLE: dict[str, tuple[Any, ...]] = {
    "a matrix product or attention: ATen's kernel, until the schedule makes its own": (
        aten._scaled_dot_product_flash_attention_for_cpu,
        aten._scaled_dot_product_flash_attention_for_cpu_backward,
        aten.addmm,
        aten.addmv,
        aten.baddbmm,  # its decomposition would also promote to float32
        aten.convolution,
        aten.convolution_backward,
        aten.dot,
        aten.mv,
        aten.vdot,
    ),
    "random: one call, one stream of numbers; and ATen can draw eager's": (
        aten.bernoulli,
        aten.exponential,
        aten.multinomial,
        aten.native_dropout,
        aten.normal,
        aten.rand_like,
        aten.randint,
        aten.randn,
        aten.rrelu_with_noise,
        aten.rrelu_with_noise_functional,
        aten.uniform,
    ),
    "one reduction or scatter of the loop IR; apart it is several passes over memory": (
        aten._log_softmax,
        aten._softmax,
        aten.all,
        aten.any,
        aten.embedding_dense_backward,
        aten.index_add,
        aten.native_group_norm,
        aten.native_layer_norm,
        aten.sum,
        aten.var,
        aten.var_mean,
    ),
    "a view or copy that the loop IR has as an index transform": (
        aten.diagonal_copy,
        aten.expand_copy,
        aten.select_scatter,
        aten.slice_scatter,
        aten.split,
        aten.squeeze,
        aten.unbind,
    ),
    "one expression already": (
        aten.clamp_max,
        aten.clamp_min,
        aten.take,  # its decomposition reads a number if the index is 0-d
    ),
    "apart, an exponent overflows where eager's kernel scales": (aten.ldexp,),
    "apart, it is rounded in other places than in eager's kernel": (aten.logit,),
    "apart, the result has other strides than eager's": (aten.max_unpool3d,),
    "apart, it is less accurate than eager's kernel": (aten.linspace, aten.logspace),
    "apart, NaN or the sign of zero is not where eager's kernel has it": (
        aten.elu_backward,
        aten.logaddexp2,
        aten.softshrink,
    ),
    "apart, float64 has another constant than in eager's kernel": (aten.hardsigmoid_backward,),
    "apart, an index out of range, or of another dtype, raises another error than eager's, or none": (
        aten.index_copy,
        aten.index_fill,
        aten.nll_loss_forward,
        aten.nll_loss2d_forward,
    ),
}

_ALSO_APART: tuple[Any, ...] = (
    aten._batch_norm_no_update,
    aten._batch_norm_with_update,
    aten._batch_norm_with_update_functional,
    aten.as_strided_copy,
    aten.batch_norm_backward,
    aten.dist,
    aten.tril_indices,
    aten.triu_indices,
)
"""Decomposed operators that are not in the core table, but of the same family as others in it."""


_APART_ELSEWHERE: tuple[Any, ...] = (
    aten.elu_backward,
    aten.index_copy,
    aten.index_fill,
    aten.linspace,
    aten.logaddexp2,
    aten.softshrink,
)
"""Operators kept whole for eager's errors and special numbers, which other compilers do not have."""


def decompositions() -> Table:
    """The table for AOTAutograd: ATen overload → its decomposition.

    >>> import torch
    >>> torch.ops.aten.addcmul.default in decompositions(), torch.ops.aten.addmm.default in decompositions()
    (True, False)
    """
    return {**_below_autograd(), **quantized_decomposed(), **outside.DECOMPOSITIONS}


def export_decompositions() -> Table:
    """The table for ``ExportedProgram.run_decompositions``, with the composites that autograd decomposes."""
    return {**_with_composites(), **quantized_decomposed(), **outside.DECOMPOSITIONS}


@lru_cache(maxsize=1)
def _below_autograd() -> Table:
    from torch._decomp import _core_aten_decompositions_post_autograd

    return _with_our_choices(_core_aten_decompositions_post_autograd())


@lru_cache(maxsize=1)
def _with_composites() -> Table:
    return _with_our_choices(dict(core_aten_decompositions().items()))


def portable_decompositions() -> Table:
    """The table for programs exported to other compilers: also attention and `smelt.contract.portable`.

    ATen's attention kernel is PyTorch's own; other compilers need its decomposition.

    >>> import torch
    >>> torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default in portable_decompositions()
    True
    """
    return {**export_decompositions(), **get_decompositions(_APART_ELSEWHERE), **ATTENTION, **PORTABLE}


def whole() -> dict[Any, str]:
    """ATen overload → the reason why smelt keeps it whole."""
    return {overload: reason for reason, packets in _WHOLE.items() for overload in _overloads(packets)}


def _with_our_choices(table: Table) -> Table:
    kept = whole()
    chosen = {overload: function for overload, function in table.items() if overload not in kept}
    return {**chosen, **get_decompositions(_ALSO_APART), **DECOMPOSITIONS, **optimizer_decompositions()}


def _overloads(packets: tuple[Any, ...]) -> Iterator[Any]:
    for packet in packets:
        yield from (getattr(packet, name) for name in packet.overloads())
