"""The machine code of a unit's kernels, by ``objdump``, where that is installed."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from functools import lru_cache

MOST_LINES = 1500
"""Limit on the lines of one kernel."""
_SECONDS = 60
_SYMBOL = re.compile(r"^[0-9a-f]+ <(.*)>:$")
_INSTRUCTION = re.compile(r"^\s*([0-9a-f]+):\t(.*)$")


@lru_cache(maxsize=16)
def symbols(library: str) -> Mapping[str, Sequence[str]]:
    """The instructions of each function of a shared library, by its demangled name; {} without ``objdump``.

    Its output is read line by line: ``1130 <name>:``, then ``1130:<tab>mov rax,rdi`` for each instruction.
    """
    if shutil.which("objdump") is None:
        return {}
    options = ("--disassemble", "--no-show-raw-insn", "--demangle", "-M", "intel", "--section=.text")
    try:
        run = subprocess.run(
            ["objdump", *options, library], capture_output=True, text=True, timeout=_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return {}
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in run.stdout.splitlines():
        if (symbol := _SYMBOL.match(line)) is not None:
            lines = found.setdefault(symbol[1], [])
        elif (instruction := _INSTRUCTION.match(line)) is not None:
            lines.append(f"{instruction[1]}: {' '.join(instruction[2].split())}")
    return found


def of_kernel(library: str, name: str) -> list[str]:
    """The instructions of a kernel's function ``name``, and of the parts that its threads run."""
    found: list[str] = []
    wanted = re.compile(rf"(?<!\w){re.escape(name)}(?!\w)")
    for symbol, lines in symbols(library).items():
        if wanted.search(symbol):
            found += [f"{symbol}:", *(f"    {line}" for line in lines)]
    if len(found) > MOST_LINES:
        return [*found[:MOST_LINES], f"… and {len(found) - MOST_LINES} more lines"]
    return found
