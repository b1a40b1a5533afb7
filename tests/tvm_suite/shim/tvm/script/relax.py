"""``from tvm.script import relax as R``."""

from __future__ import annotations

import typing  # R.Any is relax's

from smelt.script import relax as _words
from tvm.script import program as function


def __getattr__(name: str) -> typing.Any:
    return getattr(_words, name)


__all__ = ["function"]
