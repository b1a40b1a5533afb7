"""The public entry points: `smelt.compile`, `smelt.reports`, `smelt.reset`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar, overload

import torch

from smelt import logs
from smelt.backend import compile_alone, config_from
from smelt.backend import smelt as backend
from smelt.capture import from_torchscript, is_torchscript
from smelt.capture.generate import with_generate
from smelt.capture.torchscript import FromTorchScript
from smelt.captured import compile_captured
from smelt.exported import compile_exported
from smelt.reporting import LOG, CompileReport
from smelt.runtime.recycle import RECYCLER

T = TypeVar("T", bound=Callable[..., Any])
GuardFilter = Callable[[Sequence[Any]], Sequence[bool]]
"""A choice of Dynamo's guards on a graph that are checked before each call; `torch.compiler` has some."""

_NO_GRAPH = """smelt: SM0125: torch.compile has looked at %d functions and handed over no graph
  why: they compute nothing, or Dynamo does not trace them: no function of torch's own that is called from
       code which is not traced, such as layers of torch.nn's own classes below a hook of FSDP2's
       (TORCH_LOGS=graph_breaks has more)
  do: compile what is called there: module.forward = torch.compile(module.forward, backend="smelt")"""


@overload
def compile(
    model: T,
    *,
    mode: str = ...,
    dynamic: bool | None = ...,
    fullgraph: bool = ...,
    capture: str = ...,
    guard_filter_fn: GuardFilter | None = ...,
    **options: object,
) -> T: ...
@overload
def compile(
    model: None = None,
    *,
    mode: str = ...,
    dynamic: bool | None = ...,
    fullgraph: bool = ...,
    capture: str = ...,
    guard_filter_fn: GuardFilter | None = ...,
    **options: object,
) -> Callable[[T], T]: ...
def compile(
    model: Any = None,
    *,
    mode: str = "default",
    dynamic: bool | None = None,
    fullgraph: bool = False,
    capture: str = "dynamo",
    guard_filter_fn: GuardFilter | None = None,
    **options: object,
) -> Any:
    """``torch.compile`` with smelt: ``smelt.compile(model)``, or above a function as ``@smelt.compile``.

    ``dynamic``: True makes every size a symbol, False none, None those that changed. ``fullgraph``: a graph
    break is an error. An ``ExportedProgram`` is compiled at once, for the sizes it was exported for, and with
    ``freezing`` unless that is off. TorchScript (scripted, traced, loaded) has ``freezing`` too, and is
    translated to Python: see `smelt.capture.from_torchscript`. Data-dependent control flow becomes Python
    around compiled pieces; with ``fullgraph`` it becomes one graph with ``torch.cond`` and ``while_loop``.
    ``capture``: another way than Dynamo to get the graph (`smelt.captured`): ``export``, ``symbolic``,
    ``trace``, ``script`` or ``make_fx``, whose graphs are specialized to the arguments that they have seen.
    ``generate`` of a model of ``transformers`` calls the compiled forward (docs/language-models.md).
    ``guard_filter_fn``: ``torch.compile``'s option, such as ``torch.compiler.skip_guard_on_globals_unsafe``:
    calls are faster, and unguarded values must not change (docs/capture.md). ``options``: fields of
    `smelt.config.Config`; they are checked here, not at the first call.

    Raises:
        SmeltError: SM0101 an unknown option, SM0102 a wrong value, SM0103 a wrong ``SMELT_LOG``; SM0111,
            SM0112 TorchScript that cannot be translated.

    >>> import torch, smelt
    >>> smelt.compile(torch.nn.ReLU(), fusion=1)
    Traceback (most recent call last):
    smelt.errors.SmeltError: SM0102: option 'fusion' takes bool, not 1
    """
    again: Any = partial(compile, mode=mode, dynamic=dynamic, guard_filter_fn=guard_filter_fn)
    if isinstance(model, torch.export.ExportedProgram):
        config = config_from(mode, {"freezing": True, **options})
        return compile_exported(model, config, compile_alone)
    scripted = is_torchscript(model)
    if scripted:
        options = {"freezing": True, **options}
    config_from(mode, options)
    if scripted:

        def compile_piece(piece: Any) -> Any:
            return again(piece, fullgraph=False, **options)

        model = from_torchscript(model, structured=fullgraph, compile_piece=compile_piece)
        _report_left(model)
        if _is_in_pieces(model):
            return model
    if model is None:
        return lambda decorated: again(decorated, fullgraph=fullgraph, capture=capture, **options)
    if capture != "dynamo":
        then = partial(again, fullgraph=fullgraph, **options)
        return compile_captured(model, capture, dynamic, then)
    together: dict[str, Any] = {"mode": mode, **options}
    if guard_filter_fn is not None:
        together["guard_filter_fn"] = guard_filter_fn
    # By its name, where it is installed: of unknown backends torch 2.14 keeps weak references to parameters,
    # and `torch.utils.swap_tensors` refuses these.
    known: Any = "smelt" if "smelt" in torch.compiler.list_backends() else backend
    compiled = torch.compile(model, backend=known, dynamic=dynamic, fullgraph=fullgraph, options=together)
    return with_generate(compiled, model)


def _is_in_pieces(model: Any) -> bool:
    """Whether the result for TorchScript is Python around compiled pieces."""
    return "forward" in model.pieces if isinstance(model, FromTorchScript) else bool(model.pieces)


def _report_left(model: Any) -> None:
    """Reports the parts of a TorchScript program that are not compiled."""
    if model.left:
        name = f"torchscript {getattr(model, '__name__', type(model).__name__)}"
        report = CompileReport("eager", name)
        for op, reason, where in model.left:
            report.add_fallback(op, reason, where)
        LOG.add(report)


def reports() -> list[CompileReport]:
    """The reports of the graphs compiled in this process since `reset` (the newest 512), oldest first.

    If there is none although Dynamo has traced functions, a message with possible reasons is logged.
    """
    found = LOG.all()
    seen = () if found else getattr(torch._dynamo.convert_frame.input_codes, "seen", ())
    if seen and LOG.first_time("SM0125"):
        logs.logger.warning(_NO_GRAPH, len(seen))
    return found


def reset() -> None:
    """Drops the reports, and all code that ``torch.compile`` has compiled: the next call compiles anew.

    Memory that is kept for later outputs is released.
    """
    torch.compiler.reset()
    RECYCLER.clear()
    LOG.clear()
