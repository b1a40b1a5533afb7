"""``from smelt.script import tir as T``: the decorator; what is below it is read, never run."""

from __future__ import annotations

from smelt.script.inert import Word
from smelt.script.parse import prim_func
from smelt.script.words import NAMED_DTYPES

_EVALUATED = ("Buffer", "buffer", "handle", *NAMED_DTYPES)


def __getattr__(name: str) -> Word:
    """``T.Buffer``, ``T.handle``, …: Python evaluates the annotations of a function before it is read."""
    if name not in _EVALUATED:
        raise AttributeError(f"T has no {name}")
    return Word(f"T.{name}")


__all__ = ["prim_func"]
