"""``tvm.s_tir``: schedules."""

from smelt.tir import (
    BlockRV,
    ExprRV,
    Instruction,
    LoopRV,
    SBlockRV,
    Schedule,
    ScheduleError,
    TensorIntrin,
    Trace,
)
from tvm.s_tir import schedule, tensor_intrin

__all__ = [
    *("BlockRV", "ExprRV", "Instruction", "LoopRV", "SBlockRV", "Schedule", "ScheduleError", "TensorIntrin"),
    *("Trace", "schedule"),
]
from smelt.tir.references import BlockView, LoopView

StmtSRef = (BlockView, LoopView)
ScheduleState = Schedule
