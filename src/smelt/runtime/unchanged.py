"""Is a module, with all that it holds, what it was? One native call that reads some words of memory.

CPython gives every dict a version that no other dict ever has, and a new one with every change (PEP 509; not
from 3.12 on: nothing is watched there). A module whose type, ``__dict__`` and the version of that are what
they were has the same attributes, so the modules and dicts among these are alive, and where they were; and
so on down. What can change without its dict is a tensor: its dtype, sizes, strides and dispatch keys are
compared too, as they are in memory.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from smelt.runtime import probe, watch

MOST_DIMS = 5
"""Sizes of tensors with more dimensions are not in the tensor's own memory."""
_AHEAD = 16
_TYPE = 8
"""Where an object's type is: behind the count of its references."""

Asked = Callable[[], bool]


@dataclass(slots=True)
class Tree:
    """What is watched of an object: for a module its attributes, for a dict its items, by their names."""

    parts: dict[Any, Tree] = field(default_factory=dict)

    def at(self, path: tuple[Any, ...]) -> Tree:
        """The part at the end of ``path``, made where there was none."""
        tree = self
        for name in path:
            tree = tree.parts.setdefault(name, Tree())
        return tree


class Unwatchable(Exception):  # noqa: N818  (an answer, no error)
    """Something in the tree is not there, or is nothing whose changes can be seen."""


def watched(module: nn.Module, tree: Tree) -> Asked | None:
    """A function that says whether everything in ``tree`` is what it is now; None where that cannot be asked.

    It may be called only while ``module`` lives, and keeps nothing alive.

    >>> layer = nn.Linear(2, 2)
    >>> tree = Tree()
    >>> _ = tree.at(("_parameters", "bias"))
    >>> asked = watched(layer, tree)
    >>> layer.weight.data = torch.ones(3, 2)  # not in the tree
    >>> asked is None or asked()
    True
    >>> layer.bias.data = torch.ones(3)
    >>> asked is not None and asked()
    False
    """
    maker, objects = _maker(), None if why_not() else _objects()
    if maker is None or objects is None:
        return None
    try:
        places = list(_places(module, tree, objects))
    except Unwatchable:
        return None
    words = [word for address, count in places for word in watch.words_at(address, count)]
    pool = (ctypes.c_int64 * len(words))(*words)
    numbers = [number for place in places for number in place]
    table = (ctypes.c_int64 * (2 + len(numbers) + 2 * _AHEAD))(len(places), ctypes.addressof(pool), *numbers)
    ask = maker(ctypes.addressof(table))

    def asked(keep: Any = (pool, table)) -> bool:
        return ask()

    return asked


def _places(value: Any, tree: Tree, objects: Objects) -> Iterator[tuple[int, int]]:
    """(address, number of words) of all that tells: what holds something comes before it."""
    if isinstance(value, nn.Module):
        slot, attributes = objects.slot_of(value)
        yield id(value) + _TYPE, 1
        yield slot, 1
        value = attributes
    if type(value) is dict:
        yield id(value) + objects.version, 1
        for name, part in tree.parts.items():
            if name not in value:
                raise Unwatchable
            yield from _places(value[name], part, objects)
    elif isinstance(value, Tensor):
        if value.dim() > MOST_DIMS or type(value) not in (Tensor, nn.Parameter):
            raise Unwatchable
        yield id(value) + _TYPE, 1
        yield id(value) + objects.tensor, 1
        yield value._cdata + objects.sizes, objects.words_of(value)
    elif tree.parts:
        raise Unwatchable


@lru_cache(maxsize=1)
def _maker() -> Callable[[int], Asked] | None:
    """What makes a function of a table's address; None where it cannot be had."""
    library = probe.native_library()
    if library is None:
        return None
    try:
        maker = ctypes.PyDLL(str(library.path)).smelt_unchanged  # it makes Python objects: with the GIL
    except (OSError, AttributeError):
        return None
    maker.restype, maker.argtypes = ctypes.py_object, [ctypes.py_object]
    return maker


def why_not() -> str | None:
    """Why nothing can be watched here; None where it can."""
    if sys.implementation.name != "cpython" or sys.version_info >= (3, 12):
        return "this Python's dicts have no versions"
    return "PyTorch's or Python's objects are not as they were expected" if _objects() is None else None


def ready() -> bool:
    """Whether `watched` would not wait for a compiler."""
    job = probe.start()
    return job is not None and job.done()


# -- where things are in objects ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Objects:
    """Offsets in bytes: of a dict's version; of the TensorImpl in a tensor; of the number of dimensions in a
    TensorImpl, from which on it has what is compared.
    """

    version: int
    tensor: int
    sizes: int
    slot: Callable[[Any], int]
    usable: Callable[[int], int]

    def slot_of(self, value: Any) -> tuple[int, dict[str, Any]]:
        """Where an object has the address of its ``__dict__``, and that."""
        attributes = object.__getattribute__(value, "__dict__")
        slot = self.slot(value)
        if type(attributes) is not dict or not slot or watch.words_at(slot, 1) != [id(attributes)]:
            raise Unwatchable
        return slot, attributes

    def words_of(self, tensor: Tensor) -> int:
        """How many words of the tensor's TensorImpl are compared: up to the end of its memory."""
        words = (self.usable(tensor._cdata) - self.sizes) // 8
        if not 0 < words <= 32:
            raise Unwatchable
        return words


class _Subject:
    pass


@lru_cache(maxsize=1)
def _objects() -> Objects | None:
    """Where things are; None where they are not found, or do not change as they have to."""
    layout = watch._layout()
    if layout is None:
        return None
    try:
        slot = ctypes.pythonapi._PyObject_GetDictPtr
        usable = ctypes.CDLL(None).malloc_usable_size
    except (AttributeError, OSError, TypeError):
        return None
    slot.restype, slot.argtypes = ctypes.c_void_p, [ctypes.py_object]
    usable.restype, usable.argtypes = ctypes.c_size_t, [ctypes.c_void_p]
    with torch.inference_mode(False), torch.no_grad():
        try:
            found = Objects(
                _version_offset(), layout.tensor, _sizes_offset(), lambda value: slot(value) or 0, usable
            )
            _try_attributes(found)
            _try_tensors(found)
        except (LookupError, Unwatchable):
            return None
    return found


def _version_offset() -> int:
    subject = {"one": object()}
    seen = []
    for _ in range(4):
        subject["one"] = object()
        seen.append(watch.words_at(id(subject), 6)[2:])
    return 8 * (2 + watch.only(at for at in range(4) if len({each[at] for each in seen}) == len(seen)))


def _sizes_offset() -> int:
    words = watch.words_at(torch.zeros(7, 5)._cdata, watch.SCANNED)
    return 8 * watch.only(at for at in range(2, len(words) - 2) if words[at : at + 3] == [2, 7, 5])


def _try_attributes(objects: Objects) -> None:
    """Versions must change with every way to change a ``__dict__``, also where the interpreter is quick."""
    subject = _Subject()
    slot, attributes = objects.slot_of(subject)
    seen = set()

    def note() -> None:
        assert objects.slot_of(subject)[0] == slot
        seen.add(watch.words_at(id(attributes) + objects.version, 1)[0])

    changes: list[Callable[[int], Any]] = [
        lambda turn: setattr(subject, "one", turn),
        lambda turn: attributes.update(one=-turn),
        lambda turn: attributes.__setitem__("two", turn),
        lambda turn: attributes.pop("two"),
        lambda turn: object.__setattr__(subject, "one", [turn]),
        lambda turn: delattr(subject, "one"),
        lambda turn: attributes.setdefault("three", turn),
        lambda turn: attributes.clear(),
    ]
    note()
    for turn in range(1, 33):
        for change in changes:
            change(turn)
            note()
    for turn in range(64):
        subject.quick = turn + 1000  # type: ignore[attr-defined]
        note()
    if len(seen) != 1 + 32 * len(changes) + 64:
        raise LookupError


def _try_tensors(objects: Objects) -> None:
    """The words of a tensor must change with its dtype, sizes and strides, and with nothing else."""
    subject = nn.Parameter(torch.zeros(6, 4))

    def words() -> list[int]:
        return watch.words_at(subject._cdata + objects.sizes, objects.words_of(subject))

    seen = [words()]
    subject.mul_(2)
    subject.data = torch.ones(6, 4)
    if words() != seen[0]:
        raise LookupError
    for other in (torch.ones(4, 6), torch.ones(6, 4).t(), torch.ones(24), torch.ones(2, 3, 2, 2, 1)):
        subject.data = other
        seen.append(words())
    for dtype in (torch.float64, torch.bfloat16, torch.float16, torch.complex64):
        subject.data = torch.ones(6, 4, dtype=dtype)
        seen.append(words())
    subject.data = torch.ones(6, 4, dtype=torch.complex64).conj()
    seen.append(words())
    if len({tuple(each) for each in seen}) != len(seen):
        raise LookupError
