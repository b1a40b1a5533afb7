"""Programs of loops as text that people read and write: TVMScript, printed and parsed."""

from smelt.script.module import GlobalVar, IRModule, PrimFunc

__all__ = ["GlobalVar", "IRModule", "PrimFunc"]
