"""A model as a folder: sources, library, weights, headers, callers."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from smelt.capture import Program
from smelt.codegen.cpp.header import PARTS, header_text, once_text
from smelt.config import Config
from smelt.mlir.capturing import Captured
from smelt.packages.build_files import build_files
from smelt.packages.plans import program_text
from smelt.packages.program import HEADER, LevelProgram
from smelt.packages.signature import Signature, Value, renamed
from smelt.packages.tables import Described, description_text
from smelt.packages.tables import header_text as public_header
from smelt.packages.weights import Weights

RUNTIME = Path(__file__).parent / "runtime"
FORMAT = 1


@dataclass(frozen=True, slots=True)
class Contents:
    """A package before it is written. ``levels``: instruction set → its program, the best one first."""

    name: str
    captured: Captured
    signature: Signature
    levels: Mapping[str, LevelProgram]
    config: Config

    @property
    def program(self) -> Program:
        return self.captured.program


def write_sources(contents: Contents, folder: Path) -> None:
    """Writes everything of a package that is text, and the weights."""
    name, signature = contents.name, contents.signature
    source, include = folder / "src", folder / "include"
    source.mkdir()
    include.mkdir()
    weights, errors = Weights(), dict[str, int]()
    programs: dict[str, list[str]] = {}
    for level, made in contents.levels.items():
        plain = made.level.identifier
        chosen = f"{name}_program_{plain}"
        numbers = _numbers(contents.program, made, weights, signature)
        text = program_text(made.plan, signature, numbers, level, chosen, made.scratch, errors)
        (source / f"program_{plain}.c").write_text(text)
        for number, kernels in enumerate(_kernel_files(name, made)):
            (source / f"kernels_{plain}_{number}.cpp").write_text(kernels)
        programs.setdefault(made.level.machine, []).append(chosen)
    initial = [
        -1 if each.initial is None else weights.add(f"initial.{each.name}", each.initial)
        for each in signature.inputs
    ]
    digest = weights.save(folder / "weights.safetensors")
    described = Described(name, signature, weights.found, digest, programs, tuple(errors), initial)
    (source / f"{name}.c").write_text(description_text(described))
    (source / "smelt_name.h").write_text(f"#define SMELT_NAME {name}\n")
    (source / HEADER).write_text(kernels_header())
    for each in RUNTIME.iterdir():
        if each.suffix in (".c", ".h"):
            shutil.copyfile(each, (include if each.name == "smelt_model.h" else source) / each.name)
    (include / f"{name}.h").write_text(public_header(name, signature))
    for file, text in build_files(name, [each.name for each in source.iterdir()]).items():
        (folder / file).write_text(text)


def _numbers(
    program: Program, made: LevelProgram, weights: Weights, signature: Signature
) -> dict[int | str, int]:
    """The number of the weight that each input or constant of a plan is."""
    numbers: dict[int | str, int] = {}
    given = {each.position for each in signature.inputs}
    for position, name in enumerate(made.plan.inputs):
        each = program.inputs[position]
        if name is not None and position not in given:
            assert each.value is not None
            numbers[position] = weights.add(each.path or each.name, each.value)
    for name in made.plan.constants:
        numbers[name] = weights.add(made.names.get(name, name), made.constants[name])
    return numbers


def kernels_header() -> str:
    """``smelt_kernels.h``: smelt's header for kernels, without what only measurements need."""
    guard = '#ifndef SMELT_KERNELS_H\n#define SMELT_KERNELS_H\n#include "smelt_runtime.h"\n'
    return f"{guard}{header_text(frozenset(PARTS) - {'clock'}, once=False)}\n#endif\n"


def _kernel_files(name: str, made: LevelProgram) -> Iterator[str]:
    """Kernels have a namespace for each model and level: functions of two levels are never one."""
    head = f"#define SMELT_PACKAGE 1\n#define smelt {name}_{made.level.identifier}\n"
    once = once_text()
    for number, text in enumerate(made.files):
        yield head + (text if number else f'#include "{HEADER}"\n{once}\n{text}')


def described(contents: Contents) -> dict[str, Any]:
    """The data of ``model.json``."""
    signature = contents.signature
    names = signature.names
    hints = {str(symbol): value for symbol, value in contents.program.hints().items()}

    def value(each: Value) -> dict[str, Any]:
        found: dict[str, Any] = {
            "name": each.name,
            "dtype": str(each.dtype).removeprefix("torch."),
            "shape": [renamed(size, names) for size in each.shape],
        }
        if each.state:
            found["state"] = True
        if each.initial is not None:
            found["initial"] = True
        if each.position < 0:
            found["seed"] = True
        return found

    return {
        "format": FORMAT,
        "abi": 1,
        "name": contents.name,
        "inputs": [value(each) for each in signature.inputs],
        "outputs": [value(each) for each in signature.outputs],
        "sizes": [
            {
                "name": each.name,
                "least": each.least,
                "most": each.most,
                "example": hints.get(each.symbol, each.least),
            }
            for each in signature.sizes
        ],
        "conditions": [renamed(each, names) for each in signature.conditions],
        "fixed": {name: repr(each) for name, each in (signature.fixed or {}).items()},
        "levels": list(contents.levels),
        "kernels": kernels_of(contents),
        "made_with": {"torch": torch.__version__},
    }


def kernels_of(contents: Contents) -> dict[str, list[dict[str, Any]]]:
    """For each level its kernels in order, with the user's lines that they compute."""
    found = {}
    for level, made in contents.levels.items():
        listed = []
        for run in made.runs:
            for call in run.calls:
                lines = dict.fromkeys(str(each) for each in call.origins or call.kernel.origins)
                listed.append({"kernel": call.kernel.name, "computes": list(lines)})
        found[level] = listed
    return found
