"""Targets: this machine's CPU, whatever is asked for."""

from __future__ import annotations

from typing import Any


class Target:
    """A target by its name."""

    def __init__(self, target: Any, host: Any = None) -> None:
        self.target, self.host = target, host

    @property
    def kind(self) -> Any:
        return self.target["kind"] if isinstance(self.target, dict) else str(self.target).split()[0]

    def __enter__(self) -> Target:
        return self

    def __exit__(self, *error: Any) -> None:
        pass
