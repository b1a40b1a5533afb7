"""``from smelt.script import relax as R``: the decorator; what is below it is read, never run."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from smelt.script import parse


def function(definition: Any = None, /, **options: Any) -> Any:
    """``@R.function``: the function of `smelt.relax` that a Python function's text is. In a class it stays
    what it is: `ir_module` reads the whole class.
    """
    del options
    frame = sys._getframe(1)
    in_class, outside = "__qualname__" in frame.f_locals, parse._outside(frame)

    def read(definition: Any) -> Any:
        known = {**getattr(definition, "__globals__", {}), **outside}
        return definition if in_class else parse.from_source(definition, known)

    return read if definition is None else read(definition)


def __getattr__(name: str) -> Any:
    """``R.Tensor``, ``R.add``, … outside of a script: what `smelt.relax` has under that name."""
    if name.startswith("__"):
        raise AttributeError(f"R has no {name}")
    return getattr(import_module("smelt.relax.words"), name)


__all__ = ["function"]
