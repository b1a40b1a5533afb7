"""Arenas: alignment, growth, reuse, threads, and which operators can write into them."""

from __future__ import annotations

import threading

import pytest
import torch

from smelt.errors import SmeltError
from smelt.runtime.arena import KEPT, Arena, ArenaPool, tensor_at
from smelt.runtime.externs import find_overload, has_out_variant, resolve


def pool_of_rows() -> tuple[ArenaPool, list[tuple[int, ...]]]:
    """Arenas of n floats and the tensor over them; the list notes every time that tensors are made."""
    made: list[tuple[int, ...]] = []

    def views(storage: torch.UntypedStorage, start: int, key: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
        made.append(key)
        return (tensor_at(storage, start, torch.float32, (key[0],), (1,)),)

    return ArenaPool(lambda key: key[0] * 4, views), made


def test_tensors_are_made_once_for_the_same_sizes() -> None:
    pool, made = pool_of_rows()
    for _ in range(3):
        arena = pool.acquire((5,))
        assert arena.views[0].data_ptr() == arena.address and arena.address % 64 == 0
        pool.release(arena)
    assert made == [(5,)]


def test_arena_only_grows() -> None:
    pool, made = pool_of_rows()
    addresses = []
    for size in (100, 10, 0, 100, 1000, 7):
        arena = pool.acquire((size,))
        arena.views[0].fill_(size)
        assert arena.views[0].shape == (size,)
        addresses.append(arena.address)
        pool.release(arena)
    assert len(set(addresses[:4])) == 1 and addresses[4] == addresses[5]
    assert made == [(100,), (10,), (0,), (100,), (1000,), (7,)]


def test_nested_acquires_differ_and_few_are_kept() -> None:
    pool, made = pool_of_rows()
    arenas = [pool.acquire((8,)) for _ in range(KEPT + 3)]
    assert len({arena.address for arena in arenas}) == KEPT + 3
    for arena in arenas:
        pool.release(arena)
    assert len(pool._free) == KEPT
    again = {id(pool.acquire((8,))) for _ in range(KEPT)}
    assert again <= {id(arena) for arena in arenas} and len(made) == KEPT + 3


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
            arena.views[0].fill_(number)
            if not bool((arena.views[0] == number).all()):
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


def test_an_arena_that_could_not_be_made_is_not_kept() -> None:
    def refuse(storage: torch.UntypedStorage, start: int, key: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
        raise MemoryError

    pool = ArenaPool(lambda key: 8, refuse)
    with pytest.raises(MemoryError):
        pool.acquire()
    assert pool._free == []


def test_tensors_of_every_dtype_and_of_no_elements() -> None:
    arena = Arena()
    arena.fit(256, (), None)
    assert arena.memory is not None
    storage = arena.memory.untyped_storage()
    for dtype in (torch.float64, torch.bfloat16, torch.bool, torch.int64):
        tensor = tensor_at(storage, arena.start + 64, dtype, (2, 3), (1, 2))
        assert tensor.dtype == dtype and tensor.stride() == (1, 2) and tensor.data_ptr() == arena.address + 64
    assert tensor_at(storage, arena.start, torch.float32, (0, 4), (4, 1)).numel() == 0


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
