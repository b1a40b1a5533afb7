"""MLIR locations from the user's lines (``model.py:12 in forward``), and back."""

from __future__ import annotations

import re
from typing import Any

from torch.fx import Node

from smelt.mlir.bindings import ir

_LINE = re.compile(r"(?P<file>.+):(?P<line>\d+) in (?P<function>.+)", re.DOTALL)
_NAMED = re.compile(r'"(?P<function>[^"]*)"\("(?P<file>[^"]*)":(?P<line>\d+):\d+\)')
_PLACE = re.compile(r'"(?P<file>[^"]+)":(?P<line>\d+):\d+')
_NAME = re.compile(r'loc\("(?P<name>[^"]*)"')
_UNKNOWN = "<unknown>"


def location(where: str | None) -> Any:
    """The ``ir.Location`` of a line of the user's program (under a context).

    ``model.py:12 in forward`` becomes ``loc("forward"("model.py":12:0))``; text without a line (``module
    encoder.layer.0``) becomes a name; None and ``<unknown>`` become the unknown location.
    """
    if where is None or where == _UNKNOWN:
        return ir.Location.unknown()
    match = _LINE.fullmatch(where)
    if match is None:
        return ir.Location.name(where)
    return ir.Location.name(match["function"], ir.Location.file(match["file"], int(match["line"]), 0))


def location_of(node: Node) -> Any:
    """The ``ir.Location`` of an FX node in contract form (under a context)."""
    return location(node.meta.get("where"))


def where_of(place: Any) -> str | None:
    """The user's line for an ``ir.Location``, or for its text; None if it has none.

    >>> where_of('loc("forward"("model.py":12:0))')
    'model.py:12 in forward'
    >>> where_of('loc("model.py":3:7)'), where_of('loc("module encoder.0")'), where_of("loc(unknown)")
    ('model.py:3', 'module encoder.0', None)
    """
    text = str(place)
    named = _NAMED.search(text)
    if named is not None:
        return f"{named['file']}:{named['line']} in {named['function']}"
    line = _PLACE.search(text)
    if line is not None:
        return f"{line['file']}:{line['line']}"
    name = _NAME.search(text)
    return name["name"] if name is not None else None
