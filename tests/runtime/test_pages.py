"""Large pages are asked for where they fit in."""

from __future__ import annotations

import sys

import pytest
import torch

from smelt.runtime import arena, recycle
from smelt.runtime.pages import PAGE, prefer_large


def test_only_whole_pages_are_asked_for() -> None:
    memory = torch.empty(5 * PAGE, dtype=torch.uint8)
    address = memory.data_ptr()
    found = prefer_large(address, memory.numel())
    if sys.platform.startswith("linux"):
        assert found in (0, 4 * PAGE, 5 * PAGE)  # 0: a system without them
    first = -(-address // PAGE) * PAGE
    assert prefer_large(first, PAGE - 1) == 0
    assert prefer_large(first + 1, PAGE) == 0
    assert prefer_large(first, PAGE) == (PAGE if found else 0)
    memory.fill_(7)
    assert bool((memory == 7).all())


def test_outputs_and_arenas_ask_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    for user in (recycle, arena):
        monkeypatch.setattr(user, "prefer_large", lambda address, size: asked.append((address, size)))
    made = recycle.Recycler().empty((3, PAGE // 4), (PAGE // 4, 1), torch.float32)
    piece = arena.Arena()
    piece.grow(5 * PAGE)
    assert asked == [(made.data_ptr(), 3 * PAGE), (piece.address, 5 * PAGE)]
