"""Packages: what is shipped, how long they take to start, speed and memory; beside torch and other runtimes.

    python benchmarks/packages.py [--models minilm] [--contenders package,smelt] [--folder FOLDER] [--make]

Every contender has a process of its own (`packages_worker.py`; the package's is a C program,
`packages_run.c`). What they need is made ahead of time in ``--folder``, and kept there: a second run only
measures. All of a model's are loaded once alone, then all are ready at once and take turns, A B, B A, …
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import tables
from run import chosen, say
from smelt.cli.bench import duration
from smelt.cli.fresh_cache import cache_variables
from smelt.packages.folder import RUNTIME
from smelt.tracing.peaks import processor
from team import HERE, SETTLE_SECONDS, FailedError, Process

Document = dict[str, Any]
MODELS = ("minilm", "resnet50", "smollm2_decode", "cnn_step")
PEERS = ("aoti", "onnxruntime", "executorch", "tvm")
KINDS = ("package", "package-python", "smelt", "smelt-winograd", *PEERS)
"""``package``: its C program; ``smelt``: the same program compiled in torch, ``-winograd``: with that too."""
APART = ("onnxruntime", "executorch", "tvm")
"""Those that may live in an environment of their own."""
TURN_SECONDS = 0.1
STARTS = 3
HEADS = (
    "contender",
    "to ship",
    "runtime",
    "model",
    "start",
    "load",
    "first call",
    "a call",
    "package is",
    "memory",
    "error",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what the arguments ask for; 1 when a package failed somewhere."""
    options = parse(arguments)
    results: Document = {
        "schema": 1,
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "machine": {
            "processor": processor(),
            "threads": options.threads,
            "python": platform.python_version(),
        },
        "models": [],
    }
    options.folder.mkdir(parents=True, exist_ok=True)
    console = Console(width=150)
    failed = False
    for model in options.models:
        absent = make(model, options)
        failed |= "package" in absent
        if options.make or "program" in absent:
            say(f"{model}: " + ("; ".join(f"{name}: {why}" for name, why in absent.items()) or "made"))
            continue
        results["models"].append(measure(model, absent, options))
        console.print(_rich(results["models"][-1]))
    if not options.make:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "packages.md").write_text(markdown(results))
        (options.json or options.out / "packages.json").write_text(json.dumps(results, indent=1) + "\n")
    return int(failed)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line, with names checked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=",".join(MODELS), help=f"of {', '.join(MODELS)}")
    parser.add_argument("--contenders", default=",".join(KINDS), help=f"of {', '.join(KINDS)}")
    parser.add_argument("--seconds", type=float, default=10.0, help="seconds of turns for a model")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--patience", type=float, default=900.0, help="seconds for one answer")
    parser.add_argument(
        "--folder", type=Path, default=Path("bench-results", "packages"), help="files that are made"
    )
    parser.add_argument("--make", action="store_true", help="only make what is missing there")
    for name in APART:
        parser.add_argument(f"--{name}-python", help=f"the Python that has {name} (default: this one)")
    parser.add_argument("--out", type=Path, default=Path("bench-results"))
    parser.add_argument("--json", type=Path, help="where the results go (default: packages.json in --out)")
    options = parser.parse_args(arguments)
    try:
        options.models = chosen(options.models, MODELS)
        options.contenders = chosen(options.contenders, KINDS)
    except ValueError as error:
        parser.error(str(error))
    if options.threads < 1:
        parser.error("threads are 1 or more")
    return options


def make(model: str, options: argparse.Namespace) -> dict[str, str]:
    """Make what contenders load, where it is missing: those that cannot have it, each with the reason."""
    absent: dict[str, str] = {}
    folder = options.folder / model
    folder.mkdir(exist_ok=True)
    for kind in ("program", *options.contenders):
        place = folder / kind
        if (place / "made.json").is_file():
            continue
        why = reason_to_sit_out(kind, model)
        if why is None:
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir()
            try:
                with _worker(kind, model, options) as process:
                    say(f"  {model}: making {kind}")
                    told = process.ask("make")
                    if kind.startswith("smelt"):  # with a cold cache
                        told["cold"] = process.ask("prepare")
                (place / "made.json").write_text(json.dumps(told))
            except FailedError as failed:
                why = str(failed)
        if why is not None:
            absent[kind] = why
            if kind == "program":
                break
    return absent


def reason_to_sit_out(kind: str, model: str) -> str | None:
    """Why a contender cannot be measured on a model."""
    if kind in PEERS and model == "cnn_step":
        return "has no packages that train"
    return (
        "only where there are 3x3 convolutions" if kind == "smelt-winograd" and model != "resnet50" else None
    )


def measure(model: str, absent: dict[str, str], options: argparse.Namespace) -> Document:
    """A model's document: starts, each alone, then turns of all."""
    names = [kind for kind in options.contenders if kind not in absent]
    told: dict[str, Document] = {name: {"starts": []} for name in names}
    for _ in range(STARTS):
        for name in list(names):
            try:
                begin = time.perf_counter()
                with _started(name, model, options) as process:
                    answer = process.ask("prepare")
                    told[name]["starts"].append({**answer, "start_seconds": time.perf_counter() - begin})
            except FailedError as failed:
                absent[name] = str(failed)
                names.remove(name)
    with ExitStack() as stack:
        workers = {name: stack.enter_context(_started(name, model, options)) for name in names}
        calls = {}
        for name, worker in workers.items():
            worker.ask("prepare")
            worker.ask("turn", calls=2)
            seconds = worker.ask("turn", calls=1)["seconds"]
            calls[name] = max(1, math.ceil(TURN_SECONDS / max(seconds, 1e-7)))
        turns: dict[str, list[float]] = {name: [] for name in names}
        order, end = list(names), time.perf_counter() + options.seconds
        while len(turns[names[0]]) < 4 or time.perf_counter() < end:
            for name in order:
                turns[name].append(workers[name].ask("turn", calls=calls[name])["seconds"])
                time.sleep(SETTLE_SECONDS)
            order.reverse()
        for name in names:
            told[name] |= workers[name].ask("memory")
    found = {}
    for name in names:
        place = options.folder / model / name
        found[name] = {
            **told[name],
            "sizes": json.loads((place / "made.json").read_text())["sizes"],
            "turns": turns[name],
            "seconds": statistics.median(turns[name]),
            "fastest": min(turns[name]),
            "error": _error(place.parent, place),
        }
        if "package" in turns:
            pairs = zip(turns[name], turns["package"])
            found[name]["package_speed"] = statistics.median(other / own for other, own in pairs)
            found[name]["package_speed_fastest"] = min(turns[name]) / min(turns["package"])
    return {"name": model, "contenders": found, "absent": absent}


def _error(folder: Path, place: Path) -> float | None:
    """The largest difference from eager's results, over the largest number of each."""
    errors = []
    for expected in sorted(folder.glob("expected_*.bin")):
        want = np.fromfile(expected, np.float32)
        got = np.fromfile(place / expected.name.replace("expected", "out"), np.float32)
        if got.shape != want.shape:
            return None
        errors.append(float(np.abs(got - want).max() / np.abs(want).max()))
    return max(errors)


def _worker(kind: str, model: str, options: argparse.Namespace) -> Process:
    folder = (options.folder / model).resolve()
    environment = {**os.environ, **cache_variables(str(folder / kind)), "HF_HUB_OFFLINE": "1"}
    environment |= {"OMP_NUM_THREADS": str(options.threads), "TVM_NUM_THREADS": str(options.threads)}
    python = (getattr(options, f"{kind}_python") if kind in APART else None) or sys.executable
    words = [kind, model, str(options.threads), str(folder)]
    return Process([python, str(HERE / "packages_worker.py"), *words], environment, options.patience)


def _started(kind: str, model: str, options: argparse.Namespace) -> Process:
    """A contender's process; the package's is a C program."""
    if kind != "package":
        return _worker(kind, model, options)
    folder = (options.folder / model).resolve()
    for number, path in enumerate(sorted(folder.glob("in_*.bin"))):
        shutil.copy(path, folder / kind / f"in_{number}.bin")
    program, package = options.folder / "packages_run", folder / kind / f"{model}.smelt"
    if not program.exists():
        source = HERE / "packages_run.c"
        subprocess.run(["cc", "-O2", f"-I{RUNTIME}", str(source), "-o", str(program), "-ldl"], check=True)
    library = next((package / "lib").rglob("*.so"))
    words = [
        str(library),
        model,
        str(package / "weights.safetensors"),
        str(folder / kind),
        str(options.threads),
    ]
    return Process([str(program.resolve()), *words], os.environ, options.patience)


# -- tables --------------------------------------------------------------------------------------------------


def rows(document: Document) -> list[list[str]]:
    """A model's table: a row for each contender."""
    found = []
    for name, each in document["contenders"].items():
        sizes, starts = each["sizes"], each["starts"]
        best = {key: min(start[key] for start in starts) for key in starts[0]}
        shipped = sum(sizes.values())
        found.append(
            [
                name,
                _bytes(shipped) if sizes else "",
                _bytes(sizes["runtime"]) if sizes else "",
                _bytes(sizes["model"] + sizes["weights"]) if sizes else "",
                *(duration(best[f"{key}_seconds"]) for key in ("start", "load", "first")),
                duration(each["seconds"]),
                f"{each['package_speed']:.2f}x ({each['package_speed_fastest']:.2f}x)"
                if "package_speed" in each
                else "",
                _bytes(each["peak_bytes"]),
                "other shapes" if each["error"] is None else f"{each['error']:.0e}",
            ]
        )
    return found


def _bytes(count: int) -> str:
    """
    >>> _bytes(0), _bytes(96408), _bytes(434184800)
    ('–', '0.10 MB', '434 MB')
    """
    return f"{count / 1e6:.{0 if count >= 1e8 else 1 if count >= 1e6 else 2}f} MB" if count else "–"


def markdown(results: Document) -> str:
    """The results as a page."""
    machine = results["machine"]
    lines = [
        f"# Packages, {results['date']}",
        "",
        f"{machine['processor']}, {machine['threads']} thread(s). To ship: the model's files and the "
        "runtime's libraries, without Python. Start: from the start of the process to its first result,"
        f" best of {STARTS}; load (without imports) and first call are parts of it. A call: the median of "
        "turns; package is: how many times faster the package is, the median over rounds, and in parentheses "
        "of the fastest turns. Memory: the most that the process has had (`package`: a C program; all "
        "others: Python). Error: the largest difference from eager's results over their largest number.",
    ]
    for each in results["models"]:
        lines += ["", f"## {each['name']}", "", *tables.table(HEADS, rows(each))]
        lines += ["", *(f"- {name}: {why}" for name, why in each["absent"].items())]
    return "\n".join(lines).rstrip() + "\n"


def _rich(document: Document) -> Table:
    table = Table(*HEADS, title=document["name"])
    for each in table.columns[1:]:
        each.justify = "right"
    for row in rows(document):
        table.add_row(*row)
    table.caption = "\n".join(f"{name}: {why}" for name, why in document["absent"].items())
    return table


if __name__ == "__main__":
    sys.exit(main())
