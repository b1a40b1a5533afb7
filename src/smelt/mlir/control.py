"""Control flow: the calls ``higher_order.cond``, ``while_loop`` … (see `smelt.runtime.control`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from smelt.mlir.arrays.dialect import Array, ArrayDialect, Kind

Body = Callable[[Sequence[Array]], list[Array]]


def cond(
    dialect: ArrayDialect,
    bodies: Sequence[Body],
    kinds: Sequence[Kind],
    predicate: Array,
    operands: Sequence[Array],
) -> list[Array]:
    """The results, of ``kinds``, of the first body if ``predicate`` holds, else of the second."""
    truth = dialect.convert(dialect.item(predicate), torch.bool)
    return dialect.branch(truth, [partial(body, operands) for body in bodies], kinds)


def while_loop(
    dialect: ArrayDialect,
    bodies: Sequence[Body],
    kinds: Sequence[Kind],
    carried: Sequence[Array],
    others: Sequence[Array],
) -> list[Array]:
    """The carried values after a loop: the second body updates them while the first body returns True."""
    test, step = bodies

    def holds(state: Sequence[Array]) -> Array:
        (result,) = test([*state, *others])
        return dialect.item(result)

    def turn(state: Sequence[Array]) -> list[Array]:
        after = step([*state, *others])
        return [dialect.relabel(new, old.shape) for new, old in zip(after, state, strict=True)]

    first = [dialect.relabel(each, shape) for each, (_, shape) in zip(carried, kinds, strict=True)]
    return dialect.loop(first, holds, turn)


def scan(
    dialect: ArrayDialect,
    bodies: Sequence[Body],
    kinds: Sequence[Kind],
    initial: Sequence[Array],
    items: Sequence[Array],
    others: Sequence[Array],
) -> list[Array]:
    """The carried values after a loop along dimension 0 of ``items``, and the iterations' stacked results."""
    (body,) = bodies
    turns, count = items[0].shape[0], len(initial)
    outs = [dialect.zeros(dtype, (turns, *shape[1:])) for dtype, shape in kinds[count:]]

    def step(position: Array, state: Sequence[Array]) -> list[Array]:
        before, filled = state[:count], state[count:]
        results = body([*before, *(dialect.pick(each, 0, position) for each in items), *others])
        after = [dialect.relabel(new, old.shape) for new, old in zip(results, before)]
        stored = [
            dialect.store(out, dialect.relabel(line, out.shape[1:]), 0, position)
            for out, line in zip(filled, results[count:], strict=True)
        ]
        return [*after, *stored]

    first = [dialect.relabel(each, shape) for each, (_, shape) in zip(initial, kinds)]
    return dialect.repeat(turns, [*first, *outs], step)


def map_impl(
    dialect: ArrayDialect,
    bodies: Sequence[Body],
    kinds: Sequence[Kind],
    items: Sequence[Array],
    others: Sequence[Array],
) -> list[Array]:
    """The stacked results of the body on every element of the first dimension of ``items``."""
    return scan(dialect, bodies, kinds, [], items, others)


CONTROL: dict[str, Callable[..., list[Array]]] = {
    f"higher_order.{each.__name__}": each for each in (cond, while_loop, scan, map_impl)
}
"""Target of an extern call → function of (dialect, bodies, kinds of the results, *arguments)."""
