"""Errors of `torch.export` for a program that it cannot capture, as SM0723 with the user's line."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import sys
import traceback
from collections.abc import Iterator

from torch._dynamo.exc import Unsupported as DynamoRefusal
from torch._dynamo.exc import UserError, UserErrorType
from torch.fx.experimental.symbolic_shapes import ConstraintViolationError, GuardOnDataDependentSymNode

from smelt.capture import lines
from smelt.contract.where import parse
from smelt.errors import SmeltError, Unsupported

FINAL = (UserErrorType.CONSTRAINT_VIOLATION, UserErrorType.INVALID_INPUT)
"""Kinds of errors that Dynamo would report as well, at length."""

_TOLD = (UserError, GuardOnDataDependentSymNode, DynamoRefusal, ConstraintViolationError)
"""Exceptions whose text is sufficient; for others the message includes the class."""

_FRAME = re.compile(r'(File "([^"]+)", line \d+, in \S+)')
_FIXES = re.compile(r"^Suggested fixes:\n((?:  .+\n?)+)", re.MULTILINE)
_NOISE = re.compile(r"For more info|Suggested fixes|Caused by|$|[a-z]\w* = ")
_MORE = re.compile(r"For more information, run with TORCH_LOGS=\S+|\x1b\[\d+m")
_SIZE = re.compile(r"L\['(\w+)'\]\.size\(\)\[(\d+)\]")
_SPECIALIZED = re.compile(r"specialized it to be a constant \((\d+)\)")
_DATA = "torch.cond, torch.where or torch._check instead of Python's if"
_LIBRARY = os.path.dirname(os.__file__) + os.sep
_PACKAGES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


def refused(error: Exception) -> Exception:
    """SM0723 for an exception of torch; exceptions of the user's own code are unchanged."""
    if isinstance(error, (SmeltError, Unsupported)) or _is_the_users(error):
        return error
    text = _MORE.sub("", _SIZE.sub(r"dimension \2 of \1", str(error)))
    kept = [line.strip() for line in text.split("\n\n")[0].splitlines() if not _NOISE.match(line.strip())]
    why = " ".join(dict.fromkeys(line for line in kept if line))
    if not isinstance(error, _TOLD):
        why = f"{type(error).__name__}: {why}" if why else type(error).__name__
    frames = "".join(traceback.format_tb(error.__traceback__))
    return SmeltError(
        "SM0723",
        "torch.export cannot capture this program",
        where=_users_line(text) or _users_line(frames),
        why=why,
        remedy=_remedy(error, text),
    )


def _remedy(error: Exception, text: str) -> str | None:
    found = []
    fixes = _FIXES.search(text)
    if fixes:
        found.append("PyTorch suggests " + " ".join(fixes[1].split()))
    constant = _SPECIALIZED.search(text)
    if constant is not None and constant[1] in ("0", "1"):
        found.append(
            "an example of size 2 or more: torch.export takes the sizes 0 and 1 of an example for fixed "
            f"(a program for {constant[1]} is one of its own)"
        )
    elif constant is not None or fixes:
        found.append("torch.export.Dim.AUTO in dynamic_shapes fixes or relates sizes as the program needs it")
    if isinstance(error, GuardOnDataDependentSymNode):
        found.append(_DATA)
    return "; or ".join(found) or None


def _is_the_users(error: Exception) -> bool:
    """Whether the innermost raising frame is outside of torch, smelt and Python's library."""
    if isinstance(error, _TOLD):
        return False
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and _is_users(frames[-1].filename)


def _users_line(text: str) -> str | None:
    """The innermost frame outside of torch and smelt in a traceback's text."""
    frames = [frame for frame, file in _FRAME.findall(text) if _is_users(file)]
    return parse(frames[-1]) if frames else None


def _is_users(file: str) -> bool:
    """Whether a file is the user's: not torch's, smelt's or Python's library, and not generated."""
    own = file.startswith(_LIBRARY) and not any(packages in file for packages in _PACKAGES)
    return not own and not file.startswith((*lines.NOT_THE_USERS, "<"))


@contextlib.contextmanager
def told_once() -> Iterator[None]:
    """Inside the block `torch.export` prints the partial program once, not for each level of an error."""
    printed = io.StringIO()
    dump = ""
    try:
        with contextlib.redirect_stderr(printed):
            yield
    except Exception as error:
        dump = str(getattr(error, "partial_fx_graph", ""))
        raise
    finally:
        text = printed.getvalue()
        if dump:
            text = f"{text.replace(dump, '').strip()}\n{dump.strip()}\n".lstrip()
        sys.stderr.write(text)


@contextlib.contextmanager
def said_before() -> Iterator[None]:
    """Inside the block nothing is printed or logged: a second attempt would repeat all messages."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(before)
