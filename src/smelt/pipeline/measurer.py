"""The process that measures candidates on a device: ``python -m smelt.pipeline.measurer DEVICE REQUEST``.

The request is a file of `smelt.pipeline.measured`. A line of JSON is printed before each candidate, with its
number, and one after it, with its seconds, or the reason why there are none.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from smelt.pipeline.targets import CachedTarget
from smelt.runtime import executor, plan_json
from smelt.runtime.gpu import DeviceMemory
from smelt.tuning import empty_operand

SECONDS_EACH = 0.05
ROUNDS = 3
LEAST_RUNS, MOST_RUNS = 2, 200
NEAR = 0.02
"""The difference between a candidate's result and ATen's, as a share of its largest element, beyond which it
is wrong.
"""


def measure(target: CachedTarget, device: torch.device, request: Path) -> None:
    """Runs the candidates of a request on a device."""
    out = os.fdopen(os.dup(1), "w")  # the others of this process print elsewhere
    os.dup2(2, 1)
    asked = json.loads(request.read_text())
    torch.set_float32_matmul_precision(asked["precision"])
    torch.backends.cudnn.allow_tf32 = asked["tf32"]
    jobs = asked["jobs"]
    aten = {job["trial"]: job for job in jobs if job["aten"]}
    results: dict[str, Sequence[Any]] = {}
    drawn: dict[str, list[Any]] = {}
    for job in (job for job in jobs if job["wanted"]):
        print(json.dumps({"number": job["number"]}), file=out, flush=True)
        trial, seconds, why = job["trial"], None, ""
        if trial not in drawn:
            results.clear()
            drawn.clear()
            drawn[trial] = [_drawn(each, device) for each in job["operands"]]
        operands = drawn[trial]
        try:
            if trial not in results and trial in aten:
                results[trial] = _call(target, aten[trial])(list(operands))
            call = _call(target, job)
            why = _difference(call(list(operands)), results.get(trial, ()))
            if not why:
                seconds = _seconds(partial(call_with, call, operands), DeviceMemory(device).wait)
        except Exception as error:
            why = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        said = {"number": job["number"], "seconds": seconds, "why": why}
        print(json.dumps(said), file=out, flush=True)


def _call(target: CachedTarget, job: Mapping[str, Any]) -> Callable[[list[Any]], Sequence[Any]]:
    library = None if job["code"] is None else target.restored(job["code"].encode()).library
    return executor.build(plan_json.from_json(job["plan"]), library, {})


def call_with(call: Callable[[list[Any]], Any], operands: Sequence[Any]) -> Any:
    """A call, which empties its list."""
    return call(list(operands))


def _drawn(operand: Any, device: torch.device) -> Any:
    """Random numbers in the layout of an operand; integers are 0, as they may be indices."""
    if operand is None or isinstance(operand, int):
        return operand
    shape, strides, dtype = operand
    made, once = empty_operand(shape, strides, getattr(torch, dtype), device)
    if made.dtype.is_floating_point:
        torch.manual_seed(0)
        once.copy_(torch.randn(once.shape, device=device))
    else:
        once.fill_(made.dtype is torch.bool)
    return made


def _difference(found: Sequence[Any], wanted: Sequence[Any]) -> str:
    for one, other in zip(found, wanted):
        if isinstance(other, torch.Tensor) and other.numel():
            largest = float(other.where(other.isfinite(), 0).abs().max()) or 1.0
            away = float((one.float() - other.float()).where(one != other, 0).abs().max()) / largest
            if not away <= NEAR:
                return f"its result is wrong: {away:.1e} of the largest element away from ATen's"
    return ""


def _seconds(call: Callable[[], Any], wait: Callable[[], None]) -> float:
    """Seconds of a call: the least of several rounds."""

    def of(count: int) -> float:
        begin = time.perf_counter()
        for _ in range(count):
            call()
        wait()
        return (time.perf_counter() - begin) / count

    wait()
    first = of(1)
    runs = max(LEAST_RUNS, min(MOST_RUNS, int(SECONDS_EACH / first)))
    return min(of(runs) for _ in range(ROUNDS)) if first < SECONDS_EACH else min(first, of(1))


def main() -> None:
    """Measures on a GPU of this machine."""
    from smelt.pipeline.triton import gpu_target

    device = torch.device(sys.argv[1])
    measure(gpu_target(device), device, Path(sys.argv[2]))


if __name__ == "__main__":
    main()
