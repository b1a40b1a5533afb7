"""Races between a GPU's programs and lanes: two iterations of a bound loop that write one element."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Any

import numpy as np
from sympy import And, Symbol
from sympy.core.basic import Basic

from smelt.nest.dependence import carried_updates, conflict
from smelt.nest.ir import Block, For, Guard, Kernel, Stmt, Store
from smelt.nest.primitives import own_memory
from smelt.nest.tree import indirect_symbols, loops, named, rewritten
from smelt.records import replace
from smelt.symbolic import flatten, free_symbols
from smelt.symbolic.text import python_text

MOST_COUNTED = 2**22
"""Iterations up to which elements are counted where no rule shows that they differ."""
Values = dict[str, Any]
_FUNCTIONS: Values = {
    "__builtins__": {},
    "min": lambda *given: reduce(np.minimum, given),
    "max": lambda *given: reduce(np.maximum, given),
}


def races(kernel: Kernel) -> list[str]:
    """The loops on programs or lanes that race, with the reason: iterations cannot be shown to touch
    different elements, and, if all sizes are numbers, do write the same; or programs share an accumulator.
    Stores that combine elements, or whose position data decides, may meet: they are atomic, or one stays.
    """
    found: list[str] = []
    for loop in loops(kernel.body):
        if loop.thread is None:
            continue
        placed = indirect_symbols(loop.body)

        def meets(stmt: Stmt, placed: set[Symbol] = placed) -> Sequence[Stmt] | None:
            free = isinstance(stmt, Store) and (stmt.mode or placed & free_symbols(stmt.index))
            return () if free else None

        why = conflict(replace(loop, body=rewritten(loop.body, meets)), own_memory(kernel, loop))
        if why is not None and _counts(kernel, loop, meets):
            why = None
        if loop.thread.startswith("blockIdx") and (carried := carried_updates(loop)):
            why = f"programs add to the accumulator {carried[0].acc}"
        if why is not None:
            found.append(f"{named(loop)} is on {loop.thread}: {why}")
    return found


def _counts(kernel: Kernel, loop: For, meets: Any) -> bool:
    """Whether all sizes are numbers, and no element has stores of two iterations of a loop."""
    strides = {param.name: param.strides for param in kernel.params}
    private = own_memory(kernel, loop)
    touched: dict[str, list[Any]] = {}
    try:
        for stmt, values in _stores(rewritten(kernel.body, meets), {}, 1):
            if loop.var.name in values and stmt.buffer in strides and stmt.buffer not in private:
                place = _evaluated(flatten(stmt.index, strides[stmt.buffer]), values)
                pairs = np.stack(np.broadcast_arrays(place, values[loop.var.name]), -1).reshape(-1, 2)
                touched.setdefault(stmt.buffer, []).append(pairs)
    except (NameError, OverflowError):
        return False
    for each in touched.values():
        pairs = np.unique(np.concatenate(each), axis=0)
        if len(np.unique(pairs[:, 0])) != len(pairs):
            return False
    return True


def _stores(block: Block, values: Values, count: int) -> Iterator[tuple[Store, Values]]:
    """The stores of a block, with the values of the loops around them in all iterations.

    Raises:
        NameError: there is a size that is no number; OverflowError: there are too many iterations.
    """
    for stmt in block.stmts:
        if isinstance(stmt, Store):
            yield stmt, values
        elif isinstance(stmt, For):
            begin, end = (_evaluated(each, values) for each in (stmt.begin, stmt.end))
            lengths = np.broadcast_to(np.maximum(end - begin, 0), (count,))
            total = int(lengths.sum())
            if total > MOST_COUNTED:
                raise OverflowError
            around = np.repeat(np.arange(count), lengths)
            inside = {name: np.broadcast_to(each, (count,))[around] for name, each in values.items()}
            first = np.repeat(np.cumsum(lengths) - lengths, lengths)
            begins = np.broadcast_to(begin, (count,))[around]
            inside[stmt.var.name] = begins + np.arange(total) - first
            yield from _stores(stmt.body, inside, total)
        elif isinstance(stmt, Guard):
            parts = stmt.condition.args if isinstance(stmt.condition, And) else (stmt.condition,)
            kept = np.ones(count, dtype=bool)
            for part in parts:
                kept &= _evaluated(part, values)
            inside = {name: np.broadcast_to(each, (count,))[kept] for name, each in values.items()}
            yield from _stores(stmt.body, inside, int(kept.sum()))


def _evaluated(expr: Basic, values: Values) -> Any:
    return np.asarray(eval(python_text(expr), _FUNCTIONS, values))
