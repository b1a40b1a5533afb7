"""Control flow between native calls: ``higher_order.cond`` and the like on compiled bodies.

A body takes ONE list of operands, which it empties, and returns memory of its own, never its operands'. The
executor and the reference interpreter call the same functions.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from smelt.records import dataclass

Body = Callable[[list[Any]], Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Control:
    """``run(bodies, *arguments)``, and the positions of the bodies in PyTorch's call."""

    run: Callable[..., list[Any] | None]
    bodies: tuple[int, ...]


def cond(bodies: Sequence[Body], predicate: Any, operands: Sequence[Any]) -> list[Any]:
    """``torch.cond``: the first body where ``predicate`` (a number, or a tensor of one element) holds, else
    the second.

    >>> cond([lambda args: [args[0] + 1], lambda args: [args[0] - 1]], torch.tensor(False), [torch.tensor(5)])
    [tensor(4)]
    """
    return list(bodies[0 if predicate else 1](list(operands)))


def while_loop(bodies: Sequence[Body], carried: Sequence[Any], others: Sequence[Any]) -> list[Any]:
    """``while_loop``: the second body makes new carried values while the first returns true.

    >>> while_loop([lambda args: [args[0] < 5], lambda args: [args[0] * 2]], [1], [])
    [8]
    """
    test, step = bodies
    state, ran = list(carried), False
    while test([*state, *others])[0]:
        state, ran = list(step([*state, *others])), True
    return state if ran else [_copy(each) for each in state]


def while_loop_stack_output(
    bodies: Sequence[Body], carried: Sequence[Any], others: Sequence[Any]
) -> list[Any]:
    """``while_loop`` for a later backward: the carried values after each iteration, stacked."""
    test, step = bodies
    state = list(carried)
    history: list[list[Any]] = [[] for _ in state]
    while test([*state, *others])[0]:
        state = list(step([*state, *others]))
        for kept, value in zip(history, state):
            kept.append(value)
    return [_stacked(kept, before) for kept, before in zip(history, carried)]


def scan(
    bodies: Sequence[Body], initial: Sequence[Any], items: Sequence[Tensor], others: Sequence[Any]
) -> list[Any]:
    """``scan``: values carried along the first dimension of ``items``, and the outputs of each iteration.

    >>> step = lambda args: [args[0] + args[1], args[0] * args[1]]
    >>> scan([step], [torch.tensor(0)], [torch.tensor([1, 2, 3])], [])
    [tensor(6), tensor([0, 2, 9])]
    """
    state, iterations = list(initial), len(items[0])
    outs: list[Tensor] = []
    for iteration in range(iterations):
        results = bodies[0]([*state, *(each[iteration] for each in items), *others])
        state = list(results[: len(initial)])
        _keep(outs, results[len(initial) :], iteration, iterations)
    return [*state, *outs]


def map_impl(bodies: Sequence[Body], items: Sequence[Tensor], others: Sequence[Any]) -> list[Any]:
    """``map``: the body on every element of the first dimension of ``items``, results stacked.

    >>> map_impl([lambda args: [args[0] * 10]], [torch.tensor([1, 2])], [])
    [tensor([10, 20])]
    """
    iterations = len(items[0])
    outs: list[Any] = []
    for iteration in range(iterations):
        _keep(outs, bodies[0]([*(each[iteration] for each in items), *others]), iteration, iterations)
    return outs


def print(bodies: Sequence[Body], text: str, *args: Any, **kwargs: Any) -> None:
    """``torch._higher_order_ops.print``: the formatted text to standard output."""
    builtins.print(text.format(*args, **kwargs))


CONTROL = {
    f"higher_order.{run.__name__}": Control(run, bodies)
    for run, bodies in (
        (cond, (1, 2)),
        (while_loop, (0, 1)),
        (while_loop_stack_output, (0, 1)),
        (scan, (0,)),
        (map_impl, (0,)),
        (print, ()),
    )
}
"""Target of an extern call → its implementation."""


def _keep(outs: list[Any], results: Sequence[Any], iteration: int, iterations: int) -> None:
    """Stores the results of one iteration into tensors for all iterations, which the first iteration
    makes.
    """
    if not outs:
        outs += [
            each.new_empty((iterations, *each.shape)) if isinstance(each, Tensor) else None
            for each in results
        ]
    for out, each in zip(outs, results):
        if out is not None:
            out[iteration].copy_(each)


def _stacked(values: Sequence[Any], before: Any) -> Tensor:
    if not isinstance(before, Tensor):
        return torch.tensor(list(values), dtype=torch.int64 if isinstance(before, int) else None)
    if not values:
        return before.new_empty((0, *before.shape))
    return torch.stack(list(values))


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value
