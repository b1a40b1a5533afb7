"""Tensors without strided memory of their own: refused as inputs, materialized as gradients, which are
unknown before they come.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import FakeTensor
from torch.fx import GraphModule

from smelt.capture.program import Program

Call = Callable[[list[Any]], Sequence[Any]]


def without_memory(graph_module: GraphModule, example_inputs: Sequence[Any]) -> str | None:
    """The reason why PyTorch has to run Dynamo's graph: an input without memory, or whose memory is not
    described by strides; None for other graphs.

    Dynamo's guards on dispatch keys keep other tensors away from the compiled graph.
    """
    for node, given in zip(graph_module.graph.find_nodes(op="placeholder"), example_inputs):
        seen = getattr(node.meta.get("grapharg"), "example", None)
        value = seen if isinstance(seen, Tensor) else given
        if not isinstance(value, Tensor):
            continue
        if value._is_zerotensor():
            return f"input {node.name} is a ZeroTensor, which has no memory"
        if value.is_mkldnn:
            return f"input {node.name} is a {value.layout} tensor: smelt compiles strided tensors"
        if isinstance(seen, FakeTensor):
            return f"input {node.name} is a FakeTensor, which has no memory"
    return None


def with_plain_gradients(compiled: Call, program: Program) -> Call:
    """``compiled``, for gradients that autograd has not materialized: zeros (of ``sgn``), conjugates,
    negatives.
    """
    positions = [number for number, each in enumerate(program.inputs) if each.role == "tangent"]
    if not positions:
        return compiled

    def call(args: list[Any]) -> Sequence[Any]:
        for position in positions:
            given = args[position]
            if isinstance(given, Tensor) and (given._is_zerotensor() or given.is_conj() or given.is_neg()):
                args[position] = _plain(given)
        return compiled(args)

    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def _plain(x: Tensor) -> Tensor:
    """``x`` in memory of the same strides."""
    made = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)
    return made.zero_() if x._is_zerotensor() else made.copy_(x)
