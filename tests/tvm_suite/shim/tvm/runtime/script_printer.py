"""``tvm.runtime.script_printer``: a program as text."""

from __future__ import annotations

from typing import Any


class PrinterConfig:
    """Options of TVM's printer, by name."""

    def __init__(self, **options: Any) -> None:
        self.options = options


def _script(program: Any, config: PrinterConfig) -> str:
    return program.script(**config.options)


__all__ = ["PrinterConfig"]
