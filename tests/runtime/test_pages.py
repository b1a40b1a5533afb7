"""Large pages are asked for where they fit in."""

from __future__ import annotations

import sys

import torch

from smelt.runtime.pages import PAGE, prefer_large
from smelt.runtime.recycle import Recycler


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


def test_outputs_in_them_are_as_others() -> None:
    recycler = Recycler()
    made = recycler.empty((3, PAGE // 4), (PAGE // 4, 1), torch.float32)
    made.fill_(2.0)
    assert made.sum().item() == 6.0 * (PAGE // 4)
