"""The line of the user's program that a node comes from."""

from __future__ import annotations

import os
import re
from functools import lru_cache
from typing import Any

import torch
from torch.fx import Graph, Node

from smelt.capture.torchscript import origin

UNKNOWN = "<unknown>"

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)')
_TORCH = os.path.dirname(torch.__file__) + os.sep


@lru_cache(maxsize=8192)
def parse(stack_trace: str) -> str | None:
    """The innermost frame outside torch and its generated code; torch's own if there is no other. A
    TorchScript frame has the line that was scripted.

    >>> parse('  File "/home/me/model.py", line 12, in forward\\n    return x + 1\\n')
    'model.py:12 in forward'
    >>> parse("nothing") is None
    True
    """
    frames = [
        frame for frame in _FRAME.finditer(stack_trace) if not frame["file"].startswith("<eval_with_key>")
    ]
    if not frames:
        return None
    own = [frame for frame in frames if not frame["file"].startswith(_TORCH)]
    frame = (own or frames)[-1]
    scripted = origin(frame["file"], int(frame["line"]))
    if scripted is not None:
        return f"{scripted} in {frame['function']}"
    return f"{os.path.basename(frame['file'])}:{frame['line']} in {frame['function']}"


def attach(graph: Graph) -> None:
    """Give every node ``meta["where"]``: its own line, else its forward node's, its module or an argument's.

    Backward nodes share ``seq_nr`` with the forward node whose derivative they compute; if both are in one
    graph (recomputation) the line is taken from there.
    """
    by_sequence: dict[Any, str] = {}
    for node in graph.nodes:
        found = parse(node.meta.get("stack_trace") or "")
        if found is not None and node.meta.get("seq_nr") is not None:
            by_sequence.setdefault(node.meta["seq_nr"], found)
        node.meta["where"] = found
    for node in graph.nodes:
        if node.meta["where"] is None:
            # AOTAutograd adds copy_ at the end, with the sequence number of whatever came last.
            added = node.target is torch.ops.aten.copy_.default
            node.meta["where"] = (
                (_from_arguments(node) if added else by_sequence.get(node.meta.get("seq_nr")))
                or _from_module(node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack"))
                or _from_arguments(node)
                or UNKNOWN
            )


def _from_module(stack: Any) -> str | None:
    """The innermost module's path, ``module encoder.layer.0``, the only origin of some backward nodes."""
    if not isinstance(stack, dict) or not stack:
        return None
    path = list(stack.values())[-1]
    name = path[0] if isinstance(path, (tuple, list)) and path else None
    if not isinstance(name, str) or not name:
        return None
    return "module " + re.sub(r"^L\['\w+'\]\.?", "", name) if name else None


def _from_arguments(node: Node) -> str | None:
    for argument in reversed(node.all_input_nodes):
        where = argument.meta.get("where")
        if argument.op == "call_function" and where not in (None, UNKNOWN):
            return where
    return None
