"""Why two kernels that follow each other are not one: the reasons of fusion, for people."""

from __future__ import annotations

from smelt.loops.ir import Attentions, Contraction, Extern, Native, Scatter, Sort
from smelt.schedule.grouping.fusion import Group, account, placement
from smelt.schedule.grouping.items import Work

_ALONE = (
    (Contraction, "a matrix product or convolution"),
    (Attentions, "attention"),
    (Scatter, "a scatter"),
    (Sort, "a sort"),
    (Native, "a kernel that a person wrote"),
)


def why_apart(work: Work, group: Group, after: Group) -> str:
    """The reason why ``after``, which runs next, has a nest of its own."""
    if after.is_extern:
        (item,) = after.items
        name = item.body.target if isinstance(item.body, Extern) else type(item.body).__name__.lower()
        return f"PyTorch runs {name} next"
    for one in (group, after):
        if one.product is not None or (kind := _alone(one)) is not None:
            what = "a matrix product or convolution" if one.product is not None else kind
            if one is group and one.product is not None:
                return (
                    f"{what}: only pointwise work on its result, which nothing else reads, runs inside of it"
                )
            return f"{what} has a nest of its own"
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


def _alone(group: Group) -> str | None:
    return next((what for kind, what in _ALONE if isinstance(group.items[0].body, kind)), None)
