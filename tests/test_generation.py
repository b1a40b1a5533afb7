"""Text generation: the tokens of eager, two programs for all lengths, one cache; warm starts."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import smelt
from smelt.runtime.cache import open_cache
from smelt.runtime.kept import PREFIX

transformers = pytest.importorskip("transformers")


def _tiny(dtype: torch.dtype = torch.float32, **sizes: Any) -> Any:
    torch.manual_seed(0)
    usual = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4}
    config = transformers.LlamaConfig(vocab_size=300, num_key_value_heads=2, **{**usual, **sizes})
    return transformers.LlamaForCausalLM(config).to(dtype).eval()


def _eager(model: Any, tokens: list[int], count: int) -> list[int]:
    found = list(tokens)
    with torch.no_grad():
        for _ in range(count):
            found.append(int(model(torch.tensor([found])).logits[0, -1].argmax()))
    return found[len(tokens) :]


@pytest.mark.long
def test_tokens_are_eagers_and_two_programs_serve_all_lengths() -> None:
    model = _tiny()
    names = list(model.state_dict())
    generator = smelt.Generator(model, max_length=48)
    smelt.reset()
    for length in (5, 2, 9, 1, 17):
        prompt = torch.randint(0, 300, (length,)).tolist()
        assert generator.generate(prompt, 12) == _eager(model, prompt, 12)
    assert len(smelt.reports()) == 2 and not any(report.fallbacks for report in smelt.reports())
    assert list(model.state_dict()) == names  # the model itself has not changed

    # A conversation goes on where the cache ends.
    generator.reset()
    first, second = [3, 1, 4, 1, 5], [9, 2, 6]
    said = list(generator.stream(first, 4))
    again = list(generator.stream(second, 4))
    assert again == _eager(model, [*first, *said, *second], 4)
    assert len(smelt.reports()) == 2

    # The cache is full: no more tokens, and a clear error.
    assert len(generator.generate(first, 100)) == 48 - len(first) + 1
    with pytest.raises(smelt.SmeltError, match="SM0121: 3 tokens after 48"):
        generator.logits(second)
    with pytest.raises(smelt.SmeltError, match="SM0121: 0 tokens"):
        generator.logits([])


@pytest.mark.long
def test_quantized_weights_and_another_model_beside() -> None:
    models = [smelt.quantize(_tiny(), "int4", group=32), _tiny(num_hidden_layers=2)]
    generators = [smelt.Generator(model, max_length=32) for model in models]
    for model, generator in zip(models, generators, strict=True):
        assert generator.generate([7, 8, 9], 6) == _eager(model, [7, 8, 9], 6)
    drawn = [generators[1].generate([7, 8], 8, temperature=1.0, random=_seeded()) for _ in range(2)]
    assert drawn[0] == drawn[1] and len(drawn[0]) == 8


def _seeded() -> torch.Generator:
    return torch.Generator().manual_seed(3)


_AGAIN = f"""
import sys, {__name__} as here
generator = here.smelt.Generator(here._with_constant(here._tiny(num_hidden_layers=1)), max_length=32)
tokens = generator.generate([7, 8, 9], 6)
print([name for name in ("smelt.pipeline", "smelt.capture", "smelt.schedule") if name in sys.modules])
print(tokens, [each.cache_hit for each in here.smelt.reports()])
"""


def _with_constant(model: Any) -> Any:
    """A model whose layer reads a tensor that is no buffer: a constant of the program."""
    layer = model.model.layers[0]
    layer.twist = torch.linspace(0.5, 1.5, 64)
    layer.register_forward_pre_hook(_twisted)
    return model


def _twisted(layer: Any, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return (args[0] * layer.twist, *args[1:])


@pytest.mark.usefixtures("own_cache", "fresh")
def test_a_later_process_traces_nothing() -> None:
    model = _with_constant(_tiny(num_hidden_layers=1))
    tokens = smelt.Generator(model, max_length=32).generate([7, 8, 9], 6)
    assert tokens == _eager(model, [7, 8, 9], 6)
    assert [each.cache_hit for each in smelt.reports()] == [False, False]
    run = [sys.executable, "-W", "ignore", "-c", _AGAIN]
    done = subprocess.run(run, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[1])
    assert done.stdout.splitlines() == ["[]", f"{tokens} [True, True]"]

    # Damaged entries: what keys mean, then the programs themselves; both are made again.
    for part in (PREFIX, ""):
        cache = open_cache()
        for key in [each for each in cache.entries() if each.startswith(part)]:
            for path in (cache.root / "v1" / "entries" / key).glob("*.json"):
                if path.name in ("program.json", "plan.json"):
                    path.write_bytes(path.read_bytes().replace(b"ids", b"odd").replace(b"native", b"extern"))
        smelt.reset()
        assert int(smelt.Generator(model, max_length=32).logits([7, 8, 9]).argmax()) == tokens[0]
        (report,) = smelt.reports()
        assert report.phase_seconds["contract"]


def _keys(model: Any, length: int = 32, **options: Any) -> list[str | None]:
    generator = smelt.Generator(model, length, **options)
    return [generator._token._key(False), generator._prompt._key(True)]


@pytest.mark.parametrize(
    "change",
    [
        lambda: _keys(_tiny(rms_norm_eps=1e-3)),
        lambda: _keys(_tiny(num_hidden_layers=2)),
        lambda: _keys(_tiny(torch.bfloat16)),
        lambda: _keys(_tiny(attn_implementation="eager")),
        lambda: _keys(smelt.quantize(_tiny(), "int8")),
        lambda: _keys(_with_constant(_tiny())),
        lambda: _keys(_tiny(), 33),
        lambda: _keys(_tiny(), fusion=False),
    ],
    ids=["eps", "layers", "dtype", "attention", "weights", "hook", "length", "option"],
)
def test_the_key_of_a_program_covers(change: Callable[[], list[str | None]]) -> None:
    before, after = _keys(_tiny()), change()
    assert None not in (*before, *after) and not {*before} & {*after}


def test_the_key_covers_the_code_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    before = _keys(_tiny())
    assert _keys(_tiny()) == before
    language = sys.modules[type(_tiny()).__module__]
    monkeypatch.setattr(language, "rotate_half", lambda x: x)
    assert not {*before} & {*_keys(_tiny())}


@pytest.mark.long
@pytest.mark.parametrize("format", [None, "int4"])
def test_strict_numerics_give_a_prompt_the_bits_of_its_tokens_one_by_one(format: str | None) -> None:
    model = _tiny(num_hidden_layers=1, hidden_size=128)
    if format is not None:
        model = smelt.quantize(model, format)
    generator = smelt.Generator(model, max_length=48, numerics="strict")
    prompt = torch.randint(0, 300, (23,)).tolist()
    whole = generator.logits(prompt).clone()
    generator.reset()
    (*_, last) = [generator.logits([token]).clone() for token in prompt]
    generator.reset()
    generator.logits(prompt[:9])
    assert torch.equal(last, whole) and torch.equal(generator.logits(prompt[9:]), whole)


KINDS = {
    "Mistral": {"sliding_window": 9},
    "Qwen2": {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1},
}


def _model(name: str, **sizes: Any) -> Any:
    torch.manual_seed(0)
    usual = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    every = {"vocab_size": 300, "num_key_value_heads": 2, **usual, **KINDS.get(name, {}), **sizes}
    config = getattr(transformers, f"{name}Config")(**every)
    return getattr(transformers, f"{name}ForCausalLM")(config).eval()


@pytest.mark.long
@pytest.mark.parametrize("name", KINDS)
def test_texts_of_a_batch_and_windows_of_keys_give_eagers_tokens(name: str) -> None:
    model = _model(name)
    prompts = [torch.randint(0, 300, (length,)).tolist() for length in (5, 21, 1, 30, 14)]
    wanted = [_eager(model, prompt, 12) for prompt in prompts]
    smelt.reset()
    generator = smelt.Generator(model, max_length=36, batch=3)
    assert generator.generate_batch(prompts, 12) == [*wanted[:3], wanted[3][:7], wanted[4]]
    assert generator.generate_batch(prompts, 12, stop=(wanted[0][3], wanted[1][5]))[:2] == [
        wanted[0][: wanted[0].index(wanted[0][3])],
        wanted[1][: min(wanted[1].index(each) for each in (wanted[0][3], wanted[1][5]) if each in wanted[1])],
    ]
    assert generator.generate(prompts[1], 12) == wanted[1]  # a conversation is the first row
    assert len(smelt.reports()) == 2 and not any(report.fallbacks for report in smelt.reports())
    with pytest.raises(smelt.SmeltError, match="SM0121: a prompt without tokens"):
        generator.generate_batch([[1], []])
    if name == "Mistral":
        assert smelt.Generator(model, max_length=36).generate(prompts[1], 12) == wanted[1]


@pytest.mark.long
def test_strict_numerics_give_a_text_the_same_bits_beside_any_others() -> None:
    model = _model("Mistral", num_hidden_layers=1)
    prompts = [torch.randint(0, 300, (length,)).tolist() for length in (5, 21, 2)]
    generators = [smelt.Generator(model, max_length=36, batch=batch, numerics="strict") for batch in (2, 3)]
    found = [generator._step(prompts[: len(generator.lengths)]).clone() for generator in generators]
    after = [generator._step([[7], *([[9]] * len(generator.lengths[1:]))]) for generator in generators]
    assert torch.equal(found[0], found[1][:2]) and torch.equal(after[0], after[1][:2])


def test_layers_that_see_other_keys_are_refused_in_batches() -> None:
    model = _model("Llama", num_hidden_layers=1)
    model.config.layer_types = ["chunked_attention"]
    with pytest.raises(smelt.SmeltError, match="SM0120: layers of the kinds chunked_attention"):
        smelt.Generator(model, max_length=36, batch=2).generate_batch([[1], [2]], 1)


def test_a_model_without_such_layers_is_refused() -> None:
    with pytest.raises(smelt.SmeltError, match="SM0120: Linear is no decoder"):
        smelt.Generator(torch.nn.Linear(3, 3))


@pytest.mark.long
@pytest.mark.parametrize("name,cache", [("Llama", None), ("Llama", "static"), ("Mistral", "static")])
def test_generate_of_a_compiled_model_calls_the_compiled_forward(name: str, cache: str | None) -> None:
    model = _model(name, num_hidden_layers=1)
    compiled = smelt.compile(model)
    smelt.reset()
    for length in (5, 9, 17, 3) if name == "Llama" else (5, 17):
        prompt = torch.randint(0, 300, (1, length))
        options: dict[str, Any] = {
            "max_new_tokens": 12,
            "do_sample": False,
            "pad_token_id": 0,
            "eos_token_id": None,
        }
        options |= {"cache_implementation": cache}
        assert torch.equal(compiled.generate(prompt, **options), model.generate(prompt, **options))
    # A prompt, a token after it; both once more when sizes have changed: then for all, in the window or not.
    assert 2 <= len(smelt.reports()) <= (4 if name == "Llama" else 8)
    assert not any(report.fallbacks for report in smelt.reports())
    assert (
        "forward" not in vars(model)
        and type(model).generate is getattr(transformers, f"{name}ForCausalLM").generate
    )


def test_a_model_that_asks_for_the_number_of_tokens_is_refused() -> None:
    model = _tiny(num_hidden_layers=1)
    layer = model.model.layers[0]
    forward = layer.forward
    layer.forward = lambda hidden, **given: forward(hidden if hidden.shape[1] < 9 else 2 * hidden, **given)
    with pytest.raises(smelt.SmeltError, match=r"SM0120: .* prompt does not serve 17 of 17 tokens"):
        smelt.Generator(model, max_length=17).logits([1, 2, 3])
