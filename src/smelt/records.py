"""Fast dataclasses, for the many records of a compilation: their creation and change cost less.

A type checker enforces ``@dataclass(frozen=True)``. At run time instances are not frozen, because Python
would set each field of a frozen instance through a checking function, which takes several times as long.
Instances are hashed and compared as frozen ones. Classes for users (`smelt.Config`) are better Python's own
dataclasses.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import field as field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
    from dataclasses import replace as replace
else:

    def dataclass(kind: type | None = None, *, frozen: bool = False, **options: Any) -> Any:
        """`dataclasses.dataclass`; ``frozen`` is left to type checkers."""
        if kind is None:
            return lambda kind: dataclass(kind, frozen=frozen, **options)
        return dataclasses.dataclass(kind, unsafe_hash=frozen and options.get("eq", True), **options)

    def replace(record: Any, /, **changes: Any) -> Any:
        """`dataclasses.replace`, with a function for each class.

        >>> from smelt.nest.ir import Advance
        >>> replace(Advance("carry0", "v3"), value="v4")
        Advance(carry='carry0', value='v4')
        """
        kind = record.__class__
        made = _replacers.get(kind)
        if made is None:
            made = _replacers[kind] = _replacer(kind)
        return made(record, **changes)


_replacers: dict[type, Callable[..., Any]] = {}


def _replacer(kind: type) -> Callable[..., Any]:
    """A function that makes an instance of ``kind`` from another one and changed fields."""
    names = [each.name for each in dataclasses.fields(kind) if each.init]
    given = ", ".join(f"{name}=_same" for name in names)
    fields = ", ".join(f"_record.{name} if {name} is _same else {name}" for name in names)
    return eval(f"lambda _record, /, *, {given}: _kind({fields})", {"_kind": kind, "_same": object()})
