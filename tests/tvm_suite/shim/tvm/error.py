"""TVM's errors: all of smelt's are one kind; where TVM raises one of Python's own, so does the stand-in."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from smelt.errors import SmeltError

TVMError = InternalError = DiagnosticError = SmeltError


class ScriptError(SmeltError, RuntimeError):
    """A script that is not read: TVM's error is a RuntimeError."""

    def __init__(self, error: SmeltError) -> None:
        Exception.__init__(self, str(error))
        self.code = error.code


KINDS: dict[str, type[Exception]] = {
    "SM1121": TypeError,  # a dtype that a function of topi does not take
    "SM1112": ValueError,  # a tag within a tag
    "SM1105": RuntimeError,  # a reduction within an expression
    "SM1039": ValueError,  # an intrinsic that there is not
}


def told(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of smelt's whose errors are of the kinds that TVM's are."""

    @functools.wraps(function)
    def called(*args: Any, **options: Any) -> Any:
        try:
            return function(*args, **options)
        except SmeltError as error:
            kind = KINDS.get(error.code)
            if kind is None:
                raise
            raise kind(str(error)) from error

    return called
