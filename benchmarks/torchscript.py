"""silero-vad, a model that ships as TorchScript: one chunk of sound under TorchScript and compiled.

`python benchmarks/torchscript.py [--threads 1,2] [--seconds S] [--json FILE]` (needs silero-vad, of the extra
`demo`). Each number of threads is a process of its own, TorchScript and smelt take turns within it. The time
of a call is that of a chunk of 32 ms; on a machine that others use read the ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

import smelt
from smelt.cli.bench import duration
from smelt.cli.console import out, progress
from smelt.cli.measure import race, ratio

CHUNKS = {"16 kHz": (16000, 512), "8 kHz": (8000, 256)}
CONTENDERS: dict[str, dict[str, Any]] = {
    "smelt": {},
    "smelt, dynamic=False": {"dynamic": False},
    "smelt, freezing=False": {"freezing": False},
}


def main() -> int:
    """Measure, print a table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", default="1,2", help="numbers of threads, in turn")
    parser.add_argument("--seconds", type=float, default=5.0, help="per rate and number of threads")
    parser.add_argument("--json", default=None)
    parser.add_argument("--one", type=int, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one is not None:
        print(json.dumps(measure(options.one, options.seconds)))
        return 0
    if find_spec("silero_vad") is None:
        print("silero-vad is not installed: pip install 'torch-smelt[demo]'", file=sys.stderr)
        return 2
    document: dict[str, Any] = {"torch": torch.__version__, "load": os.getloadavg()[0], "threads": {}}
    for threads in options.threads.split(","):
        with progress(f"{threads} thread(s)"):
            command = [sys.executable, __file__, "--one", threads, "--seconds", str(options.seconds)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
        document["threads"][threads] = json.loads(done.stdout.splitlines()[-1])
    show(document)
    if options.json:
        Path(options.json).write_text(json.dumps(document, indent=1) + "\n")
    return 0


def load() -> Any:
    """The model as it ships."""
    found = find_spec("silero_vad")
    assert found is not None and found.origin is not None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.load(str(Path(found.origin).parent / "data" / "silero_vad.jit")).eval()


def measure(threads: int, seconds: float) -> dict[str, Any]:
    """For each rate the times of all, and how many times faster than TorchScript each is."""
    torch.set_num_threads(threads)
    models = {"TorchScript": load()}
    models |= {name: smelt.compile(models["TorchScript"], **options) for name, options in CONTENDERS.items()}
    found: dict[str, Any] = {}
    with torch.no_grad():
        for rate, (samples, size) in CHUNKS.items():
            runs = {name: _stream(model, samples, size) for name, model in models.items()}
            times = race(runs, seconds)
            found[rate] = {
                name: {**timing.as_dict(), "times faster": ratio(times["TorchScript"], timing)}
                for name, timing in times.items()
            }
    return found


def _stream(model: Any, rate: int, size: int) -> Callable[[], Any]:
    """One chunk after the other; the state goes on."""
    torch.manual_seed(0)
    chunks = [0.1 * torch.randn(1, size) for _ in range(100)]
    model.reset_states()
    place = 0

    def step() -> Any:
        nonlocal place
        place = (place + 1) % len(chunks)
        return model(chunks[place], rate)

    return step


def show(document: dict[str, Any]) -> None:
    """One line for each number of threads, rate and contender."""
    title = f"silero-vad, torch {document['torch']}, load {document['load']:.1f}"
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    for heading in ("threads", "rate", "contender", "median", "min", "times faster"):
        left = heading in ("threads", "rate", "contender")
        table.add_column(heading, justify="left" if left else "right")
    for threads, rates in document["threads"].items():
        for rate, contenders in rates.items():
            for name, timing in contenders.items():
                fast = f"{timing['times faster']:.1f}"
                table.add_row(threads, rate, name, duration(timing["median"]), duration(timing["min"]), fast)
    out().print(table)


if __name__ == "__main__":
    sys.exit(main())
