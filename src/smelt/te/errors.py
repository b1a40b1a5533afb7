"""Errors of tensor expressions name the user's line."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import NoReturn

from smelt.errors import SmeltError

_OURS = str(Path(__file__).parents[1]) + os.sep
_BETWEEN = (contextlib.__file__, "<")
"""Files between smelt's code and the user's: decorators, generated code."""


def users_line() -> str | None:
    """The innermost line outside of smelt (``file.py:12 in f``)."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith((_OURS, *_BETWEEN)):
            return f"{Path(name).name}:{frame.f_lineno} in {frame.f_code.co_name}"
        frame = frame.f_back  # type: ignore[assignment]
    return None


def refuse(code: str, what: str, *, why: str | None = None, remedy: str | None = None) -> NoReturn:
    """Raise a SmeltError at the user's line."""
    raise refusal(code, what, why=why, remedy=remedy)


def refusal(code: str, what: str, *, why: str | None = None, remedy: str | None = None) -> SmeltError:
    """A SmeltError at the user's line."""
    return SmeltError(code, what, where=users_line(), why=why, remedy=remedy)


__all__ = ["refusal", "refuse", "users_line"]
