"""``smelt bench``: time, compile time and numerical errors of a program under eager, smelt and others."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from smelt.cli import jobs, spec
from smelt.cli.console import check_folder, err, out, progress
from smelt.cli.fresh_cache import cache_variables, temporary_folder
from smelt.cli.profile import show as show_profile
from smelt.errors import SmeltError

SCHEMA = 1
"""Version of the ``--json`` format: raised when a key changes its meaning."""


@dataclass(frozen=True, slots=True)
class Request:
    """The parameters of a measurement. ``contenders[0]`` is the compiler that is judged, the others are for
    comparison.
    """

    spec: str
    contenders: tuple[str, ...] = ("smelt",)
    train: bool = False
    threads: int | None = None
    dynamic: bool | None = None
    seconds: float = 5.0
    compile_times: bool = True
    profile: bool = False
    profile_to: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    device: str | None = None

    def job(self, task: str, contenders: tuple[str, ...]) -> dict[str, Any]:
        return {
            "task": task,
            "spec": self.spec,
            "contenders": contenders,
            "train": self.train,
            "threads": self.threads,
            "dynamic": self.dynamic,
            "seconds": self.seconds,
            "options": self.options,
            "device": self.device,
        }


def measure(request: Request) -> dict[str, Any]:
    """Measures everything that ``--json`` writes, as plain data.

    Raises:
        SmeltError: a bad SPEC, a model that raises in eager, a missing compiler.
        smelt.cli.jobs.WorkerError: the judged compiler failed.
    """
    spec.split(request.spec)
    what = "a training step" if request.train else "inference"
    compiles: dict[str, Any] = {}
    failures: dict[str, str] = {}
    with temporary_folder("bench") as folder:
        variables = cache_variables(folder)
        for contender in request.contenders if request.compile_times else ():
            job = request.job("compile", (contender,))
            try:
                with progress(f"{contender}: first call, empty cache"):
                    cold = jobs.run(job, variables)
                with progress(f"{contender}: first call of a second process, warm cache"):
                    warm = jobs.run(job, variables)
                compiles[contender] = {"cold": cold, "warm": warm}
            except jobs.WorkerError as error:
                if contender == request.contenders[0]:
                    raise
                failures[contender] = str(error).splitlines()[-1]
        racing = tuple(name for name in request.contenders if name not in failures)
        with progress(f"eager, {', '.join(racing)} in turns, {what}, {request.seconds:g} s"):
            race = jobs.run(request.job("compare", racing), variables)
        profile = None
        if request.profile or request.profile_to:
            job = {**request.job("profile", request.contenders[:1]), "to": request.profile_to}
            with progress(f"profile of {request.contenders[0]}"):
                profile = jobs.run(job, cache_variables(f"{folder}/profile"))
    failures.update(race["failures"])
    document = _document(request, compiles, race, failures)
    return document if profile is None else {**document, "profile": profile}


def _document(
    request: Request, compiles: dict[str, Any], race: dict[str, Any], failures: dict[str, str]
) -> dict[str, Any]:
    contenders: dict[str, Any] = {}
    for name in ("eager", *request.contenders):
        contenders[name] = {
            "run": race["times"].get(name),
            "speedup": race["ratios"].get(name),
            "compile": compiles.get(name),
            "accuracy": race["accuracy"].get(name),
            "failed": failures.get(name),
        }
    return {
        "schema": SCHEMA,
        "spec": request.spec,
        "mode": "train" if request.train else "inference",
        "dynamic": request.dynamic,
        "options": request.options,
        "machine": race["machine"],
        "contenders": contenders,
    }


def show(document: dict[str, Any], console: Console) -> None:
    """The document as tables."""
    machine = document["machine"]
    console.print(
        f"[bold]{document['spec']}[/]  {document['mode']}, {machine['threads']} thread(s), {machine['isa']}, "
        f"torch {machine['torch']}"
    )
    console.print(_run_table(document["contenders"]))
    if any(c["compile"] for c in document["contenders"].values()):
        console.print(_compile_table(document["contenders"]))
    for name, contender in document["contenders"].items():
        if contender["accuracy"]:
            console.print(_accuracy_line(name, contender["accuracy"]))
        report = contender["compile"] and contender["compile"]["cold"]["report"]
        if report:
            console.print(_report_line(name, report))
            for fallback in report["fallbacks"]:
                where = f"  ({fallback['where']})" if fallback["where"] else ""
                console.print(
                    f"  fallback {fallback['op']} ×{fallback['count']}: {fallback['reason']}{where}",
                    markup=False,
                )
        if contender["failed"]:
            console.print(Text(f"{name} failed: {contender['failed']}", style="red"))
    if document.get("profile"):
        show_profile(document["profile"], console)


def _run_table(contenders: dict[str, Any]) -> Table:
    table = Table(title="run time", title_justify="left", box=None, header_style="bold", padding=(0, 2, 0, 0))
    for heading in ("", "median", "min – max", "speed-up over eager", "rounds"):
        table.add_column(heading, justify="left" if not heading else "right")
    for name, contender in contenders.items():
        run = contender["run"]
        if run is None:
            table.add_row(name, "failed", "", "", "")
            continue
        speedup = contender["speedup"]
        style = "green" if speedup > 1.02 else "red" if speedup < 0.98 else ""
        table.add_row(
            name,
            duration(run["median"]),
            f"{duration(run['min'])} – {duration(run['max'])}",
            "" if name == "eager" else Text(f"{speedup:.2f}x", style=style),
            str(run["rounds"]),
        )
    return table


def _compile_table(contenders: dict[str, Any]) -> Table:
    title = "compile time (first call less a usual call; own = without Dynamo and AOTAutograd)"
    table = Table(title=title, title_justify="left", box=None, header_style="bold", padding=(0, 2, 0, 0))
    for heading in ("", "cold", "own", "warm", "own", "peak memory", "own cold, by phase"):
        table.add_column(heading, justify="right" if heading and "phase" not in heading else "left")
    for name, contender in contenders.items():
        if not contender["compile"]:
            continue
        cold, warm = contender["compile"]["cold"], contender["compile"]["warm"]
        phases = sorted(cold["phases"].items(), key=lambda item: -item[1])
        table.add_row(
            name,
            duration(cold["seconds"]),
            duration(cold["own_seconds"]),
            duration(warm["seconds"]),
            duration(warm["own_seconds"]),
            f"{cold['peak_bytes'] / 2**20:,.0f} MiB",
            ", ".join(f"{phase} {duration(taken)}" for phase, taken in phases),
        )
    return table


def _accuracy_line(name: str, accuracy: dict[str, Any]) -> Text:
    if not accuracy["compared"]:
        return Text(f"{name} numbers: not compared: {accuracy['reason']}", style="yellow")
    worst = accuracy["worst"]
    if worst is None:
        return Text(f"{name} numbers: no tensors to compare", style="yellow")
    text = f"{name} numbers: worst of {len(accuracy['differences'])} tensor(s), error against float64: "
    text += f"{_errors(worst)} ({worst['name']})"
    if accuracy["within_promise"]:
        return Text(f"{text}: within the promise", style="green")
    why = f": {worst['why']}" if worst["why"] else ""
    return Text(f"{text}{why}: NOT within the promise", style="bold red")


def _errors(worst: dict[str, Any]) -> str:
    if worst["contender"] is None:
        return "not comparable"
    return "none" if worst["contender"] == 0 else f"{worst['contender']:.2e}, eager's {worst['eager']:.2e}"


def _report_line(name: str, report: dict[str, Any]) -> str:
    if report["eager_graphs"]:
        name = f"[bold red]{name} left {report['eager_graphs']} graph(s) to eager;[/] it"
    externs = ", ".join(f"{op} ×{count}" for op, count in sorted(report["externs"].items())) or "none"
    fallbacks = sum(fallback["count"] for fallback in report["fallbacks"])
    return (
        f"{name} compiled {report['graphs']} graph(s): {report['kernels']} kernels in "
        f"{report['native_calls']} native call(s); ATen calls: {externs}; fallbacks: {fallbacks}"
    )


def duration(seconds: float | None) -> str:
    """Seconds as text.

    >>> duration(0.00123), duration(2.5), duration(4.2e-6), duration(None)
    ('1.23 ms', '2.50 s', '4.20 µs', '–')
    """
    if seconds is None:
        return "–"
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= scale:
            value = seconds / scale
            return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f} {unit}"
    return f"{seconds * 1e9:.0f} ns"


def bench(request: Request, json_to: str | None) -> int:
    """The command: measures, shows, writes. The exit code is 1 if the numbers violate the promise."""
    check_folder("--json", json_to)
    to = None if request.profile_to is None else Path(request.profile_to)
    if to is not None and (to.suffix not in (".prof", ".json") or not to.parent.is_dir()):
        raise SmeltError("SM0913", f"--profile-to takes FILE.prof or FILE.json in a folder, not {to}")
    document = measure(request)
    if json_to == "-":
        sys.stdout.write(json.dumps(document, indent=1) + "\n")
    else:
        show(document, out())
        if json_to is not None:
            Path(json_to).write_text(json.dumps(document, indent=1) + "\n")
            err().print(f"written: {json_to}", markup=False)
    judged = document["contenders"][request.contenders[0]]["accuracy"]
    return 0 if judged["within_promise"] else 1
