"""SPEC on the command line: ``module:factory`` or ``file.py:factory``; it returns (model, args, kwargs)."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from smelt.errors import SmeltError, describe
from smelt.tracing.program import Program as Program

FORM = "SPEC is module:factory or file.py:factory, and the factory returns (model, args, kwargs)"


def on_device(program: Program, device: str | None) -> Program:
    """The program with its model and arguments on a device; None: where the factory left them.

    Raises:
        SmeltError: SM0915, PyTorch has no such device here.
    """
    if device is None:
        return program
    import torch
    from torch.utils._pytree import tree_map_only

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().to(device).requires_grad_(tensor.requires_grad)

    try:
        place = torch.device(device)
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError) as error:
        raise SmeltError("SM0915", f"no device {device!r} here", why=describe(error)) from error
    call = program.call.to(place) if isinstance(program.call, torch.nn.Module) else program.call
    return Program(call, *tree_map_only(torch.Tensor, moved, (program.args, program.kwargs)))


def split(spec: str) -> tuple[str, str]:
    """The two parts of a SPEC; a file has to exist.

    >>> split("package.models:tiny")
    ('package.models', 'tiny')

    Raises:
        SmeltError: SM0901 not of the form, SM0902 no such file.
    """
    source, colon, factory = spec.rpartition(":")
    if not colon or not source or not factory.isidentifier():
        raise SmeltError("SM0901", f"{spec!r} is no SPEC", remedy=FORM)
    if _is_file(source) and not Path(source).is_file():
        raise SmeltError("SM0902", f"no such file: {source}")
    return source, factory


def load(spec: str) -> Program:
    """The program of a SPEC.

    Raises:
        SmeltError: as `made`; SM0905, the factory did not return (model, args, kwargs).
    """
    return checked(spec, made(spec))


def made(spec: str) -> object:
    """Imports the SPEC's source and calls its factory.

    Raises:
        SmeltError: SM0901 and SM0902 as `split`, SM0903 no such factory, SM0904 the source or the factory
            raised.
    """
    source, name = split(spec)
    module = _module(source)
    factory = getattr(module, name, None)
    if factory is None:
        near = difflib.get_close_matches(name, [n for n in vars(module) if not n.startswith("_")], n=1)
        hint = "did you mean " + near[0] + "?" if near else None
        raise SmeltError("SM0903", f"{source} has no {name!r}", remedy=hint)
    if not callable(factory):
        raise SmeltError("SM0903", f"{spec} is no function but {type(factory).__name__}", remedy=FORM)
    try:
        return factory()
    except SmeltError:
        raise
    except Exception as error:
        raise SmeltError("SM0904", f"{spec} raised {describe(error)}", where=_line_of(error)) from error


def checked(spec: str, made: object) -> Program:
    """The program that a factory has returned.

    Raises:
        SmeltError: SM0905, it returned something else.
    """
    if not isinstance(made, tuple) or len(made) != 3:
        shape = f"a tuple of {len(made)}" if isinstance(made, tuple) else type(made).__name__
        raise SmeltError("SM0905", f"{spec} returned {shape}", remedy="return (model, args, kwargs)")
    model, args, kwargs = made
    if not callable(model):
        raise SmeltError("SM0905", f"{spec} returned a model that is not callable: {type(model).__name__}")
    if not isinstance(args, (tuple, list)):
        raise SmeltError("SM0905", f"{spec} returned args that are {type(args).__name__}, not a tuple")
    if not isinstance(kwargs, dict) or not all(isinstance(key, str) for key in kwargs):
        raise SmeltError(
            "SM0905", f"{spec} returned kwargs that are {type(kwargs).__name__}, not a dict by name"
        )
    return Program(model, tuple(args), kwargs)


@contextmanager
def in_eager(spec: str) -> Iterator[None]:
    """Inside, the program of a SPEC runs without smelt.

    Raises:
        SmeltError: SM0906, it raises.
    """
    try:
        yield
    except Exception as error:
        raise SmeltError("SM0906", f"{spec} raises in eager: {describe(error)}") from error


def _is_file(source: str) -> bool:
    return source.endswith(".py") or "/" in source


def _module(source: str) -> ModuleType:
    try:
        if _is_file(source):
            return _from_file(Path(source).resolve())
        if "" not in sys.path and str(Path.cwd()) not in sys.path:
            sys.path.insert(0, str(Path.cwd()))
        return importlib.import_module(source)
    except ModuleNotFoundError as error:
        if error.name is not None and (source == error.name or source.startswith(error.name + ".")):
            raise SmeltError("SM0902", f"no such module: {source}") from error
        raise SmeltError(
            "SM0904", f"importing {source} raised {describe(error)}", where=_line_of(error)
        ) from error
    except SmeltError:
        raise
    except (Exception, SystemExit) as error:
        raise SmeltError(
            "SM0904", f"importing {source} raised {describe(error)}", where=_line_of(error)
        ) from error


def _from_file(path: Path) -> ModuleType:
    """Imports one file under its own name, with its folder importable as for a script."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise SmeltError("SM0902", f"not a Python file: {path.name}")
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _line_of(error: BaseException) -> str | None:
    frames = traceback.extract_tb(error.__traceback__)
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else None
