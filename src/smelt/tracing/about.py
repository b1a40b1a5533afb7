"""What a trace was made with: versions, machine, options, and the machine's measured peaks."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

import torch

import smelt
from smelt.tracing import peaks

VERSION = 1
"""Of the schema: it grows when a field changes its meaning or goes; new fields leave it."""
PEAK_SECONDS = 1.0


def about(options: Mapping[str, object], command: str) -> dict[str, Any]:
    """The field ``made``."""
    return {
        "smelt": smelt.__version__,
        "torch": torch.__version__,
        "machine": peaks.processor(),
        "threads": torch.get_num_threads(),
        "options": dict(options),
        "date": datetime.date.today().isoformat(),
        "command": command,
    }


def peaks_of() -> dict[str, float]:
    """The field ``peaks``, measured with torch's number of threads."""
    found = peaks.measured(torch.get_num_threads(), PEAK_SECONDS)
    return {"flops": found["flops"], "bytes": found["bytes"]}
