"""``tvm.relax``."""

from typing import Any

from smelt.relax import *
from smelt.relax import build, op, transform
from tvm.relax import frontend

__all__ = ["build", "frontend", "op", "transform"]


def __getattr__(name: str) -> Any:
    from smelt import relax

    return getattr(relax, name)
