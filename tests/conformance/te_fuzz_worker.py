"""Random te programs under random schedules: interpreted, compiled and unscheduled, all against torch."""

from __future__ import annotations

import collections
import random
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from sympy import Symbol

from smelt.errors import SmeltError
from smelt.nest.interpreter import run_kernel
from smelt.nest.ir import Kernel
from smelt.nest.tree import loops
from smelt.nest.verify import verify
from smelt.script import from_source, structural_equal
from smelt.te.operators import as_torch
from smelt.tir import Schedule, Trace
from tests.conformance.agreement import Disagreement, assert_agree
from tests.conformance.te_programs import TeProgram, generate
from tests.conformance.te_together import compile_together
from tests.conformance.te_traces import next_line

EDGE = 16
"""Elements around each buffer that nothing may write."""


@dataclass(frozen=True, slots=True)
class TeJob:
    """Programs by their seeds. ``lines``: the steps of the only one; None: ``steps`` are drawn for each.
    ``compiled``: not only the interpreter runs them.
    """

    seeds: tuple[int, ...]
    steps: int = 10
    compiled: bool = True
    lines: tuple[str, ...] | None = None


@dataclass(slots=True)
class TeResult:
    """What became of one program. ``outcome``: ``pass``, or what failed: ``program`` (its interpreter is
    wrong), ``step`` (an error without a code), ``verify``, ``interpreter`` (other numbers after the trace),
    ``replay``, ``script``, ``build``, ``unscheduled`` and ``scheduled`` (numbers of compiled ones).
    """

    seed: int
    outcome: str = "pass"
    message: str = ""
    taken: collections.Counter[str] = field(default_factory=collections.Counter)
    refused: collections.Counter[str] = field(default_factory=collections.Counter)
    lines: list[str] = field(default_factory=list)
    """The steps that were taken, and the one that failed."""


class Fault(Exception):  # noqa: N818  (a finding)
    """Where a program fails, and how."""

    def __init__(self, outcome: str, message: str) -> None:
        super().__init__(message)
        self.outcome = outcome


def check_batch(job: TeJob) -> list[TeResult]:
    """Run the job; never raises."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    results, checks = [], []
    for seed in job.seeds:
        result = TeResult(seed)
        results.append(result)
        try:
            check = _Check(job, result)
            check.by_interpreter()
            checks.append(check)
        except Fault as fault:
            result.outcome, result.message = fault.outcome, str(fault)
        except Exception as error:
            result.outcome, result.message = "error", _described(error)
    if job.compiled:
        _compiled(checks)
    return results


def _compiled(checks: Sequence[_Check]) -> None:
    """Compile all programs at once, where that can be; and run them."""
    wanted = [(check, what, known) for check in checks for what, known in check.wanted()]
    try:
        made = compile_together([(as_torch(what), known) for _, what, known in wanted])
    except Exception as error:
        if len(checks) == 1:
            checks[0].result.outcome, checks[0].result.message = "build", _described(error)
        else:
            for check in checks:
                _compiled([check])
        return
    for (check, what, known), call in zip(wanted, made):
        if check.result.outcome == "pass":
            try:
                check.by_compiler(what, known, call)
            except Fault as fault:
                check.result.outcome, check.result.message = fault.outcome, str(fault)
            except Exception as error:
                check.result.outcome, check.result.message = "error", _described(error)


class _Check:
    def __init__(self, job: TeJob, result: TeResult) -> None:
        self.job, self.result = job, result
        self.program: TeProgram = generate(result.seed)
        self.func = self.program.func
        self.expected: list[tuple[Mapping[str, int], list[Any], list[Any], Callable[[], Any]]] = []
        for sizes in self.program.sizes:
            inputs = self.program.inputs(sizes)
            eager = self.program.results(inputs, sizes, False)
            exact = _once(lambda i=inputs, s=sizes: self.program.results(i, s, True))
            self.expected.append((sizes, inputs, eager, exact))
        self.sch = Schedule(self.func)

    def by_interpreter(self) -> None:
        self.agree("program", self.interpreted(self.func.kernel))
        self.steps()
        kernel = self.sch.func.kernel
        try:
            verify(kernel)
        except SmeltError as error:
            raise Fault("verify", str(error)) from None
        self.agree("interpreter", self.interpreted(kernel))
        self.replays()
        again = from_source(self.sch.mod.script())
        if not structural_equal(again, self.sch.mod):
            raise Fault("script", "the text of the scheduled program says another one")

    # -- steps -----------------------------------------------------------------------------------------------

    def steps(self) -> None:
        draw = random.Random(self.result.seed)
        if self.job.lines is not None:
            for line in self.job.lines:
                self.step(line)
            return
        for _ in range(draw.randint(min(3, self.job.steps), self.job.steps)):
            line = next_line(self.sch, draw)
            if line is not None:
                self.step(line)

    def step(self, line: str) -> None:
        before = self.sch.func.kernel
        method = line[4:].partition("(")[0]
        try:
            eval(line, {"sch": self.sch})
        except SmeltError as error:
            what = str(error).splitlines()[0]
            if not error.code or ": " not in what or len(what) < 20:
                self.result.lines.append(line)
                raise Fault("step", f"{line}: no reason: {error}") from None
            if self.sch.func.kernel is not before:
                self.result.lines.append(line)
                raise Fault("step", f"{line}: it was refused, and done: {error}") from None
            self.result.refused[error.code] += 1
        except Exception as error:
            self.result.lines.append(line)
            raise Fault("step", f"{line}: {_described(error)}") from None
        else:
            self.result.taken[method] += 1
            self.result.lines.append(line)

    def replays(self) -> None:
        trace = self.sch.trace
        text = "\n".join(trace.as_python())
        ways: dict[str, Callable[[Schedule], Any]] = {
            "apply_to_schedule": trace.apply_to_schedule,
            "Python": lambda sch: exec(text, {"sch": sch}),
        }
        try:
            data = trace.as_json()
            ways["JSON"] = lambda sch: Trace.apply_json_to_schedule(data, sch)
        except SmeltError as error:
            if error.code != "SM1009":
                raise
        for name, apply in ways.items():
            again = Schedule(self.func)
            try:
                apply(again)
            except Exception as error:
                raise Fault("replay", f"{name}: {_described(error)}\n{text}") from None
            if not structural_equal(again.mod, self.sch.mod):
                raise Fault("replay", f"{name}: another program\n{text}")
            if str(again.trace) != str(trace):
                raise Fault("replay", f"{name}: another trace\n{text}\n{again.trace}")

    # -- numbers ---------------------------------------------------------------------------------------------

    def interpreted(self, kernel: Kernel) -> Callable[..., None]:
        def run(buffers: list[torch.Tensor], sizes: Mapping[Symbol, int]) -> None:
            memory = {param.name: each for param, each in zip(kernel.params, buffers)}
            run_kernel(kernel, memory, sizes, {param.name: EDGE for param in kernel.params})

        return run

    def agree(
        self, outcome: str, run: Callable[..., None], known: Mapping[Symbol, int] | None = None
    ) -> None:
        """Compare what ``run`` fills its buffers with: at all sizes, or at those that are ``known``."""
        for sizes, inputs, eager, exact in self.expected:
            numbers = {symbol: sizes[symbol.name] for symbol in self.func.kernel.sizes}
            if known is not None and _key(numbers) != dict(known):
                continue
            given, buffers, outputs = iter(inputs), [], []
            for made, param in zip(self.program.params, self.func.kernel.params):
                shape = self.program.shape(made, sizes)
                count = 1
                for size in shape:
                    count *= size
                buffer = torch.full((count + 2 * EDGE,), 77).to(param.dtype)
                inner = buffer[EDGE : EDGE + count]
                buffers.append(buffer)
                if made.numbers is None:
                    inner.copy_(next(given).reshape(-1))
                else:
                    outputs.append(inner.view(shape))
            try:
                run(buffers, numbers)
            except Exception as error:
                raise Fault(outcome, f"at {dict(sizes)}: {_described(error)}") from None
            edge = torch.full((EDGE,), 77)
            for param, buffer in zip(self.func.kernel.params, buffers):
                for part in (buffer[:EDGE], buffer[-EDGE:]):
                    if not torch.equal(part, edge.to(param.dtype)):
                        raise Fault(outcome, f"at {dict(sizes)}: it writes outside of {param.name}")
            try:
                assert_agree(outputs, eager, exact)
            except Disagreement as error:
                raise Fault(outcome, f"at {dict(sizes)}: {error}") from None

    # -- compiled --------------------------------------------------------------------------------------------

    def wanted(self) -> list[tuple[Any, dict[Symbol, int]]]:
        """What to compile: both functions, for each kind of sizes."""
        known: list[dict[Symbol, int]] = []
        for sizes in self.program.sizes:
            key = _key({symbol: sizes[symbol.name] for symbol in self.func.kernel.sizes})
            if key not in known:
                known.append(key)
        funcs = [self.func]
        bound = any(loop.thread is not None for loop in loops(self.sch.func.kernel.body))
        if self.result.taken and not bound:
            funcs.append(self.sch.func)
        return [(func, each) for func in funcs for each in known]

    def by_compiler(self, func: Any, known: Mapping[Symbol, int], call: Any) -> None:
        outcome = "unscheduled" if func is self.func else "scheduled"
        if isinstance(call, Exception):
            raise Fault("build", f"{outcome} at {known}: {_described(call)}")

        def run(buffers: list[torch.Tensor], sizes: Mapping[Symbol, int]) -> None:
            views = []
            numbers = {symbol.name: size for symbol, size in sizes.items()}
            for made, buffer in zip(self.program.params, buffers):
                views.append(buffer[EDGE:-EDGE].view(self.program.shape(made, numbers)))
            call([*views, *(sizes[size] for size in as_torch(func).signature.sizes if sizes[size] > 1)])

        self.agree(outcome, run, known)


def _key(sizes: Mapping[Symbol, int]) -> dict[Symbol, int]:
    """The sizes that are numbers where a function is compiled for these."""
    return {symbol: size for symbol, size in sizes.items() if size < 2}


def _once(make: Callable[[], Any]) -> Callable[[], Any]:
    found: list[Any] = []

    def get() -> Any:
        if not found:
            found.append(make())
        return found[0]

    return get


def _described(error: BaseException) -> str:
    """The error, and where in smelt it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    at = " < ".join(
        f"{f.filename.rpartition('/smelt/')[2]}:{f.lineno} {f.name}" for f in reversed(frames[-4:])
    )
    return f"{type(error).__name__}: {' '.join(str(error).split())[:400]} ({at})"


__all__ = ["TeJob", "TeResult", "check_batch"]
