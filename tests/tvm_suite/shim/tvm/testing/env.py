"""``tvm.testing.env``: what this machine has, as marks of pytest."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    """``has_llvm()``: a compiler for this CPU is there; ``has_cuda()`` and the like are not."""
    if not name.startswith(("has_", "is_", "supports_")):
        raise AttributeError(name)
    return lambda *args, **options: name in ("has_llvm", "has_cpu")
