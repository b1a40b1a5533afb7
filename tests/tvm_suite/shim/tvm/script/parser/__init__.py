"""``tvm.script.parser``: the decorators and words of scripts."""

from tvm.script import ir, ir_module, tir, tirx
from tvm.script.parser import relax

__all__ = ["ir", "ir_module", "relax", "tir", "tirx"]
