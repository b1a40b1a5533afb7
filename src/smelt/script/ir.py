"""``from smelt.script import ir as I``: the decorator of modules."""

from __future__ import annotations

from smelt.script.inert import Word
from smelt.script.parse import ir_module


def __getattr__(name: str) -> Word:
    """``I.module_attrs`` and other words that Python evaluates in the body of a class."""
    if name not in ("module_attrs", "module_global_infos"):
        raise AttributeError(f"I has no {name}")
    return Word(f"I.{name}")


__all__ = ["ir_module"]
