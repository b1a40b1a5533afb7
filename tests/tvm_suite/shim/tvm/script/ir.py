"""``from tvm.script import ir as I``."""

from __future__ import annotations

import sys
from typing import Any

from smelt.script import IRModule
from smelt.script import ir as _words
from tvm.script import program


def ir_module(cls: Any = None, /, **options: Any) -> Any:
    """``@I.ir_module``: the module that a class's text is, under its name."""
    if cls is None:
        return ir_module
    frame = sys._getframe(1)
    found = program(cls, frame=frame, **options)
    if isinstance(found, IRModule):
        found.__name__ = cls.__name__
    return found


def __getattr__(name: str) -> Any:
    return getattr(_words, name)


__all__ = ["ir_module"]
