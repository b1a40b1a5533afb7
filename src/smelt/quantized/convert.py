"""`quantize`: a model's linear layers become layers with quantized weights, in place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any, TypeVar

import torch
from torch import nn

from smelt.contract.weight_formats import FORMATS, INT4_GROUPS, Format
from smelt.errors import SmeltError
from smelt.logs import logger
from smelt.quantized.modules import QuantizedEmbedding, QuantizedLinear, QuantizedWeight
from smelt.quantized.rounding import rounded
from smelt.records import dataclass

Model = TypeVar("Model", bound=nn.Module)
Skip = Sequence[str] | Callable[[str, nn.Module], bool]

_NAMES = ("int8", "int4", *(name for name, layout in FORMATS.items() if name[0] == "q" and not layout.block))


def quantize(
    model: Model,
    format: str = "int8",
    *,
    group: int = 32,
    zero_points: bool = False,
    activations: str | None = None,
    skip: Skip = (),
) -> Model:
    """Quantizes the weights of a model's ``torch.nn.Linear`` layers, in place; returns the model.

    Products compute in the dtype of their input, with weights that have their values computed where they are
    used. An embedding whose weight a linear layer shares is quantized with it, once. Biases and all other
    parameters stay as they are. A model that is a linear layer itself is not changed: the result is new.

    ``format``: ``int8``, one scale for each output; ``int4``, one for each ``group`` (32, 64 or 128) of
    inputs, with ``zero_points`` for groups that are not symmetric; or ``q8_0``, ``q4_0``, ``q4_1`` of GGUF.
    ``activations``: ``int8`` rounds the inputs of products as well, while the model runs: sums of integers
    take less time (`smelt.quantized.modules.QuantizedLinear`). ``skip``: names of layers that stay as they
    are, such as ``("lm_head", "*.down_proj")``, or a function of a layer's name and module.

    Raises:
        SmeltError: SM0115 such a format, or such activations, do not exist, or the model has no linear layer;
            SM0116 layers cannot be quantized (all are listed, and the model is unchanged).

    >>> import smelt
    >>> model = smelt.quantize(nn.Sequential(nn.Linear(64, 2), nn.ReLU()), "int4", group=64)
    >>> model[0].weight
    QuantizedWeight(int4_g64, 2 x 64, torch.float32)
    """
    layout = _layout(format, group, zero_points)
    check_activations(activations)
    sites = list(_sites(model))
    linear = [site for site in sites if type(site.module) is nn.Linear and not _is_skipped(site, skip)]
    if not linear:
        remedy = "quantize a model with nn.Linear layers; subclasses are left alone"
        raise SmeltError("SM0115", f"{type(model).__name__} has no nn.Linear to quantize", remedy=remedy)
    chosen = _with_tied(linear, sites)
    problems = [f"{site.name}: {why}" for site in chosen if (why := _obstacle(site, layout))]
    if problems:
        what = f"{layout.name}: layers that cannot be quantized\n    - " + "\n    - ".join(problems)
        raise SmeltError(
            "SM0116", what, remedy="leave them out with skip=(…), or choose another group or format"
        )
    weights: dict[int, QuantizedWeight] = {}
    made: dict[int, nn.Module] = {}
    for site in chosen:
        module = site.module
        if id(module) not in made:
            own = module.weight
            if id(own) not in weights:
                planes = rounded(own, layout)
                weights[id(own)] = QuantizedWeight(layout.name, planes, own.shape[1], own.dtype)
            made[id(module)] = with_weight(module, weights[id(own)], activations)
        if site.parent is None:
            return made[id(module)]  # type: ignore[return-value]
        setattr(site.parent, site.name.rpartition(".")[2], made[id(module)])
    return model


def dequantize(model: nn.Module) -> None:
    """Gives a model's quantized layers, in place, ``torch.nn`` layers with the values of their weights."""
    weights: dict[int, nn.Parameter] = {}
    for parent in list(model.modules()):
        for name, module in parent.named_children():
            if not isinstance(module, (QuantizedLinear, QuantizedEmbedding)):
                continue
            made: nn.Module
            weight = module.weight
            if id(weight) not in weights:
                weights[id(weight)] = nn.Parameter(weight(), requires_grad=False)
            sizes: dict[str, Any] = {"device": "meta", "dtype": weight.dtype}
            if isinstance(module, QuantizedLinear):
                made = nn.Linear(module.in_features, module.out_features, bias=False, **sizes)
                made.register_parameter("bias", module.bias)
            else:
                made = nn.Embedding(module.num_embeddings, module.embedding_dim, module.padding_idx, **sizes)
            made.register_parameter("weight", weights[id(weight)])
            setattr(parent, name, made.train(module.training))


@dataclass(frozen=True, slots=True)
class _Site:
    """A module that may be replaced: an attribute of ``parent``; None: the model itself."""

    parent: nn.Module | None
    name: str
    module: nn.Linear | nn.Embedding


def _sites(model: nn.Module) -> Iterator[_Site]:
    if isinstance(model, nn.Linear):
        yield _Site(None, "the model", model)
    for path, parent in model.named_modules():
        for name, module in parent._modules.items():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                yield _Site(parent, f"{path}.{name}" if path else name, module)


def _layout(format: str, group: int, zero_points: bool) -> Format:
    remedy = f"formats: {', '.join(_NAMES)}; group: {', '.join(map(str, INT4_GROUPS))}, for int4 alone"
    if format not in _NAMES:
        why = "q4_k and q6_k are read from GGUF files only" if format in FORMATS else None
        raise SmeltError("SM0115", f"no format {format!r} to quantize to", why=why, remedy=remedy)
    if format != "int4":
        if group != 32 or zero_points:
            raise SmeltError("SM0115", f"{format} takes neither group nor zero_points", remedy=remedy)
        return FORMATS[format]
    if group not in INT4_GROUPS:
        raise SmeltError("SM0115", f"int4 has no groups of {group}", remedy=remedy)
    return FORMATS[f"int4_g{group}{'_zero_points' if zero_points else ''}"]


def _is_skipped(site: _Site, skip: Skip) -> bool:
    if callable(skip):
        return skip(site.name, site.module)
    patterns = (skip,) if isinstance(skip, str) else skip
    return any(fnmatchcase(site.name, pattern) for pattern in patterns)


def _with_tied(linear: list[_Site], sites: list[_Site]) -> list[_Site]:
    """The layers, and the embeddings that share a weight with them.

    Neither is quantized where the embedding does more than look rows up: two copies of the weight would be.
    """
    owned = {id(site.module.weight) for site in linear}
    tied = [
        site for site in sites if isinstance(site.module, nn.Embedding) and id(site.module.weight) in owned
    ]
    special = {id(site.module.weight) for site in tied if not is_plain(site.module)}
    for site in tied:
        if id(site.module.weight) in special:
            kind = type(site.module).__name__
            logger.warning("smelt.quantize: %s (%s) and its linear layer stay as they are", site.name, kind)
    return [site for site in (*linear, *tied) if id(site.module.weight) not in special]


def is_plain(module: nn.Module) -> bool:
    """Whether a module is a linear layer or embedding that does nothing else."""
    return type(module) is nn.Linear or (type(module) is nn.Embedding and module.max_norm is None)


def _obstacle(site: _Site, layout: Format) -> str | None:
    """The reason why a layer cannot be quantized."""
    module, weight = site.module, site.module.weight
    if type(weight) is not nn.Parameter:
        return f"its weight is a {type(weight).__name__}"
    if module._forward_hooks or module._forward_pre_hooks:
        return "it has hooks, which the new layer would not have"
    if not weight.is_floating_point() or weight.is_meta:
        return f"its weight is {weight.dtype} on {weight.device}"
    if weight.shape[1] % layout.multiple:
        return f"{weight.shape[1]} columns are no multiple of {layout.multiple}"
    if weight.numel() == 0 or not torch.isfinite(weight).all():
        return "its weight is empty, or not finite"
    return None


def check_activations(activations: str | None) -> None:
    """Refuses other activations than those of `quantize`."""
    if activations not in (None, "int8"):
        remedy = 'activations="int8", or None to leave them in the model\'s dtype'
        raise SmeltError("SM0115", f"activations cannot be quantized to {activations!r}", remedy=remedy)


def with_weight(
    module: nn.Linear | nn.Embedding, weight: QuantizedWeight, activations: str | None = None
) -> nn.Module:
    """The module with another weight."""
    made: nn.Module
    if isinstance(module, nn.Linear):
        made = QuantizedLinear(weight, module.bias, activations)
    else:
        made = QuantizedEmbedding(weight, module.padding_idx)
    return made.train(module.training)
