"""The step of each call, so that communication between processes overlaps with computation.

Calls with effects keep the order of the program, on every process the same. A collective begins as soon as
its input is computed; calls that only later collectives need, or none, are computed while it runs, if they
are worth a cluster. A wait is right before the first use of its result, after calls that do not need it.

    a = f(x); b = g(y)                       cluster:  a = f(x)
    r = wait(all_reduce(a))          →       PyTorch:  s = all_reduce(a)
    return r + b                             cluster:  b = g(y)
                                             PyTorch:  r = wait(s)
                                             cluster:  r + b
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from graphlib import TopologicalSorter

from torch.fx import Node

from smelt.runtime.externs import is_collective, is_wait

Steps = dict[Node, int]


class Overlap:
    """The steps of ``calls`` (each with its bases): even for PyTorch's (``outside``), odd for smelt's. With K
    devices, those of clusters on device k (from 0) are 2k + 1, 2k + 1 + 2K, … (``device_of``: a call's k).

    ``parts``: the call of each part of several results. ``ordered``: calls with effects, in order. ``users``:
    the users of a call's value, seen through views. ``work``: the number of operators of calls; a cluster has
    at least ``least``.
    """

    def __init__(
        self,
        calls: Mapping[Node, Sequence[Node]],
        parts: Mapping[Node, Node],
        ordered: Sequence[Node],
        users: Callable[[Node], list[Node]],
        outside: Collection[Node],
        work: Callable[[Iterable[Node]], int],
        least: int,
        device_of: Callable[[Node], int] = lambda node: 0,
        devices: int = 1,
    ) -> None:
        self.calls, self.parts, self.ordered = calls, parts, ordered
        self.users, self.outside, self.work, self.least = users, outside, work, least
        self.device_of, self.devices = device_of, devices
        self.after: dict[Node, list[Node]] = {}
        self.starts = {
            node: place
            for place, node in enumerate(ordered)
            if node in outside and is_collective(node.target)
        }

    def steps(self) -> Steps:
        """Each call's step."""
        found = self._earliest()
        if self.starts:
            for find in (self._postponed, self._used_later):
                for node, others in find(found).items():
                    self.after.setdefault(node, []).extend(others)
                found = self._earliest()
                self._sink_waits(found)
        return found

    def _earliest(self) -> Steps:
        """Each call's first step of its kind that no argument, and no call in ``after``, comes after."""
        steps: Steps = {}
        ordered, last = set(self.ordered), 0
        after = self.after
        for node in self._in_order():
            if node in self.parts:
                steps[node] = steps[self.parts[node]]
                continue
            before = [*self.calls[node], *after.get(node, ())]
            step = max((steps[each] for each in before if each in steps), default=0)
            if node in ordered:
                step = max(step, last)
            steps[node] = step = self._at_least(step, node)
            if node in ordered:
                last = step
        return steps

    def _at_least(self, step: int, node: Node) -> int:
        """The first step from this one on that is of a call's kind."""
        if node in self.outside:
            return step + step % 2
        return step + (2 * self.device_of(node) + 1 - step) % (2 * self.devices)

    def _in_order(self) -> Iterable[Node]:
        if not self.after:
            return self.calls
        graph = {
            node: [each for each in (*before, *self.after.get(node, ())) if each in self.calls]
            for node, before in self.calls.items()
        }
        for earlier, later in zip(self.ordered, self.ordered[1:]):
            graph[later].append(earlier)
        return TopologicalSorter(graph).static_order()

    # -- starts rise -----------------------------------------------------------------------------------------

    def _postponed(self, steps: Steps) -> dict[Node, list[Node]]:
        """Node → calls that it has to run after, so that collectives begin before calls they do not need."""
        needed = self._needed_by()
        waits, clusters = self._waits(steps), self._clusters(steps)
        at: dict[int, list[Node]] = {}
        for start in self.starts:
            at.setdefault(steps[start], []).append(start)
        after: dict[Node, list[Node]] = {}
        for step, starts in at.items():
            own = starts[: self._first_behind(starts, waits.get(step, ()))]
            moved = self._moved(own, clusters.get(step - 1, []), needed)
            after.update((node, [start]) for node, start in moved.items())
            if moved:
                after.update(_one_by_one(waits.get(step, ()), list(moved)))
        return after

    def _clusters(self, steps: Steps) -> dict[int, list[Node]]:
        found: dict[int, list[Node]] = {}
        for node in self.calls:
            if steps[node] % 2:
                found.setdefault(steps[node], []).append(node)
        return found

    def _waits(self, steps: Steps) -> dict[int, list[Node]]:
        """The waits of each step, in the order of the program."""
        found: dict[int, list[Node]] = {}
        for node in self.calls:
            if is_wait(node.target) and node in self.outside:
                found.setdefault(steps[node], []).append(node)
        return found

    def _moved(
        self, starts: Sequence[Node], cluster: Sequence[Node], needed: Mapping[Node, float]
    ) -> dict[Node, Node]:
        """Cluster calls that run after one of these starts, which does not need them → the last such one."""
        moved: dict[Node, Node] = {}
        before: list[Node] = []
        rest = list(cluster)
        for start in starts:
            place = self.starts[start]
            before += [node for node in rest if needed[node] <= place]
            rest = [node for node in rest if needed[node] > place]
            if self.work(before) >= self.least and self.work(rest) >= self.least:
                moved.update((node, start) for node in rest)
                before = []
        return moved

    def _first_behind(self, starts: Sequence[Node], waits: Collection[Node]) -> int:
        """The number of starts before the first that needs one of the waits."""
        behind = set(waits)
        for node, before in self.calls.items() if waits else ():
            if node not in behind and not behind.isdisjoint(before):
                behind.add(node)
        return next((place for place, node in enumerate(starts) if node in behind), len(starts))

    def _needed_by(self) -> dict[Node, float]:
        """The position in the order of the first collective that needs a call."""
        needed: dict[Node, float] = dict.fromkeys(self.calls, math.inf)
        place = {node: number for number, node in enumerate(self.ordered)}
        following, found = [math.inf] * len(self.ordered), math.inf
        for number, node in reversed(list(enumerate(self.ordered))):
            found = following[number] = number if node in self.starts else found
        for node in reversed(list(self.calls)):
            if node in place:
                needed[node] = min(needed[node], following[place[node]])
            for each in self.calls[node]:
                if each in needed:
                    needed[each] = min(needed[each], needed[node])
        return needed

    # -- waits sink ------------------------------------------------------------------------------------------

    def _used_later(self, steps: Steps) -> dict[Node, list[Node]]:
        """Node → the calls that it has to run after, so that a cluster waits only for what it needs."""
        place = {node: number for number, node in enumerate(self.calls)}
        latest: dict[Node, tuple[int, int]] = {}
        ordered, before = set(self.ordered), (-1, -1)
        for node in self._in_order():
            reached = [
                latest[each] for each in (*self.calls[node], *self.after.get(node, ())) if each in latest
            ]
            found = max(reached, default=(-1, -1))
            if node in ordered:
                found = before = max(found, before)
            if is_wait(node.target):
                found = max(found, (steps[node], place[node]))
            latest[node] = found
        clusters = self._clusters(steps)
        after: dict[Node, list[Node]] = {}
        for step, waits in self._waits(steps).items():
            rest = clusters.get(step + 1, [])
            early: list[Node] = []
            for number, wait in enumerate(waits):
                early += [node for node in rest if latest[node] < (step, place[wait])]
                rest = [node for node in rest if latest[node] >= (step, place[wait])]
                if self.work(early) >= self.least and self.work(rest) >= self.least:
                    after.update(_one_by_one(waits[number:], early))
                    early = []
        return after

    def _sink_waits(self, steps: Steps) -> None:
        """Move each wait right before its first use, so that calls until then overlap with it."""
        end = max(steps.values())
        end += end % 2
        for node in reversed(list(self.calls)):
            if is_wait(node.target) and node in self.outside:
                first = min((steps.get(user, end) for user in self.users(node)), default=end)
                steps[node] = max(steps[node], first - first % 2)


def _one_by_one(waits: Sequence[Node], after: list[Node]) -> dict[Node, list[Node]]:
    """Chain the waits: the first runs after these calls, each other one after the previous wait."""
    return dict(zip(waits, [after, *([wait] for wait in waits)]))


def in_order(
    nodes: Sequence[Node], bases: Callable[[Node], Iterable[Node]], ordered: Collection[Node]
) -> list[Node]:
    """Calls of one step in PyTorch's order: calls that need no wait come before it.

    The calls in ``ordered`` keep their order. ``bases``: the calls from which a call's arguments are
    computed.
    """
    depth: dict[Node, int] = {}
    last = 0
    for node in nodes:
        waits = [depth[each] + is_wait(each.target) for each in bases(node) if each in depth]
        depth[node] = max(waits, default=0)
        if node in ordered:
            depth[node] = last = max(depth[node], last)
    return sorted(nodes, key=lambda node: (depth[node], is_wait(node.target)))
