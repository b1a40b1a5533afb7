"""Numerical errors of eager and a contender against the same program in float64."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from smelt.cli.spec import Program, describe
from smelt.tracing import workload
from smelt.tracing.workload import Setup

PROMISE = 4.0
"""smelt promises at most this many times eager's own error …"""
SLACK_ULP = 8.0
"""… plus a few units in the last place of the largest value."""
NEARBY_RUNS = 6
"""Number of further runs of a training step that show the variation of eager's own error."""


@dataclass(frozen=True, slots=True)
class Values:
    """The values of one run: outputs and, after a training step, gradients, all by name and detached.

    ``nearby``: the values of runs with inputs and parameters that differ in the last place.
    """

    tensors: dict[str, torch.Tensor]
    nearby: tuple[dict[str, torch.Tensor], ...] = ()


@dataclass(frozen=True, slots=True)
class Difference:
    """The errors of one output or gradient.

    Errors are max|y - reference| over max|reference|, or over max|eager| where that is larger: a gradient
    that is 0 up to rounding has an error of 1.
    """

    name: str
    dtype: str
    eager: float
    contender: float
    limit: float = 0.0
    why: str = ""

    @property
    def within(self) -> bool:
        """Whether the promise holds."""
        return self.contender <= self.limit

    @property
    def ratio(self) -> float:
        """The contender's error over eager's."""
        if self.contender == 0.0:
            return 0.0
        return self.contender / self.eager if self.eager > 0.0 else math.inf

    def as_dict(self) -> dict[str, Any]:
        """The data for JSON, which has no infinity: null then."""
        fields = {**asdict(self), "ratio": self.ratio, "within": self.within}
        return {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in fields.items()
        }


@dataclass(frozen=True, slots=True)
class Verdict:
    """All differences of one contender; ``compared`` is False, with the reason, if a comparison is
    impossible.
    """

    compared: bool
    reason: str
    differences: tuple[Difference, ...] = ()

    @property
    def within(self) -> bool:
        return all(d.within for d in self.differences)

    @property
    def worst(self) -> Difference | None:
        """The difference that exceeds the promise most, or is nearest to its limit."""
        return max(self.differences, key=_share_of_limit, default=None)

    def as_dict(self) -> dict[str, Any]:
        """The data for JSON."""
        worst = self.worst
        return {
            "compared": self.compared,
            "reason": self.reason,
            "within_promise": self.within,
            "worst": None if worst is None else worst.as_dict(),
            "differences": [difference.as_dict() for difference in self.differences],
        }


def run_once(program: Program, call: Callable[..., Any], setup: Setup, seed: int = workload.SEED) -> Values:
    """A run from the current state of the model; that state (parameters, statistics) is restored
    afterwards.
    """
    state = state_of(program)
    workload.clear_gradients(program)
    torch.manual_seed(seed)
    try:
        result = workload.runner(program, call, setup)()
        named = {
            f"output {i}": leaf
            for i, leaf in enumerate(tree_leaves(result))
            if isinstance(leaf, torch.Tensor)
        }
        if setup.train:
            holders = workload.gradient_holders(program)
            named.update({f"gradient of {n}": t.grad for n, t in holders.items() if t.grad is not None})
        return Values({name: tensor.detach().clone() for name, tensor in named.items()})
    finally:
        workload.clear_gradients(program)
        restore(program, state)


def run_eager(program: Program, setup: Setup) -> Values:
    """A run under eager and, of a training step, `NEARBY_RUNS` with every number moved by up to an ulp.

    Gradients jump where an activation function has a corner: a pre-activation that is rounded to the other
    side changes the error by orders of magnitude. So several runs are needed to know eager's error.
    """
    values = run_once(program, program.call, setup)
    if not setup.train:
        return values
    state, draw, nearby = state_of(program), torch.Generator().manual_seed(workload.SEED), []
    for _ in range(NEARBY_RUNS):
        moved = {name: _moved(tensor, draw) for name, tensor in state.items()}
        args, kwargs = tree_map(lambda leaf: _moved(leaf, draw), (program.args, program.kwargs))
        restore(program, moved)
        nearby.append(run_once(Program(program.call, args, kwargs), program.call, setup).tensors)
    restore(program, state)
    return replace(values, nearby=tuple(nearby))


def _moved(leaf: Any, draw: torch.Generator) -> Any:
    """A floating-point tensor with each element moved by up to a unit in the last place; others unchanged."""
    if not isinstance(leaf, torch.Tensor) or not leaf.is_floating_point():
        return leaf
    ulps = torch.rand(leaf.shape, generator=draw, dtype=torch.float64) * 2 - 1
    moved = leaf.detach().double() * (1 + ulps * torch.finfo(leaf.dtype).eps)
    return moved.to(leaf.dtype).requires_grad_(leaf.requires_grad)


def reference(program: Program, setup: Setup) -> Values | str:
    """The values of the program in float64 under eager, or the reason why there are none."""
    if _is_random(program, setup):
        return "the model draws random numbers: no two runs are to be compared"
    try:
        call = copy.deepcopy(program.call)
        if isinstance(call, torch.nn.Module):
            call = call.double()
        args, kwargs = workload.as_double((program.args, program.kwargs))
        double = Program(call, args, kwargs)
        return run_once(double, call, setup)
    except Exception as error:
        return f"no float64 reference: {describe(error)}"


def compare(eager: Values, contender: Values, exact: Values | str) -> Verdict:
    """Compares each of the contender's values with float64, next to eager's own; integers and bools
    exactly.
    """
    if isinstance(exact, str):
        return Verdict(False, exact)
    if set(eager.tensors) != set(contender.tensors):
        missing = sorted(set(eager.tensors) ^ set(contender.tensors))
        odd = tuple(Difference(name, "", 0.0, math.inf, why="not in both") for name in missing)
        return Verdict(True, "", odd)
    differences = (
        difference(
            name,
            ours,
            contender.tensors[name],
            exact.tensors.get(name),
            [near[name] for near in eager.nearby],
        )
        for name, ours in eager.tensors.items()
    )
    return Verdict(True, "", tuple(differences))


def difference(
    name: str,
    eager: torch.Tensor,
    other: torch.Tensor,
    exact: torch.Tensor | None,
    nearby: Sequence[torch.Tensor] = (),
) -> Difference:
    """The errors of one tensor; eager's is the largest of its run and of those nearby.

    >>> one = torch.ones(2)
    >>> difference("x", one, one, one.double()).within
    True
    >>> difference("x", one, one + 1, one.double()).within
    False
    """
    blank = Difference(name, str(eager.dtype).removeprefix("torch."), 0.0, 0.0)
    if eager.shape != other.shape or eager.dtype != other.dtype:
        return replace(blank, contender=math.inf, why=f"{_kind(other)} where eager has {_kind(eager)}")
    if not eager.is_floating_point() or exact is None:
        same = torch.equal(eager, other)
        return replace(blank, contender=0.0 if same else math.inf, why="" if same else "not eager's")
    strange = (torch.where(torch.isfinite(x), 0.0, x.double()) for x in (eager, other))
    if not torch.equal(*(torch.nan_to_num(x, nan=1.0, posinf=2.0, neginf=3.0) for x in strange)):
        return replace(blank, contender=math.inf, why="NaN or inf elsewhere than eager")
    usable = torch.isfinite(eager) & torch.isfinite(exact)
    truth = exact[usable].double()
    if truth.numel() == 0:
        return blank
    largest = (x.abs().max().item() for x in (truth, eager[usable]))
    scale = max(*largest, torch.finfo(eager.dtype).tiny)
    theirs, own, *near = (
        (x[usable].double() - truth).abs().nan_to_num(0.0).max().item() / scale
        for x in (other, eager, *nearby)
    )
    error = max([own, *near])
    limit = PROMISE * error + SLACK_ULP * torch.finfo(eager.dtype).eps
    return replace(blank, eager=error, contender=theirs, limit=limit)


def _kind(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def _share_of_limit(difference: Difference) -> float:
    """The ratio of an error to the allowed one: over 1 violates the promise."""
    if difference.limit == 0.0:
        return 0.0 if difference.contender == 0.0 else math.inf
    return difference.contender / difference.limit


def _is_random(program: Program, setup: Setup) -> bool:
    """Whether another seed gives other values (beyond differences by the order of additions of threads)."""
    first, second = (run_once(program, program.call, setup, seed).tensors for seed in (1, 2))
    return any(name not in second or _differs(tensor, second[name]) for name, tensor in first.items())


def _differs(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.shape != b.shape or not a.is_floating_point():
        return not torch.equal(a, b)
    a, b = torch.nan_to_num(a.double()), torch.nan_to_num(b.double())
    return a.numel() > 0 and bool((a - b).abs().max() > 1e-4 * a.abs().max())


def state_of(program: Program) -> dict[str, torch.Tensor]:
    """A copy of a model's parameters and buffers; empty for a plain function."""
    if not isinstance(program.call, torch.nn.Module):
        return {}
    named = {**dict(program.call.named_parameters()), **dict(program.call.named_buffers())}
    return {name: tensor.detach().clone() for name, tensor in named.items()}


def restore(program: Program, state: dict[str, torch.Tensor]) -> None:
    """Restores a model's parameters and buffers."""
    if not isinstance(program.call, torch.nn.Module):
        return
    named = {**dict(program.call.named_parameters()), **dict(program.call.named_buffers())}
    with torch.no_grad():
        for name, tensor in state.items():
            named[name].copy_(tensor)
