"""Merging: groups that fusion kept separate and that can share a nest, since no group between depends on the
first.

Fusion goes through the items in order and puts each into one group. A reader of the results of two groups
(the last line of an optimizer's step) joins the later one; only then is it known that the earlier one can run
there as well.
"""

from __future__ import annotations

from collections.abc import Sequence

from smelt.loops.ir import Pointwise
from smelt.schedule.grouping.fusion import Group, account, placement, reads_of, settles
from smelt.schedule.grouping.items import Work

FARTHEST = 256
"""Limit on the distance of a partner in groups: all groups between are checked."""


def merge(work: Work, groups: Sequence[Group]) -> list[Group]:
    """Merges groups: a producer and a later reader with equal loops run in one nest, at the later one's
    position.
    """
    return _Merging(work, groups).run()


class _Merging:
    """``places`` holds the groups by position, None where a group was merged."""

    def __init__(self, work: Work, groups: Sequence[Group]) -> None:
        self.work = work
        self.places: list[Group | None] = list(groups)
        self.reads = [set().union(*(reads_of(work, item) for item in g.all_items)) for g in groups]
        self.writes = [{name for item in g.all_items for name in item.writes if name} for g in groups]
        self.writer = {name: place for place, names in enumerate(self.writes) for name in names}

    def run(self) -> list[Group]:
        for place in reversed(range(len(self.places))):
            while self._merged(place):
                pass
        return [group for group in self.places if group is not None]

    def _merged(self, place: int) -> bool:
        """Merges the group at ``place`` with the nearest producer of its reads, if legal, at either
        position.
        """
        later = self.places[place]
        if later is None or not _is_pointwise(later):
            return False
        for earlier in sorted({self.writer.get(name, place) for name in self.reads[place]}, reverse=True):
            group = self.places[earlier]
            if earlier >= place or place - earlier > FARTHEST or group is None or not _is_pointwise(group):
                continue
            sinks = self._commutes(earlier, range(earlier + 1, place))
            if not sinks and not self._rises(place, earlier):
                continue
            joined = _joined(self.work, group, later)
            if joined is not None:
                self._put(joined, *((place, earlier) if sinks else (earlier, place)))
                return True
        return False

    def _put(self, group: Group, place: int, gone: int) -> None:
        self.places[place], self.places[gone] = group, None
        self.reads[place] |= self.reads[gone]
        self.writes[place] |= self.writes[gone]
        self.writer.update(dict.fromkeys(self.writes[gone], place))

    def _commutes(self, place: int, others: range) -> bool:
        """Whether the other groups neither read the group's outputs nor write its inputs and outputs."""
        reads, writes = self.reads[place], self.writes[place]
        return all(
            self.places[k] is None
            or (
                writes.isdisjoint(self.reads[k])
                and writes.isdisjoint(self.writes[k])
                and reads.isdisjoint(self.writes[k])
            )
            for k in others
        )

    def _rises(self, place: int, earlier: int) -> bool:
        """Whether the group may run as early as there: it commutes with all between, which define no size."""
        between = range(earlier + 1, place)
        groups = [group for k in between if (group := self.places[k]) is not None]
        settled = any(True for group in groups for item in group.items for _ in settles(item))
        return not settled and self._commutes(place, between)


def _is_pointwise(group: Group) -> bool:
    return group.product is None and all(isinstance(item.body, Pointwise) for item in group.items)


def _joined(work: Work, earlier: Group, later: Group) -> Group | None:
    """Both as one group that keeps the loops of each, or None."""
    trips = work.hint_product(earlier.prefix)
    if trips != work.hint_product(later.prefix):
        return None
    group = earlier.copy()
    for item in later.items:
        found = placement(work, group, item)
        if isinstance(found, str) or work.hint_product(found[0]) != trips:
            return None
        group.prefix, group.segments = found
        group.items.append(item)
        account(group, item)
    return group
