"""Scans on whole arrays by doubling: those whose state an associative operator combines with a value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sympy
import torch
from sympy import Symbol

from smelt.loops.ir import Origin, Scan
from smelt.loops.record import RecordedValue, Recorder
from smelt.loops.reductions import identity
from smelt.loops.straightline import prune, replay, used_names
from smelt.mlir.arrays.dialect import Array, ArrayDialect
from smelt.mlir.arrays.evaluate import ArrayHandler, Value
from smelt.mlir.arrays.reductions import COMBINED

ZERO = sympy.Integer(0)

_KINDS = {operator: kind for kind, operator in COMBINED.items()}
"""Associative operator (sums up to rounding) → the reduction that it makes."""


def running(dialect: ArrayDialect, name: str, x: Array, dim: int) -> Array:
    """``out[k] = x[0] op x[1] op … x[k]`` along a static dimension. Each round combines elements at twice the
    distance (Hillis and Steele 1986)."""
    size = int(x.shape[dim])
    distance = 1
    while distance < size:
        far, rest = sympy.Integer(distance), sympy.Integer(size - distance)
        head, left = (dialect.part(x, dim, ZERO, each) for each in (far, rest))
        right = dialect.part(x, dim, far, rest)
        x = dialect.concatenate([head, dialect.apply(name, left, right)], dim)
        distance *= 2
    return x


class _Running(ArrayHandler):
    """Runs all iterations of a scan at once: an operation on ``state`` gives the states after them.

    ``dim``: the dimension of the scan; ``first``: the initial state.
    """

    state, dim, first = Value(torch.bool), 0, Value(torch.bool)

    def elementwise(self, name: str, *args: Value) -> Value:
        if not any(arg is self.state for arg in args):
            return super().elementwise(name, *args)
        (value,) = [arg for arg in args if arg is not self.state]
        everything = tuple(self.extents)
        array = running(self.dialect, name, self.as_array(value, everything), self.dim)
        after = Value(array.dtype, everything, array)
        neutral = self.first.number == identity(_KINDS[name], array.dtype)
        return after if neutral else super().elementwise(name, self.first, after)


def associative(
    body: Scan, dialect: ArrayDialect, buffers: Mapping[str, Array], index: Sequence[Symbol], origin: Origin
) -> tuple[ArrayHandler, list[Any]] | None:
    """The outputs of a scan whose next state is ``operator(state, value)``, and their handler; None for other
    scans."""
    if len(body.state) != 1 or not body.shape[body.dim].is_Integer:
        return None
    ((dtype, first),) = body.state
    extents, state = dict(zip(index, body.shape)), RecordedValue("state", dtype)
    recorder = Recorder({name: array.dtype for name, array in buffers.items()}, extents, origin=origin)
    recorder.adopt(state)
    (after,), results = recorder.run(body.inner_fn, tuple(index), [state])
    steps = prune(recorder.instructions, [after.name, *(each.name for each in results)])
    uses = [step for step in steps if "state" in used_names(step)]
    known = len(uses) == 1 and uses[0].name == after.name and getattr(uses[0], "op", "") in _KINDS
    if not known or len(used_names(uses[0])) != 2 or state in results:
        return None
    handler = _Running(dialect, buffers, extents, None, origin)
    handler.state, handler.dim, handler.first = Value(dtype), body.dim, Value(dtype, (), None, first)
    values = replay(steps, handler, {"state": handler.state})
    return handler, [values[each.name] for each in results]
