"""``tvm.tirx.expr``."""

from tvm.tirx import Cast, FloatImm, IntImm, IterVar, Select, Var

__all__ = ["Cast", "FloatImm", "IntImm", "IterVar", "Select", "Var"]
