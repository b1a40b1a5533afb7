"""`package`: a model compiled to a folder that runs without torch, without Python and without a compiler."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from smelt.config import Config, from_options
from smelt.contract import export_decompositions
from smelt.errors import SmeltError
from smelt.mlir.capturing import Captured, Exportable, capture
from smelt.packages.build import build_library
from smelt.packages.callers import callers
from smelt.packages.folder import Contents, described, write_sources
from smelt.packages.manifest import write_manifest
from smelt.packages.program import LevelProgram, level_program
from smelt.packages.signature import Signature, Value, signature_of
from smelt.packages.targets import NATIVE, Level, find_target, levels_of
from smelt.records import replace
from smelt.runtime import library

SUFFIX = ".smelt"
KINDS = ("inference", "training")
SEED = Value("seed", torch.int64, (), -1)
"""The input of programs with random numbers: equal seeds give equal numbers."""
_KEYWORDS = """
    auto break case char const continue default do double else enum extern float for goto if inline int long
    register restrict return short signed sizeof static struct switch typedef union unsigned void volatile
    while bool class delete export namespace new operator private public template this throw try using
    c m dl rt pthread
"""
"""Words of C and C++, and libraries of the system, that are no name of a model."""


def package(
    model: Exportable,
    args: Sequence[Any] = (),
    path: str | Path = "model.smelt",
    *,
    kwargs: Mapping[str, Any] | None = None,
    name: str | None = None,
    dynamic_shapes: Any = None,
    target: str | Sequence[str] = NATIVE,
    levels: Sequence[str] | None = None,
    kind: str | None = None,
    output_names: Sequence[str] | None = None,
    said: Callable[[str], None] | None = None,
    **options: object,
) -> Path:
    """Compiles a model to a folder with a library, its weights, headers and callers, and all sources.

    Args:
        model: a model, a function, an ``ExportedProgram``; a function that runs autograd and an optimizer's
            step (of which one has been taken before) becomes a training package. ``args`` and ``kwargs`` are
            example arguments.
        path: the folder to be written; a package that is there is replaced.
        name: the model's name in C; by default from the path.
        dynamic_shapes: the dynamic sizes, as in `torch.export.export`.
        target: systems and processors to compile for (`smelt.packages.targets`), or ``"native"``.
        levels: instruction sets in the library, which takes the best one that is there when a model is
            created; by default those that most machines have (docs/package.md).
        kind: ``"inference"`` or ``"training"``, to be sure; by default what the program is.
        output_names: names of the outputs, in order; by default from keys and fields.
        said: called with a few words on each step, for people who wait.
        options: fields of `smelt.config.Config`.

    What changes at every run (buffers and parameters that the program writes) is an input in the caller's
    memory, a *state*. Programs with random numbers have the input ``seed``.

    Raises:
        SmeltError: SM1401 the program needs something that packages do not have (everything at once), SM1402
            and SM1403 sizes that are no whole numbers, or depend on data, SM1406 a wrong argument, SM1410 and
            SM1411 no such target or level; those of `smelt.export` and of the compiler.
    """
    say = said or (lambda _: None)
    path = Path(path)
    name = _checked_name(name or re.sub(r"\W", "_", path.name.removesuffix(SUFFIX), flags=re.ASCII))
    targets = [target] if isinstance(target, str) else list(target)
    chosen = _levels(targets, levels)
    _check_path(path)
    if kind not in (None, *KINDS):
        raise SmeltError("SM1406", f"kind={kind!r}", remedy=f"one of {', '.join(KINDS)}")
    if options.get("winograd"):
        why = "a result that is not finite is computed again without it, by the compiler"
        raise SmeltError("SM1406", "packages have no Winograd convolutions", why=why)
    config = from_options({"freezing": True, **options, "winograd": False, "own": True})
    say("capturing the program")
    table = export_decompositions()
    captured = capture(model, tuple(args), kwargs, dynamic_shapes=dynamic_shapes, decompositions=table)
    signature = _named(signature_of(captured.program, captured.exported, dynamic_shapes), output_names)
    if kind == "training" and not captured.trains:
        why = "it runs no autograd and changes no parameter"
        remedy = "package a function that computes the loss, its backward and an optimizer's step"
        raise SmeltError("SM1406", "this program is no training step", why=why, remedy=remedy)
    if kind == "inference" and captured.trains:
        raise SmeltError(
            "SM1406", "this program is a training step", why="it runs autograd or changes parameters"
        )
    programs = _programs(name, captured, config, chosen, say)
    if any(each.seeded for each in programs.values()):
        signature = replace(signature, inputs=(*signature.inputs, SEED))
    contents = Contents(name, captured, signature, programs, config)
    with _replaced(path) as folder:
        say("writing sources and weights")
        write_sources(contents, folder)
        data = described(contents) | {"kind": KINDS[captured.trains], "targets": []}
        for each in targets:
            made_for = find_target(each)
            say(f"compiling for {made_for.name}")
            build_library(folder / "src", name, each, folder / "lib" / made_for.name)
            data["targets"].append(made_for.name)
        (folder / "model.json").write_text(json.dumps(data, indent=1))
        for place, text in callers(data).items():
            (folder / place).parent.mkdir(parents=True, exist_ok=True)
            (folder / place).write_text(text)
        write_manifest(folder, name)
    return path


def _checked_name(name: str) -> str:
    """
    Raises:
        SmeltError: SM1406, it is no name in C.
    """
    if not (name.isidentifier() and name.isascii()) or name in _KEYWORDS.split() or name.startswith("_"):
        what = f"{name!r} cannot be a model's name in C"
        raise SmeltError("SM1406", what, remedy="give another one: package(…, name='model')")
    return name


def _check_path(path: Path) -> None:
    """
    Raises:
        SmeltError: SM1406, something else than a package is there, or its folder does not exist.
    """
    if not path.parent.is_dir():
        raise SmeltError("SM1406", f"there is no folder {path.parent}", remedy="make it first")
    empty = path.is_dir() and not any(path.iterdir())
    if path.exists() and not empty and not (path / "include" / "smelt_model.h").is_file():
        what = f"{path} is there and is no package"
        raise SmeltError("SM1406", what, remedy="remove it, or give another path")


def _levels(targets: Sequence[str], names: Sequence[str] | None) -> dict[str, Level]:
    """The levels of all targets, by name; lower levels read the packed weights of the best one of their
    processor.
    """
    if not targets:
        raise SmeltError("SM1406", "no target", remedy=f"target={NATIVE!r}")
    found: dict[str, Level] = {}
    for machine in dict.fromkeys(find_target(each).machine for each in targets):
        best, *others = levels_of(machine, names)
        found[best.name] = best
        for each in others:
            found.setdefault(each.name, replace(each, target=replace(each.target, panels=best.target)))
    return found


def _programs(
    name: str, captured: Captured, config: Config, levels: Mapping[str, Level], say: Callable[[str], None]
) -> dict[str, LevelProgram]:
    programs = {}
    for level in levels.values():
        say(f"scheduling for {level.name}")
        prefix = f"{name}_{level.identifier}_"
        made = level_program(captured.program, config, level, prefix, library.compilers())
        programs[level.name] = made
    return programs


def _named(signature: Signature, names: Sequence[str] | None) -> Signature:
    if names is None:
        return signature
    if len(names) != len(signature.outputs) or len(set(names)) != len(names):
        what = f"{len(names)} names for {len(signature.outputs)} outputs, or one twice"
        known = ", ".join(each.name for each in signature.outputs)
        raise SmeltError("SM1406", what, why=f"the outputs are {known}")
    renamed = (replace(each, name=name) for each, name in zip(signature.outputs, names))
    return replace(signature, outputs=tuple(renamed))


@contextmanager
def _replaced(path: Path) -> Iterator[Path]:
    """A new folder, which takes the place of ``path`` once it is complete."""
    made = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    try:
        yield made
        made.chmod(0o755)
        shutil.rmtree(path, ignore_errors=True)
        os.replace(made, path)
    finally:
        shutil.rmtree(made, ignore_errors=True)
