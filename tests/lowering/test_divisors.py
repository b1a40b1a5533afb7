"""gcd and lcm: signs, zeros, the ends of each integer dtype, the numbers that take the most turns."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.lowering.harness import INTEGERS, check

aten = torch.ops.aten
BOTH = [aten.gcd.default, aten.lcm.default]


def fibonacci(dtype: torch.dtype) -> list[int]:
    numbers = [1, 2]
    while numbers[-1] + numbers[-2] <= torch.iinfo(dtype).max:
        numbers.append(numbers[-1] + numbers[-2])
    return numbers


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("function", BOTH)
def test_every_pair_of_odd_numbers(function: Any, dtype: torch.dtype) -> None:
    info = torch.iinfo(dtype)
    numbers = [0, 1, 2, 6, 12, 18, 97, 100, info.max, info.max - 1, *fibonacci(dtype)[-2:]]
    if info.min < 0:
        numbers += [-1, -4, -18, info.min + 1]
    if function is aten.gcd.default or info.bits < 32:  # eager's lcm dies: it divides the least by -1
        numbers.append(info.min)
    x = torch.tensor(numbers, dtype=dtype)
    check(function, x[:, None], x)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_neighbours_in_fibonaccis_sequence_take_the_most_turns(dtype: torch.dtype) -> None:
    numbers = torch.tensor(fibonacci(dtype), dtype=dtype)
    check(aten.gcd.default, numbers[1:], numbers[:-1])
    check(aten.gcd.default, numbers[:-1], numbers[1:])


@pytest.mark.parametrize("function", BOTH)
def test_shapes_and_dtypes(function: Any) -> None:
    torch.manual_seed(0)
    check(function, torch.tensor(12), torch.tensor(-18))
    check(function, torch.ones(0, 3, dtype=torch.int32), torch.ones(3, dtype=torch.int32))
    check(function, torch.randint(-50, 50, (4, 3)).t(), torch.randint(-50, 50, (3, 1), dtype=torch.int8))
    check(
        function,
        torch.randint(99, (5,)),
        torch.randint(99, (5,)),
        symbolic=True,
        others=[(torch.randint(10**9, (8,)), torch.randint(10**9, (8,)))],
    )
