"""Kernels under torch.profiler have their names and the model's lines; nothing is watched without one."""

from __future__ import annotations

import gc
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

import smelt


def model(x: torch.Tensor) -> torch.Tensor:
    y = x.sin().sum(1, keepdim=True)
    return (x - y).softmax(0)


def ranges(call: object, x: torch.Tensor) -> dict[str, int]:
    with profile(activities=[ProfilerActivity.CPU]) as found:
        call(x)  # type: ignore[operator]
    return {each.key: each.count for each in found.key_averages() if each.key.startswith("smelt::")}


def test_a_profiler_shows_kernels_by_name_and_line() -> None:
    smelt.reset()
    fast, x = smelt.compile(model), torch.randn(64, 32)
    expected = fast(x)
    seen = ranges(fast, x)
    kernels = smelt.reports()[-1].kernels
    assert sum(seen.values()) == len(kernels) > 0
    lines = Path(__file__).read_text().splitlines()
    line = next(number for number, text in enumerate(lines, 1) if "x.sin()" in text)
    assert any(f"test_watching.py:{line}" in name for name in seen)
    assert {name.removeprefix("smelt::").partition(" ")[0] for name in seen} == set(kernels)
    assert torch.equal(fast(x), expected)  # the first call without a profiler ends the watch
    assert ranges(fast, x) == seen


def test_each_run_has_its_ranges() -> None:
    fast, x = smelt.compile(model), torch.randn(64, 32)
    fast(x)
    with profile(activities=[ProfilerActivity.CPU]) as found:
        for _ in range(3):
            fast(x)
    counts = {each.key: each.count for each in found.key_averages() if each.key.startswith("smelt::")}
    assert counts and all(count % 3 == 0 for count in counts.values())


def test_a_library_may_outlive_the_program_that_was_watched() -> None:
    x = torch.randn(64, 32)
    first = smelt.compile(model)
    expected, seen = first(x), ranges(first, x)
    del first
    torch.compiler.reset()
    smelt.reset()
    gc.collect()
    again = smelt.compile(model)  # from the cache: the same library, which was never told to stop
    assert torch.equal(again(x), expected)
    assert ranges(again, x) == seen
