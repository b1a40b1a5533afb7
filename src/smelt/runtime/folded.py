"""Constants computed ahead: made at the first call, kept, made again where what they are made of changes.

Each call compares the version counter and the address of every tensor that constants are made of with what
they were: an in-place change (``load_state_dict``, ``copy_``, an optimizer's step) counts the version up,
other memory (``p.data = …``, another module) has another address. The old memory is kept until the constants
are made anew, so that nothing else can have its address meanwhile. A few elements of each tensor are looked
at too (`smelt.runtime.probe`), for what counts no version up; docs/freezing.md has what is not noticed.
Tensors that change from call to call (state that a model replaces) are no constants: the program is compiled
again without them (`MOST_CHANGES`).

Programs that make equal constants of equal tensors share them, by a weak registry: what nobody uses any more
goes. Constants whose sources changed in place are overwritten, so their addresses stay.
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
"""Compiles the program again, for which the arguments at these positions are no constants."""
Stamp = tuple[int, ...]

MOST_CHANGES = 8
"""How many calls in a row may find a tensor changed that constants are made of."""

_version: Callable[[torch.Tensor], int] = torch.Tensor._version.__get__  # type: ignore[attr-defined]


def stamp_of(tensors: Sequence[torch.Tensor]) -> Stamp:
    """The tensors' version counters, then their addresses. Those made in inference mode count nothing: 0."""
    try:
        return (*map(_version, tensors), *map(torch.Tensor.data_ptr, tensors))
    except RuntimeError:
        versions = (0 if each.is_inference() else each._version for each in tensors)
        return (*versions, *map(torch.Tensor.data_ptr, tensors))


class Constants:
    """The results of one run ahead; programs share it."""

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
        """The constants of the sources as they are with ``stamp``; made anew in any case with ``doubt``."""
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
    """What is made of these tensors by the computation ``digest``, for all programs of this process.

    While it lives it holds the sources' memory: equal addresses are equal memory.
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
    """``call``, with its constants made before the first call and kept up to date.

    ``computes`` run the plans of ``folded``; ``bind`` puts constants, by name, where ``call`` finds them.
    What ``thaw`` gives for the tensors that change from call to call runs in its place, from then on.
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
    """The constants of a program, which ``run`` runs. ``positions``: the arguments that they are made of."""

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
        """The arguments that the constants are of: their stamp, where to look, what was seen there."""
        self.held: list[Constants | None] = [None] * len(uses)
        self.changes, self.changing = 0, frozenset[int]()
        """How many calls in a row have found the arguments ``changing`` changed."""
        self.lock = threading.Lock()

    def holds(self, args: list[Any]) -> bool:
        """Whether the constants are of these arguments as they are now."""
        seen = self.seen
        return seen is not None and stamp_of(self.pick(args)) == seen[0] and seen[1]() == seen[2]

    def renew(self, args: list[Any]) -> None:
        """Make those constants anew whose sources are not what they were; all of them, where it is only seen
        that something was written: who counts no versions up has often written to more.
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
    """A function that gives the elements at these positions.

    >>> picker([2, 0])("abc"), picker([1])("abc")
    (('c', 'a'), ('b',))
    """
    if len(positions) > 1:
        return itemgetter(*positions)
    return lambda arguments: tuple(arguments[position] for position in positions)
