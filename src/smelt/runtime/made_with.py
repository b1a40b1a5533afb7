"""The versions with which a compiled program is usable: inputs of cache keys besides the program."""

from __future__ import annotations

import hashlib
import platform
import sys
from functools import lru_cache
from pathlib import Path

import torch

from smelt.runtime import toolchain
from smelt.runtime.cache import key_of


def made_with() -> dict[str, str]:
    """The inputs of cache keys besides the program: the compiler, the machine and their versions.

    Raises:
        ToolchainError: there is no compiler that could have made them.
    """
    tools = toolchain.find()
    return {
        "smelt": source_digest()[:16],
        "torch": torch.__version__,
        "system": f"{sys.platform} {platform.machine()}",
        "cpu": f"{tools.isa} {tools.cpu}",
        "compiler": f"{tools.family} {tools.version} {key_of(tools.identity)[:16]}",
    }


@lru_cache(maxsize=1)
def source_digest() -> str:
    """A digest of smelt's own source: another compiler makes another program."""
    digest = hashlib.sha256()
    root = Path(__file__).parent.parent
    for path in sorted(root.rglob("*")):
        if path.suffix in (".py", ".h"):
            digest.update(str(path.relative_to(root)).encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()
