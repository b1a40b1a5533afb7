"""`make fuzz N=…`: random programs, compiled with smelt and run by its reference interpreter, against eager.

    python -m tests.conformance.fuzz [N] [--seed 0] [--sizes 10] [--steps 10] [--mode max]
    python -m tests.conformance.fuzz --only 1234          (one program again, with its text)

A failing program is shrunk and written to ``conformance-results/fuzz_SEED.py``, which runs by itself.
"""

from __future__ import annotations

import collections
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress, TextColumn, TimeElapsedColumn

from smelt.config import MODES
from tests.conformance.fuzz_worker import FuzzJob, FuzzResult, check_program
from tests.conformance.isolation import Lost, run_isolated
from tests.conformance.minimize import minimize
from tests.conformance.programs import Program, generate

BAD = ("mismatch", "interpreter", "error", "compiles", "crash", "timeout")


def check(job: FuzzJob, timeout: float = 120.0) -> FuzzResult:
    """One job in a process of its own."""
    ((_, result),) = run_isolated([job], check_program, workers=1, timeout=timeout)
    return FuzzResult(result.outcome, result.message) if isinstance(result, Lost) else result


def shrink(job: FuzzJob, outcome: str) -> Program:
    """The smallest program found that fails in the same way."""

    def fails(program: Program) -> bool:
        return check(replace(job, program=program)).outcome == outcome

    return minimize(job.program, fails)


def as_script(job: FuzzJob, result: FuzzResult) -> str:
    """A file that shows the failure: run it from the project's root."""
    return (
        f'"""{result.outcome}: {" ".join(result.message.split())}\n\n'
        f"The program that this was shrunk from: python -m tests.conformance.fuzz --only {job.seed}\n"
        '"""\n\n'
        "from tests.conformance.fuzz_worker import FuzzJob, check_program\n"
        "from tests.conformance.programs import Input, Program, Step\n\n"
        f"# {job.program.source().replace(chr(10), chr(10) + '# ')}\n"
        f"PROGRAM = {job.program!r}\n\n"
        'if __name__ == "__main__":\n'
        f"    print(check_program(FuzzJob(PROGRAM, {job.sizes}, {job.seed}, {job.mode!r})))\n"
    )


def main(
    number: Annotated[int, typer.Argument(help="how many programs")] = 200,
    seed: Annotated[int, typer.Option(help="the first program's seed; they count up")] = 0,
    sizes: Annotated[int, typer.Option(help="1: static; more: symbolic sizes, so many, one compile")] = 1,
    steps: Annotated[int, typer.Option(help="operators in a program")] = 10,
    mode: Annotated[str, typer.Option(help="smelt's mode: default, max")] = "default",
    only: Annotated[int | None, typer.Option(help="one program, by its seed, with its text")] = None,
    workers: Annotated[int, typer.Option(help="processes")] = 2,
    timeout: Annotated[float, typer.Option(help="seconds for one program")] = 120.0,
    out: Annotated[Path, typer.Option(help="folder for failing programs")] = Path("conformance-results"),
) -> None:
    """Random programs: views, mutation, strides, dtypes, gradients; each against eager and float64."""
    if number < 1 or sizes < 1 or steps < 1:
        raise typer.BadParameter("N, --sizes and --steps are at least 1")
    if mode not in MODES:
        raise typer.BadParameter(f"--mode is one of {', '.join(MODES)}")
    seeds = range(seed, seed + number) if only is None else [only]
    jobs = [FuzzJob(generate(each, steps), sizes, each, mode) for each in seeds]
    if only is not None:
        print(jobs[0].program.source())
    console = Console(stderr=True)
    outcomes: collections.Counter[str] = collections.Counter()
    failures: list[tuple[FuzzJob, FuzzResult]] = []
    fallbacks = 0
    columns = (*Progress.get_default_columns(), TimeElapsedColumn(), TextColumn("{task.fields[note]}"))
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("programs", total=len(jobs), note="")
        for job, result in run_isolated(jobs, check_program, workers=workers, timeout=timeout):
            if isinstance(result, Lost):
                result = FuzzResult(result.outcome, result.message)
            outcomes[result.outcome] += 1
            fallbacks += result.fallbacks
            if result.outcome in BAD:
                failures.append((job, result))
                progress.console.print(f"{job.seed}: {result.outcome}: {result.message[:200]}", markup=False)
            progress.update(task, advance=1, note=", ".join(f"{n} {o}" for o, n in outcomes.most_common()))
    print(f"{len(jobs)} programs: {dict(outcomes)}; {fallbacks} fallbacks")
    for job, result in failures[:20]:
        console.print(f"shrinking {job.seed} …")
        small = replace(job, program=shrink(job, result.outcome))
        out.mkdir(parents=True, exist_ok=True)
        path = out / f"fuzz_{job.seed}.py"
        path.write_text(as_script(small, result))
        print(f"{path}: {result.outcome}, {len(small.program.steps)} steps\n{small.program.source()}")
    sys.exit(bool(failures))


if __name__ == "__main__":
    typer.run(main)
