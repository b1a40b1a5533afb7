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


STACK = "smelt_stack"
"""The ``node.meta`` key of the stack trace, as text, that a node's line was taken from."""


@lru_cache(maxsize=8192)
def frames(stack_trace: str) -> tuple[tuple[str, int, str], ...]:
    """(File, line, function) of each frame outside torch and its generated code, outermost first; torch's own
    if there is no other. A TorchScript frame has the line that was scripted.

    >>> frames('  File "/home/me/model.py", line 12, in forward\\n    return x + 1\\n')
    (('/home/me/model.py', 12, 'forward'),)
    """
    found = [
        (frame["file"], int(frame["line"]), frame["function"])
        for frame in _FRAME.finditer(stack_trace)
        if not frame["file"].startswith("<eval_with_key>")
    ]
    kept = [frame for frame in found if not frame[0].startswith(_TORCH)] or found
    return tuple(_scripted(*frame) for frame in kept)


def _scripted(file: str, line: int, function: str) -> tuple[str, int, str]:
    written = origin(file, line)
    if written is None:
        return file, line, function
    file, _, number = written.rpartition(":")
    return file, int(number), function


@lru_cache(maxsize=8192)
def parse(stack_trace: str) -> str | None:
    """The innermost of `frames`, for people.

    >>> parse('  File "/home/me/model.py", line 12, in forward\\n    return x + 1\\n')
    'model.py:12 in forward'
    >>> parse("nothing") is None
    True
    """
    found = frames(stack_trace)
    if not found:
        return None
    file, line, function = found[-1]
    return f"{os.path.basename(file)}:{line} in {function}"


def attach(graph: Graph) -> None:
    """Give every node ``meta["where"]``: its own line, else its forward node's, its module or an argument's;
    and `STACK`, where the line has one.

    Backward nodes share ``seq_nr`` with the forward node whose derivative they compute; if both are in one
    graph (recomputation) the line is taken from there.
    """
    by_sequence: dict[Any, str] = {}
    for node in graph.nodes:
        stack = node.meta.get("stack_trace") or ""
        found = parse(stack)
        if found is not None and node.meta.get("seq_nr") is not None:
            by_sequence.setdefault(node.meta["seq_nr"], stack)
        node.meta["where"], node.meta[STACK] = found, stack
    for node in graph.nodes:
        if node.meta["where"] is not None:
            continue
        # AOTAutograd adds copy_ at the end, with the sequence number of whatever came last.
        added = node.target is torch.ops.aten.copy_.default
        stack = "" if added else by_sequence.get(node.meta.get("seq_nr"), "")
        module, argument = module_of(node), _argument_with_line(node)
        if stack:
            node.meta["where"], node.meta[STACK] = parse(stack), stack
        elif argument is not None and (added or module is None):
            node.meta["where"], node.meta[STACK] = argument.meta["where"], argument.meta[STACK]
        else:
            node.meta["where"] = UNKNOWN if module is None else f"module {module}"


def module_of(node: Node) -> str | None:
    """The path of the innermost module that a node comes from, ``encoder.layer.0``: for some backward nodes
    the only origin.
    """
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
    if not isinstance(stack, dict) or not stack:
        return None
    path = list(stack.values())[-1]
    name = path[0] if isinstance(path, (tuple, list)) and path else None
    if not isinstance(name, str) or not name:
        return None
    return re.sub(r"^L\['\w+'\]\.?", "", name) or None


def _argument_with_line(node: Node) -> Node | None:
    """The last argument that has a line or a module."""
    for argument in reversed(node.all_input_nodes):
        if argument.op == "call_function" and argument.meta.get("where") not in (None, UNKNOWN):
            return argument
    return None
