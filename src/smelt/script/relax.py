"""``from smelt.script import relax as R``: the decorator; what is below it is read, never run."""

from __future__ import annotations

import typing

from smelt.script.inert import Word
from smelt.script.parse import from_source


def function(definition: typing.Any = None, /, **options: typing.Any) -> typing.Any:
    """``@R.function``: the function of `smelt.relax` that a Python function's text is."""
    del options
    return from_source if definition is None else from_source(definition)


def __getattr__(name: str) -> Word:
    """``R.Tensor``, ``R.Shape``, …"""
    if name not in ("Tensor", "Shape", "Tuple", "Prim", "Object", "Any", "Callable"):
        raise AttributeError(f"R has no {name}")
    return Word(f"R.{name}")


__all__ = ["function"]
