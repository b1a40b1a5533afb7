"""What people call: `smelt.compile`, `smelt.reports`, `smelt.reset`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, overload

import torch

from smelt.backend import config_from
from smelt.backend import smelt as backend
from smelt.capture import past_dynamo
from smelt.exported import compile_exported
from smelt.reporting import LOG, CompileReport
from smelt.runtime.recycle import RECYCLER

T = TypeVar("T", bound=Callable[..., Any])


@overload
def compile(
    model: T, *, mode: str = ..., dynamic: bool | None = ..., fullgraph: bool = ..., **options: object
) -> T: ...
@overload
def compile(
    model: None = None,
    *,
    mode: str = ...,
    dynamic: bool | None = ...,
    fullgraph: bool = ...,
    **options: object,
) -> Callable[[T], T]: ...
def compile(
    model: Any = None,
    *,
    mode: str = "default",
    dynamic: bool | None = None,
    fullgraph: bool = False,
    **options: object,
) -> Any:
    """``torch.compile`` with smelt: ``smelt.compile(model)``, or above a function as ``@smelt.compile``.

    What it returns calls what Dynamo has compiled by itself where Dynamo's guards hold, which takes half of
    the time that Dynamo's own way to there takes.

    ``dynamic``: True makes every size a symbol, False none, None those that changed. ``fullgraph``: a graph
    break is an error. An ``ExportedProgram`` is compiled at once, for the sizes it was exported for, and
    with ``freezing`` unless that is off.
    ``options``: fields of `smelt.config.Config`; they are checked here, not at the first
    call.

    Raises:
        SmeltError: SM0101 an unknown option, SM0102 a wrong value, SM0103 a wrong ``SMELT_LOG``.

    >>> import torch, smelt
    >>> smelt.compile(torch.nn.ReLU(), fusion=1)
    Traceback (most recent call last):
    smelt.errors.SmeltError: SM0102: option 'fusion' takes bool, not 1
    """
    if isinstance(model, torch.export.ExportedProgram):
        from smelt.pipeline import compile_program

        config = config_from(mode, {"freezing": True, **options})
        return compile_exported(model, config, compile_program)
    config_from(mode, options)
    if model is None:
        return lambda decorated: compile(
            decorated, mode=mode, dynamic=dynamic, fullgraph=fullgraph, **options
        )
    together: dict[str, Any] = {"mode": mode, **options}
    # By its name, where it is installed: of unknown backends torch 2.14 keeps weak references to parameters,
    # and `torch.utils.swap_tensors` refuses these.
    known: Any = "smelt" if "smelt" in torch.compiler.list_backends() else backend
    compiled = torch.compile(model, backend=known, dynamic=dynamic, fullgraph=fullgraph, options=together)
    return past_dynamo(compiled, torch._TorchCompileWrapper(known, None, together, dynamic))


def reports() -> list[CompileReport]:
    """What happened to each graph compiled in this process since `reset` (the newest 512), oldest first."""
    return LOG.all()


def reset() -> None:
    """Forget the reports, and what ``torch.compile`` has compiled: the next call compiles anew.

    Memory that is kept for later outputs is given back.
    """
    torch._dynamo.reset()
    RECYCLER.clear()
    LOG.clear()
