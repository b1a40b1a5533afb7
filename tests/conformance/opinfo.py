"""`make opinfo`: every operator of PyTorch's own database, compiled with smelt, against eager.

    python -m tests.conformance.opinfo [--ops REGEX] [--dtypes float32,int64] [--samples 3] [--out FOLDER]
        [--backend triton [--cubin 90]]

Writes ``opinfo.json`` and ``opinfo.md``: a line for each operator and dtype with the samples that passed
and the fallbacks that were used. Exit code 1 where something that passes under aot_eager does not with smelt.
"""

from __future__ import annotations

import collections
import json
import re
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.progress import Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests.conformance import cubins
from tests.conformance.isolation import Lost, run_isolated
from tests.conformance.opinfo_worker import OpJob, OpResult, check_operator, entries

DTYPES = ("float32", "float64", "int64", "bool", "bfloat16", "float16")
BAD = ("mismatch", "error", "crash", "timeout")
Rows = list[tuple[OpJob, OpResult]]


def make_jobs(
    pattern: str,
    dtypes: list[str],
    samples: int,
    backward: bool,
    dynamic: bool,
    backend: str = "smelt",
    kernels: str = "",
) -> list[OpJob]:
    """A job for each operator whose name the pattern matches, and each dtype that it takes."""
    jobs = []
    for position, op in enumerate(entries()):
        name = op.formatted_name
        if not re.search(pattern, name):
            continue
        taken = op.supported_dtypes("cpu")
        jobs += [
            OpJob(position, name, dtype, samples, backward, dynamic, backend, kernels)
            for dtype in dtypes
            if getattr(torch, dtype) in taken
        ]
    return jobs


def run_jobs(jobs: list[OpJob], workers: int, timeout: float, console: Console) -> Rows:
    """All results, in the order of the jobs."""
    found: dict[OpJob, OpResult] = {}
    outcomes: collections.Counter[str] = collections.Counter()
    columns = (*Progress.get_default_columns(), TimeElapsedColumn(), TextColumn("{task.fields[note]}"))
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("operators", total=len(jobs), note="")
        for job, result in run_isolated(jobs, check_operator, workers=workers, timeout=timeout):
            if isinstance(result, Lost):
                result = OpResult(result.outcome, result.message)
            found[job] = result
            outcomes[result.outcome] += 1
            if result.outcome in BAD:
                progress.console.print(f"{job.name} {job.dtype}: {result.outcome}: {result.message[:200]}")
            progress.update(task, advance=1, note=", ".join(f"{n} {o}" for o, n in outcomes.most_common()))
    return [(job, found[job]) for job in jobs]


def summary(rows: Rows) -> dict[str, Any]:
    """Counts over all rows. ``zero_fallbacks``: pairs that pass and in which ATen ran nothing unasked."""
    tried = [result for _, result in rows if result.outcome not in ("no sample", "not captured")]
    passed = [result for result in tried if result.outcome == "pass"]
    return {
        "torch": torch.__version__,
        "operators": len({job.name for job, _ in rows}),
        "pairs": len(rows),
        "outcomes": dict(collections.Counter(result.outcome for _, result in rows)),
        "pairs_tried": len(tried),
        "pairs_passed": len(passed),
        "zero_fallbacks": sum(not result.fallbacks for result in passed),
        "samples_passed": sum(result.passed for _, result in rows),
        "backward_passed": sum(result.backward for _, result in rows),
        "stride_differences": sum(result.strides for _, result in rows),
    }


def as_markdown(rows: Rows) -> str:
    """The table that `make opinfo` writes."""
    facts = summary(rows)
    share = 100 * facts["zero_fallbacks"] / max(facts["pairs_tried"], 1)
    lines = [
        "# op_db under smelt",
        "",
        f"{facts['pairs_passed']} of {facts['pairs_tried']} pairs (operator, dtype) pass that pass under "
        f"aot_eager; {share:.1f} % with zero fallbacks. torch {facts['torch']}.",
        "",
        "| operator | dtype | samples passed | backward | outcome | fallbacks |",
        "|---|---|---|---|---|---|",
    ]
    for job, result in rows:
        outcome = result.outcome
        if outcome != "pass":
            outcome += ": " + " ".join(result.message.split())[:120].replace("|", "/")
        fallbacks = "; ".join(f"{name} ×{count}" for name, count in result.fallbacks.items())
        lines.append(
            f"| {job.name} | {job.dtype} | {result.passed}/{result.samples} | {result.backward} | {outcome} "
            f"| {fallbacks.replace('|', '/')} |"
        )
    return "\n".join(lines) + "\n"


def compiled(folder: Path, architecture: int) -> dict[str, Any]:
    """Compiles the kernels of a folder (`tests.conformance.cubins`), and counts what they take."""
    cubins.compile_all(folder, architecture)
    found = cubins.results(folder, architecture)
    made = [each for each in found if "error" not in each]
    return {
        "architecture": architecture,
        "kernels": len(found),
        "compiled": len(made),
        "most_registers": max((each["registers"] for each in made), default=0),
        "with_spills": sum(each["stack"] > 0 for each in made),
        "spilled": [each for each in made if each["stack"] > 0],
        "not_compiled": [each for each in found if "error" in each],
    }


def write(rows: Rows, folder: Path, facts: dict[str, Any]) -> None:
    """``opinfo.json`` and ``opinfo.md``."""
    folder.mkdir(parents=True, exist_ok=True)
    results = [{**asdict(job), **asdict(result)} for job, result in rows]
    text = json.dumps({"summary": facts, "results": results}, indent=1)
    (folder / "opinfo.json").write_text(text)
    (folder / "opinfo.md").write_text(as_markdown(rows))


def main(
    ops: Annotated[str, typer.Option(help="regular expression on the operator's name")] = "",
    dtypes: Annotated[str, typer.Option(help="comma separated")] = ",".join(DTYPES),
    samples: Annotated[int, typer.Option(help="sample inputs for each operator and dtype")] = 3,
    backward: Annotated[bool, typer.Option(help="gradients too, where the operator has them")] = True,
    dynamic: Annotated[bool, typer.Option(help="symbolic sizes")] = False,
    backend: Annotated[
        str, typer.Option(help="smelt, own, triton or triton-products (interpreted)")
    ] = "smelt",
    cubin: Annotated[int, typer.Option(help="compile the kernels of triton for this architecture")] = 0,
    workers: Annotated[int, typer.Option(help="processes")] = 2,
    timeout: Annotated[float, typer.Option(help="seconds for one operator and dtype")] = 180.0,
    out: Annotated[Path, typer.Option(help="folder for opinfo.json and opinfo.md")] = Path(
        "conformance-results"
    ),
) -> None:
    """Compile every operator of op_db with smelt and compare it with eager, forward and backward."""
    console = Console(stderr=True)
    chosen = [each.strip() for each in dtypes.split(",") if each.strip()]
    unknown = [each for each in chosen if not isinstance(getattr(torch, each, None), torch.dtype)]
    if unknown:
        raise typer.BadParameter(f"no dtype {', '.join(unknown)}", param_hint="--dtypes")
    kernels = out / "kernels"
    if cubin:
        kernels.mkdir(parents=True, exist_ok=True)
    jobs = make_jobs(ops, chosen, samples, backward, dynamic, backend, str(kernels) if cubin else "")
    if not jobs:
        raise typer.BadParameter(f"no operator matches {ops!r}", param_hint="--ops")
    rows = run_jobs(jobs, workers, timeout, console)
    facts = summary(rows)
    if cubin:
        facts |= compiled(kernels, cubin)
    write(rows, out, facts)
    table = Table("", "pairs", title=f"op_db: {facts['operators']} operators, {facts['pairs']} pairs")
    for outcome, count in facts["outcomes"].items():
        table.add_row(outcome, str(count))
    table.add_row("zero fallbacks", f"{facts['zero_fallbacks']} of {facts['pairs_tried']}")
    for name in ("kernels", "compiled", "most_registers", "with_spills") if cubin else ():
        table.add_row(f"sm_{cubin}: {name.replace('_', ' ')}", str(facts[name]))
    Console().print(table)
    print(f"written: {out / 'opinfo.json'}, {out / 'opinfo.md'}")
    sys.exit(any(result.outcome in BAD for _, result in rows) or bool(facts.get("not_compiled")))


if __name__ == "__main__":
    typer.run(main)
