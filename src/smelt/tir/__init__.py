"""Loop-level functions and their schedules: `PrimFunc`, `IRModule`, `Schedule`, as in TVM's ``tir``."""

from smelt.script.module import GlobalVar, IRModule, PrimFunc
from smelt.te.statements import call_packed
from smelt.tir.errors import ScheduleError
from smelt.tir.intrinsics import CppText, TensorIntrin
from smelt.tir.references import BlockRV, ExprRV, LoopRV, SBlockRV
from smelt.tir.schedule import Schedule
from smelt.tir.trace import Instruction, Trace

__all__ = [
    "BlockRV",
    "CppText",
    "ExprRV",
    "GlobalVar",
    "IRModule",
    "Instruction",
    "LoopRV",
    "PrimFunc",
    "SBlockRV",
    "Schedule",
    "ScheduleError",
    "TensorIntrin",
    "Trace",
    "call_packed",
]
