"""torch-mlir's end-to-end suite against `smelt.export`: one function for each dialect.

The suite's harness takes ``--compile-fn tests/mlir/suite_adapters.py:linalg``; a function gets the module,
example inputs, and for each input the dimensions that the suite says are dynamic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.export import Dim

import smelt


def linalg(module: Any, inputs: Sequence[Any], dynamic_dims: Sequence[Any]) -> Callable[..., Any]:
    return _run(module, inputs, dynamic_dims, "linalg")


def stablehlo(module: Any, inputs: Sequence[Any], dynamic_dims: Sequence[Any]) -> Callable[..., Any]:
    return _run(module, inputs, dynamic_dims, "stablehlo")


def tosa(module: Any, inputs: Sequence[Any]) -> Callable[..., Any]:
    """As torch-mlir's own configurations export: every size fixed."""
    return _run(module, inputs, [()] * len(inputs), "tosa")


def dynamic_tosa(module: Any, inputs: Sequence[Any], dynamic_dims: Sequence[Any]) -> Callable[..., Any]:
    return _run(module, inputs, dynamic_dims, "tosa")


def torch_dialect(module: Any, inputs: Sequence[Any], dynamic_dims: Sequence[Any]) -> Callable[..., Any]:
    """Through torch-mlir's own pipeline to Linalg."""
    return _run(module, inputs, dynamic_dims, "torch")


def static_torch_dialect(module: Any, inputs: Sequence[Any]) -> Callable[..., Any]:
    """As torch-mlir's own configurations export: every size fixed."""
    return _run(module, inputs, [()] * len(inputs), "torch")


def _run(module: Any, inputs: Sequence[Any], dynamic_dims: Sequence[Any], dialect: Any) -> Callable[..., Any]:
    shapes = tuple(
        {dim: Dim.AUTO for dim in dims if dim < value.dim()} or None
        if isinstance(value, torch.Tensor)
        else None
        for value, dims in zip(inputs, dynamic_dims)
    )
    exported = smelt.export(module, inputs, to=dialect, dynamic_shapes=shapes if any(shapes) else None)
    exported.compile()
    return exported.run
