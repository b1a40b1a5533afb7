"""Programs that are called again without a trace: what is stored, and what is wrong with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from smelt.runtime.cache import Cache
from smelt.runtime.kept import PREFIX, Kept, find, keep

CONSTANTS = {
    "strided": torch.arange(6.0).reshape(2, 3).t(),
    "number": torch.tensor(7),
    "truth": torch.tensor([True, False]),
    "none": torch.empty(0, 3, dtype=torch.bfloat16),
    "half": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
}
KEPT = Kept("e" * 64, ["weight", "ids"], 1, CONSTANTS)


def test_constants_come_back_as_they_were(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    keep(cache, "k", KEPT)
    found = find(cache, "k")
    assert found is not None
    assert (found.entry, list(found.arguments), found.outputs) == (KEPT.entry, KEPT.arguments, 1)
    for name, each in CONSTANTS.items():
        again = found.constants[name]
        assert torch.equal(again, each) and again.stride() == each.stride() and again.dtype is each.dtype
    assert found.executor(cache, {}, None) is None  # there is no such program
    assert find(cache, "other") is None


@pytest.mark.parametrize(
    "change",
    [
        {"smelt_program": 99},
        {"entry": 3},
        {"arguments": "weight"},
        {"constants": [["x", "float33", [1], [1]]]},
        {"constants": [["x", "float32", [1000], [1]]]},
        {"constants": []},
        {"outputs": "1"},
    ],
)
def test_an_entry_that_makes_no_sense_is_removed(tmp_path: Path, change: dict[str, Any]) -> None:
    cache = Cache(tmp_path)
    keep(cache, "k", KEPT)
    entry = cache.get(PREFIX + "k")
    assert entry is not None
    about = json.loads(entry.read("program.json")) | change
    files = {"program.json": json.dumps(about).encode(), "constants": entry.read("constants")}
    cache.put(PREFIX + "k", files)
    assert find(cache, "k") is None
    assert cache.get(PREFIX + "k") is None


def test_a_constant_of_another_kind_is_not_stored(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    keep(cache, "k", Kept("e" * 64, [], 1, {"sparse": torch.eye(2).to_sparse()}))
    assert find(cache, "k") is None
