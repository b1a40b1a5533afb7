"""Errors that are wanted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from smelt.errors import SmeltError


def refused(code: str, action: Callable[[], Any], *words: str) -> SmeltError:
    """The error of this code that an action raises; its text has the words."""
    with pytest.raises(SmeltError) as caught:
        action()
    assert caught.value.code == code, caught.value
    for word in words:
        assert word in str(caught.value), caught.value
    return caught.value
