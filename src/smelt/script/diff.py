"""The difference between two scripts: the change made by a step of a schedule."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

_COLOURS = {"-": "\x1b[31m", "+": "\x1b[32m", "@": "\x1b[36m"}
_PLAIN = "\x1b[0m"


def diff_lines(before: str, after: str, context: int = 3) -> Iterator[str]:
    """The lines of two scripts that differ (``-`` before, ``+`` after), with context; none for equal scripts.

    >>> before, after = "for i in range(8):\\n    A[i] = 1", "for i in range(4):\\n    A[i] = 1"
    >>> print("\\n".join(diff_lines(before, after)))
    @@ -1,2 +1,2 @@
    -for i in range(8):
    +for i in range(4):
         A[i] = 1
    """
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), n=context, lineterm="")
    for number, line in enumerate(lines):
        if number > 1:  # the names of two files come first
            yield line


def diff_text(before: str, after: str, colours: bool = False) -> str:
    """`diff_lines` as one text, in a terminal's colours if asked."""
    lines = list(diff_lines(before, after))
    if colours:
        lines = [f"{_COLOURS[line[0]]}{line}{_PLAIN}" if line[:1] in _COLOURS else line for line in lines]
    return "\n".join(lines)


__all__ = ["diff_lines", "diff_text"]
