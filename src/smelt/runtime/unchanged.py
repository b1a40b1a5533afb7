"""Is an object, with all that it holds, what it was? One native call that reads some words of memory.

CPython gives every dict a version that no other dict ever has, and a new one with every change (PEP 509; not
from 3.12 on: nothing is watched there). An object whose type, ``__dict__`` and the version of that are what
they were has the same attributes, so the objects and dicts among these are alive, and where they were; and
so on down. Classes have versions too. Functions and cells are compared as they are in memory, and what can
change of a tensor without its dict: its dtype, sizes, strides and dispatch keys.
"""

from __future__ import annotations

import ctypes
import enum
import sys
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from types import CellType, FunctionType, ModuleType
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


class Step(enum.Enum):
    """From an object to one that is not its attribute."""

    TYPE = "type"


@dataclass(slots=True)
class Tree:
    """What is watched of an object, by name: attributes of an object, of its own ``__dict__``; items of a
    dict or tuple; what stands in a class itself, and by number in ``__mro__``; with `Step.TYPE` its class.
    """

    parts: dict[Any, Tree] = field(default_factory=dict)

    def at(self, path: tuple[Any, ...]) -> Tree:
        """The part at the end of ``path``, made where there was none."""
        tree = self
        for name in path:
            tree = tree.parts.setdefault(name, Tree())
        return tree


class Unwatchable(Exception):  # noqa: N818  (an answer, no error)
    """Something in the tree is not there, or is nothing whose changes can be seen."""


def watched(*roots: tuple[Any, Tree]) -> Asked | None:
    """A function that says whether everything in these objects' trees is what it is now; None where that
    cannot be asked.

    It may be called only while the objects live, and keeps nothing alive.

    >>> layer = nn.Linear(2, 2)
    >>> tree = Tree()
    >>> _ = tree.at(("_parameters", "bias"))
    >>> asked = watched((layer, tree))
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
        places = [place for value, tree in roots for place in _places(value, tree, objects)]
    except Unwatchable:
        return None
    words = [word for address, count in places for word in watch.words_at(address, count)]
    numbers = [number for place in places for number in place]
    return maker(
        bytes(
            (ctypes.c_int64 * (1 + len(numbers) + 2 * _AHEAD + len(words)))(
                len(places), *numbers, *([0] * 2 * _AHEAD), *words
            )
        )
    )


_FUNCTION_PARTS = ("__code__", "__defaults__", "__kwdefaults__", "__closure__")
_PARTS: dict[type, tuple[str, ...]] = {FunctionType: _FUNCTION_PARTS, property: ("fget", "fset", "fdel")}
"""What these objects have besides what is in their own ``__dict__``; that of a function is not watched."""


def part_of(value: Any, name: Any) -> Any:
    """What a tree calls ``name`` in ``value``.

    Raises:
        Unwatchable: there is no such part, or nobody could see that it has changed.
    """
    if name is Step.TYPE:
        return type(value)
    try:
        if type(value) in (dict, OrderedDict):
            return value[name]
        if type(value) is tuple and type(name) is int:
            return value[name]
        if isinstance(value, type):
            return value.__mro__[name] if type(name) is int else vars(value)[name]
        if type(value) in _PARTS:
            if name in _PARTS[type(value)]:
                return getattr(value, name)
            raise Unwatchable
        if type(value) is CellType:
            return value.cell_contents
        own = _attributes(value)
        of_classes = (vars(cls)[name] for cls in type(value).__mro__ if name in vars(cls))
        if own is not None and not any(hasattr(type(each), "__set__") for each in of_classes):
            return own[name]
    except (LookupError, ValueError):  # ValueError: an empty cell
        pass
    raise Unwatchable


def _attributes(value: Any) -> Any:
    """An object's own ``__dict__``, None where it has none; tensors' are not looked at."""
    if isinstance(value, Tensor):
        return None
    try:
        return object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None


def _places(value: Any, tree: Tree, objects: Objects) -> Iterator[tuple[int, int]]:
    """(address, number of words) of all that tells: what holds something comes before it."""
    yield from _own_places(value, tree, objects)
    for name, part in tree.parts.items():
        yield from _places(part_of(value, name), part, objects)


def _own_places(value: Any, tree: Tree, objects: Objects) -> Iterator[tuple[int, int]]:
    kind = type(value)
    if isinstance(value, Tensor):
        if value.dim() > MOST_DIMS or kind not in (Tensor, nn.Parameter):
            raise Unwatchable
        yield id(value) + _TYPE, 1
        yield id(value) + objects.tensor, 1
        yield value._cdata + objects.sizes, objects.words_of(value)
    elif kind in (dict, OrderedDict):
        yield id(value) + objects.version, 1
    elif isinstance(value, type):
        yield from objects.of_class(value)
    elif kind is FunctionType:
        if tree.parts:
            yield id(value) + objects.function, objects.function_words
    elif kind is CellType:
        if tree.parts:
            yield id(value) + objects.cell, 1
    elif kind is ModuleType:
        if tree.parts:
            yield id(vars(value)) + objects.version, 1
    elif _attributes(value) is not None:
        slot, attributes = objects.slot_of(value)
        yield id(value) + _TYPE, 1
        yield slot, 1
        yield id(attributes) + objects.version, 1
        if not isinstance(value, nn.Module):
            yield from objects.of_class(kind)
    elif tree.parts and kind is not tuple:
        yield id(value) + _TYPE, 1


@lru_cache(maxsize=1)
def _maker() -> Callable[[bytes], Asked] | None:
    """What makes a function of a table; None where it cannot be had."""
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
    TensorImpl, from which on it has what is compared; of a function's code, defaults and closure, which are
    among ``function_words``; of a cell's content; of a class's flags and version.
    """

    version: int
    tensor: int
    sizes: int
    function: int
    function_words: int
    cell: int
    class_flags: int
    class_version: int
    slot: Callable[[Any], int]
    usable: Callable[[int], int]

    def slot_of(self, value: Any) -> tuple[int, dict[str, Any]]:
        """Where an object has the address of its ``__dict__``, and that."""
        attributes = object.__getattribute__(value, "__dict__")
        slot = self.slot(value)
        if type(attributes) is not dict or not slot or watch.words_at(slot, 1) != [id(attributes)]:
            raise Unwatchable
        return slot, attributes

    def of_class(self, value: type) -> Iterator[tuple[int, int]]:
        """The places that tell whether a class, or a base of it, has changed."""
        getattr(value, "__init__")  # noqa: B009  (a class has a version from its first lookup on)
        if not watch.words_at(id(value) + self.class_version, 1)[0]:
            raise Unwatchable
        yield id(value) + self.class_flags, 1
        yield id(value) + self.class_version, 1

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
                _version_offset(),
                layout.tensor,
                _sizes_offset(),
                *_function_offset(),
                _cell_offset(),
                *_class_offsets(),
                lambda value: slot(value) or 0,
                usable,
            )
            _try_attributes(found)
            _try_tensors(found)
            _try_functions(found)
            _try_classes(found)
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


def _function() -> FunctionType:
    factor = 3

    def function(count: int = 1, *, more: int = 2) -> int:
        return factor * count + more

    assert isinstance(function, FunctionType)
    return function


def _function_offset() -> tuple[int, int]:
    """Where a function's parts begin, in bytes, and how many words they take."""
    subject = _function()
    words = watch.words_at(id(subject), 16)
    parts = [id(part_of(subject, name)) for name in _FUNCTION_PARTS]
    places = [watch.only(at for at, word in enumerate(words) if word == part) for part in parts]
    return 8 * min(places), max(places) - min(places) + 1


def _cell_offset() -> int:
    subject = CellType(content := object())
    return 8 * watch.only(at for at, word in enumerate(watch.words_at(id(subject), 4)) if word == id(content))


def _class_offsets() -> tuple[int, int]:
    class Subject:
        pass

    count: int = vars(type)["__basicsize__"].__get__(type) // 8
    words = watch.words_at(id(Subject), count)
    flags = watch.only(at for at, word in enumerate(words) if word == Subject.__flags__)
    seen = []
    for turn in range(4):
        setattr(Subject, "one", turn)  # noqa: B010  (unknown to its class)
        assert getattr(Subject, "one") == turn  # noqa: B009
        seen.append(watch.words_at(id(Subject), count))
    changing = (at for at in range(2, len(words)) if len({each[at] for each in seen}) == len(seen))
    return 8 * flags, 8 * watch.only(changing)


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


def _try_functions(objects: Objects) -> None:
    """The words of a function must change with its code, its defaults and nothing else."""
    subject, other = _function(), _function()

    def words() -> list[int]:
        return watch.words_at(id(subject) + objects.function, objects.function_words)

    seen = [words()]
    subject(1)
    subject.note, subject.__doc__ = 1, "text"  # type: ignore[attr-defined]
    alive = weakref.ref(subject)
    if words() != seen[0] or alive() is None:
        raise LookupError
    for name, value in (
        ("__code__", other.__code__.replace(co_name="other")),
        ("__defaults__", (object(),)),
        ("__kwdefaults__", {"more": object()}),
    ):
        setattr(subject, name, value)
        seen.append(words())
    if len({tuple(each) for each in seen}) != len(seen):
        raise LookupError


def _try_classes(objects: Objects) -> None:
    """A class has another version after every change of it, or of a class it inherits from; and at once."""

    class Base:
        one = 0

    class Subject(Base):
        pass

    class Other:
        one = 0

    seen = set()

    def note() -> None:
        seen.add(tuple(watch.words_at(address, 1)[0] for address, _ in objects.of_class(Subject)))

    def changed(change: Callable[[], Any]) -> None:
        before = [watch.words_at(address, count) for address, count in objects.of_class(Subject)]
        change()
        places = (id(Subject) + objects.class_flags, id(Subject) + objects.class_version)
        if [watch.words_at(place, 1) for place in places] == before:
            raise LookupError
        note()

    note()
    for turn in range(16):
        changed(lambda: setattr(Subject, "two", turn))  # noqa: B023  (called at once)
        changed(lambda: setattr(Base, "one", turn))  # noqa: B023
        changed(lambda: delattr(Subject, "two"))
    changed(lambda: setattr(Subject, "__bases__", (Other,)))
    if len(seen) != 1 + 3 * 16 + 1:
        raise LookupError
