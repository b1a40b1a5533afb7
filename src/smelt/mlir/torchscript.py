"""`compile`, with the names of torch-mlir's TorchScript path."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import Dim

from smelt.capture import is_torchscript
from smelt.errors import SmeltError
from smelt.mlir import fx
from smelt.mlir.fx import OutputType

_EXAMPLE_SIZE = 7
"""The example size of a dynamic dimension during capture."""


@dataclass(frozen=True, slots=True)
class TensorPlaceholder:
    """An argument with a shape, -1 for dynamic sizes, and a dtype.

    >>> TensorPlaceholder.like(torch.ones(3, 4), dynamic_axes=[1])
    TensorPlaceholder(shape=[3, -1], dtype=torch.float32)
    """

    shape: Sequence[int]
    dtype: torch.dtype

    @staticmethod
    def like(tensor: torch.Tensor, dynamic_axes: Sequence[int] | None = None) -> TensorPlaceholder:
        """The placeholder for arguments similar to ``tensor``, with any size along ``dynamic_axes``."""
        free = dynamic_axes or ()
        return TensorPlaceholder(
            [-1 if axis in free else size for axis, size in enumerate(tensor.shape)], tensor.dtype
        )


def compile(
    module: Any,
    example_args: Any,
    output_type: OutputType | str = OutputType.TORCH,
    use_tracing: bool = False,
    ignore_traced_shapes: bool = False,
    enable_ir_printing: bool = False,
) -> Any:
    """Compile a module through TorchScript to an ``ir.Module``; its function is named ``forward``.

    Args:
        module: a scripted, traced or loaded module, or a module or function to script.
        example_args: a tensor or `TensorPlaceholder` for the argument, or a sequence of them.
        output_type: ``"torch"``, ``"linalg-on-tensors"``, ``"stablehlo"``, ``"tosa"`` or ``"raw"``.
        use_tracing: trace instead of scripting, if ``module`` is not TorchScript yet.
        ignore_traced_shapes: allow placeholders also for traces.
        enable_ir_printing: print the module after each of torch-mlir's passes, if they run (``"torch"``).

    Branches and loops that depend on data become ``torch.cond`` and ``while_loop``.

    Raises:
        SmeltError: SM0111, SM0112 TorchScript that is no graph, SM0114 the module cannot be scripted or
            traced, SM0711 operators that the dialect cannot express, SM0715 an unknown output type, SM0722
            arguments that do not fit, SM0723 `torch.export` cannot capture the program.

    >>> module = compile(torch.nn.Tanh(), TensorPlaceholder([-1, 3], torch.float32), use_tracing=True,
    ...                  ignore_traced_shapes=True)
    >>> print(module.body.operations[0].type)
    (!torch.vtensor<[?,3],f32>) -> !torch.vtensor<[?,3],f32>
    """
    given = tuple(example_args) if isinstance(example_args, (list, tuple)) else (example_args,)
    free = any(isinstance(each, TensorPlaceholder) for each in given)
    if use_tracing and free and not ignore_traced_shapes:
        raise SmeltError(
            "SM0722",
            "a placeholder stands for sizes, and a trace is of the sizes that it was taken with",
            remedy="ignore_traced_shapes=True, if the trace is right for all sizes",
        )
    if ignore_traced_shapes and not use_tracing:
        raise SmeltError("SM0722", "ignore_traced_shapes without use_tracing")
    examples = tuple(_example(each) for each in given)
    scripted = module if is_torchscript(module) else _as_torchscript(module, examples, use_tracing)
    return fx.export_and_import(
        scripted,
        *examples,
        output_type=output_type,
        dynamic_shapes=tuple(map(_dynamic, given)) if free else None,
        func_name="forward",
        enable_ir_printing=enable_ir_printing,
    )


def _as_torchscript(module: Any, examples: tuple[Any, ...], trace: bool) -> Any:
    """
    Raises:
        SmeltError: SM0114, TorchScript cannot express the program.
    """
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "`torch.jit")
            return torch.jit.trace(module, examples) if trace else torch.jit.script(module)
    except Exception as error:  # TorchScript's errors have no common class
        how = "traced" if trace else "scripted"
        raise SmeltError(
            "SM0114",
            f"a {type(module).__name__} cannot be {how}",
            why=str(error).strip() or type(error).__name__,
            remedy="smelt.mlir.fx.export_and_import does without TorchScript",
        ) from error


def _example(given: Any) -> Any:
    if not isinstance(given, TensorPlaceholder):
        return given
    return torch.ones([_EXAMPLE_SIZE if size == -1 else size for size in given.shape]).to(given.dtype)


def _dynamic(given: Any) -> Any:
    """The ``dynamic_shapes`` of an argument for `torch.export.export`."""
    if not isinstance(given, TensorPlaceholder):
        return None
    return {axis: Dim.DYNAMIC for axis, size in enumerate(given.shape) if size == -1} or None
