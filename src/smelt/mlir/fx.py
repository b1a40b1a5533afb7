"""`export_and_import`, with torch-mlir's names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

from smelt.capture.program import Program
from smelt.contract import portable_decompositions
from smelt.errors import SmeltError
from smelt.mlir import export
from smelt.mlir.bindings import ir
from smelt.mlir.capturing import Exportable, capture
from smelt.mlir.diagnostics import erase_shape_constraints
from smelt.mlir.isolated import transformed
from smelt.mlir.torch_dialect import emit

_TO_BACKEND_FORM = "builtin.module(torchdynamo-export-to-torch-backend-pipeline)"


class OutputType(Enum):
    """The output of `export_and_import`.

    ``RAW`` is the Torch dialect as imported, ``TORCH`` the same after torch-mlir's passes that lower it to
    its backends' form; the others come from smelt's own lowerings.
    """

    RAW = "raw"
    TORCH = "torch"
    LINALG_ON_TENSORS = "linalg-on-tensors"
    STABLEHLO = "stablehlo"
    TOSA = "tosa"


def export_and_import(
    f: Exportable,
    *args: Any,
    output_type: OutputType | str = OutputType.RAW,
    dynamic_shapes: Any = None,
    strict: bool | None = None,
    import_symbolic_shape_expressions: bool = False,
    decomposition_table: Mapping[Any, Callable[..., Any]] | None = None,
    func_name: str = "main",
    enable_ir_printing: bool = False,
    **kwargs: Any,
) -> Any:
    """Export a model, a function or an ExportedProgram as an ``ir.Module``.

    Args:
        f: the program to export; ``args`` and ``kwargs`` are the example arguments (none for an
            ExportedProgram).
        output_type: an `OutputType`, or its value: ``"raw"``, ``"torch"``, ``"linalg-on-tensors"``,
            ``"stablehlo"``, ``"tosa"``.
        dynamic_shapes: as in `torch.export.export`.
        strict: export through Dynamo (True), or not (False); None: through Dynamo if the export without it
            fails.
        import_symbolic_shape_expressions: state symbolic sizes in the Torch dialect (see
            `smelt.mlir.torch_dialect.emit`).
        decomposition_table: ATen overload → function, replacing smelt's decompositions; smelt's own lowerings
            (linalg, stablehlo, tosa) decompose all other operators as always.
        func_name: the name of the module's function.
        enable_ir_printing: print the module after each pass, if passes run (``"torch"``).

    Parameters, buffers and constants become literals. Tensors that the model mutates are arguments of the
    function; their new values are its first results.

    Raises:
        SmeltError: SM0602 smelt cannot compile the program, SM0711 operators that the dialect cannot express,
            SM0715 an unknown output type.

    >>> import torch
    >>> from smelt.mlir import fx
    >>> module = fx.export_and_import(torch.nn.Tanh(), torch.randn(2, 3))
    >>> print(module.body.operations[0].type)
    (!torch.vtensor<[2,3],f32>) -> !torch.vtensor<[2,3],f32>
    """
    kind = _output_type(output_type)
    imported = kind in (OutputType.RAW, OutputType.TORCH)
    table = decomposition_table
    if table is not None and not imported:
        table = {**portable_decompositions(), **table}
    program = capture(
        f,
        args,
        kwargs,
        dynamic_shapes=dynamic_shapes,
        strict=strict,
        decompositions=table,
    ).program
    if imported:
        module = emit(program, "inline", name=func_name, symbolic_shapes=import_symbolic_shape_expressions)
        if kind is OutputType.TORCH:
            erase_shape_constraints(module)
            stage = (_TO_BACKEND_FORM, "bringing the module into backend form")
            return transformed(module, [stage], enable_ir_printing)
        return module
    return _own(kind, program, func_name)


def _output_type(given: OutputType | str) -> OutputType:
    try:
        return given if isinstance(given, OutputType) else OutputType(given.lower().replace("_", "-"))
    except ValueError:
        known = ", ".join(each.value for each in OutputType)
        raise SmeltError("SM0715", f"no output type {given!r}", remedy=f"one of {known}") from None


def _own(kind: OutputType, program: Program, name: str) -> Any:
    module = export.emit(program, "linalg" if kind is OutputType.LINALG_ON_TENSORS else kind.value)
    if name != "main":
        module.body.operations[0].attributes["sym_name"] = ir.StringAttr.get(name, module.context)
    return module
