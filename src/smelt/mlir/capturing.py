"""How a program is got for MLIR: ``torch.export``, smelt's decompositions, the contract."""

from __future__ import annotations

import functools
import re
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._dynamo.exc import Unsupported as DynamoRefusal
from torch._dynamo.exc import UserError, UserErrorType
from torch.export import ExportedProgram
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils import _pytree as pytree

from smelt.capture import Program, capture_export, lines
from smelt.capture.numbers import OperatorsOfNumbers
from smelt.capture.state import state_of
from smelt.capture.step import BackwardCalledError, Step, stopped_at_backward
from smelt.contract import contract, portable_decompositions
from smelt.contract.where import parse
from smelt.errors import SmeltError, Unsupported

Exportable = torch.nn.Module | ExportedProgram | Callable[..., Any]

_FINAL = (UserErrorType.CONSTRAINT_VIOLATION, UserErrorType.INVALID_INPUT)
_FRAME = re.compile(r'(File "([^"]+)", line \d+, in \S+)')
_FIXES = re.compile(r"^Suggested fixes:\n((?:  .+\n?)+)", re.MULTILINE)
_NOISE = re.compile(r"For more info|Suggested fixes|Caused by|$|[a-z]\w* = ")
_DATA_REMEDY: dict[type, str] = {
    GuardOnDataDependentSymNode: "torch.cond, torch.where or torch._check instead of Python's if"
}
_MORE = re.compile(r"For more information, run with TORCH_LOGS=\S+|\x1b\[\d+m")
_SIZE = re.compile(r"L\['(\w+)'\]\.size\(\)\[(\d+)\]")


@dataclass(frozen=True, slots=True)
class Captured:
    """A program in contract form, and the ExportedProgram that it comes from (nesting, ranges of sizes)."""

    program: Program
    exported: ExportedProgram = field(repr=False)


def capture(
    f: Exportable,
    args: Sequence[Any] = (),
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

    A program that runs autograd itself (``backward``, ``torch.autograd.grad``, an optimizer's step) is traced
    below it: see `smelt.mlir.export.export`.

    Raises:
        SmeltError: SM0601 or SM0602 the program is not for smelt, SM0721 a training step that changes what
            cannot be a result, SM0722 arguments beside an ExportedProgram, SM0723 `torch.export` refuses it.

    >>> capture(lambda x: x + 1, (torch.ones(3),)).program.output_roles
    ('user',)
    """
    name = getattr(f, "__name__", type(f).__name__)
    _check_arguments(f, args, kwargs, dynamic_shapes, strict)
    if not isinstance(f, ExportedProgram):
        positional, named = _apart((tuple(args), dict(kwargs or {})))
        f = _exported(f, positional, named, dynamic_shapes, strict)
        _replace_views(f)
    table = portable_decompositions() if decompositions is None else decompositions
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", "`isinstance\\(treespec, LeafSpec\\)`"
            )  # torch's copy of its own
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
    if not callable(f):
        raise SmeltError("SM0722", f"{f!r} is no model, no function and no ExportedProgram")
    module = f if isinstance(f, torch.nn.Module) else None
    export = functools.partial(torch.export.export, args=args, kwargs=kwargs, dynamic_shapes=dynamic_shapes)
    try:
        if strict is not None:
            return export(module or _Function(f, lined=not strict), strict=strict)
        try:
            with stopped_at_backward(state_of(f).optimizers.values()):
                return export(module or _Function(f, lined=True), strict=False)
        except BackwardCalledError:
            pass
        except Exception as error:  # what torch.export raises has no common class
            if isinstance(error, UserError) and error.error_type in _FINAL:
                raise  # Dynamo would say the same, at length
            try:
                with OperatorsOfNumbers():
                    return export(module or _Function(f, lined=False), strict=True)
            except Exception:
                raise error from None
        return export(Step(f), strict=False)
    except (UserError, GuardOnDataDependentSymNode, DynamoRefusal) as error:
        raise _refused(error) from error


def _refused(error: Exception) -> SmeltError:
    """What `torch.export` says of a program that it cannot capture, with the user's line."""
    text = _MORE.sub("", _SIZE.sub(r"dimension \2 of \1", str(error)))
    frames = "".join(traceback.format_tb(error.__traceback__))
    kept = [line.strip() for line in text.split("\n\n")[0].splitlines() if not _NOISE.match(line.strip())]
    fixes = _FIXES.search(text)
    return SmeltError(
        "SM0723",
        "torch.export cannot capture this program",
        where=_users_line(text) or _users_line(frames),
        why=" ".join(line for line in kept if line),
        remedy="PyTorch suggests " + " ".join(fixes[1].split()) if fixes else _DATA_REMEDY.get(type(error)),
    )


def _users_line(text: str) -> str | None:
    """The innermost frame of a traceback's text that is neither torch's nor smelt's."""
    frames = [each for each in _FRAME.findall(text) if not each[1].startswith(lines.NOT_THE_USERS)]
    return parse(frames[-1][0]) if frames else None


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
    """A function as a module, because ``torch.export`` wants one; its arguments keep their names.

    The modules that it closes over are parts of it, so that their parameters have names. ``lined``: note the
    lines of its calls (Dynamo does so by itself).
    """

    def __init__(self, function: Callable[..., Any], lined: bool) -> None:
        super().__init__()
        for name, module in state_of(function).modules.items():
            self.add_module(name + "_" * hasattr(self, name), module)

        @functools.wraps(function)
        def forward(*args: Any, **kwargs: Any) -> Any:
            with lines.of_functions():
                return function(*args, **kwargs)

        self.forward = forward if lined else function
