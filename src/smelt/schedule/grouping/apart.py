"""Why two kernels that follow each other are not one: the reasons of fusion, for people."""

from __future__ import annotations

from smelt.loops.ir import Contraction, Extern
from smelt.schedule.grouping.fusion import ALONE, Group, account, placement
from smelt.schedule.grouping.items import Work


def why_apart(work: Work, group: Group, after: Group) -> str:
    """The reason why ``after``, which runs next, has a nest of its own."""
    if after.is_extern:
        (item,) = after.items
        name = item.body.target if isinstance(item.body, Extern) else type(item.body).__name__.lower()
        return f"PyTorch runs {name} next"
    if group.product is not None:
        return (
            f"{ALONE[Contraction]}: only pointwise work on its result, which nothing else reads, runs inside "
            "of it"
        )
    for one in (group, after):
        kind = ALONE.get(type((one.product or one.items[0]).body))
        if kind is not None:
            return f"{kind} has a nest of its own"
    if not (set(group.writes) & after.reads or group.reads & after.reads):
        return "they read and write nothing in common"
    trial = group.copy()
    for item in after.items:
        found = placement(work, trial, item)
        if isinstance(found, str):
            return f"{item.node.origin.op}: {found}"
        trial.prefix, trial.segments = found
        trial.items.append(item)
        account(trial, item)
    return "work between them depends on the first, or nothing that is large would be saved"
