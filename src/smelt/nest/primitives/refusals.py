"""How the primitives that move stages and data refuse: the first line says what, of which block, and why."""

from __future__ import annotations

from smelt.errors import SmeltError
from smelt.nest.ir import For, Kernel, Stage
from smelt.nest.primitives import ScheduleError
from smelt.nest.scopes import Place, place_of, place_of_stage
from smelt.nest.tree import named as named


class Refused(ScheduleError):  # noqa: N818
    """A primitive was asked for something that would change results, or that makes no sense here."""

    def __init__(self, code: str, what: str, why: str, remedy: str | None = None) -> None:
        SmeltError.__init__(self, code, f"{what}: {why}", remedy=remedy)


def stage_place(kernel: Kernel, name: str, what: str) -> Place:
    """Where a stage is.

    Raises:
        ScheduleError: SM1020, there is none of that name.
    """
    place = place_of_stage(kernel, name)
    if place is None:
        raise Refused("SM1020", what, f"there is no block {name!r}")
    return place


def loop_place(kernel: Kernel, var: object, what: str) -> Place:
    """Where the loop over a variable is.

    Raises:
        ScheduleError: SM1020, there is none.
    """
    place = place_of(kernel.body, lambda stmt: isinstance(stmt, For) and stmt.var == var)
    if place is None:
        raise Refused("SM1020", what, f"there is no loop {var}")
    return place


def stage_of(place: Place) -> Stage:
    assert isinstance(place.stmt, Stage)
    return place.stmt
