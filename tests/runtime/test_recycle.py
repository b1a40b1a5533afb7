"""Memory of large outputs is used again when, and only when, nobody holds it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt
from smelt.runtime import recycle
from smelt.runtime.recycle import Recycler

SHAPE, STRIDES = (512, 1024), (1024, 1)

HOLD: dict[str, Callable[[torch.Tensor], Any]] = {
    "tensor": lambda x: x,
    "view": lambda x: x[3:5],
    "array": lambda x: x.numpy(),
    "storage": lambda x: x.untyped_storage(),
    "capsule": lambda x: torch.from_dlpack(x),
    "detached": lambda x: x.detach(),
    "saved by autograd": lambda x: (torch.ones(1024, requires_grad=True) * x).sum(),
}


def make(recycler: Recycler) -> torch.Tensor:
    return recycler.empty(SHAPE, STRIDES, torch.float32)


@pytest.mark.parametrize("how", HOLD)
def test_what_is_held_is_not_used(how: str) -> None:
    recycler = Recycler()
    first = make(recycler)
    address, held = first.data_ptr(), HOLD[how](first)
    del first
    assert make(recycler).data_ptr() != address
    del held
    second, third = make(recycler), make(recycler)
    if how != "array":  # PyTorch resizes nothing that NumPy had
        assert address in (second.data_ptr(), third.data_ptr())


CHANGES: dict[str, Callable[[torch.Tensor], Any]] = {
    "shared": lambda x: x.share_memory_(),
    "larger": lambda x: x.resize_(2048, 1024),
    "resized in place": lambda x: x.untyped_storage().resize_(x.nbytes // 2),
    "emptied": lambda x: x.untyped_storage().resize_(0),
    "NumPy": lambda x: x.numpy().sum(),
}


@pytest.mark.parametrize("how", CHANGES)
def test_changed_memory_is_left_alone(how: str) -> None:
    """A storage that went to shared memory, was resized, or may not be resized since NumPy had it."""
    recycler = Recycler()
    first = make(recycler)
    CHANGES[how](first)
    del first
    second = make(recycler)
    assert second.untyped_storage().nbytes() == second.nbytes
    second.resize_(2048, 1024).fill_(1.0)
    assert sum(len(shelf.blocks) for shelf in recycler._all()) == 1


def test_outputs_that_numpy_had_can_be_resized() -> None:
    torch._dynamo.reset()
    fast = torch.compile(lambda x: x + 1, backend="smelt")
    x = torch.zeros(SHAPE)
    kept = []
    for turn in range(3):
        array = fast(x + turn).numpy()
        kept.append(array)
        assert fast(x).resize_(2048, 1024).shape == (2048, 1024)
    del array
    assert [float(each[-1, -1]) for each in kept] == [1.0, 2.0, 3.0]
    del kept
    fast(x).resize_(4096, 1024)
    smelt.reset()


def test_memory_serves_a_little_smaller_tensors() -> None:
    recycler = Recycler()
    address = make(recycler).data_ptr()
    assert recycler.empty((500, 1024), STRIDES, torch.float32).data_ptr() == address
    assert make(recycler).data_ptr() == address
    assert recycler.empty((400, 1024), STRIDES, torch.float32).data_ptr() != address
    for size in ((1 << 18) - 4, 1 << 18, (1 << 20) * 9 // 8 - 4, (1 << 20) * 9 // 8, 1 << 33):
        first = recycle._class(size)
        assert first <= recycle._class(size + size // recycle.STEPS) <= first + 2


def idle(recycler: Recycler) -> int:
    return sum(shelf.size for shelf in recycler._all() for block in shelf.blocks if block.is_free())


def test_many_sizes_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recycle, "MOST_IDLE", 1 << 22)
    recycler = Recycler()
    for rows in range(100, 2000, 40):
        recycler.empty((rows, 1024), (1024, 1), torch.float32)
        assert idle(recycler) <= (1 << 22) * 9 // 8 + rows * 4096
    newest = recycler.empty((1980, 1024), (1024, 1), torch.float32)
    assert newest.untyped_storage().nbytes() <= 1980 * 4096 * 9 // 8


def test_as_much_may_be_idle_as_was_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients of a step that are dropped before the next one, whatever else is asked for meanwhile."""
    monkeypatch.setattr(recycle, "MOST_IDLE", 1 << 20)
    recycler = Recycler()
    held = [make(recycler) for _ in range(20)]
    addresses = {each.data_ptr() for each in held}
    held.clear()
    for rows in (100, 150, 230):
        recycler.empty((rows, 1024), (1024, 1), torch.float32)
    assert make(recycler).data_ptr() in addresses
    held += [make(recycler) for _ in range(20)]
    assert len({each.data_ptr() for each in held} & addresses) >= 16


def test_ever_new_sizes_are_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recycle, "MOST_FORMS", 8)
    recycler = Recycler()
    address = make(recycler).data_ptr()
    for rows in range(1, 30):
        small = recycler.empty((rows, 4), (4, 1), torch.float32)
        assert small.shape == (rows, 4)
    assert len(recycler._known) <= 8
    assert make(recycler).data_ptr() == address


def test_sizes_and_dtypes_do_not_mix() -> None:
    recycler = Recycler()
    address = make(recycler).data_ptr()
    assert recycler.empty((1024, 1024), (1024, 1), torch.float32).data_ptr() != address
    assert recycler.empty(SHAPE, STRIDES, torch.int32).dtype == torch.int32
    assert recycler.empty(SHAPE, (2048, 2), torch.float32).stride() == (2048, 2)
    assert recycler.empty((1024, 512), (1, 1024), torch.float32).data_ptr() == address


def test_what_was_idle_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(recycle.time, "monotonic", lambda: now)
    recycler = Recycler()
    make(recycler)
    recycler.empty((1024, 1024), (1024, 1), torch.float32)
    now += recycle.IDLE_SECONDS / 2
    make(recycler)
    now += recycle.IDLE_SECONDS * 0.75
    make(recycler)
    assert [len(shelf.blocks) for shelf in recycler._all()] == [1]
    recycler.clear()
    assert not recycler._shelves


def test_inference_mode_leaves_no_trace() -> None:
    recycler = Recycler()
    with torch.inference_mode():
        make(recycler)
    assert not make(recycler).is_inference()


def test_outputs_of_compiled_programs() -> None:
    """Each call's result is its own for as long as it lives."""
    torch._dynamo.reset()
    fast = torch.compile(lambda x: x + 1, backend="smelt")
    x = torch.zeros(SHAPE)
    kept = [fast(x * k) for k in range(4)]
    assert [result[0, 0].item() for result in kept] == [1.0, 1.0, 1.0, 1.0]
    assert len({result.data_ptr() for result in kept}) == 4
    address = kept.pop().data_ptr()
    assert fast(x + 1).data_ptr() == address
    assert kept[0][-1, -1].item() == 1.0
    smelt.reset()


def test_a_step_that_holds_many_finds_each_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = 0
    is_free = recycle._Block.is_free

    def counted(block: Any) -> bool:
        nonlocal looked
        looked += 1
        return is_free(block)

    recycler = Recycler()
    first = {make(recycler).data_ptr()}
    held = [make(recycler) for _ in range(20)]
    assert {each.data_ptr() for each in held} > first
    addresses = {each.data_ptr() for each in held}
    monkeypatch.setattr(recycle._Block, "is_free", counted)
    for _ in range(3):
        held.clear()
        held += [make(recycler) for _ in range(20)]
        assert {each.data_ptr() for each in held} == addresses
    assert looked < 3 * 2 * 20
    held.clear()
    assert {make(recycler).data_ptr() for _ in range(5)} == first
