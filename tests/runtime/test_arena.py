"""Arenas: alignment, growth, reuse, threads, and which operators can write into them."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest
import torch

from smelt.errors import SmeltError
from smelt.runtime import arena as arena_module
from smelt.runtime.arena import KEPT, Arena, ArenaPool, tensor_at
from smelt.runtime.externs import find_overload, has_out_variant, resolve


@pytest.fixture(autouse=True)
def nothing_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """No arenas of what ran before."""
    monkeypatch.setattr(arena_module, "_idle", None)


def pool_of_rows() -> tuple[ArenaPool, list[tuple[int, ...]]]:
    """Arenas of n floats and the tensor over them; the list notes every time that tensors are made."""
    made: list[tuple[int, ...]] = []

    def make(storage: torch.UntypedStorage, start: int, key: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
        made.append(key)
        return (tensor_at(storage, start, torch.float32, (key[0],), (1,)),)

    return ArenaPool(lambda key: key[0] * 4, make), made


def test_tensors_are_made_once_for_the_same_sizes() -> None:
    pool, made = pool_of_rows()
    for _ in range(3):
        arena = pool.acquire((5,))
        (tensor,) = pool.tensors(arena, (5,))
        assert tensor.data_ptr() == arena.address and arena.address % 64 == 0
        pool.release(arena)
    assert made == [(5,)]


def test_arena_only_grows() -> None:
    pool, made = pool_of_rows()
    addresses = []
    for size in (100, 10, 0, 100, 1000, 7):
        arena = pool.acquire((size,))
        (tensor,) = pool.tensors(arena, (size,))
        tensor.fill_(size)
        assert tensor.shape == (size,)
        addresses.append(arena.address)
        pool.release(arena)
    assert len(set(addresses[:4])) == 1 and addresses[4] == addresses[5]
    assert made == [(100,), (10,), (0,), (100,), (1000,), (7,)]


def test_executors_use_one_arena_in_turns() -> None:
    small, made_small = pool_of_rows()
    large, made_large = pool_of_rows()
    used = set()
    for turn in range(3):
        for pool, key in ((small, (10,)), (large, (5000,))):
            arena = pool.acquire(key)
            (tensor,) = pool.tensors(arena, key)
            assert tensor.data_ptr() == arena.address
            assert tensor.fill_(turn).sum().item() == turn * key[0]
            used.add(id(arena))
            pool.release(arena)
    assert len(used) == 1 and arena.capacity == 20000
    assert made_small == [(10,)] and made_large == [(5000,)]  # the storage is the same, also after it grew


def test_arenas_go_with_the_last_executor() -> None:
    pool, other = pool_of_rows()[0], pool_of_rows()[0]
    arena = pool.acquire((8,))
    gone = weakref.ref(arena)
    pool.tensors(arena, (8,))
    pool.release(arena)
    del arena, pool
    gc.collect()
    assert gone() is not None
    del other
    gc.collect()
    assert gone() is None


def test_nested_acquires_differ_and_few_are_kept() -> None:
    pool, made = pool_of_rows()
    arenas = [pool.acquire((8,)) for _ in range(KEPT + 3)]
    assert len({arena.address for arena in arenas}) == KEPT + 3
    for arena in arenas:
        pool.tensors(arena, (8,))
        pool.release(arena)
    kept = {id(arena) for arena in arenas[:KEPT]}
    again = [pool.acquire((8,)) for _ in range(KEPT + 1)]
    for arena in again[:KEPT]:
        pool.tensors(arena, (8,))
    assert kept == {id(arena) for arena in again[:KEPT]} and id(again[KEPT]) not in kept
    assert len(made) == KEPT + 3


def test_an_arena_is_never_held_by_two_threads() -> None:
    pool, _ = pool_of_rows()
    held: set[int] = set()
    wrong: list[str] = []
    lock = threading.Lock()

    def work(number: int) -> None:
        for turn in range(300):
            arena = pool.acquire((16 + (turn + number) % 3,))
            with lock:
                if id(arena) in held:
                    wrong.append("twice")
                held.add(id(arena))
            (tensor,) = pool.tensors(arena, (16 + (turn + number) % 3,))
            tensor.fill_(number)
            if not bool((tensor == number).all()):
                wrong.append("overwritten")
            with lock:
                held.discard(id(arena))
            pool.release(arena)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_an_arena_without_memory_is_not_used() -> None:
    pool, _ = pool_of_rows()
    with pytest.raises((MemoryError, RuntimeError)):
        pool.acquire((2**58,))
    arena = pool.acquire((8,))
    assert arena.capacity == 32
    pool.release(arena)


def test_tensors_of_every_dtype_and_of_no_elements() -> None:
    arena = Arena()
    arena.grow(256)
    for dtype in (torch.float64, torch.bfloat16, torch.bool, torch.int64):
        tensor = tensor_at(arena.storage, arena.start + 64, dtype, (2, 3), (1, 2))
        assert tensor.dtype == dtype and tensor.stride() == (1, 2) and tensor.data_ptr() == arena.address + 64
    assert tensor_at(arena.storage, arena.start, torch.float32, (0, 4), (4, 1)).numel() == 0


@pytest.mark.parametrize(
    "target",
    [
        "aten.addmm.default",
        "aten.mm.default",
        "aten.bmm.default",
        "aten.baddbmm.default",
        "aten.add.Tensor",
        "aten.cat.default",
    ],
)
def test_operators_with_an_out_variant(target: str) -> None:
    assert has_out_variant(target)
    overload = find_overload(target, out=True)
    assert overload.out == "out" and overload.returns == "one"


@pytest.mark.parametrize(
    "target",
    [
        "aten.native_layer_norm.default",  # several results
        "aten.view.default",  # an alias
        "aten.add_.Tensor",  # in place
        "aten.convolution.default",  # its out variant runs the functional one and copies
        "aten.split.Tensor",  # a list
        "aten._local_scalar_dense.default",  # a number
        "aten.no_such_operator.default",
    ],
)
def test_operators_without_one(target: str) -> None:
    assert not has_out_variant(target)


def test_the_output_argument_is_named_by_the_schema() -> None:
    names = {
        find_overload(target, out=True).out for target in ("aten.max_pool2d_with_indices_backward.default",)
    }
    assert names == {"grad_input"}


def test_how_results_come() -> None:
    kinds = {
        "aten.mm.default": "one",
        "aten.split.Tensor": "many",
        "aten.native_layer_norm.default": "many",
        "aten._local_scalar_dense.default": "one",
    }
    assert {target: find_overload(target).returns for target in kinds} == kinds
    assert resolve("aten.mm") is torch.ops.aten.mm.default
    with pytest.raises(SmeltError, match="SM0403"):
        resolve("aten")
    with pytest.raises(SmeltError, match="SM0404"):
        find_overload("aten.view.default", out=True)
