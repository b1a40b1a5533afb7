"""`package`: a model compiled to a folder that runs without torch, without Python and without a compiler."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from smelt.config import from_options
from smelt.contract import export_decompositions
from smelt.mlir.capturing import Exportable, capture
from smelt.package.folder import Contents, described, identifier, write_sources
from smelt.package.program import level_program
from smelt.package.signature import signature_of
from smelt.runtime import library
from smelt.schedule import Target


def package(
    model: Exportable,
    args: Sequence[Any] = (),
    path: str | Path = "model.smelt",
    *,
    kwargs: Mapping[str, Any] | None = None,
    name: str | None = None,
    dynamic_shapes: Any = None,
    target: str = "native",
    levels: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    **options: object,
) -> Path:
    path = Path(path)
    name = identifier(path.name.removesuffix(".smelt")) if name is None else name
    captured = capture(
        model, tuple(args), kwargs, dynamic_shapes=dynamic_shapes, decompositions=export_decompositions()
    )
    config = from_options({"freezing": True, "winograd": False, **options})
    signature = signature_of(captured.program, captured.exported, dynamic_shapes)
    programs = {}
    for level, machine in (
        ("x86-64-v4", Target(64, multiply_adds=2)),
        ("x86-64-v3", Target(32, multiply_adds=2)),
        ("x86-64", Target(16)),
    ):
        prefix = f"{name}_{identifier(level)}_"
        programs[level] = level_program(captured.program, config, machine, prefix, library.compilers())
    contents = Contents(name, captured, signature, programs, config)
    made = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    write_sources(contents, made)
    (made / "model.json").write_text(json.dumps(described(contents), indent=1))
    shutil.rmtree(path, ignore_errors=True)
    os.replace(made, path)
    return path
