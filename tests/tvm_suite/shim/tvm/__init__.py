"""A stand-in for TVM: its names, bound to smelt. For TVM's own tests only."""

from __future__ import annotations

from typing import Any

import smelt
from tvm import error, ir, relax, runtime, s_tir, script, te, testing, tir, tirx, topi
from tvm.error import TVMError
from tvm.ir import DataType, IRModule
from tvm.runtime import cpu, device
from tvm.target import Target

__version__ = "0.27.0"


def compile(mod: Any, target: Any = None, **options: Any) -> Any:
    """What runs a function, a schedule or a module of relax."""
    del target, options
    if isinstance(mod, IRModule) and any(not isinstance(each, tirx.PrimFunc) for each in mod.values()):
        return relax.build(mod)
    return smelt.build(mod)


build = compile
