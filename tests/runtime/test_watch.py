"""Whether tensors are what they were: asked natively, and by Python where PyTorch's objects are unknown."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from smelt.runtime import watch
from smelt.runtime.probe import Probe
from smelt.runtime.watch import Watch, stamp_of


@pytest.fixture(params=["natively", "in Python"], autouse=True)
def asking(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "in Python":
        monkeypatch.setattr(watch, "_layout", lambda: None)


def test_the_fields_of_tensors_are_found() -> None:
    watch._layout.cache_clear() if hasattr(watch._layout, "cache_clear") else None
    layout = watch._layout()
    if layout is None:
        return
    base = torch.zeros(100)
    for tensor in (base, base[7:], nn.Parameter(base[9:]), base.view(10, 10).t(), torch.zeros(())):
        tensor.detach().add_(1)
        own, storage, offset, counter, version = layout.fields(tensor)
        assert own == tensor._cdata
        assert storage == tensor.untyped_storage()._cdata
        assert offset == tensor.storage_offset()
        assert counter != 0
        assert version == tensor._version


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
    x, others = torch.zeros(65)[:64].add_(1), [torch.zeros(3) for _ in range(3)]
    args: list[object] = [None, *others, 5, x]
    watched = Watch([1, 3, 5], args)
    seen = watched.look(args)
    assert seen >= 0
    others[1].add_(1)  # nobody asks for this one
    assert watched.look(args) == seen
    CHANGES[name](x)
    assert watched.look(args) == -1
    assert Watch([1, 3, 5], args).look(args) >= 0


def test_another_tensor_in_its_place() -> None:
    x = torch.zeros(8)
    watched = Watch([0], [x])
    seen = watched.look([x])
    del x
    for _ in range(8):
        assert watched.look([torch.zeros(8)]) != seen


def test_writes_that_count_nothing_change_the_digest() -> None:
    tensors = [torch.zeros(size) for size in (1, 3, 16, 33, 1000, 100_000)]
    for tensor in tensors:
        watched = Watch(range(len(tensors)), tensors)
        seen = watched.look(tensors)
        tensor.data.fill_(0.5)
        assert watched.look(tensors) not in (seen, -1)


def test_tensors_of_inference_mode_and_empty_ones() -> None:
    with torch.inference_mode():
        tensors = [torch.zeros(5), torch.zeros(0), torch.zeros(2, 0, 3)]
    watched = Watch(range(3), tensors)
    seen = watched.look(tensors)
    assert watched.look(tensors) == seen
    with torch.inference_mode():
        tensors[0].add_(1)
    assert watched.look(tensors) != seen
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
    probe, before = Probe([x]), 0
    before = probe()
    address = x.data_ptr()
    x.data = torch.ones(1000)
    fresh = [torch.ones(1000) for _ in range(20)]
    assert address not in [each.data_ptr() for each in fresh]
    assert probe() == before


def test_no_library_no_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "_maker", lambda: None)
    x = torch.zeros(4)
    watched = Watch([0], [x])
    assert watched.look([x]) >= 0
    x.add_(1)
    assert watched.look([x]) == -1
