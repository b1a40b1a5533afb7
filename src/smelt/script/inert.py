"""Words of the script as Python objects: pieces of text, which are read if a script names them."""

from __future__ import annotations

from typing import Any


class Word:
    """A word that records its text when it is called, indexed, used in arithmetic or asked for attributes.

    >>> Word("T.Buffer")((128, 128), dtype="float32")
    T.Buffer((128, 128), dtype='float32')
    >>> Word("T.exp")(0) + 1
    (T.exp(0) + 1)
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self.__name__ = text.rpartition(".")[2]

    def __call__(self, *args: Any, **options: Any) -> Word:
        said = [*map(repr, args), *(f"{name}={value!r}" for name, value in options.items())]
        return Word(f"{self._text}({', '.join(said)})")

    def __getitem__(self, index: Any) -> Word:
        return Word(f"{self._text}[{index!r}]")

    def __iter__(self) -> Any:
        raise TypeError(f"{self._text} is a word of a script: it is not several things")

    def __getattr__(self, name: str) -> Word:
        if name.startswith("__"):
            raise AttributeError(name)
        return Word(f"{self._text}.{name}")

    def __repr__(self) -> str:
        return self._text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Word) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)

    def _with(self, other: Any, sign: str, turned: bool = False) -> Word:
        left, right = (other, self) if turned else (self, other)
        return Word(f"({left!r} {sign} {right!r})")

    def __add__(self, other: Any) -> Word:
        return self._with(other, "+")

    def __radd__(self, other: Any) -> Word:
        return self._with(other, "+", turned=True)

    def __sub__(self, other: Any) -> Word:
        return self._with(other, "-")

    def __mul__(self, other: Any) -> Word:
        return self._with(other, "*")

    def __rmul__(self, other: Any) -> Word:
        return self._with(other, "*", turned=True)

    def __floordiv__(self, other: Any) -> Word:
        return self._with(other, "//")


__all__ = ["Word"]
