"""``from tvm.script import tir as T``: the older name."""

from tvm.script.tirx import __getattr__, inline, macro, prim_func

__all__ = ["__getattr__", "inline", "macro", "prim_func"]
