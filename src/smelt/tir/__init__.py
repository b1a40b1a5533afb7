"""Functions of loops, modules of them, and schedules."""

from smelt.nest.primitives import ScheduleError
from smelt.script.module import IRModule, PrimFunc
from smelt.tir.intrinsics import TensorIntrin
from smelt.tir.schedule import Schedule
from smelt.tir.trace import Trace

__all__ = ["IRModule", "PrimFunc", "Schedule", "ScheduleError", "TensorIntrin", "Trace"]
