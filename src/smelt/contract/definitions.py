"""Decomposition of higher-order operators: PyTorch's own definition, traced with the bodies inlined.

A definition computes what eager PyTorch computes in each release, so smelt does not repeat an operator's
semantics.
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
from torch._subclasses.functional_tensor import dispatch_functionalize
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from smelt.contract.decompositions import decompositions
from smelt.contract.facts import layout, number
from smelt.records import dataclass, replace

DEFINED = frozenset(
    {
        "associative_scan",
        "flex_attention",
        "flex_attention_backward",
        "hints_wrapper",
        "out_dtype",
    }
)
"""The names of the operators that are decomposed."""

_FROM_CALL = ("stack_trace", "nn_module_stack", "fwd_nn_module_stack", "seq_nr", "custom")


@dataclass(frozen=True, slots=True)
class Definition:
    """A decomposed call: ``body`` maps ``operands`` to flat results of a nest of the kind ``spec``."""

    operands: tuple[Node, ...]
    body: GraphModule
    spec: pytree.TreeSpec


def definition(node: Node, module: torch.nn.Module, known: dict[Any, Definition]) -> Definition:
    """PyTorch's definition of the call ``node``, whose bodies are attributes of ``module``.

    ``known``: the definitions of earlier calls, by `_Call.key`; equal calls are traced once.

    Raises:
        Exception: PyTorch's error if the call has no definition on such operands.
    """
    call = _Call(node, module)
    key = call.key()
    found = known.get(key)
    if found is None:
        found = known[key] = Definition(call.operands, call.traced(), call.results)
    return replace(found, operands=call.operands)


class _Call:
    """A call with its arguments split into values (nodes), bodies, and the rest."""

    def __init__(self, node: Node, module: torch.nn.Module) -> None:
        self.node = node
        self.leaves, self.spec = pytree.tree_flatten((list(node.args), dict(node.kwargs)))
        nodes = dict.fromkeys(leaf for leaf in self.leaves if isinstance(leaf, Node))
        self.operands = tuple(leaf for leaf in nodes if leaf.op != "get_attr")
        self.bodies = {leaf: getattr(module, str(leaf.target)) for leaf in nodes if leaf.op == "get_attr"}
        self.wanted, self.results = pytree.tree_flatten(node.meta["val"])

    def key(self) -> Any:
        """The key of a definition: equal for calls that do the same to operands of the same kind."""
        bodies = [_text(body) for body in self.bodies.values()]
        places = {leaf: place for place, leaf in enumerate((*self.operands, *self.bodies))}
        leaves = [places[leaf] if isinstance(leaf, Node) else repr(leaf) for leaf in self.leaves]
        values = [operand.meta["val"] for operand in self.operands]
        kinds = [layout(value) or (type(value), number(value)) for value in (*values, *self.wanted)]
        return self.node.target, tuple(bodies), tuple(leaves), self.spec, self.results, tuple(kinds)

    def traced(self) -> GraphModule:
        """The definition as a graph: operands in, flat results out."""
        node = self.node
        kernel = node.target.py_kernels[DispatchKey.CompositeExplicitAutograd]  # type: ignore[union-attr]
        examples = [operand.meta["val"] for operand in self.operands]

        def run(*values: Any) -> tuple[Any, ...]:
            known = {**self.bodies, **dict(zip(self.operands, values, strict=True))}
            given = [known[leaf] if isinstance(leaf, Node) else leaf for leaf in self.leaves]
            args, kwargs = pytree.tree_unflatten(given, self.spec)
            found = pytree.tree_leaves(kernel(*args, **kwargs))
            return tuple(_laid_as(value, meta) for value, meta in zip(found, self.wanted, strict=True))

        with _fake(examples), torch.no_grad(), enable_python_dispatcher():
            functional = dispatch_functionalize(run)
            traced = make_fx(functional, decomposition_table=dict(decompositions()))(*map(_wanting, examples))
        for each in traced.graph.nodes:
            each.meta.update({key: node.meta[key] for key in _FROM_CALL if key in node.meta})
        return traced


def _text(body: Any) -> Any:
    """A body's code and its constants, the same for equal bodies."""
    if not isinstance(body, GraphModule):
        return id(body)
    held = [*body.named_parameters(), *body.named_buffers(), *body.named_children()]
    return body.code, tuple((name, id(value)) for name, value in held)


def _wanting(value: Any) -> Any:
    """An operand with ``requires_grad``: definitions of backwards test which operands have it."""
    if isinstance(value, Tensor) and value.is_floating_point():
        return value.detach().requires_grad_()
    return value


def _laid_as(value: Any, meta: Any) -> Any:
    """A result with the memory layout for which the following calls were traced."""
    if value is None and isinstance(meta, Tensor) and meta.is_floating_point():
        raise NotImplementedError("a result that its definition leaves out")
    if not isinstance(value, Tensor) or _strides(value) == _strides(meta):
        return value
    return value.new_empty_strided(meta.shape, meta.stride()).copy_(value)


def _strides(x: Tensor) -> list[Any]:
    return [number(stride) for size, stride in zip(x.shape, x.stride()) if number(size) != 1]


@contextmanager
def _fake(examples: Sequence[Any]) -> Iterator[None]:
    """The fake mode in which the operands were traced; a body's constants may be real tensors."""
    modes = [each.fake_mode for each in examples if isinstance(each, FakeTensor)]
    mode = modes[0] if modes else FakeTensorMode()
    before, mode.allow_non_fake_inputs = mode.allow_non_fake_inputs, True
    try:
        with mode:
            yield
    finally:
        mode.allow_non_fake_inputs = before
