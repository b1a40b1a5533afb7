"""The words of the script: TVM's names, current and former, in one table."""

from __future__ import annotations

import torch

from smelt.records import dataclass

DTYPES: dict[torch.dtype, str] = {
    torch.float64: "float64",
    torch.float32: "float32",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.int64: "int64",
    torch.int32: "int32",
    torch.int16: "int16",
    torch.int8: "int8",
    torch.uint8: "uint8",
    torch.uint16: "uint16",
    torch.uint32: "uint32",
    torch.uint64: "uint64",
    torch.bool: "bool",
}
NAMED_DTYPES = {name: dtype for dtype, name in DTYPES.items()}

INFIX: dict[str, tuple[str, int]] = {
    "logical_or": ("or", 1),
    "logical_and": ("and", 2),
    "lt": ("<", 4),
    "le": ("<=", 4),
    "gt": (">", 4),
    "ge": (">=", 4),
    "eq": ("==", 4),
    "ne": ("!=", 4),
    "bitwise_or": ("|", 5),
    "bitwise_xor": ("^", 6),
    "bitwise_and": ("&", 7),
    "lshift": ("<<", 8),
    "rshift": (">>", 8),
    "add": ("+", 9),
    "sub": ("-", 9),
    "mul": ("*", 10),
    "truediv": ("/", 10),
    "floordiv": ("//", 10),
    "remainder": ("%", 10),
}
"""Operator → its sign and its precedence, as in Python."""

CALLS: dict[str, str] = {
    "maximum": "max",
    "minimum": "min",
    "where": "Select",
    "logical_not": "Not",
    "pow": "pow",
    "truncdiv": "truncdiv",
    "fmod": "truncmod",
    "bitwise_not": "bitwise_not",
}
"""Operator → TVM's name of its function, if it differs from the operator's."""

OPERATORS = {name: op for op, name in CALLS.items()}


@dataclass(frozen=True, slots=True)
class Dialect:
    """The names in a version of TVM."""

    block: str
    alloc: str


DIALECTS = {
    "tvm": Dialect("sblock", "sblock_alloc_buffer"),
    "tvm-0.17": Dialect("block", "alloc_buffer"),
}
"""Current TVM, and the version used in most texts on the web."""
