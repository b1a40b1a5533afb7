"""`smelt.view`: the page of a program, from Python and in notebooks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from smelt.tir.schedule import Schedule
from smelt.tracing.program import Program
from smelt.tracing.record import record
from smelt.tracing.schedules import schedule_trace
from smelt.tracing.workload import Setup, prepare
from smelt.viewer import View


def view(
    model: Callable[..., Any] | Schedule,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    train: bool = False,
    dynamic: bool | None = None,
    seconds: float = 1.0,
    title: str | None = None,
    **options: Any,
) -> View:
    """Compiles and runs a program, and shows it from the model's lines to its kernels' lines, with times; or
    a `smelt.tir.Schedule`, step by step.

    Args:
        model: a module or function, called with ``args`` and ``kwargs``; or a schedule.
        train: shows a training step: forward, loss, backward, SGD (which changes the model's weights).
        seconds: how long it is measured; 0: it runs once, without times.
        options: those of `smelt.compile`.

    Returns:
        a page: ``.save("page.html")`` writes it; a notebook shows it.

    Raises:
        SmeltError: SM0930, nothing of the program was compiled; a wrong option.
    """
    if isinstance(model, Schedule):
        name = title or "a schedule"
        return View(schedule_trace(model, title=name, command="smelt.view", seconds=seconds))
    given = args if isinstance(args, (tuple, list)) else (args,)
    program = Program(model, tuple(given), dict(kwargs or {}))
    setup = Setup(train, dynamic, tuple(sorted(options.items())))
    prepare(program, setup)
    named = type(model) if isinstance(model, torch.nn.Module) else model
    name = getattr(named, "__name__", "program")
    kind = "training step" if train else "inference"
    made = record(program, setup, title=title or f"{name}, {kind}", command="smelt.view", seconds=seconds)
    return View(made)
