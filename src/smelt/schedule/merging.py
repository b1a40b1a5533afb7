"""Merging: groups that fusion made apart and that one nest can do, since nothing between needs the first.

Fusion goes through the items in order and puts each into one group. What reads the results of two groups (the
last line of an optimizer's step) joins the later one; only then is it known that the earlier one may as well
run there.
"""

from __future__ import annotations

from collections.abc import Sequence

from smelt.loops.ir import Pointwise
from smelt.schedule.fusion import Group, account, placement, reads_of
from smelt.schedule.items import Work

WINDOW = 24
"""How many groups back one is looked for."""


def merge(work: Work, groups: Sequence[Group]) -> list[Group]:
    """The groups, those of equal loops that share buffers joined, where the later one runs."""
    merged = list(groups)
    position = len(merged) - 1
    while position > 0:
        found = _partner(work, merged, position)
        if found is None:
            position -= 1
        else:
            earlier, group = found
            merged[position] = group
            del merged[earlier]
            position -= 1
    return merged


def _partner(work: Work, groups: Sequence[Group], position: int) -> tuple[int, Group] | None:
    """The nearest earlier group that can be part of the one at ``position``, and the two as one."""
    later = groups[position]
    if not _is_pointwise(later):
        return None
    between: list[Group] = []
    for number in range(position - 1, max(position - WINDOW, 0) - 1, -1):
        group = groups[number]
        if (
            _is_pointwise(group)
            and _share(group, later)
            and all(_independent(work, group, g) for g in between)
        ):
            joined = _joined(work, group, later)
            if joined is not None:
                return number, joined
        between.append(group)
    return None


def _is_pointwise(group: Group) -> bool:
    return group.product is None and all(isinstance(item.body, Pointwise) for item in group.items)


def _share(earlier: Group, later: Group) -> bool:
    """Whether a buffer that one writes is one that the other uses, or both read one."""
    return not later.reads.isdisjoint(earlier.reads | set(earlier.writes))


def _independent(work: Work, group: Group, other: Group) -> bool:
    """Whether ``group`` may run after ``other``, which comes after it now."""
    written = {name for item in other.everything for name in item.writes if name is not None}
    read = set().union(*(reads_of(work, item) for item in other.everything))
    mine = set(group.writes)
    return mine.isdisjoint(read | written) and group.reads.isdisjoint(written)


def _joined(work: Work, earlier: Group, later: Group) -> Group | None:
    """Both as one group with the loops that each has, or None."""
    turns = work.hint_product(earlier.prefix)
    if turns != work.hint_product(later.prefix):
        return None
    group = Group(
        earlier.prefix,
        list(earlier.items),
        list(earlier.segments),
        set(earlier.reads),
        {name: list(writers) for name, writers in earlier.writes.items()},
        earlier.cost,
    )
    for item in later.items:
        found = placement(work, group, item)
        if found is None or work.hint_product(found[0]) != turns:
            return None
        group.prefix, group.segments = found
        group.items.append(item)
        account(group, item)
    return group
