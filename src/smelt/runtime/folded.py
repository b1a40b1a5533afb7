"""Constants computed ahead: made at the first call, kept, made again where what they are made of changes.

Each call compares the version counter and the address of every tensor that constants are made of with what
they were: an in-place change (``load_state_dict``, ``copy_``, an optimizer's step) counts the version up,
other memory (``p.data = …``, another module) has another address. The old memory is kept until the constants
are made anew, so that nothing else can have its address meanwhile. A few elements of each tensor are looked
at too (`smelt.runtime.probe`), for what counts no version up. `smelt.runtime.watch` is quick at that;
docs/freezing.md has what is not noticed.

Programs that make equal constants of equal tensors share them, by a weak registry: what nobody uses any more
goes. Constants whose sources changed in place are overwritten, so their addresses stay.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import WeakValueDictionary

import torch

from smelt.runtime.plan import Folded, FoldedUse
from smelt.runtime.probe import Probe
from smelt.runtime.watch import Stamp, Watch, picker, stamp_of

Call = Callable[[list[Any]], tuple[Any, ...]]
Bind = Callable[[Mapping[str, torch.Tensor]], None]


class Constants:
    """The results of one run ahead; programs share it."""

    __slots__ = ("__weakref__", "lock", "probe", "seen", "stamp", "tensors")

    def __init__(self, sources: Sequence[torch.Tensor]) -> None:
        self.probe = Probe(sources)  # this keeps the sources' memory
        self.seen = 0
        self.stamp: Stamp | None = None
        self.tensors: tuple[torch.Tensor, ...] = ()
        self.lock = threading.Lock()

    def at(
        self, stamp: Stamp, compute: Call, sources: Sequence[torch.Tensor], doubt: bool
    ) -> tuple[torch.Tensor, ...]:
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


def with_constants(call: Call, folded: Sequence[Folded], computes: Sequence[Call], bind: Bind) -> Call:
    """``call``, with its constants made before the first call and kept up to date.

    ``computes`` run the plans of ``folded``; ``bind`` puts constants, by name, where ``call`` finds them.
    """
    keeper = _Keeper(folded, computes, bind)

    def checked(args: list[Any]) -> tuple[Any, ...]:
        if keeper.look(args) != keeper.seen:
            keeper.renew(args)
        # constants that another thread replaces meanwhile must outlive this call
        held = keeper.held  # noqa: F841
        return call(args)

    return checked


class _Keeper:
    """The constants of one program. ``positions``: the arguments that they are made of."""

    def __init__(self, folded: Sequence[Folded], computes: Sequence[Call], bind: Bind) -> None:
        uses = [(each.digest, run, use) for each, run in zip(folded, computes) for use in each.uses]
        self.uses: list[tuple[str, Call, FoldedUse]] = uses
        self.positions = sorted({position for _, _, use in uses for position in use.sources})
        self.bind = bind
        self.pick = picker(self.positions)
        self.stamp: Stamp | None = None
        self.probe, self.content = Probe(()), 0
        self.look: Callable[[list[Any]], int] = lambda args: -1
        self.seen: int | None = None
        self.held: list[Constants | None] = [None] * len(uses)
        self.watch: Watch | None = None
        self.lock = threading.Lock()

    def renew(self, args: list[Any]) -> None:
        """Make those constants anew whose sources are not what they were; all of them, where it is only seen
        that something was written: who counts no versions up has often written to more.
        """
        with self.lock, torch.inference_mode(False), torch.no_grad():
            if self.look(args) == self.seen:
                return  # another thread was faster
            sources = self.pick(args)
            stamp = stamp_of(sources)
            doubt = stamp == self.stamp and self.probe() != self.content
            watch, probe = Watch(self.positions, args), Probe(sources)
            seen, content = watch.look(args), probe()
            held: list[Constants | None] = [
                self._constants(use, sources, stamp, doubt) for use in range(len(self.uses))
            ]
            self.watch, self.held = watch, held
            self.probe, self.content, self.stamp = probe, content, stamp
            self.seen = seen if seen >= 0 else None  # written to at this very moment: look again next time
            self.look = watch.look

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
