"""`make bench`: the whole zoo into bench-results/results.json and results.md, and on the terminal.

Every program is measured by `smelt bench`'s own machinery: contenders in turns in one process, each compile
in a process of its own. A program that fails is a row that says so, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any

import zoo
from smelt.cli import jobs
from smelt.cli.bench import Request, duration, measure
from smelt.cli.console import one_line
from smelt.errors import SmeltError

HERE = Path(__file__).parent


def main() -> int:
    """Measure what the arguments ask for; 1 when a program failed or its numbers are off."""
    options = _arguments()
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    modes = {"inference": (False,), "train": (True,), "both": (False, True)}[options.mode]
    documents: list[dict[str, Any]] = []
    for name in options.programs or (*zoo.MODELS, *zoo.MICRO):
        for train in modes:
            documents.append(_measure(name, train, options))
            (out / "results.json").write_text(json.dumps(documents, indent=1) + "\n")
    text = markdown(documents, tuple(options.vs))
    (out / "results.md").write_text(text)
    sys.stdout.write(text)
    sys.stderr.write(f"written: {out / 'results.json'}, {out / 'results.md'}\n")
    return 1 if any(not good(document) for document in documents) else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("programs", nargs="*", help="names from zoo.py; none: all of them")
    parser.add_argument("--mode", choices=("inference", "train", "both"), default="both")
    parser.add_argument("--vs", action="append", default=None, help="another backend (default: inductor)")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--seconds", type=float, default=10.0, help="how long contenders take turns")
    parser.add_argument("--out", default="bench-results")
    options = parser.parse_args()
    options.vs = ["inductor"] if options.vs is None else options.vs
    return options


def _measure(name: str, train: bool, options: argparse.Namespace) -> dict[str, Any]:
    """One program's document, or one with ``error``."""
    sys.stderr.write(f"== {name} ({'train' if train else 'inference'})\n")
    request = Request(
        spec=f"{HERE / 'zoo.py'}:{name}",
        contenders=("smelt", *options.vs),
        train=train,
        threads=options.threads,
        seconds=options.seconds,
    )
    head = {"name": name, "mode": "train" if train else "inference"}
    try:
        return {**measure(request), **head, "spec": f"benchmarks/zoo.py:{name}"}
    except SmeltError as error:
        return {**head, "error": one_line(error)}
    except jobs.WorkerError as error:
        sys.stderr.write(f"{error}\n")
        return {**head, "error": str(error).splitlines()[-1]}


def good(document: dict[str, Any]) -> bool:
    """Whether smelt ran and its numbers are within the promise."""
    return "error" not in document and document["contenders"]["smelt"]["accuracy"]["within_promise"]


def markdown(documents: list[dict[str, Any]], others: tuple[str, ...]) -> str:
    """The table: times, speed-ups over eager, compile seconds, numbers; geometric means at the end."""
    heads = ["program", "mode", "eager", "smelt", "smelt x", *(f"{other} x" for other in others)]
    heads += ["cold s", "own", "warm own", *(f"{other} cold s" for other in others), "error", "fallbacks"]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for document in documents:
        lines.append("| " + " | ".join(_row(document, others)) + " |")
    for mode in ("inference", "train"):
        lines += _means([d for d in documents if d["mode"] == mode and "error" not in d], mode, others)
    return "\n".join(lines) + "\n"


def _row(document: dict[str, Any], others: tuple[str, ...]) -> list[str]:
    width = 11 + 2 * len(others)
    if "error" in document:
        return [document["name"], document["mode"], f"failed: {document['error'][:80]}", *[""] * (width - 3)]
    contenders = document["contenders"]
    smelt = contenders["smelt"]
    cold, warm = smelt["compile"]["cold"], smelt["compile"]["warm"]
    fallbacks = sum(fallback["count"] for fallback in cold["report"]["fallbacks"])
    row = [document["name"], document["mode"]]
    row += [duration(contenders[name]["run"]["median"]) for name in ("eager", "smelt")]
    row += [_times(contenders[name]) for name in ("smelt", *others)]
    row += [f"{cold['seconds']:.1f}", f"{cold['own_seconds']:.2f}", f"{warm['own_seconds']:.2f}"]
    row += [_cold(contenders[name]) for name in others]
    return [*row, _error(smelt["accuracy"]), str(fallbacks)]


def _times(contender: dict[str, Any]) -> str:
    return "failed" if contender["speedup"] is None else f"{contender['speedup']:.2f}"


def _cold(contender: dict[str, Any]) -> str:
    return f"{contender['compile']['cold']['seconds']:.1f}" if contender["compile"] else "failed"


def _error(accuracy: dict[str, Any]) -> str:
    if not accuracy["compared"]:
        return "not compared"
    if not accuracy["within_promise"]:
        return "OUT OF PROMISE"
    worst = accuracy["worst"]
    if worst is None or worst["contender"] == 0:
        return "exact"
    return f"{worst['contender']:.1e}" if worst["ratio"] is None else f"{worst['ratio']:.2f}x eager's"


def _means(documents: list[dict[str, Any]], mode: str, others: tuple[str, ...]) -> list[str]:
    models = [document for document in documents if document["name"] in zoo.MODELS]
    parts = []
    for name in ("smelt", *others):
        values = [document["contenders"][name]["speedup"] for document in models]
        known = [value for value in values if value]
        if known:
            mean = math.exp(sum(map(math.log, known)) / len(known))
            parts.append(f"{name} {mean:.2f}x ({len(known)} of {len(models)})")
    return ["", f"{mode}: geometric mean over eager, models only: " + ", ".join(parts)] if parts else []


if __name__ == "__main__":
    sys.exit(main())
