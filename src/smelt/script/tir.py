"""``from smelt.script import tir as T``: the decorator; what is below it is read, never run."""

from smelt.script.parse import prim_func

__all__ = ["prim_func"]
