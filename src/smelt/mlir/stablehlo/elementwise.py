"""The elementwise rows of StableHLO, each as one or a few operations."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from smelt.mlir.arrays.dialect import Array
from smelt.mlir.arrays.elementwise import shift
from smelt.mlir.attributes import attribute
from smelt.mlir.stablehlo.operations import Operations

Rule = Callable[..., Any]


def _plain(name: str, hlo: Operations, *args: Array) -> Array:
    return hlo.write(name, args, args[0].dtype, args[0].shape)


def _compare(direction: str, hlo: Operations, x: Array, y: Array) -> Array:
    kind = "SIGNED"
    if x.dtype.is_floating_point:
        kind = "FLOAT"
    elif x.dtype in (torch.bool, torch.uint8, torch.uint16, torch.uint32, torch.uint64):
        kind = "UNSIGNED"
    return hlo.write(
        "compare",
        [x, y],
        torch.bool,
        x.shape,
        comparison_direction=attribute(f"#stablehlo<comparison_direction {direction}>"),
        compare_type=attribute(f"#stablehlo<comparison_type {kind}>"),
    )


def _where(hlo: Operations, condition: Array, x: Array, y: Array) -> Array:
    return hlo.write("select", [condition, x, y], x.dtype, x.shape)


def _abs(hlo: Operations, x: Array) -> Array:
    return x if x.dtype is torch.uint8 else _plain("abs", hlo, x)


def _shift(name: str, hlo: Operations, x: Array, y: Array) -> Array:
    right = "logical" if x.dtype is torch.uint8 else "arithmetic"
    operation = "shift_left" if name == "lshift" else f"shift_right_{right}"
    return shift(hlo, name, partial(_plain, operation, hlo, x), x, y)


_NAMES = {
    "neg": "negate",
    "add": "add",
    "sub": "subtract",
    "mul": "multiply",
    "fmod": "remainder",
    "maximum": "maximum",
    "minimum": "minimum",
    "truncdiv": "divide",
    "bitwise_and": "and",
    "bitwise_or": "or",
    "bitwise_xor": "xor",
    "bitwise_not": "not",
    "sqrt": "sqrt",
    "rsqrt": "rsqrt",
    "exp": "exponential",
    "expm1": "exponential_minus_one",
    "log": "log",
    "log1p": "log_plus_one",
    "sin": "sine",
    "cos": "cosine",
    "tan": "tan",
    "tanh": "tanh",
    "sigmoid": "logistic",
    "floor": "floor",
    "ceil": "ceil",
    "round": "round_nearest_even",
    "truediv": "divide",
    "pow": "power",
    "atan2": "atan2",
    "logical_and": "and",
    "logical_or": "or",
    "logical_xor": "xor",
    "logical_not": "not",
}

ELEMENTWISE: dict[str, Rule] = {
    **{name: partial(_plain, theirs) for name, theirs in _NAMES.items()},
    **{name: partial(_compare, name.upper()) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    **{name: partial(_shift, name) for name in ("lshift", "rshift")},
    "where": _where,
    "abs": _abs,
}
"""Row of `smelt.ops.table.TABLE` → rule of (dialect, *arrays); NotImplemented for unsupported dtypes."""
