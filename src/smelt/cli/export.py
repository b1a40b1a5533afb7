"""``smelt export``: a program as MLIR text, with its weights inside or in a separate file."""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from smelt.cli import spec as specs
from smelt.cli.console import progress
from smelt.errors import SmeltError

DYNAMIC_FORM = (
    "write it as ARGUMENT=DIM or ARGUMENT=DIM:NAME, such as x=0:batch; several as x=0:batch,1:length"
)


def export(
    spec: str,
    *,
    to: Any,
    output: str | None,
    dynamic: Sequence[str],
    weights: Any,
    print_after_each: bool,
) -> None:
    """Exports a SPEC's program and writes the module to ``output``, or to standard output.

    External weights are written to a file of the same name with the suffix ``.safetensors``.

    Raises:
        SmeltError: a bad SPEC, SM0906 a program that raises in eager, SM0909 a wrong ``--dynamic``, SM0910 no
            place to write to, and the errors of `smelt.export`.
    """
    import smelt

    if output is not None and not Path(output).parent.is_dir():
        raise SmeltError("SM0910", f"no such folder: {Path(output).parent}")
    if output is None and weights == "external":
        raise SmeltError("SM0910", "external weights need an output file", remedy="give -o FILE")
    program = specs.load(spec)
    with progress(f"exporting {spec} to {to}"):
        shapes = dynamic_shapes(program, dynamic)
        with eager_if_not_captured(spec, program), quiet_torch():
            exported = smelt.export(
                program.call, program.args, program.kwargs, to=to, weights=weights, dynamic_shapes=shapes
            )
    if print_after_each:
        _print_stages(exported.program, exported.module)
    if output is None:
        sys.stdout.write(str(exported).rstrip("\n") + "\n")
        return
    exported.save(output)


NOT_CAPTURED = "SM0723"
"""The code of errors of ``torch.export``, which the program may raise in eager too."""


@contextmanager
def quiet_torch() -> Iterator[None]:
    """Inside, nothing is logged: torch logs the details of errors that it raises a moment later."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


@contextmanager
def eager_if_not_captured(spec: str, program: specs.Program) -> Iterator[None]:
    """Inside, a program is captured; one that is refused, or raises, is run without smelt.

    Raises:
        SmeltError: SM0906, the program raises without smelt too.
    """
    import torch

    try:
        yield
    except Exception as error:
        exported = isinstance(program.call, torch.export.ExportedProgram)
        if (not isinstance(error, SmeltError) or error.code == NOT_CAPTURED) and not exported:
            with specs.in_eager(spec), torch.no_grad():
                program.call(*program.args, **program.kwargs)
        raise


def dynamic_shapes(program: specs.Program, given: Sequence[str]) -> dict[str, Any] | None:
    """The ``dynamic_shapes`` of ``torch.export`` for ``["x=0:batch"]``: the dynamic dimensions of every
    argument.

    Equal names are equal sizes; a dimension without a name may have any size that the program allows.

    Raises:
        SmeltError: SM0909, a text of another form, or with an unknown argument or dimension.
    """
    import torch
    from torch.export import Dim

    if not given:
        return None
    call = program.call.forward if isinstance(program.call, torch.nn.Module) else program.call
    bound = inspect.signature(call).bind(*program.args, **program.kwargs)
    shapes: dict[str, Any] = dict.fromkeys(bound.arguments)
    names: dict[str, Any] = {}
    for text in given:
        argument, equals, listed = text.partition("=")
        if not equals or not listed:
            raise SmeltError("SM0909", f"--dynamic {text!r} is not of the form", remedy=DYNAMIC_FORM)
        if argument not in shapes:
            known = ", ".join(shapes)
            raise SmeltError(
                "SM0909", f"--dynamic {text!r}: no argument {argument!r}", remedy=f"one of {known}"
            )
        tensor = bound.arguments[argument]
        if not isinstance(tensor, torch.Tensor):
            raise SmeltError(
                "SM0909", f"--dynamic {text!r}: {argument} is no tensor", remedy="its sizes are fixed"
            )
        dims = shapes[argument] = dict(shapes[argument] or {})
        for each in listed.split(","):
            dim, _, name = each.partition(":")
            if not dim.isdigit() or int(dim) >= tensor.dim():
                remedy = (
                    f"{argument} has the dimensions 0 to {tensor.dim() - 1}"
                    if dim.isdigit()
                    else DYNAMIC_FORM
                )
                raise SmeltError("SM0909", f"--dynamic {text!r}: no dimension {dim!r}", remedy=remedy)
            dims[int(dim)] = names.setdefault(name, Dim(name)) if name else Dim.AUTO
    return shapes


def _print_stages(program: Any, module: Any) -> None:
    """Prints the program after each pass on standard error: the contract's graph, the loop graph, the
    module.
    """
    from smelt.loops.printer import print_graph
    from smelt.lowering import lower

    graph_module = program.graph_module
    texts = {
        "contract": graph_module.print_readable(print_output=False),
        "loops": print_graph(lower(graph_module)),
        "module": module.operation.get_asm(large_elements_limit=16, large_resource_limit=64),
    }
    for stage, text in texts.items():
        sys.stderr.write(f"// -----// after {stage} //----- //\n{text.rstrip()}\n\n")
