"""``smelt run``: a package on arrays from files, or random ones. No torch is imported."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from smelt.cli.console import check_folder, err, out
from smelt.errors import SmeltError
from smelt.packages.callers.interface import Tensor
from smelt.packages.callers.numpy_model import Model, numpy_dtype
from smelt.packages.opened import Package, open_package, refusals, size_of

SEED = 0


@dataclass(frozen=True, slots=True)
class Request:
    """A run. ``inputs``: ``FILE`` or ``NAME=FILE``; ``sizes``: ``NAME=NUMBER``."""

    path: str
    inputs: Sequence[str] = ()
    output: str | None = None
    random: bool = False
    sizes: Sequence[str] = ()
    threads: int = 0
    level: str | None = None
    states: bool = False
    key: str | None = None


def run(request: Request) -> None:
    """Runs a package once, shows its outputs, and writes them to a file.

    Raises:
        SmeltError: SM0907 no place to write to; SM1428 a file that has no arrays, an input that is missing or
            unknown; and the errors of `open_package` and of the library.
    """
    check_folder("--output", request.output)
    if request.output is not None and Path(request.output).suffix not in (".npz", ".npy"):
        raise SmeltError("SM1428", f"--output takes FILE.npz or FILE.npy, not {request.output}")
    package = open_package(request.path, request.key)
    arrays = read_arrays(package, request.inputs)
    sizes = chosen_sizes(package, request.sizes, arrays)
    missing = [each for each in asked_for(package) if each.name not in arrays]
    if missing and not request.random:
        raise SmeltError(
            "SM1428",
            f"{package.name}: no values for {', '.join(described(each) for each in missing)}",
            remedy=f"--input {missing[0].name}=FILE.npy, or --random for the rest",
        )
    arrays |= random_arrays(missing, sizes)
    if package.seed is not None:
        arrays.setdefault(package.seed, np.array(SEED))
    with refusals():
        model = Model(package.library.parents[2], threads=request.threads, level=request.level)
        kept = {each.name for each in model.state_infos}
        model.states.update({name: array for name, array in arrays.items() if name in kept})
        values = [arrays[each.name] for each in model.inputs]
        if request.random and kept - set(model.states):
            model.states.update({n: s for n, s in model.new_states(**sizes).items() if n not in model.states})
        start = time.perf_counter()
        results = model.run(values)
        seconds = time.perf_counter() - start
    found = {each.name: array for each, array in zip(model.outputs, results)}
    if request.states:
        found |= model.states
    console = out()
    console.print(_table(found))
    console.print(f"{package.name}, {model.level}: {seconds * 1e3:.3f} ms (the first run)", markup=False)
    if request.output is not None:
        _write(Path(request.output), found)
        err().print(f"written: {request.output}", markup=False)


def asked_for(package: Package) -> list[Tensor]:
    """The inputs that a call needs: no states that the package has a value for, and no seed."""
    return [each for each in package.interface.tensors if not each.initial and each.name != package.seed]


def described(tensor: Tensor) -> str:
    """An input for people: ``x (float32 [batch, 8])``."""
    return f"{tensor.name} ({tensor.dtype} {tensor.shape_text})"


def read_arrays(package: Package, inputs: Sequence[str]) -> dict[str, np.ndarray]:
    """The arrays of files by the names of inputs; files without a name are the first inputs that have none.

    Raises:
        SmeltError: SM1428.
    """
    names = [each.name for each in package.interface.tensors]
    found: dict[str, np.ndarray] = {}
    nameless = []
    for text in inputs:
        name, equals, file = text.partition("=")
        if equals and not Path(text).exists():
            if name not in names:
                raise _bad(
                    f"--input {text}: {package.name} has no input {name!r}", f"one of {', '.join(names)}"
                )
            found[name] = _array(file)
        elif text.endswith(".npz"):
            found |= _archive(text, names, package.name)
        else:
            nameless.append(text)
    free = [name for name in names if name not in found]
    if len(nameless) > len(free):
        raise _bad(f"{len(nameless)} files for {len(free)} inputs", "inputs: " + ", ".join(names))
    return found | {name: _array(file) for name, file in zip(free, nameless)}


def _array(file: str) -> np.ndarray:
    try:
        with open(file, "rb") as data:
            found = np.load(data, allow_pickle=False)
            if not isinstance(found, np.ndarray):
                raise ValueError("it has several arrays: give it as --input FILE.npz")
            return found
    except (OSError, ValueError, EOFError) as error:
        raise _bad(f"{file} has no array: {error}", "numpy.save writes such files") from error


def _archive(file: str, names: Sequence[str], package: str) -> dict[str, np.ndarray]:
    import zipfile

    try:
        with np.load(file, allow_pickle=False) as archive:
            found = {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, AttributeError) as error:
        raise _bad(f"{file} has no arrays: {error}", "numpy.savez writes such files") from error
    unknown = [name for name in found if name not in names]
    if unknown:
        raise _bad(f"{file}: {package} has no input {unknown[0]!r}", f"one of {', '.join(names)}")
    return found


def _bad(what: str, remedy: str | None = None) -> SmeltError:
    return SmeltError("SM1428", what, remedy=remedy)


def chosen_sizes(package: Package, given: Sequence[str], arrays: Mapping[str, np.ndarray]) -> dict[str, int]:
    """A value for each size: as it was given, as the arrays have it, or as in the model's example.

    Raises:
        SmeltError: SM1428, no such size, or a number that it cannot be.
    """
    known = {each.name: each for each in package.interface.sizes}
    sizes = {each.name: each.example for each in package.interface.sizes}
    for tensor in package.interface.tensors:
        if tensor.name in arrays:
            pairs = zip(tensor.shape, arrays[tensor.name].shape)
            sizes |= {name: extent for name, extent in pairs if name in known}
    for text in given:
        name, _, number = text.partition("=")
        if name not in known:
            raise _bad(
                f"--size {text}: no such size", f"one of {', '.join(known)}" if known else "all are fixed"
            )
        least, most = known[name].least, known[name].most
        if not number.isdigit() or not least <= int(number) <= most:
            raise _bad(
                f"--size {text}: not from {least} to {most}", f"as --size {name}={known[name].example}"
            )
        sizes[name] = int(number)
    return sizes


def random_arrays(tensors: Sequence[Tensor], sizes: Mapping[str, int]) -> dict[str, np.ndarray]:
    """An array for each tensor: normally distributed floats; integers that are 0 or 1, which are an index
    into almost everything; a size's value for a number that is one.

    Raises:
        SmeltError: SM1428, a shape that the sizes do not give, or memory is not enough.
    """
    generator = np.random.default_rng(SEED)
    return {each.name: _random(generator, each, sizes) for each in tensors}


def _random(generator: np.random.Generator, tensor: Tensor, sizes: Mapping[str, int]) -> np.ndarray:
    if not tensor.shape and tensor.name in sizes:
        return np.array(sizes[tensor.name], numpy_dtype(tensor.dtype))
    try:
        shape = tuple(size_of(each, sizes) for each in tensor.shape)
        dtype = numpy_dtype(tensor.dtype)
        if tensor.dtype.startswith(("int", "uint", "bool")):
            array = generator.integers(0, 2, shape).astype(dtype)
        elif tensor.dtype == "bfloat16" and dtype == np.uint16:  # its bits: the upper half of a float32's
            array = (generator.standard_normal(shape, np.float32).view(np.uint32) >> 16).astype(np.uint16)
        elif tensor.dtype.startswith("float8") and dtype == np.uint8:
            array = np.zeros(shape, dtype)
        else:
            array = generator.standard_normal(shape).astype(dtype)
    except (ValueError, MemoryError) as error:
        raise _bad(
            f"no values for {described(tensor)}: {error}", f"--input {tensor.name}=FILE.npy"
        ) from error
    if tensor.order is None:
        return array
    return np.ascontiguousarray(array.transpose(tensor.order)).transpose(np.argsort(tensor.order))


def _table(found: Mapping[str, np.ndarray]) -> Table:
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    for heading in ("output", "dtype", "shape", "least", "mean", "most"):
        table.add_column(heading, justify="left" if heading in ("output", "dtype", "shape") else "right")
    for name, array in found.items():
        table.add_row(name, str(array.dtype), str(list(array.shape)), *_summary(array))
    return table


def _summary(array: np.ndarray) -> Iterator[str]:
    if array.size == 0 or array.dtype.kind not in "biuf":
        yield from ("",) * 3
    else:
        values: Any = (array.min(), array.mean(dtype=np.float64), array.max())
        yield from (f"{float(each):.6g}" for each in values)


def _write(path: Path, found: Mapping[str, np.ndarray]) -> None:
    try:
        if path.suffix == ".npz":
            with path.open("wb") as file:
                np.savez(file, **found)  # type: ignore[arg-type]
        elif len(found) == 1:
            np.save(path, next(iter(found.values())), allow_pickle=False)
        else:
            raise _bad(f"{path} holds one array, and there are {len(found)}", "--output FILE.npz")
    except OSError as error:
        raise _bad(f"{path} cannot be written: {error.strerror}") from error
