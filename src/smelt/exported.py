"""Compiled ``torch.export`` programs: called as the exported model, with a check of the sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from smelt.capture import Program, capture_export
from smelt.capture.check import InputCheck
from smelt.config import Config
from smelt.contract import export_decompositions
from smelt.errors import SmeltError

Compiled = Callable[[list[Any]], Any]


def compile_exported(
    exported: ExportedProgram, config: Config, compile_program: Callable[[Program, Config], Compiled]
) -> Callable[..., Any]:
    """A function with the arguments of the exported model. Parameters and buffers are the program's own.

    Raises:
        SmeltError: SM0601, the program has inputs that are no tensors or numbers.
    """
    program = capture_export(exported, export_decompositions(), "exported")
    call = compile_program(program, config)
    check = InputCheck(program, exported.range_constraints)
    held = [each.value for each in program.inputs if each.value is not None]
    in_spec, out_spec = exported.call_spec.in_spec, exported.call_spec.out_spec

    def run(*args: Any, **kwargs: Any) -> Any:
        leaves, spec = pytree.tree_flatten((args, kwargs))
        if spec != in_spec:
            raise SmeltError(
                "SM0603", "the arguments are not nested as those that were exported", why=str(in_spec)
            )
        check(leaves)
        with torch.no_grad():
            return pytree.tree_unflatten(list(call([*held, *leaves])), out_spec)

    return run
