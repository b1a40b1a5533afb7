"""Text generation with a language model of ``transformers``: two programs, one cache of keys and values.

A program for prompts of any length and one for a single token share the model's weights and the cache, which
is appended in place. The layers of a model are alike: one of each kind is traced (`smelt.capture.regions`),
and its kernels are compiled once. There are no guards: the model must not change while a `Generator` is in
use.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache as once
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from smelt import logs
from smelt.config import Config, from_options
from smelt.errors import SmeltError, ToolchainError
from smelt.reporting import LOG, CompileReport
from smelt.runtime import toolchain, trampoline
from smelt.runtime.cache import Cache, key_of, open_cache
from smelt.runtime.garbage import garbage_waits
from smelt.runtime.identity import identity_of
from smelt.runtime.kept import Kept, find, keep
from smelt.runtime.made_with import source_digest

if TYPE_CHECKING:  # what compiles is imported when something is compiled
    from smelt.capture import Program, Regions

Caches = Sequence[tuple[Tensor, Tensor]]
"""The keys and the values of each layer, [1, heads, positions, width]."""


class Generator:
    """Generates text with a causal language model: one conversation, or up to ``batch`` texts together.

    ``model``: a decoder of ``transformers`` (its layers in one ``ModuleList``), from `smelt.load_gguf` or
    ``from_pretrained``, perhaps quantized. ``max_length``: the tokens that the cache has place for, of each
    text. ``options``: those of `smelt.compile`.

    Raises:
        SmeltError: SM0120, the model has no layers that are called like those of a decoder.
    """

    def __init__(self, model: Any, max_length: int = 2048, batch: int = 1, **options: Any) -> None:
        base = decoder_of(model)
        self.model, self.max_length = _with_regions(model, base), max_length
        shape = _cache_shape(model, batch, max_length + 1)  # one more: else a full cache is a case of its own
        zeros = partial(torch.zeros, shape, dtype=model.dtype)
        self.caches = [(zeros(), zeros()) for _ in base.layers]
        self.lengths = [0] * batch
        logs.configure()
        about = from_options(options), once(partial(identity_of, self.model))
        self._token, self._prompt = (_Program(self.model, self.caches, *about) for _ in range(2))

    @property
    def length(self) -> int:
        """The tokens of the conversation that the cache holds."""
        return self.lengths[0]

    @length.setter
    def length(self, length: int) -> None:
        self.lengths[0] = length

    def reset(self) -> None:
        """Forgets the conversation."""
        self.lengths = [0] * len(self.lengths)

    def logits(self, tokens: Sequence[int]) -> Tensor:
        """The logits [1, vocabulary] of the token after these, which follow what the cache holds.

        Raises:
            SmeltError: SM0121, there is no token, or more than the cache has place for.
        """
        return self._step([tokens, *([] for _ in self.lengths[1:])])[:1]

    @torch.no_grad()
    def _step(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """The logits [batch, vocabulary] after the tokens of each row, which follow what the cache holds;
        rows without tokens stay as they are, and their logits mean nothing.
        """
        count, longest = max(map(len, rows)), self.max_length
        ends = [length + len(tokens) for length, tokens in zip(self.lengths, rows, strict=True)]
        if not count or max(ends) > longest:
            raise SmeltError(
                "SM0121",
                f"{count} tokens after {max(self.lengths)}, and the cache has place for {longest}",
                remedy="Generator(model, max_length=…), or reset()",
            )
        if len(rows) == 1:
            ids, at = torch.tensor(rows), torch.arange(self.length, ends[0])
        else:  # what a row does not have is before its tokens, and goes to a place that no token sees
            ids = torch.tensor([[0] * (count - len(tokens)) + list(tokens) for tokens in rows])
            places = zip(self.lengths, ends)
            at = torch.tensor([[longest] * (count + a - b) + list(range(a, b)) for a, b in places])
        end = max(2, *ends)  # sizes of 0 and 1 would be special: a second key that nothing sees yet
        found = (self._token if count == 1 else self._prompt)(ids, at, torch.empty(end, 0))
        self.lengths = ends
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

    def generate_batch(
        self,
        prompts: Sequence[Sequence[int]],
        count: int = 256,
        *,
        stop: Sequence[int] = (),
        temperature: float = 0.0,
        top_k: int = 40,
        random: torch.Generator | None = None,
    ) -> list[list[int]]:
        """Up to ``count`` tokens after each prompt, as `generate` gives them: ``batch`` prompts at a time, of
        any lengths; each ends with its own token of ``stop``.
        """
        found: list[list[int]] = [[] for _ in prompts]
        for first in range(0, len(prompts), len(self.lengths)):
            self.reset()
            group = found[first : first + len(self.lengths)]
            rows = [
                list(prompts[first + row]) if row < len(group) else [] for row in range(len(self.lengths))
            ]
            if not all(rows[: len(group)]):
                raise SmeltError("SM0121", "a prompt without tokens")
            while any(rows) and count:
                logits = self._step(rows)
                for row, answer in enumerate(group):
                    if rows[row]:
                        token = _chosen(logits[row : row + 1], temperature, top_k, random)
                        answer += [token] if token not in stop else []
                        full = len(answer) == count or self.lengths[row] == self.max_length
                        rows[row] = [] if token in stop or full else [token]
        return found


class DecodeStep(nn.Module):
    """A step of a causal language model of ``transformers`` with its cache: a module for `torch.export` and
    packages: ``step(ids, at)`` gives the logits [1, vocabulary] after the tokens ``ids`` [1, n] at the
    positions ``at`` [n].

    Keys and values of ``length`` positions are buffers, which a step writes: states of a package.

    Raises:
        SmeltError: SM0120, the model has no layers that are called like those of a decoder.
    """

    def __init__(self, model: Any, length: int = 2048) -> None:
        super().__init__()
        self.model, self.length = model, length
        self.count = len(decoder_of(model).layers)
        for number in range(self.count):
            for name in ("keys", "values"):
                self.register_buffer(
                    f"{name}_{number}", torch.zeros(_cache_shape(model, 1, length), dtype=model.dtype)
                )

    def forward(self, ids: Tensor, at: Tensor) -> Tensor:
        caches = [(getattr(self, f"keys_{n}"), getattr(self, f"values_{n}")) for n in range(self.count)]
        cache = _Written(caches, at, torch.empty(self.length, 0))
        given = {"position_ids": at[None], "past_key_values": cache, "use_cache": True, "logits_to_keep": 1}
        return self.model(input_ids=ids, **given).logits[:, -1]  # type: ignore[no-any-return]


def _cache_shape(model: Any, batch: int, positions: int) -> tuple[int, int, int, int]:
    """The shape of a layer's keys, and of its values."""
    config = model.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return batch, heads, positions, width


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


class _Program:
    """The step of a model for one token, or for several. Weights and caches (``held``, by name) stay; tokens,
    positions and their numbers are those of a call. It comes from the cache on disk, or is compiled at the
    first call.
    """

    def __init__(
        self, model: Any, caches: Caches, config: Config, identity: Callable[[], str | None]
    ) -> None:
        self.model, self.caches, self.config, self.identity = model, caches, config, identity
        self.held = _state(model)
        for number, pair in enumerate(caches):
            self.held.update(zip((f"cache.{number}.keys", f"cache.{number}.values"), pair))
        self.run: Callable[[list[Any]], Sequence[Any]] | None = None

    def __call__(self, ids: Tensor, at: Tensor, span: Tensor) -> Tensor:
        if self.run is None:
            return self._first(ids, at, span)
        (found,) = self.run([ids, at, span])
        return found  # type: ignore[no-any-return]

    def _first(self, ids: Tensor, at: Tensor, span: Tensor) -> Tensor:
        count, cache = ids.shape[1], open_cache()
        name = f"{type(self.model).__name__} {'token' if count == 1 else 'prompt'}"
        report = CompileReport("inference", name)
        with report.phase("key"):
            key = self._key(count > 1)
        with report.phase("cache"):
            kept = None if key is None else find(cache, key)
            self.run = None if kept is None else self._bound(cache, kept, report)
        if self.run is not None:
            report.cache_hit = True
            LOG.add(report)
            return self(ids, at, span)
        compiled = self._compiled(name, count, max(span.shape[0], count + 1))
        (found,) = compiled([*self.held.values(), ids, at, span])
        known = LOG.last(name)
        if known is not None and known.entry and not known.regions:
            kept = Kept(known.entry, [*self.held, *_CALL], 1, dict(known.constants))
            self.run = self._bound(cache, kept, None)
            if self.run is not None and key is not None:
                keep(cache, key, kept)
        if self.run is None:
            self.run = lambda args: compiled([*self.held.values(), *args])
        return found  # type: ignore[no-any-return]

    def _key(self, several: bool) -> str | None:
        """The key of all that the program depends on; None if it has parts that nobody can know again."""
        config, identity = self.config, self.identity()
        if identity is None or config.clocks or config.print_passes:
            return None
        try:
            tools = toolchain.find()
        except ToolchainError:
            return None
        forms = [(name, each.dtype, tuple(each.shape), each.stride()) for name, each in self.held.items()]
        versions = (sys.version, torch.__version__, source_digest(), tools.identity)
        threads = torch.get_num_threads() if config.mode == "max" else 0
        return key_of(identity, repr(forms), str(several), config.key(), *versions, str(threads))

    def _bound(self, cache: Cache, kept: Kept, report: CompileReport | None) -> Any:
        """What runs a kept program with what is held, if it is whole."""
        if [each for each in kept.arguments if each not in self.held] != list(_CALL):
            return None
        try:
            return kept.executor(cache, self.held, report)
        except (SmeltError, LookupError, TypeError, ValueError):  # the entry is damaged
            return None

    def _compiled(self, name: str, count: int, end: int) -> Callable[[list[Any]], Sequence[Any]]:
        trampoline.start()  # the first time on a machine it is compiled while we import and trace
        from smelt.backend import compile_alone
        from smelt.pipeline import start_helpers

        start_helpers()
        with garbage_waits():
            return compile_alone(self._captured(name, count, end), self.config)

    def _captured(self, name: str, count: int, end: int) -> Program:
        """The step for ``count`` tokens, any number of them if there are several: sizes that are equal while
        tracing are one symbol.
        """
        from smelt.capture import Regions
        from smelt.contract import Denied, decompositions

        names, state = list(self.held), len(self.held) - 2 * len(self.caches)
        regions = Regions(Denied.of(self.config).table(decompositions()))

        def step(*args: Tensor) -> tuple[Tensor]:
            own, (ids, at, span) = dict(zip(names[:state], args)), args[-3:]
            pairs = args[state:-3]
            cache = _Whole(list(zip(pairs[::2], pairs[1::2])), at, span, regions)
            given = {"input_ids": ids, "position_ids": at.expand(ids.shape), "past_key_values": cache}
            given |= {"use_cache": True, "logits_to_keep": 1}
            if at.dim() > 1:
                given["position_ids"] = torch.where(at < span.shape[0], at, 0)
                given["attention_mask"] = _masks(self.model.config.get_text_config(), at, span)
            return (torch.func.functional_call(self.model, own, (), given).logits[:, -1],)

        batch = len(self.caches[0][0])
        ids, at = torch.zeros(batch, count, dtype=torch.int64), torch.arange(end - count, end)
        if batch > 1:
            at = at.repeat(batch, 1)
        own = [(), ()] if count == 1 else [(1,), (at.dim() - 1,)]
        symbols = [*(() for _ in self.held), *own, (0,)]
        args = [*self.held.values(), ids, at, torch.empty(end, 0)]
        program = regions.capture(step, args, [*names, *_CALL], symbols, state, name)
        _check_sizes(program, self.caches[0][0].shape[2] - 1)
        return program


_CALL = ("ids", "at", "span")
"""The arguments that a call has."""


def _state(module: nn.Module) -> dict[str, Tensor]:
    """The parameters and buffers of a module; those of several names once."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _masks(config: Any, at: Tensor, span: Tensor) -> Any:
    """The keys [batch, 1, queries, positions] that the tokens of a batch at positions ``at`` see; for a model
    with several kinds of layers one for each kind.

    Raises:
        SmeltError: SM0120, a kind of layer sees others.
    """
    keys, queries = torch.arange(span.shape[0]), at[:, None, :, None]
    window = getattr(config, "sliding_window", None)
    seen = keys <= queries
    near = seen & (keys > queries - window) if window is not None else seen
    every = {"full_attention": seen, "sliding_attention": near}
    kinds = dict.fromkeys(getattr(config, "layer_types", None) or ())
    if not every.keys() >= kinds.keys():
        raise SmeltError(
            "SM0120",
            f"layers of the kinds {', '.join(kinds)} cannot share a batch",
            remedy="Generator(model), for one text at a time",
        )
    if config._attn_implementation != "sdpa":
        lowest = torch.finfo(config.dtype or torch.float32).min
        every = {kind: torch.where(mask, 0.0, lowest) for kind, mask in every.items()}
    if len(kinds) > 1:
        return every
    return every[next(iter(kinds), "sliding_attention")]


def _check_sizes(program: Program, most: int) -> None:
    """Checks that the program serves all its sizes: up to ``most`` tokens, after others.

    Raises:
        SmeltError: SM0120, the model asks about them.
    """
    from smelt.capture import shape_env_of

    ids, _, span = program.example_inputs[-3:]
    conditions = [each.expr for each in getattr(shape_env_of([span]), "guards", ())]
    for count, end in ((2, 2), (2, 3), (3, 5), (5, most), (most, most)):
        sizes = [(ids.shape[1], count), (span.shape[0], end)]
        known = {size.node.expr: each for size, each in sizes if isinstance(size, torch.SymInt)}
        broken = [each for each in conditions if each.subs(known) == False]  # noqa: E712  (SymPy's)
        if broken or not isinstance(span.shape[0], torch.SymInt):
            raise SmeltError(
                "SM0120",
                f"{program.name} does not serve {count} of {end} tokens",
                why=f"the model asks for their number: {broken[0] if broken else span.shape}",
                remedy="smelt.compile(model).generate(…), which compiles anew",
            )


class _Appended:
    """The cache of one layer, as its attention calls it: a functional update."""

    def __init__(self, keys: Tensor, values: Tensor, at: Tensor, length: int) -> None:
        self.keys, self.values, self.at, self.length = keys, values, at, length

    def update(self, keys: Tensor, values: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        self.keys, self.values = _placed(self.keys, self.at, keys), _placed(self.values, self.at, values)
        return self.keys[:, :, : self.length], self.values[:, :, : self.length]


def _placed(cache: Tensor, at: Tensor, new: Tensor) -> Tensor:
    """The cache with new elements at some positions, of the whole batch or [batch, n] of each row."""
    if at.dim() == 1:
        return cache.index_copy(2, at, new)
    rows = torch.arange(len(at))[:, None]
    return cache.index_put(
        (rows[:, :, None], torch.arange(cache.shape[1]), at[:, :, None]), new.transpose(1, 2)
    )


class _Whole:
    """The cache as the model sees it: sizes for its masks, tensors for the layers (`_Region`)."""

    is_compileable = True
    is_sliding: Sequence[bool] = ()
    is_initialized = True

    def __init__(self, caches: Caches, at: Tensor, span: Tensor, regions: Regions | None = None) -> None:
        self.caches, self.at, self.span, self.regions = caches, at, span, regions

    def get_seq_length(self, *args: Any, **kwargs: Any) -> Any:
        return self.at[0]

    get_query_offset = get_seq_length

    def get_mask_sizes(self, *args: Any, **kwargs: Any) -> tuple[int, int]:
        return self.span.shape[0], 0


class _Written(_Whole):
    """The cache of a `DecodeStep`, which layers write in place."""

    def update(
        self, keys: Tensor, values: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        found = self.caches[layer_idx]
        for cache, new in zip(found, (keys, values)):
            cache.index_copy_(2, self.at, new)
        return found


_CACHES = ("cache", "past_key_values", "past_key_value")
"""The names of layers' arguments for the cache in the versions of ``transformers``."""


class _Region(nn.Module):
    """A layer as a region, which is traced once for all layers of a kind."""

    def __init__(self, layer: nn.Module, number: int, kind: int) -> None:
        super().__init__()
        self.layer, self.number, self.kind = layer, number, kind

    def forward(self, hidden_states: Tensor, **given: Any) -> Tensor:
        (named,) = [name for name in _CACHES if isinstance(given.get(name), _Whole)]
        whole = given.pop(named)
        state = _state(self.layer)
        leaves, spec = pytree.tree_flatten(given)
        places = [place for place, each in enumerate(leaves) if isinstance(each, Tensor)]

        def layer(
            hidden: Tensor, keys: Tensor, values: Tensor, at: Tensor, span: Tensor, *rest: Tensor
        ) -> Any:
            inner, own = list(leaves), dict(zip(state, rest))
            for place, each in zip(places, rest[len(state) :]):
                inner[place] = each
            cache = _Appended(keys, values, at, span.shape[0])
            kwargs = {**pytree.tree_unflatten(inner, spec), named: cache}
            out = torch.func.functional_call(self.layer, own, (hidden,), kwargs)
            return out[0] if isinstance(out, tuple) else out, cache.keys, cache.values

        plain = [repr(each) for place, each in enumerate(leaves) if place not in places]
        keys, values = whole.caches[self.number]
        operands = [hidden_states, keys, values, whole.at, whole.span, *state.values()]
        operands += [leaves[place] for place in places]
        kind = (self.kind, *state, str(spec), *plain)
        out, after_keys, after_values = whole.regions.call(kind, layer, *operands)
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
