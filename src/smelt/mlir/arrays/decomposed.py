"""Elementwise rows that a target lacks, as loop functions of rows that it has.

A dialect's `ArrayDialect.elementwise` gives ``NotImplemented`` for a row; what is here takes its place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

DECOMPOSED: dict[str, Callable[..., Any]] = {}
"""Row of `smelt.ops.table.TABLE` → function of its arguments, to be run under the `ops` handler."""
