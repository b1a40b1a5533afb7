"""A package on disk: its description, its library for this machine, its weights' table. No torch is needed.

Nothing in the folder is believed: `open_package` checks what it reads, and what is used afterwards (the
library) against the manifest. The weights' digest is in the library, which checks it.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from smelt.errors import SmeltError
from smelt.packages.callers.interface import Interface, interface_of
from smelt.packages.callers.loading import LoadError, ModelError, library_path
from smelt.packages.manifest import Manifest, check_files, read_manifest, verify
from smelt.packages.reading import (
    Every,
    WeightInfo,
    is_count,
    is_identifier,
    is_number,
    is_text,
    malformed,
    read_json,
    weights_table,
)

FORMAT = 1
MODEL, WEIGHTS = "model.json", "weights.safetensors"
MOST_RANK = 64

DTYPES = frozenset(
    {"bool", "bfloat16", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2"}
    | {f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)}
    | {f"float{bits}" for bits in (16, 32, 64)}
)


def _is_dtype(value: Any) -> bool:
    """dtype"""
    return isinstance(value, str) and value in DTYPES


def _is_shape(value: Any) -> bool:
    """shape"""
    return (
        isinstance(value, list) and len(value) <= MOST_RANK and all(is_count(d) or is_text(d) for d in value)
    )


def _is_name(value: Any) -> bool:
    """name"""
    return is_text(value) and value != ""


_TENSOR = {
    "name": _is_name,
    "dtype": _is_dtype,
    "shape": _is_shape,
    "state?": bool,
    "initial?": bool,
    "seed?": bool,
    "order?": [is_count],
}
_SIZE = {"name": _is_name, "least": is_number, "most": is_number, "example?": is_number}
_SCHEMA = {
    "format": int,
    "abi": int,
    "name": is_identifier,
    "inputs": [_TENSOR],
    "outputs": [_TENSOR],
    "sizes": [_SIZE],
    "conditions?": [is_text],
    "fixed?": Every(is_text, is_text),
    "levels?": [is_text],
    "targets?": [is_text],
    "kernels?": Every(is_text, [{"kernel": is_text, "computes": [is_text]}]),
    "made_with?": Every(is_text, is_text),
}


@dataclass(frozen=True)
class Package:
    """``model``: the data of ``model.json``, checked."""

    folder: Path
    manifest: Manifest
    model: Mapping[str, Any]
    interface: Interface

    @property
    def name(self) -> str:
        return self.interface.name

    @property
    def seed(self) -> str | None:
        """The input that random numbers come from; None: there are none."""
        return next((each["name"] for each in self.model["inputs"] if each.get("seed")), None)

    @cached_property
    def library(self) -> Path:
        """The library for this machine: as the manifest has it, or one that was built here, which it has not.

        Raises:
            SmeltError: SM1421 there is none, SM1425 it was changed.
        """
        try:
            path = library_path(self.folder, self.name)
        except LoadError as error:
            raise SmeltError("SM1421", str(error)) from error
        check_files(self.manifest, [path.relative_to(self.folder).as_posix()])
        return path

    @property
    def libraries(self) -> dict[str, tuple[Path, ...]]:
        """Target → its libraries."""
        folders = (each for each in sorted(self.folder.glob("lib/*")) if each.is_dir())
        return {
            each.name: tuple(sorted(file for file in each.iterdir() if file.is_file())) for each in folders
        }

    @property
    def weights(self) -> tuple[WeightInfo, ...]:
        """The tensors of the file of weights.

        Raises:
            SmeltError: SM1420, the file is malformed.
        """
        return weights_table(self.folder / WEIGHTS)


def is_package(path: str | Path) -> bool:
    """Whether a path looks like a package, good or not."""
    return Path(path).is_dir() and (Path(path, MODEL).is_file() or str(path).rstrip("/").endswith(".smelt"))


def open_package(path: str | Path, key: str | Path | None = None) -> Package:
    """Opens a package; with a public ``key`` it checks the signature and every file first.

    Raises:
        SmeltError: SM1420 it is no package, or malformed; SM1425 files are not as its manifest says; SM1426
            its signature is missing or wrong.
    """
    folder = Path(path)
    if not folder.is_dir():
        what = "it is a file, and a package is a folder" if folder.exists() else "there is no such folder"
        malformed(folder, what)
    if not (folder / MODEL).is_file():
        malformed(folder, f"it has no {MODEL}")
    if key is None:
        manifest = read_manifest(folder)
        check_files(manifest, [MODEL])
    else:
        manifest = verify(folder, Path(key))
    data = read_json(folder / MODEL, _SCHEMA)
    _check_model(folder / MODEL, data)
    if manifest.name != data["name"]:
        malformed(folder, f"{MODEL} and the manifest are of two packages, {data['name']} and {manifest.name}")
    return Package(folder, manifest, data, interface_of(data))


def _check_model(path: Path, data: Mapping[str, Any]) -> None:
    if data["format"] != FORMAT:
        malformed(path, f"it has the format {data['format']}, and this smelt reads {FORMAT}")
    for what in ("inputs", "outputs", "sizes"):
        names = [each["name"] for each in data[what]]
        if len(set(names)) < len(names):
            malformed(path, f"two of its {what} have one name")
    for each in data["inputs"] + data["outputs"]:
        order = each.get("order")
        if order and sorted(order) != list(range(len(each["shape"]))):
            malformed(path, f"the order of {each['name']} is no permutation of its dimensions")
    for each in data["sizes"]:
        if each["least"] > each["most"]:
            malformed(path, f"the size {each['name']} has a range with nothing in it")


_OPERATORS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Mod: lambda a, b: a % b,
}
_MOST_EXTENT = 2**62


def size_of(text: int | str, sizes: Mapping[str, int]) -> int:
    """A dimension for given sizes. Texts come from a package: they are read as sums and products, not run.

    >>> size_of("2*batch + max(1, n // 2)", {"batch": 4, "n": 6})
    11

    Raises:
        ValueError: another text, an unknown size, or a result that is no dimension.
    """

    def value(node: ast.AST) -> int:
        if isinstance(node, ast.Constant) and type(node.value) is int:
            found = node.value
        elif isinstance(node, ast.Name) and node.id in sizes:
            found = sizes[node.id]
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            found = -value(node.operand)
        elif isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            found = _OPERATORS[type(node.op)](value(node.left), value(node.right))
        elif (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args and not node.keywords
        ):
            chosen = {"max": max, "min": min}.get(node.func.id)
            if chosen is None:
                raise ValueError(f"unknown: {node.func.id}")
            found = chosen(value(each) for each in node.args)
        else:
            raise ValueError(f"unknown: {ast.unparse(node)}")
        if abs(found) > _MOST_EXTENT:
            raise ValueError("it is too large")
        return found

    if isinstance(text, int):
        return text
    try:
        found = value(ast.parse(text, mode="eval").body)
    except (SyntaxError, ZeroDivisionError, RecursionError, MemoryError) as error:
        raise ValueError(f"{text} is no size: {error}") from error
    if found < 0:
        raise ValueError(f"{text} is {found}")
    return found


_REMEDIES = {
    "SM1422": "the package may be damaged (smelt verify), or be made for other machines (smelt inspect)",
    "SM1423": "smelt inspect shows what the model takes",
    "SM1427": "the model raises this for these inputs, in eager too",
}


@contextmanager
def refusals() -> Iterator[None]:
    """Inside, the errors of a library and of its caller are `SmeltError`.

    Raises:
        SmeltError: SM1422 the library cannot be used, SM1423 arguments that do not fit, SM1427 an error of
            the model itself.
    """
    try:
        yield
    except ModelError as error:
        raise refused(error) from error


def refused(error: ModelError) -> SmeltError:
    """The `SmeltError` for an error of a library or its caller."""
    loading = isinstance(error, LoadError) or error.code in (4, 5, 6, 8)
    code = "SM1422" if loading else "SM1427" if error.code == 7 else "SM1423"
    return SmeltError(code, str(error), remedy=_REMEDIES[code])
