"""``from tvm.script import tirx as T``."""

from __future__ import annotations

from typing import Any

from smelt.script import tir as _words
from tvm.script import program as prim_func


def __getattr__(name: str) -> Any:
    return getattr(_words, name)


__all__ = ["prim_func"]
