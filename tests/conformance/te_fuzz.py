"""Random te programs under random schedules (issue 55): ``python -W ignore -m tests.conformance.te_fuzz N``.

    python -W ignore -m tests.conformance.te_fuzz 1000 [--seed 0] [--steps 10] [--batch 20] [--workers 2]
    python -W ignore -m tests.conformance.te_fuzz --only 1234        (one program again, with its text)

Each program runs unscheduled and after its trace, by the interpreter and compiled; all must agree with torch.
A refused step must say why, a trace must do the same again, and the text of the program must say it again.
A failing trace is shortened to the fewest steps that fail in the same way.
"""

from __future__ import annotations

import collections
import sys
from dataclasses import replace
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress, TextColumn, TimeElapsedColumn

from smelt.cli.minimize import smallest
from tests.conformance.isolation import Lost, run_isolated
from tests.conformance.te_fuzz_worker import TeJob, TeResult, check_batch
from tests.conformance.te_programs import generate

Counts = collections.Counter[str]


def check(job: TeJob, timeout: float = 120.0) -> TeResult:
    """A program in a process of its own."""
    ((_, results),) = run_isolated([job], check_batch, workers=1, timeout=timeout)
    if isinstance(results, Lost):
        return TeResult(job.seeds[0], results.outcome, results.message, lines=list(job.lines or ()))
    (result,) = results
    return result  # type: ignore[no-any-return]


def shortened(job: TeJob, result: TeResult, tries: int = 40) -> list[str]:
    """The fewest lines of the trace that fail in the same way."""

    def fails(lines: tuple[str, ...]) -> bool:
        return check(replace(job, seeds=(result.seed,), lines=lines)).outcome == result.outcome

    def smaller(lines: tuple[str, ...]) -> list[tuple[str, ...]]:
        parts = [lines[len(lines) // 2 :], lines[: len(lines) // 2]] if len(lines) > 3 else []
        return [*parts, *(lines[:n] + lines[n + 1 :] for n in range(len(lines)))]

    return list(smallest(tuple(result.lines), smaller, fails, tries))


def main(
    number: Annotated[int, typer.Argument(help="how many programs")] = 200,
    seed: Annotated[int, typer.Option(help="the first program's seed; they count up")] = 0,
    steps: Annotated[int, typer.Option(help="steps of a trace, at most")] = 10,
    batch: Annotated[int, typer.Option(help="programs that are compiled together")] = 20,
    only: Annotated[int | None, typer.Option(help="one program, by its seed, with its text")] = None,
    compiled: Annotated[bool, typer.Option(help="--no-compiled: the interpreter alone")] = True,
    workers: Annotated[int, typer.Option(help="processes")] = 1,
    timeout: Annotated[float, typer.Option(help="seconds for one batch")] = 300.0,
    shrink: Annotated[int, typer.Option(help="so many failures are shortened")] = 10,
) -> None:
    """Random te programs and traces: interpreter, compiled, unscheduled and torch agree."""
    if number < 1 or steps < 1 or batch < 1:
        raise typer.BadParameter("N, --steps and --batch are at least 1")
    seeds = list(range(seed, seed + number)) if only is None else [only]
    jobs = [TeJob(tuple(seeds[n : n + batch]), steps, compiled) for n in range(0, len(seeds), batch)]
    console = Console(stderr=True)
    outcomes, taken, refused = Counts(), Counts(), Counts()
    failures: list[TeResult] = []

    def count(results: list[TeResult]) -> None:
        for result in results:
            outcomes[result.outcome] += 1
            taken.update(result.taken)
            refused.update(result.refused)
            if result.outcome != "pass":
                failures.append(result)
                console.print(f"{result.seed}: {result.outcome}: {result.message[:300]}", markup=False)
            progress.update(task, advance=1, note=", ".join(f"{n} {o}" for o, n in outcomes.most_common()))

    columns = (*Progress.get_default_columns(), TimeElapsedColumn(), TextColumn("{task.fields[note]}"))
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("programs", total=len(seeds), note="")
        for job, results in run_isolated(
            jobs, check_batch, workers=workers, timeout=timeout, jobs_per_process=8
        ):
            if isinstance(results, Lost):
                results = [check(replace(job, seeds=(each,))) for each in job.seeds]
            count(results)
    print(f"{len(seeds)} programs: {dict(outcomes.most_common())}")
    print(f"{taken.total()} steps taken: {dict(taken.most_common())}")
    print(f"{refused.total()} steps refused: {dict(refused.most_common())}")
    job = TeJob((), steps, compiled)
    for result in failures[:shrink] if only is None else failures:
        lines = shortened(job, result)
        print(f"\n{result.seed}: {result.outcome}: {result.message}")
        print("\n".join(f"    {line}" for line in lines))
        if only is not None:
            print(generate(result.seed).func.script())
    sys.exit(bool(failures))


if __name__ == "__main__":
    typer.run(main)
