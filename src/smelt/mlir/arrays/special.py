"""Error and gamma functions as loop functions of simpler rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

SPECIAL: dict[str, Callable[..., Any]] = {}
