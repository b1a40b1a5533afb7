"""GGUF files: blocks bitwise as the package `gguf` has them, models as transformers loads them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import smelt
from smelt.quantized.blocks import KINDS, planes_of
from smelt.quantized.modules import QuantizedWeight

gguf = pytest.importorskip("gguf")
transformers = pytest.importorskip("transformers")
KIND = gguf.GGMLQuantizationType
_HALVES = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q8_0": (0,),
    "Q4_K": (0, 2),
    "Q6_K": (208,),
    "Q5_K": (0, 2),
}
"""The places of float16 numbers in a block."""


def random_blocks(kind: str, rows: int, columns: int) -> np.ndarray:
    """Bytes at random, with small numbers where a block has float16."""
    size, length = gguf.GGML_QUANT_SIZES[KIND[kind]]
    random = np.random.default_rng(rows)
    blocks = random.integers(0, 256, (rows, columns // size, length), dtype=np.uint8)
    for place in _HALVES[kind]:
        scale = random.uniform(-0.02, 0.02, (*blocks.shape[:2], 1)) / (32 if "K" in kind else 1)
        blocks[..., place : place + 2] = scale.astype(np.float16).view(np.uint8)
    return blocks.reshape(rows, -1)


@pytest.mark.parametrize("kind", KINDS)
def test_planes_have_the_values_of_blocks(kind: str) -> None:
    data = random_blocks(kind, 6, 512)
    format, planes = planes_of(torch.from_numpy(data), kind)
    weight = QuantizedWeight(format, planes, 512)
    assert torch.equal(weight(), torch.from_numpy(gguf.dequantize(data, KIND[kind])))
    assert weight.nbytes <= data.nbytes * (34 / 22 if kind == "Q5_0" else 1.03)


# -- models ------------------------------------------------------------------------------------------------

SIZES = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "vocab_size": 96}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
KINDS_OF = {"q_proj": "Q4_K", "k_proj": "Q8_0", "v_proj": "Q6_K", "down_proj": "Q4_1", "up_proj": "Q5_0"}


def written(
    folder: Path, architecture: str, *, tied: bool, extra: dict[str, np.ndarray] | None = None
) -> Path:
    """A small model with random weights as llama.cpp would write it."""
    config = transformers.AutoConfig.for_model(architecture, tie_word_embeddings=tied, **SIZES, **HEADS)
    model = transformers.AutoModelForCausalLM.from_config(config)
    path = folder / f"{architecture}.gguf"
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(64)
    writer.add_block_count(2)
    writer.add_embedding_length(256)
    writer.add_feed_forward_length(512)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(96)
    writer.add_rope_dimension_count(64)
    writer.add_key_length(config.head_dim if hasattr(config, "head_dim") and config.head_dim else 64)
    arch = next(each for each, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(arch, 2)
    for name, parameter in model.named_parameters():
        stored = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if parameter.dim() == 1:
            writer.add_tensor(stored, 1 + 0.1 * torch.randn(parameter.shape).numpy())
        else:
            kind = KINDS_OF.get(name.split(".")[-2], "Q4_0")
            writer.add_tensor(stored, random_blocks(kind, *parameter.shape), raw_dtype=KIND[kind])
    for name, values in (extra or {}).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def reference(path: Path, dtype: torch.dtype = torch.float32) -> Any:
    """The model as transformers loads it: dequantized."""
    pytest.importorskip("accelerate")  # transformers wants it
    load = transformers.AutoModelForCausalLM.from_pretrained
    return load(str(path.parent), gguf_file=path.name, dtype=dtype)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_models_are_those_of_transformers(tmp_path: Path, architecture: str, tied: bool) -> None:
    path = written(tmp_path, architecture, tied=tied)
    numbers = torch.randint(0, 96, (2, 9))
    for dtype in (torch.bfloat16, torch.float32):
        model = smelt.load_gguf(path, dtype)
        with torch.no_grad():
            assert torch.equal(model(numbers).logits, reference(path, dtype)(numbers).logits)
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert (model.lm_head.weight is model.model.embed_tokens.weight) is tied


def test_a_compiled_model_agrees(fresh: None, tmp_path: Path) -> None:
    model = smelt.load_gguf(written(tmp_path, "llama", tied=True))
    compiled = torch.compile(model, backend="smelt", dynamic=False)
    for count in (1, 24):
        numbers = torch.randint(0, 96, (1, count))
        with torch.no_grad():
            torch.testing.assert_close(compiled(numbers).logits, model(numbers).logits, rtol=1e-4, atol=1e-4)
    assert not any(report.fallbacks for report in smelt.reports())


def test_divisors_of_frequencies_are_applied(tmp_path: Path) -> None:
    rope = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0}
    rope |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 32}
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = transformers.AutoConfig.for_model("llama", rope_parameters=rope, head_dim=64, **SIZES, **HEADS)
    wanted, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    plain = 10000.0 ** (-torch.arange(0, 64, 2) / 64)
    divisors = (plain / wanted).numpy()
    path = written(tmp_path, "llama", tied=True, extra={"rope_freqs.weight": divisors})
    torch.testing.assert_close(smelt.load_gguf(path).model.rotary_emb.inv_freq, wanted)


def test_other_types_become_floats(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    KINDS_OF["gate_proj"] = "Q5_K"
    try:
        path = written(tmp_path, "qwen2", tied=True)
    finally:
        del KINDS_OF["gate_proj"]
    model = smelt.load_gguf(path)
    assert "tensors of Q5_K become torch.float32" in caplog.text
    numbers = torch.tensor([[5, 3]])
    with torch.no_grad():
        assert torch.equal(model(numbers).logits, reference(path)(numbers).logits)


def test_files_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    for content in (None, b"GGUF", b"GIF8" * 100):
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(smelt.SmeltError, match="SM0118"):
            smelt.load_gguf(path)


def test_other_architectures(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "gemma2")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(smelt.SmeltError, match=r"SM0118: .*gemma2"):
        smelt.load_gguf(tmp_path / "a.gguf")


def test_tensors_that_are_not_the_models(tmp_path: Path) -> None:
    path = written(tmp_path, "qwen3", tied=True, extra={"blk.0.ssm_a": np.ones(3, np.float32)})
    with pytest.raises(smelt.SmeltError, match=r"SM0119: (.|\n)*blk\.0\.ssm_a is not the model's"):
        smelt.load_gguf(path)


def test_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(smelt.SmeltError, match=r"SM0117: smelt\.load_gguf needs gguf"):
        smelt.load_gguf(tmp_path / "a.gguf")
