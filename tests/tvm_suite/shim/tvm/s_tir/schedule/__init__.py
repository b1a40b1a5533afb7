"""``tvm.s_tir.schedule``."""

from smelt.tir import BlockRV, ExprRV, Instruction, LoopRV, SBlockRV, Schedule, ScheduleError, Trace
from tvm.s_tir.schedule import schedule, state, testing

__all__ = [
    *("BlockRV", "ExprRV", "Instruction", "LoopRV", "SBlockRV", "Schedule", "ScheduleError", "Trace"),
    *("schedule", "testing"),
]
from smelt.tir.references import BlockView, LoopView

StmtSRef = (BlockView, LoopView)
ScheduleState = Schedule
