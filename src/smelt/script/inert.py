"""Words of the script as Python objects that do nothing."""

from __future__ import annotations

from typing import Any


class Word:
    """A word that may be called, indexed and asked for more of its kind; its meaning is read from the source.

    >>> Word("T.Buffer")((128, 128), "float32")
    T.Buffer
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *args: Any, **options: Any) -> Word:
        return self

    def __getitem__(self, index: Any) -> Word:
        return self

    def __getattr__(self, name: str) -> Word:
        if name.startswith("__"):
            raise AttributeError(name)
        return Word(f"{self._name}.{name}")

    def __repr__(self) -> str:
        return self._name


__all__ = ["Word"]
