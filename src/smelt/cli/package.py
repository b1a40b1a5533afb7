"""``smelt package``: a program as a folder that runs without torch, Python and a compiler."""

from __future__ import annotations

import inspect
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from smelt.cli import spec as specs
from smelt.cli.console import out, progress
from smelt.cli.export import dynamic_shapes, eager_if_not_captured, quiet_torch
from smelt.errors import SmeltError, describe
from smelt.packages.opened import Package, open_package

ENDING = ".smelt"


@dataclass(frozen=True, slots=True)
class Request:
    """What is packaged, and how. ``spec``: a SPEC, or a ``.pt2`` file."""

    spec: str
    output: str | None = None
    name: str | None = None
    dynamic: Sequence[str] = ()
    targets: Sequence[str] = ()
    levels: Sequence[str] = ()
    train: bool = False
    quantize: str | None = None
    activations: str | None = None
    sign: str | None = None
    options: dict[str, Any] | None = None

    @property
    def path(self) -> Path:
        """Where it goes: the name of the factory or of the file, if nothing else is said."""
        if self.output is not None:
            return Path(self.output)
        return Path(
            (Path(self.spec).stem if _is_exported(self.spec) else self.spec.rpartition(":")[2]) + ENDING
        )


def package(request: Request) -> None:
    """Makes a package and shows what is in it.

    Raises:
        SmeltError: a bad SPEC, SM0906 a program that raises in eager, SM0907 no place to write to, SM0918 a
            file that is no exported program, or an option that it cannot have; SM1426 no such key; and the
            errors of `smelt.package`.
    """
    from smelt.packages import manifest
    from smelt.packages.api import package as make

    if not request.path.resolve().parent.is_dir():
        raise SmeltError("SM0907", f"no such folder for --output: {request.path.parent}")
    if request.sign is not None:
        manifest.read_key(Path(request.sign), private=True)  # better now than after the work
    program = _program(request)
    start = time.perf_counter()
    with progress(f"packaging {request.spec}") as said:
        if request.quantize is not None:
            said(f"quantizing to {request.quantize}")
            _quantize(program, request)
        shapes = dynamic_shapes(program, request.dynamic) if request.dynamic else None
        options = dict(request.options or {})
        if request.targets:
            options["target"] = tuple(request.targets) if len(request.targets) > 1 else request.targets[0]
        if request.train:
            program, options["kind"] = _step(program), "training"
        with eager_if_not_captured(request.spec, program), quiet_torch():
            path = make(
                program.call,
                program.args,
                request.path,
                kwargs=program.kwargs or None,
                name=request.name,
                dynamic_shapes=shapes,
                levels=request.levels or None,
                said=said,
                **options,
            )
        if request.sign is not None:
            manifest.sign(path, Path(request.sign))
    out().print(table(open_package(path), time.perf_counter() - start))


def table(package: Package, seconds: float | None = None) -> Table:
    """What a package holds: libraries, weights, levels, kernels."""
    grid = Table.grid(padding=(0, 2))
    model = package.model
    for target, files in package.libraries.items():
        shown = ", ".join(f"{file.name} {size(file.stat().st_size)}" for file in files)
        grid.add_row(f"library for {target}", shown)
    weights = [each for each in package.weights if not each.is_padding]
    grid.add_row("weights", f"{len(weights)} tensors, {size(sum(each.nbytes for each in weights))}")
    grid.add_row("levels", ", ".join(model.get("levels", ())))
    kernels = {len(listed) for listed in model.get("kernels", {}).values()}
    grid.add_row("kernels", " or ".join(map(str, sorted(kernels))))
    if seconds is not None:
        grid.add_row("packaged in", f"{seconds:.1f} s")
        grid.add_row("where", str(package.folder))
    return grid


def size(count: int) -> str:
    """Bytes for people.

    >>> size(900), size(2048), size(5 << 20)
    ('900 bytes', '2.0 KiB', '5.0 MiB')
    """
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count} bytes"


def _is_exported(spec: str) -> bool:
    return spec.endswith(".pt2")


def _program(request: Request) -> specs.Program:
    if not _is_exported(request.spec):
        return specs.load(request.spec)
    for option, given in (
        ("--dynamic", request.dynamic),
        ("--quantize", request.quantize),
        ("--train", request.train),
    ):
        if given:
            what = f"{option} needs the model; {request.spec} is an exported program, which is as it is"
            raise SmeltError("SM0918", what, remedy="export it so, or give a SPEC")
    if not Path(request.spec).is_file():
        raise SmeltError("SM0902", f"no such file: {request.spec}")
    import torch

    try:
        exported = torch.export.load(request.spec)
    except Exception as error:  # torch says it in many classes
        raise SmeltError("SM0918", f"{request.spec} is no exported program", why=describe(error)) from error
    return specs.Program(exported, (), {})


def _quantize(program: specs.Program, request: Request) -> None:
    import torch

    import smelt

    if not isinstance(program.call, torch.nn.Module):
        raise SmeltError("SM0115", f"{request.spec} is no torch.nn.Module, whose layers could be quantized")
    assert request.quantize is not None
    smelt.quantize(program.call, request.quantize, activations=request.activations)


def _step(program: specs.Program) -> specs.Program:
    """A training step as a function: forward, loss, backward, SGD, as ``smelt bench --train`` has it."""
    import torch

    from smelt.tracing import workload

    model = program.call
    if not isinstance(model, torch.nn.Module):
        return program  # a function that is a step itself
    model.train()
    optimizer = torch.optim.SGD((p for p in model.parameters() if p.requires_grad), lr=workload.LEARNING_RATE)

    def step(*args: Any, **kwargs: Any) -> torch.Tensor:
        optimizer.zero_grad()
        loss = workload.loss_of(model(*args, **kwargs))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss.detach()

    step.__signature__ = inspect.signature(model.forward)  # type: ignore[attr-defined]
    return specs.Program(step, program.args, program.kwargs)
