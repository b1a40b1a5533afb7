"""Control flow between arrays: the calls ``higher_order.cond`` and its like (see `smelt.runtime.control`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from smelt.mlir.arrays.dialect import Array, ArrayDialect
from smelt.mlir.arrays.evaluate import elementwise_on

Body = Callable[[Sequence[Array]], list[Array]]


def cond(
    dialect: ArrayDialect, bodies: Sequence[Body], predicate: Array, operands: Sequence[Array]
) -> list[Array]:
    """The first body where ``predicate`` holds, else the second."""
    if predicate.rank:
        predicate = dialect.reshape(predicate, ())
    if predicate.dtype is not torch.bool:
        predicate = dialect.convert(predicate, torch.bool)
    then, otherwise = bodies
    return dialect.branch(predicate, lambda: then(operands), lambda: otherwise(operands))


def while_loop(
    dialect: ArrayDialect, bodies: Sequence[Body], carried: Sequence[Array], others: Sequence[Array]
) -> list[Array]:
    """The second body makes new carried values as long as the first says so."""
    test, step = bodies

    def holds(state: Sequence[Array]) -> Array:
        (result,) = test([*state, *others])
        return dialect.reshape(result, ()) if result.rank else result

    def turn(state: Sequence[Array]) -> list[Array]:
        after = step([*state, *others])
        return [dialect.relabel(new, old.shape) for new, old in zip(after, state, strict=True)]

    return dialect.loop(carried, holds, turn)


def scan(
    dialect: ArrayDialect,
    bodies: Sequence[Body],
    initial: Sequence[Array],
    items: Sequence[Array],
    others: Sequence[Array],
) -> list[Array]:
    """Carried values handed on along the first dimension of ``items``; what each turn gives, stacked."""
    (body,) = bodies
    turns = items[0].shape[0]
    first = dialect.full(0, torch.int64, ())
    shapes = dialect.probe(
        lambda: body([*initial, *(dialect.pick(each, 0, first) for each in items), *others])
    )
    outs = [
        dialect.full(False if dtype is torch.bool else 0, dtype, (turns, *shape))
        for dtype, shape in shapes[len(initial) :]
    ]

    def test(state: Sequence[Array]) -> Array:
        return elementwise_on(dialect, "lt", state[0], dialect.size(turns))

    def step(state: Sequence[Array]) -> list[Array]:
        position, rest = state[0], state[1:]
        before, filled = rest[: len(initial)], rest[len(initial) :]
        results = body([*before, *(dialect.pick(each, 0, position) for each in items), *others])
        after = [dialect.relabel(new, old.shape) for new, old in zip(results, before)]
        stored = [
            dialect.store(out, dialect.relabel(line, out.shape[1:]), 0, position)
            for out, line in zip(filled, results[len(initial) :], strict=True)
        ]
        one = dialect.full(1, torch.int64, ())
        return [elementwise_on(dialect, "add", position, one), *after, *stored]

    return dialect.loop([first, *initial, *outs], test, step)[1:]


def map_impl(
    dialect: ArrayDialect, bodies: Sequence[Body], items: Sequence[Array], others: Sequence[Array]
) -> list[Array]:
    """The body on every element of the first dimension of ``items``, results stacked."""
    return scan(dialect, bodies, [], items, others)


CONTROL: dict[str, Callable[..., list[Array]]] = {
    f"higher_order.{each.__name__}": each for each in (cond, while_loop, scan, map_impl)
}
"""Target of an extern call → function of (dialect, bodies, *arguments)."""
