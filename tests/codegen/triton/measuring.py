"""Mode ``max`` with a driver that interprets: ``python -m tests.codegen.triton.measuring CASE`` compiles a
program; with a request as its argument it is the process that measures.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch

import smelt
from smelt.backend import backend_for
from smelt.pipeline import measured, measurer
from smelt.pipeline.triton import Launches
from smelt.records import replace
from smelt.schedule.tilings import Tiles
from tests.codegen.triton import cuda_attention
from tests.codegen.triton.attention import operands
from tests.codegen.triton.launched import Faked, difference

KILLS, BLOCKS, WRONG = 9, 8, 7
"""Stages of candidates that misbehave."""


class Measured(Faked):
    """Launches by the interpreter, measured by a process of this module."""

    measurer = (sys.executable, "-W", "ignore", "-m", "tests.codegen.triton.measuring")

    def restored(self, stored: bytes) -> Any:
        launches = Launches.read(stored)
        stages = launches.orders[0].stages
        if stages == KILLS:
            os.kill(os.getpid(), signal.SIGKILL)
        if stages == BLOCKS:
            time.sleep(1000)
        if stages == WRONG:
            launches = replace(launches, text=launches.text.replace("tl.dot(", "0.0 * tl.dot("))
        return super().restored(launches.written())


def _measure(request: str) -> None:
    target = Measured()

    def seconds(call: Any, wait: Any) -> float:
        before = len(target.fake.launches)
        call()
        return 0.5 if len(target.fake.launches) > before else 1.0

    measurer._seconds = seconds
    measurer.measure(target, torch.device("cpu"), Path(request))


def _compile(name: str, function: Any, *operands: torch.Tensor) -> None:
    torch._dynamo.reset()
    smelt.reset()
    options = {"mode": "max", "freezing": False}
    compiled = torch.compile(function, backend=backend_for(Measured()), options=options)
    said = difference(compiled(*operands), function(*operands))
    report = smelt.reports()[-1]
    (choice,) = report.choices
    about = {"kernels": report.kernels, "kernel": choice.kernel, "tiles": choice.tiles, "lost": choice.lost}
    print(json.dumps({"name": name, "difference": said, **about}), flush=True)


def attention() -> None:
    """CUDA's efficient kernel, whose sums of queries that are not there are infinite."""
    _compile("attention", cuda_attention.sums, *operands(40, 70, 32))


def product(*misbehaving: int) -> None:
    """A product, whose candidates are one that is right, and those that misbehave."""
    stages = [replace(Tiles(16, 16, 16), stages=each) for each in misbehaving]
    measured.candidates = lambda *sizes: iter([*stages[:1], Tiles(32, 32, 16), *stages[1:]])
    measured.SECONDS = 4.0
    given = torch.randn(32, 64), torch.randn(64, 64)
    _compile("first", torch.mm, *given)
    Measured.measurer = ("/nowhere",)
    _compile("again", torch.mm, *given)


CASES = {
    "attention": attention,
    "killed": partial(product, KILLS),
    "lost": partial(product, KILLS, WRONG, BLOCKS),
}


if __name__ == "__main__":
    CASES.get(sys.argv[1], partial(_measure, sys.argv[1]))()
