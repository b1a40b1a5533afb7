"""Scans on whole arrays by doubling, where their operator is associative."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy

from smelt.loops.dependencies import variables
from smelt.loops.ir import Associative, Scan
from smelt.mlir.arrays.dialect import Array
from smelt.mlir.arrays.loops import LoopBodies
from smelt.ops import ops

ZERO = sympy.Integer(0)


def associative(bodies: LoopBodies, body: Scan) -> list[Array] | None:
    """The outputs of a scan by an associative operator along a static dimension; None for other scans.

    Each round combines elements at twice the distance (Hillis and Steele 1986).
    """
    inner, dialect, dim = body.inner_fn, bodies.dialect, body.dim
    if not isinstance(inner, Associative) or not body.shape[dim].is_Integer:
        return None
    index = variables("i", len(body.shape))
    extents, dtypes = dict(zip(index, body.shape)), [dtype for dtype, _ in body.state]
    count, size, distance = len(dtypes), int(body.shape[dim]), 1

    def combined(given: Sequence[Any]) -> Sequence[Any]:
        return inner.combine(given[:count], given[count:])

    def outputs(given: Sequence[Any]) -> Sequence[Any]:
        first = [ops.constant(number, dtype) for dtype, number in body.state]
        return inner.finish(index, inner.combine(first, given))

    parts = bodies.mapped(extents, lambda _: inner.element(index), dtypes)
    while distance < size:
        far, rest = sympy.Integer(distance), sympy.Integer(size - distance)
        pairs = [dialect.part(x, dim, start, rest) for start in (ZERO, far) for x in parts]
        joined = bodies.mapped({**extents, index[dim]: rest}, combined, dtypes, pairs)
        heads = [dialect.part(x, dim, ZERO, far) for x in parts]
        parts = [dialect.concatenate(each, dim) for each in zip(heads, joined)]
        distance *= 2
    return bodies.mapped(extents, outputs, body.dtypes, parts)
