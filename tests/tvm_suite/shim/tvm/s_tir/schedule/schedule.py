"""``tvm.s_tir.schedule.schedule``."""

from smelt.tir import Schedule, ScheduleError

__all__ = ["Schedule", "ScheduleError"]
