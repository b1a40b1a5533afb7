"""Memory-bound graphs against the machine's own copy bandwidth, and graphs so small that calls count.

`python benchmarks/micro.py [--threads N] [--seconds S] [--vs inductor] [--json FILE]`. Everything is measured
in one run, in turns: a copy of as many bytes is a contender, into memory that is there (``copy``) or
into fresh memory (``clone``), as a graph's outputs are.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from torch.utils._pytree import tree_leaves

import zoo
from smelt.cli.bench import duration
from smelt.cli.console import out, progress
from smelt.cli.measure import Timing, race
from smelt.cli.spec import Program
from smelt.tracing.workload import Setup, compiled, runner

STREAMS = ("layernorm_gelu_residual", "masked_softmax", "pointwise_chain_4m")
CALLS = tuple(name for name in zoo.MICRO if name not in STREAMS)


def main() -> int:
    """Measure, print two tables, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--seconds", type=float, default=5.0, help="per graph")
    parser.add_argument("--vs", action="append", default=None, help="another backend (default: inductor)")
    parser.add_argument("--json", default=None)
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    contenders = ("eager", "smelt", *(["inductor"] if options.vs is None else options.vs))
    document: dict[str, Any] = {"threads": torch.get_num_threads(), "streams": {}, "calls": {}}
    for name in STREAMS:
        with progress(f"{name}: {', '.join(contenders)}, copy"):
            document["streams"][name] = stream(name, contenders, options.seconds)
    for name in CALLS:
        with progress(f"{name}: {', '.join(contenders)}"):
            times = _race(name, contenders, options.seconds)
        document["calls"][name] = {contender: timing.as_dict() for contender, timing in times.items()}
    show(document)
    if options.json:
        Path(options.json).write_text(json.dumps(document, indent=1) + "\n")
    return 0


def stream(name: str, contenders: tuple[str, ...], seconds: float) -> dict[str, Any]:
    """Seconds and GB/s of each contender; bytes are those of inputs, parameters and outputs, once each."""
    program = Program(*getattr(zoo, name)())
    count = moved_bytes(program)
    source, target = (torch.ones(count // 8, dtype=torch.float32) for _ in range(2))

    def copy() -> None:
        target.copy_(source)

    times = _race(name, contenders, seconds, {"copy": copy, "clone": source.clone}, program)
    speeds = {contender: count / timing.median / 1e9 for contender, timing in times.items()}
    return {
        "bytes": count,
        "gigabytes_per_second": speeds,
        "share_of_copy": {contender: speed / speeds["copy"] for contender, speed in speeds.items()},
        "times": {contender: timing.as_dict() for contender, timing in times.items()},
    }


def moved_bytes(program: Program) -> int:
    """What the program has to read and write at least."""
    with torch.no_grad():
        result = program.call(*program.args, **program.kwargs)
    tensors = [leaf for leaf in tree_leaves((program.args, program.kwargs, result)) if torch.is_tensor(leaf)]
    tensors += list(program.call.parameters()) if isinstance(program.call, torch.nn.Module) else []
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _race(
    name: str,
    contenders: tuple[str, ...],
    seconds: float,
    more: dict[str, Callable[[], Any]] | None = None,
    program: Program | None = None,
) -> dict[str, Timing]:
    program = program or Program(*getattr(zoo, name)())
    setup = Setup(dynamic=False)
    torch._dynamo.reset()
    runs = {each: runner(program, compiled(each, program.call, setup), setup) for each in contenders}
    return race({**runs, **(more or {})}, seconds)


def show(document: dict[str, Any]) -> None:
    """Two tables: streams in GB/s and as share of a copy, calls in time."""
    console = out()
    table = Table(
        title=f"streams, {document['threads']} thread(s)",
        title_justify="left",
        box=None,
        padding=(0, 2, 0, 0),
    )
    for heading in ("graph", "contender", "median", "GB/s", "of copy"):
        table.add_column(heading, justify="left" if heading in ("graph", "contender") else "right")
    for name, result in document["streams"].items():
        for contender, timing in result["times"].items():
            speed = result["gigabytes_per_second"][contender]
            share = f"{result['share_of_copy'][contender]:.0%}"
            table.add_row(name, contender, duration(timing["median"]), f"{speed:.1f}", share)
    console.print(table)
    calls = Table(title="one call", title_justify="left", box=None, padding=(0, 2, 0, 0))
    for heading in ("graph", "contender", "median", "min"):
        calls.add_column(heading, justify="left" if heading in ("graph", "contender") else "right")
    for name, timings in document["calls"].items():
        for contender, timing in timings.items():
            calls.add_row(name, contender, duration(timing["median"]), duration(timing["min"]))
    console.print(calls)


if __name__ == "__main__":
    sys.exit(main())
