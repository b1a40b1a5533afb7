"""``tvm.topi``."""

from typing import Any

from smelt import topi as _topi


def __getattr__(name: str) -> Any:
    return getattr(_topi, name)
