"""One random program: smelt and smelt's reference interpreter against eager and float64."""

from __future__ import annotations

import random
import warnings
from dataclasses import dataclass
from typing import Any

import torch
import torch._dynamo
from torch._dynamo.backends.registry import lookup_backend

import smelt
from smelt.capture import capture_function
from smelt.contract import contract, verify
from smelt.loops.interpreter import run_graph
from smelt.loops.ir import Extern
from smelt.lowering import lower
from tests.conformance.agreement import (
    Disagreement,
    assert_agree,
    clones,
    ill_conditioned,
    perturbed,
    shaken,
)
from tests.conformance.opinfo_worker import _describe
from tests.conformance.programs import TRIAL_SIZES, Program, Sizes


@dataclass(frozen=True, slots=True)
class FuzzJob:
    """A program, under how many sizes to run it (1 is static, more are dynamic with one compile), and
    smelt's mode.
    """

    program: Program
    sizes: int = 1
    seed: int = 0
    mode: str = "default"


@dataclass(slots=True)
class FuzzResult:
    """``outcome``: ``pass``, ``mismatch``, ``interpreter`` (the interpreter's numbers are wrong), ``error``
    (smelt raised), ``compiles`` (more than one), ``not captured`` (aot_eager fails or is wrong too).
    """

    outcome: str
    message: str = ""
    compiles: int = 0
    sizes: int = 0
    fallbacks: int = 0


def check_program(job: FuzzJob) -> FuzzResult:
    """Run the job; never raises."""
    warnings.simplefilter("ignore")
    smelt.reset()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch._dynamo.config.patch(recompile_limit=64):
            return _check(job)
    except Exception as error:
        return FuzzResult("error", _describe(error))
    finally:
        torch.set_num_threads(threads)


def some_sizes(count: int, seed: int) -> list[Sizes]:
    """The first trial sizes, and others that are as large or larger."""
    rng = random.Random(seed)
    rest = [{name: rng.randint(5, 24) for name in "ABC"} for _ in range(count - 1)]
    return [TRIAL_SIZES[0], *rest]


def _check(job: FuzzJob) -> FuzzResult:
    function = job.program.function()
    dynamic = job.sizes > 1
    compiled = smelt.compile(function, fullgraph=True, dynamic=dynamic, mode=job.mode, verify=True)
    result = FuzzResult("pass")
    chosen = some_sizes(job.sizes, job.seed) if dynamic else [dict(job.program.sizes)]
    for sizes in chosen:
        inputs = job.program.arguments(sizes)
        expected = _run(function, inputs)
        if isinstance(expected, str):
            continue
        try:
            got = _run(compiled, inputs, check=False)
        except Exception as error:
            if _aot_eager_fails(job.program, inputs, expected, dynamic):
                return FuzzResult("not captured", _describe(error))
            raise
        result.sizes += 1
        message = _disagreement(job.program, inputs, got, expected)
        if message is not None:
            outcome = (
                "not captured" if _aot_eager_fails(job.program, inputs, expected, dynamic) else "mismatch"
            )
            return FuzzResult(outcome, f"{message} at {dict(sizes)}")
    reports = smelt.reports()
    result.compiles = sum(report.kind != "backward" for report in reports)
    result.fallbacks = sum(each.count for report in reports for each in report.fallbacks)
    if dynamic and result.compiles > 1:
        least = _captures(function, job, chosen)
        if result.compiles > least:
            message = (
                f"{result.compiles} compiles for {result.sizes} sizes, PyTorch's own capture takes {least}"
            )
            return FuzzResult("compiles", message, result.compiles)
    message = _interpreted(function, job.program)
    return result if message is None else FuzzResult("interpreter", message)


def _run(function: Any, inputs: list[torch.Tensor], check: bool = True) -> Any:
    """Outputs, inputs as they are afterwards, gradients for fixed cotangents; a text where eager refuses."""
    mine = clones(inputs)
    try:
        outputs = function(*mine)
        wanting = [t for t in outputs if isinstance(t, torch.Tensor) and t.requires_grad]
        leaves = [t for t in mine if t.requires_grad]
        gradients: list[Any] = []
        if wanting and leaves:
            draw = torch.Generator().manual_seed(3)
            weights = [torch.randn(t.shape, generator=draw, dtype=torch.float64).to(t.dtype) for t in wanting]
            gradients = list(torch.autograd.grad(wanting, leaves, weights, allow_unused=True))
            gradients = [torch.zeros_like(x) if g is None else g for g, x in zip(gradients, leaves)]
    except Exception as error:
        if not check:
            raise
        return _describe(error)
    plain = [t.detach() if isinstance(t, torch.Tensor) else t for t in outputs]
    return [*plain, *(t.detach() for t in mine), *gradients]


def _aot_eager_fails(program: Program, inputs: list[torch.Tensor], expected: Any, dynamic: bool) -> bool:
    """Whether PyTorch's own capture raises on the program, or captures another one."""
    torch._dynamo.reset()
    captured = torch.compile(program.function(), backend="aot_eager", fullgraph=True, dynamic=dynamic)
    try:
        got = _run(captured, inputs, check=False)
    except Exception:
        return True
    return _disagreement(program, inputs, got, expected) is not None


def _captures(function: Any, job: FuzzJob, chosen: list[Sizes]) -> int:
    """How many graphs Dynamo captures for these sizes when nothing but Dynamo can ask for more."""
    torch._dynamo.reset()
    count = 0

    def counting(module: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        nonlocal count
        count += 1
        return lookup_backend("aot_eager")(module, inputs)

    compiled = torch.compile(function, backend=counting, fullgraph=True, dynamic=True)
    for sizes in chosen:
        inputs = job.program.arguments(sizes)
        if not isinstance(_run(function, inputs), str):
            _run(compiled, inputs)
    return count


def _disagreement(program: Program, inputs: list[torch.Tensor], got: Any, expected: Any) -> str | None:
    """Why the results are not eager's; None where they are as near as the program's conditioning allows."""

    def exact() -> Any:
        wide = _run(program.function(), clones(inputs, torch.float64))
        return expected if isinstance(wide, str) else wide

    try:
        assert_agree(got, expected, exact)
    except Disagreement as error:
        if _is_exact(got, exact()):
            return None  # eager's rounding is what is off

        def rerun(draw: torch.Generator) -> Any:
            again = _run(_shaking(program, draw), [perturbed(x, draw) for x in inputs])
            return None if isinstance(again, str) else again

        return None if ill_conditioned(got, expected, rerun) else str(error)
    return None


def _is_exact(got: Any, wide: Any) -> bool:
    """Whether results are those of float64, rounded."""
    if isinstance(wide, str) or len(got) != len(wide):
        return False
    try:
        assert_agree(got, [w.to(g.dtype) for g, w in zip(got, wide)], lambda: wide)
    except Disagreement:
        return False
    return True


def _shaking(program: Program, draw: torch.Generator) -> Any:
    """The program with every new value moved in the last bits; views stay: later steps may write to them."""

    def run(*inputs: torch.Tensor) -> Any:
        known = {each.untyped_storage().data_ptr() for each in inputs}

        def shake(value: torch.Tensor) -> torch.Tensor:
            if value.untyped_storage().data_ptr() in known:
                return value
            moved = shaken(value, draw)
            known.add(moved.untyped_storage().data_ptr())
            return moved

        return program.function(shake)(*inputs)

    return run


def _interpreted(function: Any, program: Program) -> str | None:
    """The disagreement of smelt's reference interpreter with eager on the lowered graph, if there is one."""
    inputs = [t.detach() for t in program.arguments()]
    if program.mutates or any(0 in t.stride() for t in inputs):
        return None  # mutations of inputs come back another way; the compiled program has been compared
    captured = contract(capture_function(function, clones(inputs)))
    verify(captured)
    graph = lower(captured.graph_module)
    if any(isinstance(node.body, Extern) for node in graph.nodes):
        return None
    expected = _run(function, inputs)
    if isinstance(expected, str):
        return None
    got = list(run_graph(graph, clones(inputs)))
    return _disagreement(program, inputs, [*got, *(t for t in inputs)], expected)
