"""Text generation with a language model of ``transformers``: two programs, one cache of keys and values.

A program for prompts of any length and one for a single token share the model's weights and the cache, which
is appended in place. The layers of a model are alike: Dynamo traces one of each kind
(``torch.compiler.nested_compile_region``), and smelt compiles its kernels once. There are no guards: the
model must not change while a `Generator` is in use.
"""

from __future__ import annotations

import copy
import types
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from smelt.backend import config_from
from smelt.backend import smelt as backend
from smelt.errors import SmeltError

Caches = Sequence[tuple[Tensor, Tensor]]
"""The keys and the values of each layer, [1, heads, positions, width]."""


class Generator:
    """Generates text with a causal language model, for one conversation at a time.

    ``model``: a decoder of ``transformers`` (its layers in one ``ModuleList``), from `smelt.load_gguf` or
    ``from_pretrained``, perhaps quantized. ``max_length``: the tokens that the cache has place for.
    ``options``: those of `smelt.compile`.

    Raises:
        SmeltError: SM0120, the model has no layers that are called like those of a decoder.
    """

    def __init__(self, model: Any, max_length: int = 2048, **options: Any) -> None:
        base = decoder_of(model)
        self.model, self.max_length = _with_regions(model, base), max_length
        config = model.config.get_text_config()
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        shape = (1, heads, max_length + 1, width)  # one more: else a full cache is a case of its own
        zeros = partial(torch.zeros, shape, dtype=model.dtype)
        self.caches = [(zeros(), zeros()) for _ in base.layers]
        for each in (each for pair in self.caches for each in pair):
            torch._dynamo.mark_static(each)
        self.length = 0
        config_from(None, options)  # a wrong option is an error here
        self._token, self._prompt = (_Program(self.model, self.caches, options) for _ in range(2))

    def reset(self) -> None:
        """Forgets the conversation."""
        self.length = 0

    @torch.no_grad()
    def logits(self, tokens: Sequence[int]) -> Tensor:
        """The logits [1, vocabulary] of the token after these, which follow what the cache holds.

        Raises:
            SmeltError: SM0121, there is no token, or more than the cache has place for.
        """
        count, end = len(tokens), self.length + len(tokens)
        if not count or end > self.max_length:
            raise SmeltError(
                "SM0121",
                f"{count} tokens after {self.length}, and the cache has place for {self.max_length}",
                remedy="Generator(model, max_length=…), or reset()",
            )
        ids, at = torch.tensor([tokens]), torch.arange(self.length, end)
        span = torch.empty(end, 0)
        if end == 1:  # sizes of 0 and 1 would be special: a second key that nothing sees yet
            span = torch.empty(2, 0)
        found = (self._token if count == 1 else self._prompt)(ids, at, span)
        self.length = end
        return found

    def stream(
        self,
        tokens: Sequence[int],
        count: int = 256,
        *,
        stop: Sequence[int] = (),
        temperature: float = 0.0,
        top_k: int = 40,
        random: torch.Generator | None = None,
    ) -> Iterator[int]:
        """Up to ``count`` tokens after ``tokens``, one by one, until one of ``stop`` (which is not given).

        ``temperature`` 0 takes the likeliest token; else ``random`` draws one of the ``top_k`` likeliest.
        """
        logits = self.logits(tokens)
        for _ in range(count):
            token = _chosen(logits, temperature, top_k, random)
            if token in stop:
                return
            yield token
            if self.length >= self.max_length:
                return
            logits = self.logits([token])

    def generate(self, tokens: Sequence[int], count: int = 256, **options: Any) -> list[int]:
        """The tokens of `stream`, from an empty cache."""
        self.reset()
        return list(self.stream(tokens, count, **options))


def decoder_of(model: Any) -> Any:
    """The part of a model of ``transformers`` that has the decoder's layers.

    Raises:
        SmeltError: SM0120, it has none that are known.
    """
    base = getattr(model, getattr(model, "base_model_prefix", ""), None)
    layers = getattr(base, "layers", None)
    if not isinstance(layers, nn.ModuleList) or not hasattr(model, "config"):
        raise SmeltError(
            "SM0120",
            f"{type(model).__name__} is no decoder that smelt generates text with",
            why="it has no list of layers at model.model.layers",
            remedy="model.forward = smelt.compile(model.forward), and model.generate(…)",
        )
    return base


def _chosen(logits: Tensor, temperature: float, top_k: int, random: torch.Generator | None) -> int:
    if temperature <= 0:
        return int(logits.argmax())
    likeliest = logits.float().flatten().topk(min(top_k, logits.numel()))
    drawn = torch.multinomial(torch.softmax(likeliest.values / temperature, -1), 1, generator=random)
    return int(likeliest.indices[drawn])


# -- the programs ------------------------------------------------------------------------------------------


def _step(model: Any, caches: Caches, ids: Tensor, at: Tensor, span: Tensor) -> Tensor:
    """The logits after the last of ``ids`` [1, n] at positions ``at`` [n], which are appended to the caches;
    ``span`` [m, 0]: attention sees the first m positions.
    """
    cache = _Whole(caches, at, span)
    out = model(input_ids=ids, position_ids=at[None], past_key_values=cache, use_cache=True, logits_to_keep=1)
    return out.logits[:, -1]


class _Program:
    """`_step`, compiled at its first call, and from then on called without Dynamo: of the graph's arguments
    weights and caches stay; tokens, positions and their numbers are those of the call.
    """

    def __init__(self, model: Any, caches: Caches, options: dict[str, Any]) -> None:
        self.model, self.caches, self.options = model, caches, options
        self.compiled: Callable[..., Any] | None = None
        self.args: list[Any] = []
        self.changing: list[tuple[int, int, int | None]] = []
        """(an argument's position, which of the call's tensors it is, or the dimension whose size it is)."""

    def __call__(self, *tensors: Tensor) -> Tensor:
        if self.compiled is None:
            return self._first(*tensors)
        for place, number, dim in self.changing:
            self.args[place] = tensors[number] if dim is None else tensors[number].shape[dim]
        (found,) = self.compiled(*self.args)
        return found  # type: ignore[no-any-return]

    def _first(self, ids: Tensor, at: Tensor, span: Tensor) -> Tensor:
        torch._dynamo.mark_dynamic(span, 0)
        if ids.shape[1] > 1:
            torch._dynamo.mark_dynamic(ids, 1)
            torch._dynamo.mark_dynamic(at, 0)

        def compile_graph(module: Any, inputs: list[Any]) -> Callable[..., Any]:
            traced = [node.meta["example_value"] for node in module.graph.find_nodes(op="placeholder")]
            compiled = backend(module, inputs, options=self.options)

            def call(*args: Any) -> Any:
                self.changing = list(_changing(args, traced, (ids, at, span)))
                self.compiled, self.args = compiled, list(args)
                return compiled(*args)

            return call

        # A code object of its own: Dynamo keeps programs by it.
        own = types.FunctionType(_step.__code__.replace(co_name=_step.__code__.co_name), _step.__globals__)
        first = torch.compile(own, backend=compile_graph, fullgraph=True)
        return first(self.model, self.caches, ids, at, span)  # type: ignore[no-any-return]


def _changing(
    args: Sequence[Any], traced: Sequence[Any], tensors: Sequence[Tensor]
) -> Iterator[tuple[int, int, int | None]]:
    """The arguments of a graph that are ``tensors``, or sizes of them; ``traced``: their fakes."""
    sizes: dict[Any, tuple[int, int]] = {}
    for place, arg in enumerate(args):
        for number, tensor in enumerate(tensors):
            if arg is tensor:
                yield place, number, None
                for dim, size in enumerate(traced[place].shape):
                    if isinstance(size, torch.SymInt):
                        sizes.setdefault(size.node.expr, (number, dim))
    for place, each in enumerate(traced):
        if isinstance(each, torch.SymInt) and each.node.expr in sizes:  # others are those of caches
            yield place, *sizes[each.node.expr]


class _Appended:
    """The cache of one layer, as its attention calls it: a functional update."""

    def __init__(self, keys: Tensor, values: Tensor, at: Tensor, length: int) -> None:
        self.keys, self.values, self.at, self.length = keys, values, at, length

    def update(self, keys: Tensor, values: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        self.keys = self.keys.index_copy(2, self.at, keys)
        self.values = self.values.index_copy(2, self.at, values)
        return self.keys[:, :, : self.length], self.values[:, :, : self.length]


class _Whole:
    """The cache as the model sees it: sizes for its masks, tensors for the layers (`_Region`)."""

    is_compileable = True
    is_sliding: Sequence[bool] = ()
    is_initialized = True

    def __init__(self, caches: Caches, at: Tensor, span: Tensor) -> None:
        self.caches, self.at, self.span = caches, at, span

    def get_seq_length(self, *args: Any, **kwargs: Any) -> Any:
        return self.at[0]

    get_query_offset = get_seq_length

    def get_mask_sizes(self, *args: Any, **kwargs: Any) -> tuple[int, int]:
        return self.span.shape[0], 0


def _layer(
    kind: int,
    layer: nn.Module,
    named: str,
    hidden: Tensor,
    keys: Tensor,
    values: Tensor,
    at: Tensor,
    span: Tensor,
    given: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    """A layer as a function: its result, and the caches after it; ``named``: its argument for these."""
    cache = _Appended(keys, values, at, span.shape[0])
    out = layer(hidden, **{named: cache}, **given)
    return out[0] if isinstance(out, tuple) else out, cache.keys, cache.values


_region = torch.compiler.nested_compile_region(_layer, reuse_hash_fn=lambda kind, *_: kind)


_CACHES = ("cache", "past_key_values", "past_key_value")
"""The names of layers' arguments for the cache in the versions of ``transformers``."""


class _Region(nn.Module):
    """A layer as a region, which Dynamo traces once for all layers of a kind."""

    def __init__(self, layer: nn.Module, number: int, kind: int) -> None:
        super().__init__()
        self.layer, self.number, self.kind = layer, number, kind

    def forward(self, hidden_states: Tensor, **given: Any) -> Tensor:
        (named,) = [name for name in _CACHES if isinstance(given.get(name), _Whole)]
        cache = given.pop(named)
        keys, values = cache.caches[self.number]
        out, after_keys, after_values = _region(
            self.kind, self.layer, named, hidden_states, keys, values, cache.at, cache.span, given
        )
        keys.copy_(after_keys)
        values.copy_(after_values)
        return out


def _with_regions(model: Any, base: Any) -> Any:
    """The model, with regions in place of the layers of its part ``base``; the rest is shared."""
    kinds: dict[Any, int] = {}
    regions = [
        _Region(each, at, kinds.setdefault(_kind(each), len(kinds))) for at, each in enumerate(base.layers)
    ]
    return _with_module(model, model.base_model_prefix, _with_module(base, "layers", nn.ModuleList(regions)))


def _with_module(module: Any, name: str, inner: nn.Module) -> Any:
    """A shallow copy of a module with another module inside."""
    made = copy.copy(module)
    made._modules = {**module._modules, name: inner}
    return made


def _kind(layer: nn.Module) -> Any:
    """Equal for layers that compute the same with other weights: classes, plain attributes but the layer's
    number, and the layouts of tensors.
    """
    plain = (bool, int, float, str, torch.dtype, type(None))
    return tuple(
        (
            path,
            type(module),
            tuple(
                (name, value)
                for name, value in vars(module).items()
                if isinstance(value, plain) and name != "layer_idx"
            ),
            tuple(
                (name, each.shape, each.dtype, each.stride())
                for name, each in (
                    *module.named_parameters(recurse=False),
                    *module.named_buffers(recurse=False),
                )
            ),
        )
        for path, module in layer.named_modules()
    )
