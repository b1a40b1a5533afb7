"""smelt's errors: a code, the problem, its place, its cause, and the remedy."""

from __future__ import annotations

import copyreg
from dataclasses import dataclass
from typing import Any


class SmeltError(Exception):
    """An error with a code (``SM0123``), the user's line, the cause and the remedy.

    >>> print(SmeltError("SM0001", "no C++ compiler", remedy="install g++"))
    SM0001: no C++ compiler
      do: install g++
    """

    def __init__(
        self,
        code: str,
        what: str,
        *,
        where: str | None = None,
        why: str | None = None,
        remedy: str | None = None,
    ) -> None:
        self.code, self.what, self.where, self.why, self.remedy = code, what, where, why, remedy
        lines = [f"{code}: {what}"]
        lines += [
            f"  {label}: {text}" for label, text in (("at", where), ("why", why), ("do", remedy)) if text
        ]
        super().__init__("\n".join(lines))

    def __reduce__(self) -> Any:
        """Errors of all subclasses, whatever their arguments, go to other processes."""
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


INPUT_ERRORS = (
    *("SM01", "SM0201", "SM0202", "SM0203", "SM0208", "SM0209", "SM03", "SM0507", "SM0508"),
    *("SM0601", "SM0602"),
    *("SM0521", "SM0522", "SM0523", "SM0524", "SM0525"),
    *("SM0710", "SM0711", "SM0716", "SM0721", "SM0722", "SM0723", "SM0724"),
    *("SM09", "SM10", "SM11", "SM12", "SM13"),
    *("SM140", "SM1410", "SM1411", "SM1412", "SM142"),
)
"""Prefixes of codes for errors of the user or the machine: the others are bugs of smelt."""


def is_input(error: SmeltError) -> bool:
    """Whether an error is about the input, and not a bug.

    >>> is_input(SmeltError("SM0201", "no C++ compiler found"))
    True
    """
    return error.code.startswith(INPUT_ERRORS)


class InternalError(SmeltError):
    """A bug of smelt: an unexpected exception."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A finding of a verifier; verifiers collect all of them before they raise."""

    what: str
    where: str | None = None

    def __str__(self) -> str:
        return self.what if self.where is None else f"{self.what}  (at {self.where})"


class VerificationError(SmeltError):
    """An IR violates its own rules. Holds every problem found, not only the first."""

    def __init__(self, code: str, stage: str, problems: list[Problem]) -> None:
        self.problems = problems
        listed = "\n".join(f"    - {problem}" for problem in problems)
        super().__init__(code, f"{stage}: {len(problems)} problem(s)\n{listed}")


class Unsupported(Exception):  # noqa: N818  (not an error: the operator goes to ATen, and the reason is recorded)
    """smelt has no lowering for this call; the reason goes into the report and ATen runs the operator.

    ``call``: the operator and its source line, where it is a later floor that cannot have it.
    """

    def __init__(self, reason: str, call: tuple[str, str | None] | None = None) -> None:
        self.reason, self.call = reason, call
        super().__init__(reason)


class ToolchainError(SmeltError):
    """No usable C++ compiler, or the compiler refused our code."""


class CacheError(SmeltError):
    """The on-disk cache cannot be used as it stands (owner, permissions)."""


def describe(error: BaseException) -> str:
    """An exception as one line: its type and the first line of its message.

    >>> describe(ValueError("no"))
    'ValueError: no'
    """
    first = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
