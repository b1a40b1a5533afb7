"""``tvm.script``: programs as text.

A program that smelt cannot read is an object that raises where a test asks for anything of it: a test file
with one such program at its top still has its other tests. Within a test a decorator raises at once.
"""

from __future__ import annotations

import functools
import sys
from types import FrameType
from typing import Any

from smelt.errors import SmeltError
from smelt.script import parse
from smelt.script.parse import from_source as read
from tvm.error import ScriptError


class Unread:
    """A program that could not be read, with the error."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise self._error

    def __getitem__(self, name: Any) -> Any:
        raise self._error


def program(definition: Any = None, /, frame: FrameType | None = None, **options: Any) -> Any:
    """``@T.prim_func``, ``@R.function``, ``@I.ir_module``: the program that a text is."""
    if definition is None:
        return functools.partial(program, **options)
    frame = frame or sys._getframe(1)
    if "__qualname__" in frame.f_locals:  # within a class, which is read as a whole
        return definition
    outside = {**getattr(definition, "__globals__", {}), **parse._outside(frame)}
    try:
        return read(definition, outside)
    except Exception as error:
        if frame.f_locals is not frame.f_globals:
            raise (ScriptError(error) if isinstance(error, SmeltError) else error) from error
        return Unread(error)


def from_source(text: Any, extra_vars: Any = None, **options: Any) -> Any:
    """The program of a text; ``extra_vars``: what other names in it stand for."""
    del options
    return read(text, extra_vars)


from tvm.script import ir, relax, tir, tirx
from tvm.script.ir import ir_module

from tvm.script import parser  # isort: skip  (needs the others)

__all__ = ["from_source", "ir", "ir_module", "parser", "program", "relax", "tir", "tirx"]
