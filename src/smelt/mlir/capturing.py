"""Capture of a program for MLIR: ``torch.export``, smelt's decompositions, the contract."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._dynamo.exc import UserError
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from smelt.capture import Program, capture_export, from_torchscript, is_torchscript, lines
from smelt.capture.numbers import OperatorsOfNumbers
from smelt.capture.state import state_of
from smelt.capture.step import BackwardCalledError, Step, stopped_at_backward
from smelt.capture.torchscript import FromTorchScript
from smelt.contract import contract, portable_decompositions
from smelt.errors import SmeltError, Unsupported
from smelt.mlir.refusals import FINAL, refused, said_before, told_once

Exportable = torch.nn.Module | ExportedProgram | Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Captured:
    """A program in contract form, and its ExportedProgram (for nesting and ranges of sizes). ``trains``: it
    runs autograd itself, or writes parameters.
    """

    program: Program
    exported: ExportedProgram = field(repr=False)
    trains: bool = False


def capture(
    f: Exportable,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    strict: bool | None = None,
    decompositions: Mapping[Any, Callable[..., Any]] | None = None,
    deferred: bool = False,
) -> Captured:
    """Capture a model, a function, TorchScript or an ExportedProgram.

    Args:
        f: the program to export; ``args`` and ``kwargs`` are example arguments (none for an ExportedProgram).
        dynamic_shapes: as `torch.export.export` takes it.
        strict: export through Dynamo (True), or not (False); None: through Dynamo if the export without it
            fails.
        decompositions: ATen overload → function, in place of smelt's own.
        deferred: as `torch.export.export` takes ``prefer_deferred_runtime_asserts_over_guards``.

    A program that runs autograd itself (``backward``, ``torch.autograd.grad``, an optimizer's step) is traced
    below autograd: see `smelt.mlir.export.export`.

    Raises:
        SmeltError: SM0601 or SM0602 smelt cannot compile the program, SM0721 a training step mutates a tensor
            that cannot be a result, SM0722 arguments together with an ExportedProgram, SM0723 `torch.export`
            refuses it; SM0111, SM0112 TorchScript that is no graph, SM0724 TorchScript that keeps values from
            call to call.

    >>> capture(lambda x: x + 1, (torch.ones(3),)).program.output_roles
    ('user',)
    """
    if is_torchscript(f):
        f = from_torchscript(f, structured=True)
    name = getattr(f, "__name__", type(f).__name__)
    _check_arguments(f, args, kwargs, dynamic_shapes, strict)
    _check_attributes(f)
    trains = False
    if not isinstance(f, ExportedProgram):
        positional, named = _distinct((tuple(args), dict(kwargs or {})))
        f, trains = _exported(f, positional, named, dynamic_shapes, strict, deferred)
        _replace_views(f)
    table = portable_decompositions() if decompositions is None else decompositions
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", "`isinstance\\(treespec, LeafSpec\\)`"
            )  # torch's copy of its own
            program = contract(capture_export(f, table, name))
        parameters = {each.name for each in program.inputs if each.role == "parameter"}
        return Captured(
            program, f, trains or any(target.name in parameters for target, _ in program.mutations())
        )
    except Unsupported as refusal:
        raise SmeltError("SM0602", "smelt cannot export this program", why=refusal.reason) from refusal
    except SmeltError:
        raise
    except Exception as error:  # torch's exceptions have no common class
        told = refused(error)
        if told is error:
            raise
        raise told from error


def _distinct(arguments: Any) -> Any:
    """Copies repeated tensors in the arguments, which `torch.export` would treat as one argument.

    >>> x = torch.ones(2)
    >>> first, second = _distinct((x, x))
    >>> first is x, second is x
    (True, False)
    """
    seen: set[int] = set()

    def own(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) in seen:
            return value.detach().clone().requires_grad_(value.requires_grad)
        seen.add(id(value))
        return value

    return pytree.tree_map(own, arguments)


def _check_arguments(f: Any, args: Any, kwargs: Any, dynamic_shapes: Any, strict: bool | None) -> None:
    """
    Raises:
        SmeltError: SM0722, arguments that are no sequence, or are given together with an ExportedProgram.
    """
    if isinstance(args, torch.Tensor) or not isinstance(args, (list, tuple)):
        what = f"the arguments are a {type(args).__name__}, not a sequence of arguments"
        raise SmeltError("SM0722", what, remedy="export(model, (x,)) for model(x)")
    given = {"args": args, "kwargs": kwargs, "dynamic_shapes": dynamic_shapes, "strict": strict is not None}
    if isinstance(f, ExportedProgram) and any(given.values()):
        listed = ", ".join(name for name, value in given.items() if value)
        raise SmeltError(
            "SM0722",
            f"an ExportedProgram has its arguments already: {listed}",
            remedy="leave them out, or give the model that it was exported from",
        )


def _check_attributes(f: Any) -> None:
    """
    Raises:
        SmeltError: SM0724, TorchScript that keeps values in attributes, which `torch.export` would forget.
    """
    parts = f.modules() if isinstance(f, torch.nn.Module) else ()
    kept = {name for part in parts if isinstance(part, FromTorchScript) for name in part.kept}
    if kept:
        raise SmeltError(
            "SM0724",
            f"a TorchScript program keeps values from call to call in attributes: {', '.join(sorted(kept))}",
            why="a graph has parameters and buffers, and forgets other attributes",
            remedy="a module that has them as buffers around the submodule that computes with them",
        )


def _exported(
    f: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    dynamic_shapes: Any,
    strict: bool | None,
    deferred: bool,
) -> tuple[ExportedProgram, bool]:
    """The exported program, and whether it runs autograd."""
    if not callable(f):
        raise SmeltError("SM0722", f"{f!r} is no model, no function and no ExportedProgram")
    module = f if isinstance(f, torch.nn.Module) else None
    export = functools.partial(
        torch.export.export,
        args=args,
        kwargs=kwargs,
        dynamic_shapes=dynamic_shapes,
        prefer_deferred_runtime_asserts_over_guards=deferred,
    )
    try:
        with told_once():
            if strict is not None:
                return export(module or _Function(f, lined=not strict), strict=strict), False
            try:
                with stopped_at_backward(state_of(f).optimizers.values()):
                    return export(module or _Function(f, lined=True), strict=False), False
            except BackwardCalledError:
                pass
            except Exception as error:  # torch.export's exceptions have no common class
                if isinstance(error, UserError) and error.error_type in FINAL:
                    raise
                try:
                    with OperatorsOfNumbers(), said_before():
                        return export(module or _Function(f, lined=False), strict=True), False
                except Exception:
                    raise error from None
            return export(Step(f), strict=False), True
    except Exception as error:
        told = refused(error)
        if told is error:
            raise
        raise told from error


def _replace_views(exported: ExportedProgram) -> None:
    """Replace views of PyTorch's prims, which cannot be functionalized, by ATen's."""
    views = [node for node in exported.graph.nodes if node.op == "call_function" and node.target in _VIEWS]
    for node in views:
        node.target, node.args = _VIEWS[node.target](*node.args)
    if views:
        exported.graph_module.recompile()


_VIEWS: dict[Any, Callable[..., tuple[Any, tuple[Any, ...]]]] = {
    torch.ops.prims.view_of.default: lambda x: (torch.ops.aten.alias.default, (x,)),
    torch.ops.prims.squeeze.default: lambda x, dims: (torch.ops.aten.squeeze.dims, (x, dims)),
    torch.ops.prims.split_dim.default: lambda x, dim, outer: (
        torch.ops.aten.unflatten.int,
        (x, dim, [outer, -1]),
    ),
    torch.ops.prims.transpose.default: lambda x, order: (torch.ops.aten.permute.default, (x, order)),
}


class _Function(torch.nn.Module):
    """Wraps a function as a module for ``torch.export``; its arguments keep their names.

    The modules in the function's closure become submodules, so that their parameters have names. ``lined``:
    record the lines of its calls (Dynamo does so by itself).
    """

    def __init__(self, function: Callable[..., Any], lined: bool) -> None:
        super().__init__()
        for name, module in state_of(function).modules.items():
            self.add_module(name + "_" * hasattr(self, name), module)

        @_as(function)
        def forward(*args: Any, **kwargs: Any) -> Any:
            with lines.of_functions():
                return function(*args, **kwargs)

        self.forward = forward if lined or _has_no_signature(function) else function


def _as(function: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator that copies a function's name and signature, if it has a signature."""
    return (lambda own: own) if _has_no_signature(function) else functools.wraps(function)


def _has_no_signature(function: Callable[..., Any]) -> bool:
    try:
        inspect.signature(function)
    except (TypeError, ValueError):
        return True
    return False
