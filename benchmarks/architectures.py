"""Architectures beyond the zoo, to find what is slower than eager: `--models architectures` of run.py.

Each is a model of `transformers` (or `timm`, where that is installed), often with fewer layers than usual,
with seeded random weights. Nothing is downloaded. Dropout is 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

Program = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]

_NO_DROPOUT = (
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "attention_dropout",
    "dropout",
    "dropout_rate",
    "activation_dropout",
    "hidden_dropout",
    "drop_path_rate",
    "classifier_dropout",
    "drop_rate",
    "encoder_layerdrop",
    "layerdrop",
    "feat_proj_dropout",
    "classifier_dropout_prob",
    "embd_pdrop",
    "resid_pdrop",
    "attn_pdrop",
    "drop_connect_rate",
)


@dataclass(frozen=True)
class Architecture:
    """``prefix``Config and ``prefix``Model of transformers, with these options and an input of this kind."""

    prefix: str
    input: str = "image"
    options: dict[str, Any] = field(default_factory=dict)


ARCHITECTURES = {
    "efficientnet_b0": Architecture(
        "EfficientNet",
        options={"image_size": 224, "width_coefficient": 1.0, "depth_coefficient": 1.0, "hidden_dim": 1280},
    ),
    "mobilenet_v1": Architecture("MobileNetV1"),
    "regnet": Architecture("RegNet"),
    "convnext_v2": Architecture("ConvNextV2", options={"depths": [1, 1, 3, 1]}),
    "swin": Architecture("Swin", options={"depths": [1, 1, 2, 1]}),
    "beit": Architecture("Beit", options={"num_hidden_layers": 3}),
    "deit": Architecture("DeiT", options={"num_hidden_layers": 3}),
    "dinov2": Architecture("Dinov2", options={"num_hidden_layers": 3, "image_size": 224}),
    "segformer": Architecture("Segformer"),
    "levit": Architecture("Levit"),
    "poolformer": Architecture("PoolFormer"),
    "cvt": Architecture("Cvt", options={"depth": [1, 2, 4], "drop_path_rate": [0.0, 0.0, 0.0]}),
    "mobilevit": Architecture("MobileViT"),
    "focalnet": Architecture("FocalNet", options={"depths": [1, 1, 2, 1]}),
    "bit": Architecture("Bit", options={"depths": [1, 2, 2, 1]}),
    "t5": Architecture("T5", "sequences", {"num_layers": 2, "num_decoder_layers": 2}),
    "bart": Architecture("Bart", "sequences", {"encoder_layers": 2, "decoder_layers": 2}),
    "roberta": Architecture("Roberta", "tokens", {"num_hidden_layers": 3}),
    "albert": Architecture(
        "Albert", "tokens", {"num_hidden_layers": 3, "hidden_size": 768, "num_attention_heads": 12}
    ),
    "electra": Architecture("Electra", "tokens", {"num_hidden_layers": 3}),
    "deberta_v2": Architecture(
        "DebertaV2", "tokens", {"num_hidden_layers": 2, "hidden_size": 768, "num_attention_heads": 12}
    ),
    "fnet": Architecture("FNet", "tokens", {"num_hidden_layers": 3}),
    "opt": Architecture("OPT", "tokens", {"num_hidden_layers": 3}),
    "qwen2": Architecture(
        "Qwen2",
        "tokens",
        {
            "num_hidden_layers": 3,
            "hidden_size": 896,
            "intermediate_size": 2432,
            "num_attention_heads": 14,
            "num_key_value_heads": 2,
            "use_cache": False,
        },
    ),
    "gemma2": Architecture(
        "Gemma2",
        "tokens",
        {
            "num_hidden_layers": 2,
            "hidden_size": 768,
            "intermediate_size": 2048,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 96,
            "vocab_size": 32000,
            "use_cache": False,
        },
    ),
    "mixtral": Architecture(
        "Mixtral",
        "tokens",
        {
            "num_hidden_layers": 2,
            "hidden_size": 512,
            "intermediate_size": 1024,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "num_local_experts": 4,
            "use_cache": False,
        },
    ),
    "wav2vec2": Architecture("Wav2Vec2", "sound", {"num_hidden_layers": 3}),
}
TIMM = (
    "efficientnet_b0",
    "mobilenetv3_large_100",
    "resnet18",
    "regnety_004",
    "densenet121",
    "ghostnet_100",
    "mixer_s32_224",
    "mnasnet_100",
    "inception_v3",
    "convmixer_768_32",
    "xcit_tiny_12_p16_224",
    "maxvit_nano_rw_256",
    "repvgg_a0",
    "nfnet_l0",
)
"""Measured where `timm` is installed."""


def _tokens(vocabulary: int, length: int = 128) -> torch.Tensor:
    return torch.randint(3, vocabulary, (1, length), generator=torch.Generator().manual_seed(1))


def _image(size: int = 224) -> torch.Tensor:
    return torch.randn(1, 3, size, size, generator=torch.Generator().manual_seed(1))


def _settled(model: nn.Module, image: torch.Tensor) -> nn.Module:
    """Convolutions of unit gain, batch norms with one batch's statistics: values neither vanish nor grow."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, generator=torch.Generator().manual_seed(2))
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 1.0
    with torch.no_grad():
        model.train()(image.repeat(2, 1, 1, 1))
    return model.eval()


def transformers_model(architecture: Architecture) -> Program:
    """The model and its input."""
    import transformers

    torch.manual_seed(0)
    config_class = getattr(transformers, f"{architecture.prefix}Config")
    config = config_class(**architecture.options)
    for name in _NO_DROPOUT:
        if (value := getattr(config, name, None)) and isinstance(value, (int, float)):
            setattr(config, name, type(value)(0))
    model = getattr(transformers, f"{architecture.prefix}Model")(config).eval()
    if architecture.input == "tokens":
        return model, (_tokens(config.vocab_size),), {}
    if architecture.input == "sequences":
        tokens = _tokens(config.vocab_size)
        return model, (), {"input_ids": tokens, "decoder_input_ids": tokens[:, :64], "use_cache": False}
    if architecture.input == "sound":
        return model, (torch.randn(1, 16000, generator=torch.Generator().manual_seed(1)),), {}
    image = _image()
    return _settled(model, image), (image,), {}


def timm_model(name: str) -> Program:
    """A model of timm and an image of the size it wants."""
    import timm

    torch.manual_seed(0)
    model = timm.create_model(name, pretrained=False)
    image = _image(model.default_cfg["input_size"][-1])
    return _settled(model, image), (image,), {}


FACTORIES: dict[str, Callable[[], Program]] = {
    **{name: partial(transformers_model, each) for name, each in ARCHITECTURES.items()},
    **{f"timm_{name}": partial(timm_model, name) for name in TIMM},
}


def __getattr__(name: str) -> Callable[[], Program]:
    """A factory by its name, for `smelt bench benchmarks/architectures.py:swin`."""
    if name in FACTORIES:
        return FACTORIES[name]
    raise AttributeError(name)


def installed() -> tuple[str, ...]:
    """The names of what can be measured here."""
    return tuple(
        name for name in FACTORIES if find_spec("timm" if name.startswith("timm_") else "transformers")
    )
