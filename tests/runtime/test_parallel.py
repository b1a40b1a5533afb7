"""A parallel loop's iterations: each is done once, by whoever has time, however many threads come."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator

import pytest
import torch

from smelt.codegen.cpp.header import header_text
from smelt.runtime.library import Library

PROGRAM = (
    header_text(frozenset({"parallel"}))
    + """
#define EXPORT extern "C" __attribute__((visibility("default")))
using namespace smelt;

EXPORT void done(i64 count, i64 team, i32* times, i32* thread) {
  Iterations iterations(count);
  #pragma omp parallel num_threads(team)
  for (Chunk chunk(iterations); chunk.next();)
    for (i64 i = chunk.begin, end = chunk.end; i < end; i += 1) {
      __atomic_fetch_add(times + i, 1, __ATOMIC_RELAXED);
      thread[i] = omp_get_thread_num();
    }
}

// Whoever has iteration `slow` ends it when all others are done, or after so many looks: whether they were.
EXPORT i64 others_help(i64 count, i64 slow, i64 looks) {
  Iterations iterations(count);
  i64 finished = 0, looked = 0;
  #pragma omp parallel
  for (Chunk chunk(iterations); chunk.next();)
    for (i64 i = chunk.begin, end = chunk.end; i < end; i += 1) {
      const i64 rest = count - (end - i);
      while (i == slow && looked < looks && __atomic_load_n(&finished, __ATOMIC_RELAXED) < rest) looked += 1;
      __atomic_fetch_add(&finished, 1, __ATOMIC_RELAXED);
    }
  return looked < looks;
}

// Chunks that nobody goes through.
EXPORT void lengths(i64 count, i64* total, i64* ends) {
  in_parallel(count, SMELT_CHUNK(begin, end) {
    __atomic_fetch_add(total, end - begin, __ATOMIC_RELAXED);
    __atomic_fetch_add(ends, end == count, __ATOMIC_RELAXED);
  });
}
"""
)


@pytest.fixture
def program(compile_text: Callable[[str], Library]) -> Library:
    return compile_text(PROGRAM)


@pytest.fixture(autouse=True)
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 17, 1000])
@pytest.mark.parametrize("team", [1, 2, 3, 5])
def test_each_iteration_is_done_once_by_a_team_of_any_size(program: Library, count: int, team: int) -> None:
    function = program.function("done")
    function.argtypes = [ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p]
    times, thread = torch.zeros(count + 1, dtype=torch.int32), torch.full((count + 1,), -1, dtype=torch.int32)
    function(count, team, times.data_ptr(), thread.data_ptr())
    assert times.tolist() == [1] * count + [0]
    assert all(0 <= number < team for number in thread[:count].tolist())


@pytest.mark.parametrize("slow", [0, 333, 999])
def test_others_do_what_a_slow_thread_has_left(program: Library, slow: int) -> None:
    function = program.function("others_help")
    function.argtypes = [ctypes.c_int64] * 3
    assert function(1000, slow, 10**10) == 1


@pytest.mark.parametrize("count", [2**31 - 1, 2**31, 2**32 + 5, 2**40 + 12345])
def test_counts_beyond_32_bits(program: Library, count: int) -> None:
    function = program.function("lengths")
    function.argtypes = [ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p]
    total, ends = torch.zeros((), dtype=torch.int64), torch.zeros((), dtype=torch.int64)
    function(count, total.data_ptr(), ends.data_ptr())
    assert (total.item(), ends.item()) == (count, 1)
