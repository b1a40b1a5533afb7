"""Whether a step of a schedule changed any result: both programs are run on random numbers."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from sympy import Symbol

from smelt.errors import SmeltError
from smelt.nest.interpreter import run_kernel
from smelt.nest.ir import Kernel
from smelt.nest.verify import verify
from smelt.nest.work import work
from smelt.symbolic.expr import evaluate

MOST_STEPS = 50_000
"""So many operations the interpreter does; what takes more is not run."""
CANARIES = 8
_SIZES = (7, 5, 9, 3, 11, 6)


def assert_same(before: Kernel, after: Kernel, method: str) -> None:
    """
    Raises:
        VerificationError: the kernel breaks a rule of nests.
        SmeltError: SM1015 it gives other results, or writes beside its buffers.
    """
    verify(after)
    sizes = {size: _SIZES[number % len(_SIZES)] for number, size in enumerate(before.sizes)}
    if work(before, sizes).operations > MOST_STEPS:
        return
    wanted, found = _results(before, sizes), _results(after, sizes)
    for name, tensor in wanted.items():
        if not torch.allclose(tensor, found[name], rtol=1e-4, atol=1e-5, equal_nan=True):
            raise SmeltError("SM1015", f"{method} changes {name} of {before.name}", remedy="please report it")


def _results(kernel: Kernel, sizes: Mapping[Symbol, int]) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    memory, first = {}, {}
    for param in kernel.params:
        count = 1
        for size in param.shape:
            count *= evaluate(size, sizes)
        whole = torch.full((count + 2 * CANARIES,), 77.0, dtype=torch.float64)
        whole[CANARIES : CANARIES + count] = torch.rand(count, generator=generator, dtype=torch.float64) * 4
        memory[param.name] = whole.to(param.dtype)
        first[param.name] = CANARIES
    run_kernel(kernel, memory, sizes, first)
    return {param.name: memory[param.name] for param in kernel.params if param.written}
