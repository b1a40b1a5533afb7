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
    assert address in (second.data_ptr(), third.data_ptr())


def test_moved_memory_is_left_alone() -> None:
    """A storage that went to shared memory, or was resized, is its holder's business."""
    for change in (lambda x: x.share_memory_(), lambda x: x.resize_(2048, 1024)):
        recycler = Recycler()
        first = make(recycler)
        change(first)
        address = first.data_ptr()
        del first
        assert make(recycler).data_ptr() != address


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
    assert [len(shelf.blocks) for shelf in recycler._shelves.values()] == [1]
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
