"""One operator of op_db in one dtype: its sample inputs compiled, run and compared with eager."""

from __future__ import annotations

import itertools
import random
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
from torch.utils._pytree import tree_leaves, tree_map

import smelt
from smelt.backend import smelt as backend
from smelt.nest.ir import Run
from smelt.pipeline.targets import Code
from smelt.reporting import LOG
from tests.conformance.agreement import Disagreement, assert_agree, clones, ill_conditioned, perturbed

TIES = {"sort", "argsort", "topk", "kthvalue", "median", "mode"}
"""Operators whose positions among equal elements eager leaves open (floats: perturbed inputs show it)."""
OFF_IN_EAGER = {
    f"special_{name}": 2e-5 for name in ("airy_ai", "bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1")
}
"""How far eager's float64 kernels are from the truth (mpmath), relative to 1, where smelt's are not."""
UNINITIALIZED = {"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"}


@dataclass(frozen=True, slots=True)
class OpJob:
    """An entry of op_db (by position and name) in one dtype; ``backend``: smelt, own (with
    this option), triton or triton-products (interpreted; the latter with matrix products as kernels), whose
    distinct kernels are then kept in the folder ``kernels``, if that is given.
    """

    position: int
    name: str
    dtype: str
    samples: int = 3
    backward: bool = True
    dynamic: bool = False
    backend: str = "smelt"
    kernels: str = ""


@dataclass(slots=True)
class OpResult:
    """What became of a job.

    ``outcome``: ``pass``; ``mismatch`` (other numbers); ``error`` (smelt raised); ``not captured``
    (aot_eager does not pass either); ``no sample`` (eager refuses them all). ``fallbacks``: how often each
    operator went to ATen, with the reason.
    """

    outcome: str
    message: str = ""
    samples: int = 0
    passed: int = 0
    backward: int = 0
    strides: int = 0
    kernels: int = 0
    fallbacks: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0


def entries() -> list[Any]:
    """The operator database."""
    from torch.testing._internal.common_methods_invocations import op_db

    return list(op_db)


def check_operator(job: OpJob) -> OpResult:
    """Compile and compare ``job.samples`` samples, forward and backward."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch._dynamo.config.recompile_limit = 64
    start = time.perf_counter()
    op = entries()[job.position]
    result = OpResult("no sample")
    try:
        _check_samples(job, op, result)
    except Exception as error:
        result.outcome, result.message = "no sample", f"sampling: {_describe(error)}"
    result.seconds = time.perf_counter() - start
    return result


def _check_samples(job: OpJob, op: Any, result: OpResult) -> None:
    dtype = getattr(torch, job.dtype)
    backward = job.backward and op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
    torch.manual_seed(0)
    random.seed(0)
    samples = op.sample_inputs("cpu", dtype, requires_grad=backward)
    for sample in itertools.islice(samples, 4 * job.samples):
        if result.samples == job.samples:
            break
        trial = _Trial.of(op, sample, backward)
        if trial is None:
            continue
        result.samples += 1
        LOG.clear()
        try:
            trial.run(_backend(job), job.dynamic, result)
            outcome, message = "pass", ""
        except Disagreement as error:
            outcome, message = "mismatch", str(error)
        except Exception as error:
            outcome, message = "error", _describe(error)
        _count(result, job.backend == "own")
        if outcome == "pass":
            result.passed += 1
        elif not _passes_aot_eager(trial, job.dynamic):
            outcome = "not captured"
        if outcome not in ("pass", "not captured") or result.outcome in ("no sample", "pass"):
            result.outcome = outcome
            result.message = message or result.message


def _backend(job: OpJob) -> Any:
    if job.backend == "own":
        return partial(backend, options={"own": True})
    if not job.backend.startswith("triton"):
        return job.backend
    from smelt.backend import backend_for
    from smelt.codegen.triton.unit import print_kernels
    from smelt.pipeline.triton import Interpreted
    from tests.conformance.cubins import keep

    class Kept(Interpreted):
        def build(self, runs: Sequence[Run]) -> Code:
            code = super().build(runs)
            for printed in print_kernels(runs).values() if job.kernels else ():
                keep(printed, Path(job.kernels))
            return code

    return backend_for(Kept(products=job.backend == "triton-products"))


def _passes_aot_eager(trial: _Trial, dynamic: bool) -> bool:
    try:
        trial.run("aot_eager", dynamic, OpResult(""))
    except Exception:
        return False
    return True


def _count(result: OpResult, externs: bool) -> None:
    for report in smelt.reports():
        result.kernels += len(report.kernels)
        for each in report.fallbacks:
            key = f"{each.op}: {each.reason.splitlines()[0][:160]}"
            result.fallbacks[key] = result.fallbacks.get(key, 0) + each.count
        for call, count in report.externs.items() if externs else ():
            result.fallbacks[call] = result.fallbacks.get(call, 0) + count
    LOG.clear()


def _describe(error: BaseException) -> str:
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:4])}"[:400]


@dataclass(slots=True)
class _Trial:
    """One sample, what eager makes of it, and its reference."""

    op: Any
    sample: Any
    values: tuple[Any, ...]
    eager: Any
    gradients: list[Any] | None
    numbers: bool

    @staticmethod
    def of(op: Any, sample: Any, backward: bool) -> _Trial | None:
        """None where eager refuses the sample."""
        values = (sample.input, sample.args, sample.kwargs)
        trial = _Trial(op, sample, values, None, None, op.name not in UNINITIALIZED)
        mine = clones(values)
        try:
            torch.manual_seed(0)
            trial.eager = trial.call(*mine)
            torch.manual_seed(1)
            again = trial.call(*clones(values))
        except Exception:
            return None
        if trial.numbers:
            try:
                assert_agree(again, trial.eager, lambda: trial.eager)
            except Disagreement:
                trial.numbers = False
        if backward and trial.numbers:
            try:
                trial.gradients = trial.backward(trial.eager, mine)
            except Exception:
                trial.gradients = None
        return trial

    def call(self, given: Any, args: Any, kwargs: Any) -> Any:
        return self.op.get_op()(given, *args, **kwargs)

    def backward(self, results: Any, inputs: Any) -> list[Any] | None:
        """Gradients of every input that wants one, for fixed random cotangents."""
        outputs = [t for t in tree_leaves(self.sample.output_process_fn_grad(results)) if _wants(t)]
        leaves = [t for t in tree_leaves(inputs) if _wants(t)]
        if not outputs or not leaves:
            return None
        draw = torch.Generator().manual_seed(7)
        weights = [torch.randn(t.shape, generator=draw, dtype=torch.float64).to(t.dtype) for t in outputs]
        return list(torch.autograd.grad(outputs, leaves, weights, allow_unused=True))

    def run(self, backend: Any, dynamic: bool, result: OpResult) -> None:
        """Compile with ``backend``, compare with eager.

        Raises:
            Disagreement, or whatever compiling or running raises.
        """
        function: Callable[..., Any] = self.op.get_op()

        def compiled(given: Any, args: Any, kwargs: Any) -> Any:
            return function(given, *args, **kwargs)

        torch._dynamo.reset()
        torch.manual_seed(0)
        mine = clones(self.values)
        got = torch.compile(compiled, backend=backend, fullgraph=True, dynamic=dynamic)(*mine)
        exact = _Reference(self)
        try:
            result.strides += assert_agree(
                self.without_ties(got), self.without_ties(self.eager), exact.outputs, numbers=self.numbers
            )
        except Disagreement:
            if not self.eager_is_off(got) and not ill_conditioned(
                got, self.eager, lambda draw: self.rerun(draw)[0]
            ):
                raise
        if self.gradients is None:
            return
        theirs = self.gradients
        gradients = self.backward(got, mine) or [None] * len(theirs)
        pairs = [_same_presence(a, b) for a, b in zip(gradients, theirs)]
        ours, wanted = [p[0] for p in pairs], [p[1] for p in pairs]
        try:
            assert_agree(ours, wanted, exact.gradients, what="gradient")
        except Disagreement:
            kept = [number for number, gradient in enumerate(wanted) if gradient is not None]
            if not ill_conditioned(
                [ours[k] for k in kept],
                [wanted[k] for k in kept],
                lambda draw: [(self.rerun(draw)[1] or wanted)[k] for k in kept],
            ):
                raise
        result.backward += 1

    def eager_is_off(self, got: Any) -> bool:
        """Whether the difference is one that eager is known to be off by."""
        off = OFF_IN_EAGER.get(self.op.formatted_name)
        return (
            off is not None
            and got.dtype is torch.float64
            and torch.allclose(got, self.eager, rtol=off, atol=off, equal_nan=True)
        )

    def rerun(self, draw: torch.Generator) -> tuple[Any, Any]:
        """Eager's outputs and gradients with inputs moved in the last bits."""
        moved = tree_map(lambda x: perturbed(x, draw) if isinstance(x, torch.Tensor) else x, self.values)
        moved = clones(moved)
        torch.manual_seed(0)
        results = self.call(*moved)
        return results, self.backward(results, moved) if self.gradients is not None else None

    def without_ties(self, results: Any) -> Any:
        """The results; where equal elements may come in any order, without the positions of integers."""
        given = self.values[0]
        if self.op.name not in TIES or given.is_floating_point() or given.unique().numel() == given.numel():
            return results
        return results[:1] if isinstance(results, (tuple, list)) else torch.zeros_like(results)


def _same_presence(ours: Any, theirs: Any) -> tuple[Any, Any]:
    """A gradient that one side leaves out is zero."""
    if (ours is None) == (theirs is None):
        return ours, theirs
    present = theirs if ours is None else ours
    zeros = torch.zeros_like(present)
    return (zeros, theirs) if ours is None else (ours, zeros)


def _wants(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


class _Reference:
    """The trial in float64, run when somebody asks."""

    def __init__(self, trial: _Trial) -> None:
        self.trial = trial
        self._run: tuple[Any, Any] | None = None

    def outputs(self) -> Any:
        return self._both()[0]

    def gradients(self) -> Any:
        return self._both()[1]

    def _both(self) -> tuple[Any, Any]:
        if self._run is None:
            wide = clones(self.trial.values, torch.float64)
            usual = torch.get_default_dtype()
            try:
                torch.set_default_dtype(torch.float64)  # what integers become
                torch.manual_seed(0)
                results = self.trial.call(*wide)
                gradients = self.trial.backward(results, wide) if self.trial.gradients is not None else None
                self._run = results, gradients
            except Exception:
                self._run = None, None
            finally:
                torch.set_default_dtype(usual)
        return self._run
