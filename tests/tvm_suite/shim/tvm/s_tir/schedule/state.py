"""``tvm.s_tir.schedule.state``: what TVM may check of its references; smelt has none of that kind."""

from __future__ import annotations

from enum import IntFlag


class ScheduleDebugMask(IntFlag):
    """TVM's bits."""

    VERIFY_SREF_TREE = 1
