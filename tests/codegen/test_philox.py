"""Random bits in C++ are those of the interpreter: one lane and many, on every kind of machine."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from smelt.loops.philox import philox
from tests.codegen.isas import ISAS, compiled
from tests.codegen.support import pointwise, single

LANES = (1, 2, 4, 8, 16)


@pytest.mark.parametrize("isa", ISAS)
def test_bits_are_equal_on_every_machine(isa: str, tmp_path: Path) -> None:
    word = torch.int64
    runs = [single(pointwise("philox", [word] * 3, word, lanes), f"philox_{lanes}") for lanes in LANES]
    library = compiled(tmp_path, runs, isa)
    generator = torch.Generator().manual_seed(3)
    limits = torch.iinfo(word)
    for count in (1, 7, 16, 5003):
        args = [torch.randint(limits.min, limits.max, (count,), generator=generator) for _ in range(3)]
        args[1][: count // 2] = torch.arange(count // 2) - 3
        expected = philox(*args)
        for lanes in LANES:
            got = torch.zeros(count + 16, dtype=word)
            assert library(f"philox_{lanes}", *args, got, count) == 0
            assert torch.equal(got[:count], expected), lanes
            assert not got[count:].any()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("op", ["lshift", "rshift"])
def test_shifts_in_lanes_are_those_of_one_lane(isa: str, op: str, tmp_path: Path) -> None:
    dtypes = [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8]
    names = {dtype: str(dtype).removeprefix("torch.") for dtype in dtypes}
    runs = [
        single(pointwise(op, [dtype] * 2, dtype, lanes), f"{names[dtype]}_{lanes}")
        for dtype in dtypes
        for lanes in (1, 8, 32)
    ]
    library = compiled(tmp_path, runs, isa)
    generator = torch.Generator().manual_seed(4)
    for dtype in dtypes:
        limits = torch.iinfo(dtype)
        x = torch.randint(limits.min, limits.max, (2000,), generator=generator).to(dtype)
        least = max(limits.min, -70)
        count = torch.randint(least, min(limits.max, 70), (2000,), generator=generator).to(dtype)
        count[:3] = torch.tensor([limits.min, limits.max, 0])
        results = [torch.empty(2000, dtype=dtype) for _ in range(3)]
        for lanes, result in zip((1, 8, 32), results):
            assert library(f"{names[dtype]}_{lanes}", x, count, result, 2000) == 0
        assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2]), dtype
        expected = (torch.bitwise_left_shift if op == "lshift" else torch.bitwise_right_shift)(x, count)
        assert torch.equal(results[0], expected), dtype
