"""How a program is got for MLIR: ``torch.export``, smelt's decompositions, the contract."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._dynamo.exc import UserError, UserErrorType
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from smelt.capture import Program, capture_export
from smelt.contract import contract, portable_decompositions
from smelt.errors import SmeltError, Unsupported

Exportable = torch.nn.Module | ExportedProgram | Callable[..., Any]

_FINAL = (UserErrorType.CONSTRAINT_VIOLATION, UserErrorType.INVALID_INPUT)


@dataclass(frozen=True, slots=True)
class Captured:
    """A program in contract form, and the ExportedProgram that it comes from (nesting, ranges of sizes)."""

    program: Program
    exported: ExportedProgram = field(repr=False)


def capture(
    f: Exportable,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    strict: bool | None = None,
    decompositions: Mapping[Any, Callable[..., Any]] | None = None,
) -> Captured:
    """Capture a model, a function or an ExportedProgram.

    Args:
        f: what to export; ``args`` and ``kwargs`` are example arguments (none for an ExportedProgram).
        dynamic_shapes: as `torch.export.export` takes it.
        strict: export through Dynamo (True), or not (False); None: through Dynamo where it does not work
            without.
        decompositions: ATen overload → function, in place of smelt's own.

    Raises:
        SmeltError: SM0601 or SM0602, the program is not for smelt.

    >>> capture(lambda x: x + 1, (torch.ones(3),)).program.output_roles
    ('user',)
    """
    name = getattr(f, "__name__", type(f).__name__)
    if not isinstance(f, ExportedProgram):
        args, named = _apart((tuple(args), dict(kwargs or {})))
        f = _exported(f, args, named, dynamic_shapes, strict)
        _replace_views(f)
    table = portable_decompositions() if decompositions is None else decompositions
    try:
        return Captured(contract(capture_export(f, table, name)), f)
    except Unsupported as refusal:
        raise SmeltError("SM0602", "smelt cannot export this program", why=refusal.reason) from refusal


def _apart(arguments: Any) -> Any:
    """Arguments of which none is another one: a tensor given twice is one argument to `torch.export`.

    >>> x = torch.ones(2)
    >>> first, second = _apart((x, x))
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
        SmeltError: SM0722, arguments that are no sequence, or that an ExportedProgram has already.
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


def _exported(
    f: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    dynamic_shapes: Any,
    strict: bool | None,
) -> ExportedProgram:
    model = f if isinstance(f, torch.nn.Module) else _Function(f)
    if strict is not None:
        return torch.export.export(model, args, kwargs, dynamic_shapes=dynamic_shapes, strict=strict)
    try:
        return torch.export.export(model, args, kwargs, dynamic_shapes=dynamic_shapes, strict=False)
    except Exception as error:  # what torch.export raises has no common class
        if isinstance(error, UserError) and error.error_type in _FINAL:
            raise  # Dynamo would say the same, at length
        try:
            return torch.export.export(model, args, kwargs, dynamic_shapes=dynamic_shapes, strict=True)
        except Exception:
            raise error from None


def _replace_views(exported: ExportedProgram) -> None:
    """Views of PyTorch's prims, which cannot be functionalized, become ATen's."""
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
    """A function as a module, because ``torch.export`` wants one; its arguments keep their names."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.forward = function
