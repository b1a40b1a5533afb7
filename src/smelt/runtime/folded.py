"""Constants computed ahead: at the first call, and again when their sources change.

Each call compares the version counter and the address of every source tensor with the earlier ones: an
in-place change (``load_state_dict``, ``copy_``, an optimizer's step) increments the version, other memory
(``p.data = …``, another module) has another address. The old memory is kept until the constants are
recomputed, so that no other tensor can have its address meanwhile. A few elements of each tensor are compared
as well (`smelt.runtime.probe`), for writes that do not change the version; docs/freezing.md lists the limits.
Tensors that change from call to call (state that a model replaces) are no constants: the program is compiled
again without them (`MOST_CHANGES`).

Programs that compute equal constants from the same tensors share them, by a weak registry: unused constants
are freed. Constants whose sources changed in place are overwritten, so their addresses stay.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any
from weakref import WeakValueDictionary

import torch

from smelt.runtime.plan import Folded, FoldedUse
from smelt.runtime.probe import Probe

Call = Callable[[list[Any]], Sequence[Any]]
Bind = Callable[[Mapping[str, torch.Tensor]], None]
Thaw = Callable[[frozenset[int]], Call]
"""Compiles the program again without constants from the arguments at these positions."""
Stamp = tuple[int, ...]

MOST_CHANGES = 8
"""Limit on the successive calls that find a source tensor changed."""

_version: Callable[[torch.Tensor], int] = torch.Tensor._version.__get__  # type: ignore[attr-defined]


def stamp_of(tensors: Sequence[torch.Tensor]) -> Stamp:
    """The tensors' version counters, then their addresses. Tensors made in inference mode have version 0."""
    try:
        return (*map(_version, tensors), *map(torch.Tensor.data_ptr, tensors))
    except RuntimeError:
        versions = (0 if each.is_inference() else each._version for each in tensors)
        return (*versions, *map(torch.Tensor.data_ptr, tensors))


class Constants:
    """The results of one run ahead; programs share them."""

    __slots__ = ("__weakref__", "lock", "probe", "seen", "stamp", "tensors")

    def __init__(self, sources: Sequence[torch.Tensor]) -> None:
        self.probe = Probe(sources)  # this keeps the sources' memory
        self.seen = 0
        self.stamp: Stamp | None = None
        self.tensors: Sequence[torch.Tensor] = ()
        self.lock = threading.Lock()

    def at(
        self, stamp: Stamp, compute: Call, sources: Sequence[torch.Tensor], doubt: bool
    ) -> Sequence[torch.Tensor]:
        """The constants of the sources with ``stamp``; always recomputed with ``doubt``."""
        with self.lock:
            seen = self.probe()
            if doubt or self.stamp != stamp or self.seen != seen:
                made = compute(list(sources))
                if self.stamp is None:
                    self.tensors = made
                else:
                    for old, new in zip(self.tensors, made):
                        old.copy_(new)
                self.stamp, self.seen = stamp, seen
            return self.tensors


_SHARED: WeakValueDictionary[tuple[Any, ...], Constants] = WeakValueDictionary()
_LOCK = threading.Lock()


def shared_constants(digest: str, sources: Sequence[torch.Tensor]) -> Constants:
    """The constants of these tensors by the computation ``digest``, for all programs of this process.

    The object holds the sources' memory: equal addresses are equal memory.
    """
    key = (digest, *(each.data_ptr() for each in sources))
    with _LOCK:
        found = _SHARED.get(key)
        if found is None:
            found = _SHARED[key] = Constants(sources)
        return found


def with_constants(
    call: Call, folded: Sequence[Folded], computes: Sequence[Call], bind: Bind, thaw: Thaw | None = None
) -> Call:
    """``call``, with its constants computed before the first call and kept up to date.

    ``computes`` run the plans of ``folded``; ``bind`` stores constants, by name, where ``call`` finds them.
    If tensors change from call to call, the result of ``thaw`` runs instead, from then on.
    """
    keeper = _Keeper(call, folded, computes, bind, thaw)

    def checked(args: list[Any]) -> Sequence[Any]:
        if keeper.frozen:
            if keeper.holds(args):
                keeper.changes = 0
            else:
                keeper.renew(args)
        # constants that another thread replaces meanwhile must outlive this call
        held = keeper.held  # noqa: F841
        return keeper.run(args)

    return checked


class _Keeper:
    """The constants of a program, which ``run`` runs. ``positions``: the arguments that they are computed
    from.
    """

    def __init__(
        self, run: Call, folded: Sequence[Folded], computes: Sequence[Call], bind: Bind, thaw: Thaw | None
    ) -> None:
        self.run, self.frozen = run, True
        uses = [(each.digest, run, use) for each, run in zip(folded, computes) for use in each.uses]
        self.uses: list[tuple[str, Call, FoldedUse]] = uses
        self.positions = sorted({position for _, _, use in uses for position in use.sources})
        self.bind, self.thaw = bind, thaw
        self.pick = picker(self.positions)
        self.seen: tuple[Stamp, Probe, int] | None = None
        """The current source arguments: their stamp, their probe, the probe's result."""
        self.held: list[Constants | None] = [None] * len(uses)
        self.changes, self.changing = 0, frozenset[int]()
        """The number of successive calls that have found the arguments ``changing`` changed."""
        self.lock = threading.Lock()

    def holds(self, args: list[Any]) -> bool:
        """Whether the constants are up to date for these arguments."""
        seen = self.seen
        return seen is not None and stamp_of(self.pick(args)) == seen[0] and seen[1]() == seen[2]

    def renew(self, args: list[Any]) -> None:
        """Recomputes the constants with changed sources; all of them if only the probe has noticed a write,
        because writes without versions often affect several tensors.
        """
        with self.lock, torch.inference_mode(False), torch.no_grad():
            if not self.frozen or self.holds(args):
                return  # another thread was faster
            sources = self.pick(args)
            stamp, before = stamp_of(sources), () if self.seen is None else self.seen[0]
            if self._is_unsettled(before, stamp) and self.thaw is not None:
                self.run, self.frozen = self.thaw(self.changing), False
                self.seen, self.held = None, []
                return
            probe = Probe(sources)
            seen = stamp, probe, probe()
            held: list[Constants | None] = [
                self._constants(use, sources, stamp, stamp == before) for use in range(len(self.uses))
            ]
            self.held = held
            self.seen = seen if stamp_of(sources) == stamp else None  # or else written to at this very moment

    def _is_unsettled(self, before: Stamp, stamp: Stamp) -> bool:
        """Whether the same arguments have changed at each of the last `MOST_CHANGES` calls."""
        pairs = zip(2 * self.positions, zip(before, stamp))
        changed = frozenset(position for position, (old, new) in pairs if old != new)
        self.changing = changed & self.changing if self.changes else changed
        self.changes = self.changes + 1 if self.changing else 0
        return self.changes > MOST_CHANGES

    def _constants(
        self, number: int, sources: Sequence[torch.Tensor], stamp: Stamp, doubt: bool
    ) -> Constants:
        digest, compute, use = self.uses[number]
        places = [self.positions.index(position) for position in use.sources]
        own = [sources[at] for at in places]
        stamp_of_own = (*(stamp[at] for at in places), *(stamp[len(sources) + at] for at in places))
        found = shared_constants(digest, own)
        made = found.at(stamp_of_own, compute, own, doubt)
        if found is not self.held[number]:
            self.bind(dict(zip(use.results, made)))
        return found


def picker(positions: Sequence[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """A function that returns the elements at these positions.

    >>> picker([2, 0])("abc"), picker([1])("abc")
    (('c', 'a'), ('b',))
    """
    if len(positions) > 1:
        return itemgetter(*positions)
    return lambda arguments: tuple(arguments[position] for position in positions)
