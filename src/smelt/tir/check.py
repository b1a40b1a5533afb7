"""``check=True``: after each step the kernel is verified, and both kernels run on the same random inputs."""

from __future__ import annotations

import torch
from sympy import Symbol

from smelt.nest.inside import open_bounds
from smelt.nest.interpreter import run_kernel
from smelt.nest.ir import For, Kernel
from smelt.nest.primitives.common import ScheduleError
from smelt.nest.tree import blocks_of
from smelt.nest.verify import verify
from smelt.symbolic import evaluate, span

MOST_STEPS = 50_000
"""Limit on the statements that the interpreter runs."""

CANARIES = 8
"""Guard elements before and after each buffer that must not be written."""

SIZE = 5
"""The value of sizes that the program leaves open."""


def check_step(method: str, before: Kernel, after: Kernel) -> None:
    """
    Raises:
        VerificationError: SM0530, the kernel breaks a rule.
        ScheduleError: SM1010, the kernel computes other results, or writes outside of its buffers.
    """
    verify(after)
    sizes = dict.fromkeys({*before.sizes, *after.sizes}, SIZE)
    bounds = open_bounds(before)
    if any(bound.why_outside(sizes) for bound in bounds):
        sizes |= {symbol: 0 for _, symbol in before.scalars}
    if any(bound.why_outside(sizes) for bound in bounds):
        return
    if max(_steps(before, sizes), _steps(after, sizes)) > MOST_STEPS:
        return
    wanted, found = _results(before, sizes), _results(after, sizes)
    for param in before.params:
        one, other = wanted[param.name], found[param.name]
        bar = 1e-4 if param.dtype.is_floating_point else 0.0
        close = torch.allclose(one.double(), other.double(), rtol=bar, atol=bar / 10, equal_nan=True)
        edges = [torch.equal(one[part], other[part]) for part in (slice(0, CANARIES), slice(-CANARIES, None))]
        if not close or not all(edges):
            what = "computes something else in" if all(edges) else "writes outside of"
            raise ScheduleError(method, f"the kernel {what} {param.name}: a bug of smelt", code="SM1010")


def _steps(kernel: Kernel, sizes: dict[Symbol, int]) -> int:
    """An estimate of the statements that a kernel runs."""

    def count(stmts: tuple[object, ...], ranges: dict[Symbol, int]) -> int:
        found = 0
        for stmt in stmts:
            if isinstance(stmt, For):
                try:
                    trips = evaluate(stmt.end - stmt.begin, ranges)
                except KeyError:  # bounds that depend on an axis
                    trips = SIZE
                found += max(trips, 0) * count(stmt.body.stmts, {**ranges, stmt.var: 0})
            else:
                inner = blocks_of(stmt)  # type: ignore[arg-type]
                found += sum(count(block.stmts, ranges) for block in inner) or 1
        return found

    return count(kernel.body.stmts, dict(sizes))


def _results(kernel: Kernel, sizes: dict[Symbol, int]) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    memory: dict[str, torch.Tensor] = {}
    for param in kernel.params:
        count = evaluate(span(param.shape, param.strides), sizes) + 2 * CANARIES
        if param.dtype.is_floating_point:
            memory[param.name] = torch.randn(count, generator=generator).to(param.dtype)
        else:
            memory[param.name] = torch.randint(0, 2, (count,), generator=generator).to(param.dtype)
    run_kernel(kernel, memory, dict(sizes), {param.name: CANARIES for param in kernel.params})
    return memory
