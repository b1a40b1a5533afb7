"""Whether tensors are what they were: by their versions and addresses, and by a look at their content."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from smelt.runtime.folded import stamp_of
from smelt.runtime.probe import Probe


def _element(x: Tensor) -> None:
    x[3] = 7


def _data(x: Tensor) -> None:
    x.data = torch.ones(64)


def _shifted(x: Tensor) -> None:
    x.data = x.data.as_strided((64,), (1,), 1)


CHANGES: dict[str, Callable[[Tensor], object]] = {
    "in place": lambda x: x.mul_(2),
    "to the same": lambda x: x.add_(0),
    "one element": _element,
    "data =": _data,
    "data = another part of it": _shifted,
    "set_": lambda x: x.set_(torch.ones(64)),
    "a view of it": lambda x: x[:2].zero_(),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changes(name: str) -> None:
    x, other = torch.zeros(65)[:64].add_(1), torch.zeros(3)
    probe = Probe([other, x])  # it keeps the memory: nothing else gets its address
    stamp, seen = stamp_of([other, x]), probe()
    assert stamp_of([other, x]) == stamp and probe() == seen
    CHANGES[name](x)
    assert stamp_of([other, x]) != stamp


def test_another_tensor_in_its_place() -> None:
    x = torch.zeros(8)
    stamp, kept = stamp_of([x]), Probe([x])
    del x
    for _ in range(8):
        assert stamp_of([torch.zeros(8)]) != stamp
    assert kept() == kept()


def test_writes_that_count_nothing_change_the_digest() -> None:
    tensors = [torch.zeros(size) for size in (1, 3, 16, 33, 1000, 100_000)]
    for tensor in tensors:
        probe = Probe(tensors)
        stamp, seen = stamp_of(tensors), probe()
        tensor.data.fill_(0.5)
        assert probe() != seen and stamp_of(tensors) == stamp


def test_tensors_of_inference_mode_and_empty_ones() -> None:
    with torch.inference_mode():
        tensors = [torch.zeros(5), torch.zeros(0), torch.zeros(2, 0, 3)]
    probe = Probe(tensors)
    seen = probe()
    with torch.inference_mode():
        tensors[0].add_(1)
    assert probe() != seen
    assert stamp_of(tensors)[:3] == (0, 0, 0)


def test_a_probe_looks_at_all_of_a_small_tensor() -> None:
    for size in (1, 2, 7, 31):
        x = torch.zeros(size, dtype=torch.float32)
        probe = Probe([x])
        for position in range(size):
            before = probe()
            x.data[position] = position + 1
            assert probe() != before


def test_a_probe_keeps_memory() -> None:
    x = torch.zeros(1000)
    probe = Probe([x])
    before = probe()
    address = x.data_ptr()
    x.data = torch.ones(1000)
    fresh = [torch.ones(1000) for _ in range(20)]
    assert address not in [each.data_ptr() for each in fresh]
    assert probe() == before
