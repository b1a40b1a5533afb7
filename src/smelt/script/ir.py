"""``from smelt.script import ir as I``: the decorator of modules."""

from smelt.script.parse import ir_module

__all__ = ["ir_module"]
