"""``smelt repro``: runs a failing program again: compiled, compared with eager, minimized."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch.utils._pytree import tree_leaves, tree_map

import smelt
from smelt.capture.repro import repro_text
from smelt.cli.accuracy import PROMISE, SLACK_ULP
from smelt.cli.console import inner_error, progress
from smelt.cli.fresh_cache import cache_in, temporary_folder
from smelt.cli.minimize import Traced, smaller_graphs, smallest
from smelt.errors import InternalError, SmeltError
from smelt.runtime import repros

GOOD = "agrees with eager"


@dataclass(frozen=True, slots=True)
class Repro:
    """The contents of a repro file."""

    program: torch.nn.Module
    inputs: tuple[Any, ...]
    dynamic: bool
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a program. Failures of equal ``kind`` are the same failure."""

    kind: str
    message: str = ""

    @property
    def failed(self) -> bool:
        return self.kind != GOOD


def repro(console: Console, file: str | None, *, minimize: bool, tries: int, output: str | None) -> int:
    """Runs a repro file, or lists those that are kept; returns 1 if it still fails.

    Raises:
        SmeltError: SM0914 the file is none of smelt's repro files.
    """
    if file is None:
        _list(console)
        return 0
    found, small = load(file), None
    with temporary_folder("repro") as folder, cache_in(folder):  # a repeated failure is not kept again
        with progress(f"compiling {file}"):
            outcome = run(found)
        told = f"\n{outcome.message}" if outcome.message else ""
        console.print(f"{file}: {outcome.kind}{told}", markup=False)
        if outcome.failed and minimize:
            small = _smaller(console, found, outcome, tries)
    if small is not None:
        title = f"{outcome.kind}, made smaller from {Path(file).name}"
        text = repro_text(small.graph_module, small.inputs, title, found.options, found.dynamic)
        path = _written(text, f"{Path(file).stem}-small", output)
        console.print(f"{small.calls} call(s) are left: {path or 'nowhere to write it'}", markup=False)
    return int(outcome.failed)


def load(file: str) -> Repro:
    """Run a file's definitions.

    Raises:
        SmeltError: SM0914.
    """
    scope: dict[str, Any] = {"__name__": "smelt_repro", "__file__": file}
    try:
        exec(compile(Path(file).read_text(encoding="utf-8"), file, "exec"), scope)
        program, inputs = scope["Program"](), tuple(scope["inputs"]())
        return Repro(program, inputs, bool(scope["DYNAMIC"]), dict(scope["OPTIONS"]))
    except OSError as error:
        raise SmeltError("SM0914", f"{file} cannot be read", why=str(error)) from error
    except Exception as error:
        raise SmeltError(
            "SM0914", f"{file} is no repro file of smelt", why=f"{type(error).__name__}: {error}"
        ) from error


def run(program: Repro) -> Outcome:
    """Compiles the program, with bugs raised, and compares it with eager."""
    smelt.reset()
    with torch.no_grad():
        try:
            expected = _results(program.program, program.inputs)
        except Exception as error:
            return Outcome(f"eager refuses it: {type(error).__name__}", str(error))
        options = {**program.options, "strict": True}
        compiled = torch.compile(program.program, backend="smelt", dynamic=program.dynamic, options=options)
        try:
            got = _results(compiled, program.inputs)
        except Exception as error:
            return _raised(error)
        exact = _in_float64(program)
    for number, (mine, eager) in enumerate(zip(got, expected, strict=True)):
        difference = _difference(mine, eager, None if exact is None else exact[number])
        if difference is not None:
            return Outcome("other numbers than eager", f"output {number}: {difference}")
    return Outcome(GOOD)


def _raised(error: Exception) -> Outcome:
    inner = inner_error(error)
    if not isinstance(inner, InternalError):
        return Outcome(f"fails: {type(inner).__name__}", str(inner))
    where = f" (at {inner.where})" if inner.where else ""
    return Outcome(f"fails: {inner.code} {type(inner.__cause__).__name__}", f"{inner.what}{where}")


def _results(call: Any, inputs: Sequence[Any]) -> list[Any]:
    """Outputs, then the final values of the arguments."""
    mine = copy.deepcopy(inputs)
    torch.manual_seed(0)
    results = tree_leaves(call(*mine))
    return [each.clone() if isinstance(each, torch.Tensor) else each for each in [*results, *mine]]


def _in_float64(program: Repro) -> list[Any] | None:
    """The results in float64; None if the program names its dtypes."""

    def wide(value: Any) -> Any:
        floating = isinstance(value, torch.Tensor) and value.dtype.is_floating_point
        return value.double() if floating else value

    try:
        return _results(copy.deepcopy(program.program).double(), tree_map(wide, list(program.inputs)))
    except Exception:
        return None


def _difference(mine: Any, eager: Any, exact: Any) -> str | None:
    """The violation of the promise about numbers by a result, or None."""
    if not isinstance(eager, torch.Tensor) or not isinstance(mine, torch.Tensor):
        same = type(mine) is type(eager) and (mine == eager or mine != mine)
        return None if same else f"{mine}, not {eager}"
    if mine.shape != eager.shape or mine.dtype != eager.dtype:
        return f"{tuple(mine.shape)} {mine.dtype}, not {tuple(eager.shape)} {eager.dtype}"
    if not (mine.dtype.is_floating_point or mine.dtype.is_complex):
        return None if torch.equal(mine, eager) else "other integers"
    finite = torch.isfinite(eager)
    if not torch.equal(torch.isfinite(mine), finite) or not torch.equal(mine.isnan(), eager.isnan()):
        return "NaN or infinity in other places"
    reference = eager if exact is None or exact.shape != eager.shape else exact
    precise = torch.complex128 if mine.dtype.is_complex else torch.float64
    one, two, true = (each.to(precise)[finite] for each in (mine, eager, reference))
    largest = float(true.abs().max()) if true.numel() else 0.0
    ulp = torch.finfo(mine.dtype).eps * largest
    error, own = (float((each - true).abs().max()) if true.numel() else 0.0 for each in (one, two))
    limit = PROMISE * own + SLACK_ULP * ulp
    return None if error <= limit or math.isnan(limit) else f"error {error:.3g}, eager's {own:.3g}"


def _smaller(console: Console, found: Repro, outcome: Outcome, tries: int) -> Traced | None:
    try:
        traced = Traced(torch.fx.symbolic_trace(found.program), found.inputs)
    except Exception as error:
        console.print(f"it cannot be made smaller: {type(error).__name__}: {error}", markup=False)
        return None

    def fails(candidate: Traced) -> bool:
        smaller = Repro(candidate.graph_module, candidate.inputs, found.dynamic, found.options)
        return run(smaller).kind == outcome.kind

    with progress(f"making it smaller ({traced.calls} calls, {tries} tries)"):
        return smallest(traced, smaller_graphs, fails, tries)


def _written(text: str, name: str, output: str | None) -> Path | None:
    if output is None:
        return repros.keep(name, text, ".py")
    path = Path(output)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise SmeltError("SM0914", f"{output} cannot be written", why=str(error)) from error
    return path


def _list(console: Console) -> None:
    console.print(f"{repros.folder()}: the newest {repros.KEPT} are kept", markup=False)
    for path in repros.kept():
        title = path.read_text(encoding="utf-8", errors="replace").partition("\n")[0].strip('"/ ')
        console.print(f"  {path.name}  {title[:100]}", markup=False)
