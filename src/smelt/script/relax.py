"""``from smelt.script import relax as R``: the decorator; decorated functions are read, never run."""

from __future__ import annotations

import sys
import typing  # R.Any is relax's
from importlib import import_module

from smelt.script import parse


def function(definition: typing.Any = None, /, **options: typing.Any) -> typing.Any:
    """``@R.function``: the function of `smelt.relax` in a Python function's text.

    In a class the function stays unchanged: `ir_module` reads the whole class.
    """
    del options
    frame = sys._getframe(1)
    in_class, outside = "__qualname__" in frame.f_locals, parse._outside(frame)

    def read(definition: typing.Any) -> typing.Any:
        known = {**getattr(definition, "__globals__", {}), **outside}
        return definition if in_class else parse.from_source(definition, known)

    return read if definition is None else read(definition)


def __getattr__(name: str) -> typing.Any:
    """``R.Tensor``, ``R.add``, … outside of a script: the objects of `smelt.relax` with that name."""
    if name.startswith("__"):
        raise AttributeError(f"R has no {name}")
    return import_module("smelt.relax.words").__getattr__(name)


__all__ = ["function"]
