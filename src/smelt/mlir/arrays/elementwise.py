"""Elementwise rows that several targets write in the same way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from smelt.mlir.arrays.dialect import Array, ArrayDialect
from smelt.ops import ops

ON_BOOLS: dict[str, Callable[..., Any]] = {
    "maximum": lambda x, y: ops.logical_or(x, y),
    "minimum": lambda x, y: ops.logical_and(x, y),
    "gt": lambda x, y: ops.logical_and(x, ops.logical_not(y)),
    "lt": lambda x, y: ops.logical_and(ops.logical_not(x), y),
    "ge": lambda x, y: ops.logical_or(x, ops.logical_not(y)),
    "le": lambda x, y: ops.logical_or(ops.logical_not(x), y),
}
"""Rows of truth values, as loop functions of the logical rows."""


def shift(dialect: ArrayDialect, name: str, plain: Callable[[Array], Array], x: Array, y: Array) -> Array:
    """``lshift`` or ``rshift`` for any distance. A distance that is negative or not less than the width gives
    0, or the sign.

    ``plain`` shifts ``x`` by a distance in range.
    """
    width = torch.iinfo(x.dtype).bits
    if y.number is not None and 0 <= y.number < width:
        return plain(y)
    zero, most = (dialect.full(number, y.dtype, y.shape) for number in (0, width - 1))
    outside = dialect.apply("logical_or", dialect.apply("lt", y, zero), dialect.apply("gt", y, most))
    shifted = plain(dialect.apply("where", outside, most, y))
    if name == "rshift" and x.dtype is not torch.uint8:
        return shifted
    return dialect.apply("where", outside, zero, shifted)
