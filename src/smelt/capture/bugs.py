"""Handling of smelt's own errors: detection, the operator to blame, and the reproducer file.

An unexpected exception while smelt compiles a program, or runs the compiled program, is a bug of smelt and
does not end the user's program: PyTorch runs the graph (or the one operator), the bug is reported and logged
once, and a reproducer file is kept (`smelt repro`). With ``SMELT_STRICT=1`` it is raised.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import fields
from types import FrameType
from typing import Any

from torch.fx import GraphModule, Node

from smelt.capture.program import Program
from smelt.capture.repro import repro_text
from smelt.config import Config
from smelt.errors import InternalError, SmeltError, Unsupported, is_input
from smelt.loops import ir
from smelt.runtime import repros

COMPILING, RUNNING = "SM0505", "SM0506"

_SMELT = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_FLOORS = tuple(os.path.join(_SMELT, name) + os.sep for name in ("lowering", "loops", "schedule", "codegen"))
_PLAN = "<smelt plan>"
_COMPILERS = tuple(os.path.join(_SMELT, name) for name in ("pipeline.py", "tuning.py"))
_OF_ATEN = (RuntimeError, IndexError, ValueError, NotImplementedError, TypeError, MemoryError)
"""Exceptions that ATen raises like eager, or that the checks of a plan raise."""

Blamed = tuple[str, str | None]
"""An operator and the user's line that calls it."""

Call = Callable[[list[Any]], Sequence[Any]]


def is_bug(error: BaseException) -> bool:
    """Whether an exception while smelt compiles a program is smelt's fault."""
    if isinstance(error, SmeltError):
        return not is_input(error)
    return isinstance(error, Exception) and not isinstance(error, Unsupported)


def is_bug_of_run(error: BaseException) -> bool:
    """Whether an exception while a compiled program runs, or is traced, is smelt's fault: most of these
    exceptions occur in eager as well.
    """
    if isinstance(error, SmeltError):
        return is_bug(error)
    files = [frame.f_code.co_filename for frame in _frames(error)]
    if any(file.startswith(_COMPILERS) for file in files):
        return is_bug(error)  # it was compiled, or measured, at its first call
    own = bool(files) and (files[0] == _PLAN or files[0].startswith(_SMELT))
    return own and is_bug(error) and (not isinstance(error, _OF_ATEN) or isinstance(error, RecursionError))


def bug_of_graph(
    error: BaseException,
    graph_module: GraphModule,
    inputs: Sequence[Any],
    config: Config,
    code: str = COMPILING,
) -> InternalError:
    """The message about a bug; the reproducer is kept in a file.

    Raises:
        InternalError: with `Config.strict`, this message.
    """
    if isinstance(error, InternalError):
        return error
    op, where = _blamed(error)
    doing = "while running" if code == RUNNING else "in"
    subject = op or "a graph"
    lines = str(error).splitlines()
    cause = f"{type(error).__name__}: {lines[0] if lines else ''}"
    what = f"a bug of smelt {doing} {subject}: {cause}"
    kept = _kept(graph_module, inputs, f"{code}: {what}" + (f" (at {where})" if where else ""), config)
    remedy = f"smelt repro {kept}; please report it" if kept else "please report it"
    why = "\n       ".join(lines[1:9]) or None
    found = InternalError(code, what, where=where, why=why, remedy=remedy)
    found.__cause__ = error
    if config.strict:
        raise found from error
    return found


def bug_of_program(
    error: BaseException, program: Program, config: Config, code: str = COMPILING
) -> InternalError:
    """`bug_of_graph` for one of AOTAutograd's graphs."""
    return bug_of_graph(error, program.graph_module, program.example_inputs, config, code)


def or_by_pytorch(
    compiled: Call, program: Program, config: Config, run_by_pytorch: Call, record: Callable[[str], None]
) -> Call:
    """``compiled``; if it fails by a bug, PyTorch runs the program, from then on.

    Arguments are kept for that until the program has proved to work: at the first call, and at each call with
    dynamic sizes.
    """
    sizes = bool(program.size_inputs) and program.kind != "backward"
    keeps, broken = True, False

    def call(args: list[Any]) -> Sequence[Any]:
        nonlocal keeps, broken
        if broken:
            return run_by_pytorch(args)
        kept = [*args] if keeps else None
        try:
            results = compiled(args)
        except Exception as error:
            if not is_bug_of_run(error):
                raise
            found = bug_of_program(error, program, config, RUNNING)
            broken = True
            record(str(found))
            if kept is None:
                raise found from error
            return run_by_pytorch(kept)
        keeps = sizes
        return results

    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def _kept(graph_module: GraphModule, inputs: Sequence[Any], title: str, config: Config) -> str | None:
    """The path of the program's reproducer file; None if the program cannot be written down."""
    plain = Config()
    chosen = {
        each.name: getattr(config, each.name)
        for each in fields(config)
        if getattr(config, each.name) != getattr(plain, each.name) and each.name not in ("strict", "verify")
    }
    with suppress(Exception):  # a program without a text form must not hide the bug
        text = repro_text(graph_module, inputs, title, chosen)
        path = repros.keep(title.partition(":")[0], text, ".py")
        return None if path is None else str(path)
    return None


# -- the operator to blame -----------------------------------------------------------------------------------


def _frames(error: BaseException) -> list[FrameType]:
    """The frames of an exception, innermost first."""
    found = []
    trace = error.__traceback__
    while trace is not None:
        found.append(trace.tb_frame)
        trace = trace.tb_next
    return found[::-1]


def _blamed(error: BaseException) -> tuple[str | None, str | None]:
    """The operator in progress, and the user's line, if the frames tell."""
    for frame in _frames(error):
        if frame.f_code.co_filename.startswith(_SMELT):
            for op, where in _subjects(frame.f_locals):
                return op, where
    return None, None


def blamed_call(error: BaseException) -> Blamed | None:
    """The call that could not be lowered, scheduled or printed; None if it is unknown."""
    if isinstance(error, Unsupported) and error.call is not None:
        return error.call
    for frame in _frames(error):
        if frame.f_code.co_filename.startswith(_FLOORS):
            for found in _subjects(frame.f_locals):
                return found
    return None


def _subjects(variables: dict[str, Any]) -> Iterator[tuple[str, str | None]]:
    for value in variables.values():
        if isinstance(value, Node) and value.op == "call_function":
            yield str(value.target), value.meta.get("where")
        elif isinstance(value, ir.Node):
            yield value.origin.op, value.origin.where
