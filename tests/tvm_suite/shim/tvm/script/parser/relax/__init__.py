"""``tvm.script.parser.relax``."""

from typing import Any

from tvm.script import relax as _relax
from tvm.script.parser.relax import entry
from tvm.script.relax import function


def __getattr__(name: str) -> Any:
    return getattr(_relax, name)


__all__ = ["entry", "function"]
