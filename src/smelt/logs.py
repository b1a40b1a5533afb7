"""The ``smelt`` logger and its level, from ``SMELT_LOG``."""

from __future__ import annotations

import logging
import os

from smelt.errors import SmeltError

LEVELS = ("debug", "info", "warning", "error")

logger = logging.getLogger("smelt")


def level_from_environment() -> int | None:
    """The level in ``SMELT_LOG``, or None if it is not set.

    Raises:
        SmeltError: SM0103 ``SMELT_LOG`` is not one of `LEVELS`.
    """
    asked = os.environ.get("SMELT_LOG", "").strip().lower()
    if not asked:
        return None
    if asked not in LEVELS:
        raise SmeltError(
            "SM0103", f"SMELT_LOG={asked!r} is no log level", remedy="levels: " + ", ".join(LEVELS)
        )
    return int(getattr(logging, asked.upper()))


def configure() -> None:
    """Applies ``SMELT_LOG``: sets the logger's level; prints to stderr if the program has no handler.

    Called when smelt is first asked to compile, never at import.

    Raises:
        SmeltError: SM0103.
    """
    level = level_from_environment()
    if level is None:
        return
    logger.setLevel(level)
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        logger.addHandler(handler)
