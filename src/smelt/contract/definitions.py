"""Higher-order operators taken apart: PyTorch's own definition of one, traced with its bodies inside.

What a definition computes is what eager PyTorch computes, whatever the release; so nothing of an operator's
meaning is written here a second time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.func import functionalize
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from smelt.contract.decompositions import decompositions
from smelt.contract.facts import number
from smelt.records import dataclass

DEFINED = frozenset(
    {
        "associative_scan",
        "flex_attention",
        "flex_attention_backward",
        "hints_wrapper",
        "out_dtype",
    }
)
"""The operators that are taken apart, by name."""

_FROM_CALL = ("stack_trace", "nn_module_stack", "fwd_nn_module_stack", "seq_nr", "custom")


@dataclass(frozen=True, slots=True)
class Definition:
    """A call as simpler ones: ``body`` gives flat results of ``operands``, a nest of the kind ``spec``."""

    operands: tuple[Node, ...]
    body: GraphModule
    spec: pytree.TreeSpec


def definition(node: Node, module: torch.nn.Module) -> Definition:
    """PyTorch's definition of the call ``node``, whose bodies are attributes of ``module``.

    Raises:
        Exception: whatever PyTorch says where the call has no definition on such operands.
    """
    leaves, spec = pytree.tree_flatten((list(node.args), dict(node.kwargs)))
    operands = tuple(
        dict.fromkeys(leaf for leaf in leaves if isinstance(leaf, Node) and leaf.op != "get_attr")
    )
    wanted, results = pytree.tree_flatten(node.meta["val"])
    bodies = {
        leaf: getattr(module, str(leaf.target))
        for leaf in leaves
        if isinstance(leaf, Node) and leaf.op == "get_attr"
    }
    kernel = node.target.py_kernels[DispatchKey.CompositeExplicitAutograd]  # type: ignore[union-attr]

    def run(*values: Any) -> tuple[Any, ...]:
        known = {**bodies, **dict(zip(operands, values, strict=True))}
        given = [known[leaf] if isinstance(leaf, Node) else leaf for leaf in leaves]
        args, kwargs = pytree.tree_unflatten(given, spec)
        found = pytree.tree_leaves(kernel(*args, **kwargs))
        return tuple(_laid_as(value, meta) for value, meta in zip(found, wanted, strict=True))

    examples = [operand.meta["val"] for operand in operands]
    with _fake(examples), torch.no_grad(), enable_python_dispatcher():
        traced = make_fx(
            functionalize(run, remove="mutations"),
            decomposition_table=dict(decompositions()),
        )(*examples)
    for each in traced.graph.nodes:
        each.meta.update({key: node.meta[key] for key in _FROM_CALL if key in node.meta})
    return Definition(operands, traced, results)


def _laid_as(value: Any, meta: Any) -> Any:
    """A result that lies in memory as the calls after this one were traced for."""
    if not isinstance(value, Tensor) or _strides(value) == _strides(meta):
        return value
    return value.new_empty_strided(meta.shape, meta.stride()).copy_(value)


def _strides(x: Tensor) -> list[Any]:
    return [number(stride) for size, stride in zip(x.shape, x.stride()) if number(size) != 1]


@contextmanager
def _fake(examples: Sequence[Any]) -> Iterator[None]:
    """The mode in which the operands were traced; a body's constants may take part as they are."""
    modes = [each.fake_mode for each in examples if isinstance(each, FakeTensor)]
    mode = modes[0] if modes else FakeTensorMode()
    before, mode.allow_non_fake_inputs = mode.allow_non_fake_inputs, True
    try:
        with mode:
            yield
    finally:
        mode.allow_non_fake_inputs = before
