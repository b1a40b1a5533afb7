"""Mode ``max`` with a driver that interprets: ``python -m tests.codegen.triton.measuring`` compiles a product
twice; with a request as its argument it is the process that measures.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch

import smelt
from smelt.backend import backend_for
from smelt.pipeline import measured, measurer
from smelt.pipeline.triton import Launches
from smelt.records import replace
from smelt.schedule.tilings import Tiles
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


def _compile(name: str) -> None:
    torch._dynamo.reset()
    smelt.reset()
    a, b = torch.randn(32, 64), torch.randn(64, 64)
    backend = backend_for(Measured())
    options = {"mode": "max", "freezing": False}
    said = difference(torch.compile(lambda a, b: a @ b, backend=backend, options=options)(a, b), a @ b)
    report = smelt.reports()[-1]
    (choice,) = report.choices
    about = {"kernels": report.kernels, "kernel": choice.kernel, "tiles": choice.tiles, "lost": choice.lost}
    print(json.dumps({"name": name, "difference": said, **about}), flush=True)


def main() -> None:
    usual = Tiles(16, 16, 16)
    kills, wrong, blocks = (replace(usual, stages=stages) for stages in (KILLS, WRONG, BLOCKS))
    measured.candidates = lambda *sizes: iter([kills, wrong, Tiles(32, 32, 16), blocks])
    measured.SECONDS = 4.0
    _compile("first")
    Measured.measurer = ("/nowhere",)
    _compile("again")


if __name__ == "__main__":
    _measure(sys.argv[1]) if len(sys.argv) > 1 else main()
