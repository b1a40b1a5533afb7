"""``from tvm.script import tirx as T``: words are texts that smelt reads where a script has them."""

from __future__ import annotations

import functools
from typing import Any

from smelt.script import tir as _words
from smelt.script.inert import Word
from tvm.script import program as prim_func


def inline(function: Any = None, /, **options: Any) -> Any:
    """``@T.inline``: a function whose text is put in place of its calls."""
    del options
    if function is None:
        return inline
    if not callable(function):
        raise ValueError("T.inline takes a function")
    return _words.inline(function)


macro = inline


@functools.cache
def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return Word(f"T.{name}")


__all__ = ["inline", "macro", "prim_func"]
