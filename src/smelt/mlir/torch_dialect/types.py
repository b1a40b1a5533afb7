"""The types of the Torch dialect: value tensors with dynamic sizes, numbers, lists."""

from __future__ import annotations

from typing import Any

import torch

from smelt.errors import Unsupported
from smelt.mlir.bindings import UNSIGNED, element_name, ir
from smelt.symbolic import as_expr

_ELEMENTS = {
    torch.complex32: "complex<f16>",
    torch.float8_e5m2: "f8E5M2",
    torch.float8_e4m3fn: "f8E4M3FN",
}
_CODES = {
    torch.uint8: 0,
    torch.int8: 1,
    torch.int16: 2,
    torch.int32: 3,
    torch.int64: 4,
    torch.float16: 5,
    torch.float32: 6,
    torch.float64: 7,
    torch.complex32: 8,
    torch.complex64: 9,
    torch.complex128: 10,
    torch.bool: 11,
    torch.bfloat16: 15,
    torch.float8_e5m2: 23,
    torch.float8_e4m3fn: 24,
}
_LAYOUTS = {torch.strided: 0}
_MEMORY_FORMATS = {
    torch.contiguous_format: 0,
    torch.preserve_format: 1,
    torch.channels_last: 2,
    torch.channels_last_3d: 3,
}


def element(dtype: torch.dtype) -> str:
    """The element type, with signed integers: ``f32``, ``si64``, ``i1``.

    Raises:
        Unsupported: the Torch dialect has no such type.

    >>> element(torch.int64), element(torch.bfloat16), element(torch.complex64)
    ('si64', 'bf16', 'complex<f32>')
    """
    if dtype in UNSIGNED[1:]:
        raise Unsupported(f"the Torch dialect has no element type for {dtype}")
    return _ELEMENTS.get(dtype) or element_name(dtype, "s", "u")


def code(value: Any) -> int | None:
    """The integer code of a dtype, layout or memory format in an operator's arguments.

    None for any other value.

    >>> code(torch.float32), code(torch.channels_last), code(3)
    (6, 2, None)
    """
    if isinstance(value, torch.dtype):
        if value not in _CODES:
            raise Unsupported(f"the Torch dialect has no number for {value}")
        return _CODES[value]
    if isinstance(value, torch.layout):
        if value not in _LAYOUTS:
            raise Unsupported(f"a {value} tensor")
        return _LAYOUTS[value]
    return _MEMORY_FORMATS.get(value) if isinstance(value, torch.memory_format) else None


def sizes(tensor: torch.Tensor) -> str:
    """``3,?,5``: sizes that are not known constants are ``?``."""
    known = [as_expr(size) for size in tensor.shape]
    return ",".join(str(size) if size.is_Integer else "?" for size in known)


def type_of(value: Any) -> Any:
    """The MLIR type of a value with this metadata: a FakeTensor, number, None, list (under a context).

    Raises:
        Unsupported: the Torch dialect has no such type.
    """
    return ir.Type.parse(type_text(value))


def type_text(value: Any) -> str:
    """`type_of`, as text.

    >>> type_text(torch.ones(2, 3)), type_text(True), type_text(1), type_text([torch.ones(2)])
    ('!torch.vtensor<[2,3],f32>', '!torch.bool', '!torch.int', '!torch.list<vtensor>')
    """
    if value is None:
        return "!torch.none"
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided:
            raise Unsupported(f"a {value.layout} tensor")
        return f"!torch.vtensor<[{sizes(value)}],{element(value.dtype)}>"
    if isinstance(value, (bool, torch.SymBool)):
        return "!torch.bool"
    if isinstance(value, (int, torch.SymInt)):
        return "!torch.int"
    if isinstance(value, (float, torch.SymFloat)):
        return "!torch.float"
    if isinstance(value, (list, tuple)):
        return "!torch.list<vtensor>"
    raise Unsupported(f"a value of type {type(value).__name__}")
