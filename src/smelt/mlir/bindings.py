"""The MLIR Python bindings (the ``torch-mlir`` wheel, extra ``[mlir]``), imported on first use."""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch

from smelt.errors import SmeltError, Unsupported


class _Lazy:
    """A module of the bindings, imported on first use."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        found = getattr(import_module(f"torch_mlir.{self._name}"), attribute)
        setattr(self, attribute, found)
        return found


ir: Any = _Lazy("ir")
passmanager: Any = _Lazy("passmanager")
execution_engine: Any = _Lazy("execution_engine")
stablehlo: Any = _Lazy("_mlir_libs._stablehlo")
arith, cf, complex, func, linalg, math, ml_program, scf, tensor = (
    _Lazy(f"dialects.{name}")
    for name in ("arith", "cf", "complex", "func", "linalg", "math", "ml_program", "scf", "tensor")
)


def available() -> bool:
    """Whether the MLIR bindings are installed; this imports nothing.

    >>> available() in (True, False)
    True
    """
    return find_spec("torch_mlir") is not None


def new_context() -> Any:
    """A new ``ir.Context`` with every dialect of the wheel: Torch, StableHLO, TOSA, Linalg and lower ones.

    Raises:
        SmeltError: SM0710, the bindings are not installed.
    """
    _load()
    context = ir.Context()
    import_module("torch_mlir.dialects.torch").register_dialect(context)
    stablehlo.register_dialect(context)
    return context


@lru_cache(maxsize=1)
def _load() -> None:
    """Import the bindings once, which registers their passes."""
    if not available():
        raise SmeltError(
            "SM0710",
            "the MLIR bindings are not installed",
            why="smelt.export and smelt.mlir print MLIR through the torch-mlir wheel",
            remedy="pip install 'torch-smelt[mlir]'",
        )
    import_module("torch_mlir.dialects.torch")  # registers its passes
    stablehlo.register_stablehlo_passes()


INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64)
UNSIGNED = (torch.uint8, torch.uint16, torch.uint32, torch.uint64)
_NAMES = {
    torch.bool: "i1",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float32: "f32",
    torch.float64: "f64",
    torch.complex64: "complex<f32>",
    torch.complex128: "complex<f64>",
}


def element_name(dtype: torch.dtype, signed: str = "", unsigned: str = "") -> str:
    """The name of the builtin type of one element: ``f32``, ``i1``, ``i64``.

    ``signed`` and ``unsigned``: the prefixes of integer names.

    Raises:
        Unsupported: MLIR has no type for ``dtype``.

    >>> element_name(torch.int64), element_name(torch.uint8, "s", "u")
    ('i64', 'ui8')
    """
    if dtype in (*INTEGERS, *UNSIGNED):
        return f"{unsigned if dtype in UNSIGNED else signed}i{8 * dtype.itemsize}"
    if dtype not in _NAMES:
        raise Unsupported(f"{dtype} has no MLIR element type")
    return _NAMES[dtype]


def element_type(dtype: torch.dtype, signed: str = "", unsigned: str = "") -> Any:
    """The builtin MLIR type of one element (under a context): see `element_name`."""
    return ir.Type.parse(element_name(dtype, signed, unsigned))
