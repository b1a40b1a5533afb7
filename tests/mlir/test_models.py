"""Small models of `transformers` as Linalg: batch and tokens dynamic, at two sizes against eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt
from tests.mlir.test_linalg import compare, wide

pytest.importorskip("torch_mlir", reason="needs the extra [mlir]")
transformers = pytest.importorskip("transformers")

DYNAMIC = torch.export.Dim.DYNAMIC
Sizes = tuple[int, ...]


class First(torch.nn.Module):
    """The first result of a model alone."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Any) -> Any:
        return self.model(x)[0]


def _tokens(sizes: Sizes) -> torch.Tensor:
    return torch.randint(0, 100, sizes)


def _images(sizes: Sizes) -> torch.Tensor:
    return torch.randn(sizes[0], 3, *sizes[1:])


def bert() -> torch.nn.Module:
    sizes = {"num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64}
    model: torch.nn.Module = transformers.BertModel(transformers.BertConfig(vocab_size=100, **sizes))
    return model


def gpt2() -> torch.nn.Module:
    sizes = {"n_layer": 1, "n_embd": 32, "n_head": 4, "n_positions": 32, "use_cache": False}
    tokens = {"bos_token_id": 0, "eos_token_id": 0}
    config = transformers.GPT2Config(vocab_size=100, **sizes, **tokens)
    model: torch.nn.Module = transformers.GPT2LMHeadModel(config)
    return model


def resnet18() -> torch.nn.Module:
    """All of ResNet-18's blocks, with few channels."""
    sizes = {"embedding_size": 8, "hidden_sizes": [8, 12, 16, 20], "depths": [2, 2, 2, 2]}
    config = transformers.ResNetConfig(**sizes, layer_type="basic")
    model: torch.nn.Module = transformers.ResNetForImageClassification(config)
    return model


@pytest.mark.parametrize(
    ("build", "inputs", "first", "second"),
    [
        (bert, _tokens, (3, 12), (5, 9)),
        (gpt2, _tokens, (3, 12), (2, 20)),
        (resnet18, _images, (3, 40, 40), (5, 40, 40)),
    ],
)
def test_models_at_two_sizes(
    build: Callable[[], torch.nn.Module], inputs: Callable[[Sizes], torch.Tensor], first: Sizes, second: Sizes
) -> None:
    torch.manual_seed(0)
    model = First(build()).eval()
    dims = {dim: DYNAMIC for dim, (one, other) in enumerate(zip(first, second)) if one != other}
    exported = smelt.export(model, [inputs(first)], dynamic_shapes=(dims,))
    for sizes in (first, second):
        given = inputs(sizes)
        with torch.no_grad():
            expected = model(given)
            found, exact = exported.run(given), model.double()(wide(given))
            model.float()
        compare(found, expected, exact)
