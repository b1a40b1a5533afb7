"""Which composite operators are taken apart, and which stay whole. One line a decision, with its reason.

Start: PyTorch's core ATen table. An operator that stays whole either has a row in `smelt.lowering` or runs in
ATen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

import torch
from torch._decomp import core_aten_decompositions, get_decompositions

aten, prims = torch.ops.aten, torch.ops.prims
Table = dict[Any, Callable[..., Any]]

_CALLED_WHOLE: dict[str, tuple[Any, ...]] = {
    "matrix products and attention: ATen's kernels, until the schedule makes its own": (
        aten.baddbmm,  # its decomposition also promotes to float32
        aten.addmm,
        aten._scaled_dot_product_flash_attention_for_cpu,
        aten.dot,
        aten.vdot,
        aten.mv,
        aten.addmv,
    ),
    "random: only ATen's own kernel draws eager's numbers": (
        aten.bernoulli,
        aten.native_dropout,
        aten.rrelu_with_noise,
        aten.normal,
        aten.uniform,
        aten.randn,
        aten.rand_like,
        aten.randint,
        aten.exponential,
        aten.multinomial,
    ),
}

_LOWERED_WHOLE: dict[str, tuple[Any, ...]] = {
    "one reduction or scatter in the loop IR; apart they are several passes over memory": (
        aten.sum,
        aten.var,
        aten.var_mean,
        aten.embedding_dense_backward,
        aten.all,
        aten.any,
    ),
    "views and copies that the loop IR has as index transforms": (
        aten.squeeze,
        aten.unbind,
        aten.split,
        aten.select_scatter,
        aten.slice_scatter,
        aten.diagonal_copy,
        aten.expand_copy,
    ),
    "its decomposition has other strides than eager's result": (
        aten.max_unpool2d,
        aten.max_unpool3d,
    ),
    "its decomposition is less accurate than eager's kernel": (aten.logspace,),
    "one expression whose rounding follows eager's kernel": (
        aten.clamp_min,
        aten.clamp_max,
    ),
}

_ALSO_DECOMPOSED: tuple[Any, ...] = ()


@lru_cache(maxsize=1)
def decompositions() -> Table:
    """The table for AOTAutograd: ATen overload → function that computes it from simpler ones."""
    from torch._decomp import _core_aten_decompositions_post_autograd

    return _with_our_choices(_core_aten_decompositions_post_autograd())


@lru_cache(maxsize=1)
def export_decompositions() -> Table:
    """The table for ``ExportedProgram.run_decompositions``: with the composites that autograd takes apart."""
    return _with_our_choices(dict(core_aten_decompositions().items()))


def _with_our_choices(table: Table) -> Table:
    table = dict(table)
    for groups in (_CALLED_WHOLE, _LOWERED_WHOLE):
        for packets in groups.values():
            for overload in _overloads(packets):
                table.pop(overload, None)
    table.update(get_decompositions(list(_ALSO_DECOMPOSED)))
    return table


def _overloads(packets: Iterable[Any]) -> Iterable[Any]:
    for packet in packets:
        if isinstance(packet, torch._ops.OpOverloadPacket):
            yield from (getattr(packet, name) for name in packet.overloads())
        else:
            yield packet
