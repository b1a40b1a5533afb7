"""``from smelt.script import tir as T``: the decorators; decorated functions are read, never run."""

from __future__ import annotations

from smelt.script.inert import Word
from smelt.script.parse import macro, prim_func
from smelt.script.parse import macro as inline


def __getattr__(name: str) -> Word:
    """``T.Buffer``, ``T.exp``, …: words that Python evaluates outside of functions, or in annotations."""
    from smelt.script.expressions import words

    if name not in (*words(), "Buffer", "Var", "boolean", "buffer", "handle", "let", "target"):
        raise AttributeError(f"T has no {name}")
    return Word(f"T.{name}")


__all__ = ["inline", "macro", "prim_func"]
