"""``from tvm.script import ir as I``."""

from __future__ import annotations

from typing import Any

from smelt.script import ir as _words
from tvm.script import program as ir_module


def __getattr__(name: str) -> Any:
    return getattr(_words, name)


__all__ = ["ir_module"]
