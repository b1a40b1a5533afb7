"""`make bench`: the zoo and roofline tables into bench-results/results.json, results.md and results.svg.

Every contender has a process of its own; all of a program's contenders are ready at once and take turns, A B,
B A, … A contender that is missing or fails is listed with its reason. The exit code is 1 when smelt failed or
its numbers are outside the promise.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import shlex
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import architectures
import plot
import tables
import zoo
from contenders import BEFORE, CONTENDERS, OURS, USUAL, error_for_ours
from kernels import KERNELS
from smelt.cli.bench import duration
from smelt.cli.fresh_cache import temporary_folder
from smelt.cli.measure import Timing, ratio
from smelt.tracing.peaks import processor
from team import PACE, FailedError, Member, Turns, race

SCHEMA = 3
"""Version of results.json: raised when a key changes its meaning."""
PROGRAMS = (*zoo.MODELS, *zoo.MICRO, *architectures.FACTORIES)
VERSIONS = ("torch", "transformers", "openvino", "onnxruntime", "onnx", "apache-tvm")
PEAK_SECONDS = INSIDE_SECONDS = 2.0
TOLD = (
    "compile_seconds",
    "own_seconds",
    "peak_bytes",
    "compilers_peak_bytes",
    "accuracy",
    "report",
)
"""What a contender tells when it is ready, as `worker.Worker.prepare` answers."""
Document = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what the arguments ask for; 1 when smelt failed somewhere or its numbers are off."""
    options = parse(arguments)
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    given = shlex.join(sys.argv[1:] if arguments is None else arguments)
    results: Document = {
        "schema": SCHEMA,
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "command": f"benchmarks/run.py {given}".strip(),
        "machine": machine(),
        "peaks": {},
        "programs": [],
        "kernels": [],
    }
    for threads in options.threads:
        if options.kernels or options.mode != "train":  # a table of training has no use for them
            results["peaks"][str(threads)] = peaks(threads, options)
        for train in {"inference": (False,), "train": (True,), "both": (False, True)}[options.mode]:
            for name in options.models:
                results["programs"] += measure((name,), train, threads, options)
                write(results, out)
        if options.kernels:
            results["kernels"] += measure(options.kernels, False, threads, options)
            write(results, out)
    sys.stdout.write(tables.markdown(results))
    say(f"written: {', '.join(str(out / f'results.{kind}') for kind in ('json', 'md', 'svg'))}")
    measured = results["programs"] + results["kernels"]
    errors = [(each["name"], error) for each in measured if (error := error_for_ours(each))]
    for name, error in errors:
        say(f"{name}: {error}")
    return 1 if errors else 0


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line, with names checked and defaults filled in."""
    cpus = os.cpu_count() or 1
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], epilog="Lists are separated by commas; `none` is an empty one."
    )
    parser.add_argument(
        "--models",
        default=",".join(zoo.MODELS),
        help=f"of {', '.join(PROGRAMS)}, or `architectures` for all of architectures.py (default: the zoo's)",
    )
    parser.add_argument(
        "--kernels", default=",".join(KERNELS), help=f"for the roofline: of {', '.join(KERNELS)}"
    )
    parser.add_argument("--contenders", default=",".join(USUAL), help=f"of {', '.join(CONTENDERS)}")
    parser.add_argument("--threads", default="2,1" if cpus > 1 else "1", help="default: 2,1")
    parser.add_argument("--mode", choices=("inference", "train", "both"), default="both")
    parser.add_argument(
        "--train",
        dest="mode",
        action="store_const",
        const="train",
        help="training steps only: forward, loss, …",
    )
    parser.add_argument("--dynamic", action="store_true", help="smelt and Inductor with dynamic=True")
    parser.add_argument(
        "--seconds", type=float, default=20.0, help="how long a program's contenders take turns"
    )
    parser.add_argument(
        "--patience", type=float, default=900.0, help="seconds after which a contender has failed"
    )
    parser.add_argument(
        "--against", type=Path, metavar="CHECKOUT", help=f"also smelt of another checkout, as `{BEFORE}`"
    )
    parser.add_argument(
        "--out", default="bench-results", help="folder of the results (default: bench-results)"
    )
    options = parser.parse_args(arguments)
    try:
        listed = options.models.replace("architectures", ",".join(architectures.installed()))
        options.models = chosen(listed, PROGRAMS)
        options.kernels = chosen(options.kernels, tuple(KERNELS))
        options.contenders = chosen(options.contenders, tuple(CONTENDERS))
        options.threads = thread_counts(options.threads)
    except ValueError as error:
        parser.error(str(error))
    if "eager" not in options.contenders:
        options.contenders = ("eager", *options.contenders)
    if options.against and not (options.against / "src" / "smelt").is_dir():
        parser.error(f"--against takes a checkout of smelt, not {options.against}")
    options.contenders = tuple(name for name in options.contenders if name != BEFORE)
    if options.against:
        options.against = options.against.resolve()
        options.contenders = (*options.contenders, BEFORE)
    if options.seconds <= 0 or options.patience <= 0:
        parser.error("--seconds and --patience are more than 0")
    return options


def chosen(text: str, known: Sequence[str]) -> tuple[str, ...]:
    """The names in ``text``, each once.

    >>> chosen("b, a,b", ("a", "b")), chosen("none", ("a",))
    (('b', 'a'), ())

    Raises:
        ValueError: a name that is not known.
    """
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip() not in ("", "none")))
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"unknown: {', '.join(unknown)} (known: {', '.join(known)})")
    return names


def thread_counts(text: str) -> tuple[int, ...]:
    """Numbers of threads.

    >>> thread_counts("2,1")
    (2, 1)

    Raises:
        ValueError: not numbers above 0, or none at all.
    """
    try:
        counts = tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        raise ValueError(f"--threads takes numbers with commas between them, not {text!r}") from None
    if any(count < 1 for count in counts):
        raise ValueError("--threads: a number is below 1")
    return counts


def measure(
    programs: Sequence[str], train: bool, threads: int, options: argparse.Namespace
) -> list[Document]:
    """A document for each program; the contenders' processes serve all of them, and end with this."""
    setting = Setting("train" if train else "inference", threads, options.dynamic, options.contenders)
    absent = {name: why for name in options.contenders if (why := CONTENDERS[name].reason_to_sit_out(train))}
    for name, why in absent.items():
        say(f"{name} sits out: {why}")
    documents = []
    with temporary_folder("bench") as folder, ExitStack() as stack:
        references = _references(programs, setting, folder, options.patience)
        members = {
            name: stack.enter_context(Member(name, threads, folder, options.patience, options.against))
            for name in options.contenders
            if name not in absent
        }
        for member in members.values():
            with suppress(FailedError):  # it will say so again when it is to prepare
                member.ask("ready")
        pace = _pace(stack, threads, folder, options.patience) if programs[0] in KERNELS else None
        for program in programs:
            say(f"== {program}, {setting.mode}, {threads} thread(s)")
            prepared, failures = _prepare(program, setting, members, references[program])
            usual = {name: each["usual"] for name, each in prepared.items()}
            say(f"  in turns, {options.seconds:g} s: {', '.join(prepared) or 'nobody'}")
            racing: dict[str, Turns] = {name: members[name] for name in prepared}
            if pace:
                racing[PACE], usual[PACE] = pace, pace.usual
            times, left = race(racing, program, usual, options.seconds)
            beat = times.pop(PACE, None)
            for name in times:
                with suppress(FailedError):
                    members[name].ask("drop", program=program)
            found = document(program, setting, prepared, times, {**failures, **left, **absent})
            if pace and beat:
                pace.tell(found, beat, times)
            ours = next((name for name in ("smelt-max", *OURS) if name in times), None)
            if ours and program in PROGRAMS and not train:
                found["inside"] = _inside(members[ours], program, setting, options.seconds)
            documents.append(found)
    return documents


def _pace(stack: ExitStack, threads: int, folder: str, patience: float) -> Pace | None:
    """What beats the time for kernels; None, with a line, when there is no compiling it."""
    try:
        member = stack.enter_context(Member("eager", threads, folder, patience))
        return Pace(member, **member.ask("pace"))
    except FailedError as failed:
        say(f"  no multiply-adds in turns with the kernels: {failed}")
        return None


@dataclass(frozen=True, slots=True)
class Pace:
    """Multiply-adds that take turns with the kernels: processors change their speed within seconds, and a
    peak measured at the beginning is not that of the turn.
    """

    member: Member
    operations: int
    usual: float

    def turn(self, program: str, calls: int) -> float:
        """One turn, whatever the program of the others."""
        return self.member.turn(PACE, calls)

    def tell(self, found: Document, beat: Timing, times: dict[str, Timing]) -> None:
        """Each contender's flop/s over those of the multiply-adds: in the same round, the median, and the
        fastest turn over their fastest.
        """
        work, least = found["flops"] / self.operations, beat.as_dict()["min"]
        for name, timing in times.items():
            fastest = timing.as_dict()["min"]
            found["contenders"][name] |= {
                "of_peak_flops": work * ratio(beat, timing),
                "of_peak_flops_fastest": work * least / fastest if fastest else None,
            }


def _inside(member: Member, program: str, setting: Setting, seconds: float) -> Document | None:
    """What each kernel of a program took (`smelt.cli.profile.parts`); None, with a line, when it fails."""
    say(f"  inside {member.name}: each kernel's time")
    how = {"dynamic": setting.asked, "seconds": min(INSIDE_SECONDS, seconds)}
    try:
        return {"of": member.name, **member.ask("inside", program=program, **how)}
    except FailedError as failed:
        say(f"  failed: {failed}")
        return None


@dataclass(frozen=True, slots=True)
class Setting:
    """What a group of programs is measured under."""

    mode: str
    threads: int
    dynamic: bool
    contenders: tuple[str, ...]

    @property
    def asked(self) -> bool | None:
        """``dynamic`` as ``torch.compile`` takes it: fixed sizes are its default, not an order."""
        return self.dynamic or None


def _references(
    programs: Sequence[str], setting: Setting, folder: str, patience: float
) -> dict[str, str | FailedError]:
    """By program, the file with the values in float64, or why there is none; before anybody is timed."""
    found: dict[str, str | FailedError] = {}
    with Member("eager", setting.threads, folder, patience) as judge:
        for program in programs:
            file = os.path.join(folder, f"{program}.pt")
            try:
                judge.ask("reference", program=program, train=setting.mode == "train", file=file)
                found[program] = file
            except FailedError as failed:
                found[program] = FailedError(f"eager failed, there is nothing to compare with: {failed}")
    return found


def _prepare(
    program: str, setting: Setting, members: dict[str, Member], reference: str | FailedError
) -> tuple[dict[str, Document], dict[str, str]]:
    """Compile under each contender, one after another; what each answers, or why it failed."""
    if isinstance(reference, FailedError):
        say(f"  {reference}")
        return {}, dict.fromkeys(members, str(reference))
    prepared: dict[str, Document] = {}
    failures: dict[str, str] = {}
    how = {"train": setting.mode == "train", "dynamic": setting.asked, "file": reference}
    for name, member in members.items():
        try:
            prepared[name] = member.ask("prepare", program=program, **how)
        except FailedError as failed:
            failures[name] = str(failed)
            say(f"  {name} failed: {failed}")
            continue
        seconds = prepared[name]["compile_seconds"]
        took = "" if seconds is None else f"compiled in {seconds:.1f} s, "
        say(f"  {name}: {took}a call takes {duration(prepared[name]['usual'])}")
    return prepared, failures


def document(
    program: str,
    setting: Setting,
    prepared: dict[str, Document],
    times: dict[str, Timing],
    failures: dict[str, str],
) -> Document:
    """One program's results: every contender that was asked for is in it, with times or with a reason."""
    contenders = {}
    eager = times.get("eager")
    for name in setting.contenders:
        each, timing = prepared.get(name, {}), times.get(name)
        contenders[name] = {
            "run": timing.as_dict() if timing else None,
            "speedup": ratio(eager, timing) if timing and eager else None,
            **{key: each.get(key) for key in TOLD},
            "failed": failures.get(name),
        }
    settings = {"mode": setting.mode, "threads": setting.threads, "dynamic": setting.dynamic}
    found = {"name": program, **settings, "contenders": contenders}
    kernel = KERNELS.get(program)
    return {**found, "flops": kernel.flops, "bytes": kernel.moved} if kernel else found


def peaks(threads: int, options: argparse.Namespace) -> Document | None:
    """The machine's measured peaks; None, with a line that says why, when there is no measuring them."""
    say(f"== the machine's peaks, {threads} thread(s)")
    seconds = min(PEAK_SECONDS, options.seconds)
    try:
        with (
            temporary_folder("bench") as folder,
            Member("eager", threads, folder, options.patience) as member,
        ):
            return member.ask("peaks", seconds=seconds)
    except FailedError as failed:
        say(f"  failed: {failed}")
        return None


def write(results: Document, out: Path) -> None:
    """All three files; after every program, so that an interrupted run keeps what it has."""
    (out / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    (out / "results.md").write_text(tables.markdown(results))
    (out / "results.svg").write_text(plot.svg(results["programs"]))


def machine() -> Document:
    """What the numbers were measured on."""
    versions = {"Python": platform.python_version()}
    for name in VERSIONS:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "processor": processor(),
        "cpus": os.cpu_count(),
        "isa": torch.backends.cpu.get_cpu_capability(),
        "versions": versions,
    }


def say(line: str) -> None:
    """Progress, with the time of day."""
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {line}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
