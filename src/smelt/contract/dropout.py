"""Attention with dropout as an operator of smelt.

PyTorch decomposes it before a compiler sees it: P, P after dropout, and the dropout mask are three large
tensors, of which the backward reads two. As one operator it is a kernel that stores none of them: the mask is
a function of a seed, and the backward recomputes it.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.overrides import TorchFunctionMode

from smelt.config import Config
from smelt.contract.attention import attended, gradients
from smelt.loops.philox import philox, scattered
from smelt.records import dataclass

LIBRARY = torch.library.Library("smelt", "DEF")
_OPERANDS = "Tensor query, Tensor key, Tensor value"
_OPTIONS = "float dropout_p, bool is_causal, Tensor? attn_mask, float? scale, Tensor seed"
LIBRARY.define(f"attention_with_dropout({_OPERANDS}, {_OPTIONS}) -> (Tensor, Tensor)")
LIBRARY.define(
    f"attention_with_dropout_backward(Tensor upstream, {_OPERANDS}, Tensor result, Tensor logsumexp, "
    f"{_OPTIONS}) -> (Tensor, Tensor, Tensor)"
)
_CHANCES = 1 << 31


def kept(query: Tensor, key: Tensor, seed: Tensor, dropout_p: float) -> Tensor:
    """Dropout's factor of each element of P, (N, H, L, S): 0 with probability ``dropout_p``, else above 1.

    Query ``i`` (row-major) has Philox's bits at counter ``i`` under the key ``seed``; the factor is a
    function of these bits and the key's number.

    >>> query, seed = torch.ones(1, 1, 50, 4), torch.tensor(7)
    >>> kept(query, query, seed, 0.5).unique(), kept(query, query, seed, 0.5).mean().round()
    (tensor([0., 2.]), tensor(1.))
    """
    counter = torch.arange(math.prod(query.shape[:-1])).view(*query.shape[:-1], 1)
    bits = philox(seed, counter, torch.zeros((), dtype=torch.int64))
    chances = scattered(bits, torch.arange(key.shape[-2]))
    return (chances <= int((1.0 - dropout_p) * _CHANCES) - 1).to(query.dtype) * (1.0 / (1.0 - dropout_p))


@torch.library.impl(LIBRARY, "attention_with_dropout", "CPU")
def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float,
    is_causal: bool,
    attn_mask: Tensor | None,
    scale: float | None,
    seed: Tensor,
) -> tuple[Tensor, Tensor]:
    """(result, logsumexp); the arguments are those of `smelt.contract.attention.flash_attention_for_cpu`."""
    left = kept(query, key, seed, dropout_p)
    found, total = attended(query, key, value, is_causal, attn_mask, scale, left)
    return found.contiguous(), total


@torch.library.impl(LIBRARY, "attention_with_dropout_backward", "CPU")
def _gradients(
    upstream: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    result: Tensor,
    logsumexp: Tensor,
    dropout_p: float,
    is_causal: bool,
    attn_mask: Tensor | None,
    scale: float | None,
    seed: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    left = kept(query, key, seed, dropout_p)
    return gradients(upstream, query, key, value, result, logsumexp, is_causal, attn_mask, scale, left)


@torch.library.register_fake("smelt::attention_with_dropout", lib=LIBRARY)
def _attention_metadata(query: Tensor, key: Tensor, value: Tensor, *options: Any) -> tuple[Tensor, Tensor]:
    return query.new_empty((*query.shape[:-1], value.shape[-1])), query.new_empty(query.shape[:-1])


@torch.library.register_fake("smelt::attention_with_dropout_backward", lib=LIBRARY)
def _gradients_metadata(upstream: Tensor, *operands: Any) -> tuple[Tensor, ...]:
    shapes = ((n, length, heads, width) for n, heads, length, width in (each.shape for each in operands[:3]))
    return tuple(upstream.new_empty(shape).transpose(1, 2) for shape in shapes)


def _keep_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    query, key, value, dropout_p, is_causal, attn_mask, scale, seed = inputs
    ctx.save_for_backward(query, key, value, *output, attn_mask, seed)
    ctx.options = dropout_p, is_causal, scale
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, upstream: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
    nothing: tuple[None, ...] = (None,) * 5
    if upstream is None:
        return (None, None, None, *nothing)
    *operands, attn_mask, seed = ctx.saved_tensors
    dropout_p, is_causal, scale = ctx.options
    options = dropout_p, is_causal, attn_mask, scale, seed
    return (*torch.ops.smelt.attention_with_dropout_backward(upstream, *operands, *options), *nothing)


torch.library.register_autograd(
    "smelt::attention_with_dropout", _backward, setup_context=_keep_for_backward, lib=LIBRARY
)


# -- where it is called -----------------------------------------------------------------------------------

_attend = torch.nn.functional.scaled_dot_product_attention
_attend_between_layers = torch.nn.functional.multi_head_attention_forward


def whole_attention(graph: Graph, config: Config) -> AbstractContextManager[Any]:
    """A context in which calls of attention with dropout in float32 call smelt's operator. Calls on CUDA
    tensors are ATen's own, with its numbers.

    ``graph``: Dynamo's graph, which is about to run; without attention in it the context does nothing. The
    calls stay unchanged if another mode intercepts them (autocast, ``torch.func``), or if random numbers have
    to be eager's.
    """
    wanted = config.contractions and not config.fallback_random and not config.deny
    if wanted and any(
        node.target in (_attend, _attend_between_layers) for node in graph.nodes if node.op == "call_function"
    ):
        return _Whole()
    return nullcontext()


class _Whole(TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        own = _OWN.get(function, function)
        return own(*args, **(kwargs or {}))


def _whole(*args: Any, **kwargs: Any) -> Tensor:
    given = _Asked(*args, **kwargs)
    return given.called() if given.has_lengths and given.computable else _attend(*args, **kwargs)


def _asking(function: Any) -> Any:
    """A function of PyTorch that calls `_whole`: a mode does not intercept calls in its body."""
    names = {**function.__globals__, "scaled_dot_product_attention": _whole}
    made = FunctionType(
        function.__code__, names, function.__name__, function.__defaults__, function.__closure__
    )
    made.__kwdefaults__ = function.__kwdefaults__
    return made


_OWN = {_attend: _whole, _attend_between_layers: _asking(_attend_between_layers)}


@dataclass(frozen=True, slots=True)
class _Asked:
    """The arguments of `torch.nn.functional.scaled_dot_product_attention`."""

    query: Tensor
    key: Tensor
    value: Tensor
    attn_mask: Tensor | None = None
    dropout_p: float = 0.0
    is_causal: bool = False
    scale: float | None = None
    enable_gqa: bool = False

    @property
    def has_lengths(self) -> bool:
        """Whether there are as many values as keys. There have to be; for symbols a guard makes them one,
        which PyTorch's metadata functions do not.
        """
        key, value = self.key, self.value
        return key.dim() == value.dim() == 4 and not key.is_nested and key.shape[2] == value.shape[2]

    @property
    def computable(self) -> bool:
        """Whether the call has dropout and the operator supports it."""
        if not (isinstance(self.dropout_p, float) and 0.0 < self.dropout_p < 1.0):
            return False
        if not isinstance(self.scale, (float, int, type(None))):
            return False
        if torch.is_autocast_enabled("cpu") or torch._C._functorch.peek_interpreter_stack() is not None:
            return False
        query, key, value = operands = self.query, self.key, self.value
        if any(x.dim() != 4 or x.dtype is not torch.float32 or x.device.type != "cpu" for x in operands):
            return False
        equal = [
            (query.shape[0], key.shape[0]),
            (key.shape[0], value.shape[0]),
            (key.shape[1], value.shape[1]),
        ]
        equal += [] if self.enable_gqa else [(query.shape[1], key.shape[1])]
        if not all(statically_known_true(one == other) for one, other in equal):
            return False
        mask = self.attn_mask
        if mask is None:
            return True
        plain = mask.dtype in (torch.bool, torch.float32) and 2 <= mask.dim() <= 4
        return plain and not (self.is_causal or mask.requires_grad)

    def called(self) -> Tensor:
        """The operator's result."""
        limits, scale = torch.iinfo(torch.int64), None if self.scale is None else float(self.scale)
        seed = torch.randint(limits.min, limits.max, (), dtype=torch.int64, device="cpu")
        options = (self.dropout_p, self.is_causal, self.attn_mask, scale, seed)
        result: Tensor = torch.ops.smelt.attention_with_dropout(self.query, self.key, self.value, *options)[0]
        return result
