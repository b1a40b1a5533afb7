"""The Python of a package: a typed model over the copy of `smelt.packages.callers.numpy_model`."""

from __future__ import annotations

import builtins
import json
import keyword
import textwrap
from collections.abc import Iterator, Sequence

from smelt.packages.callers.interface import Interface, identifiers

RESERVED = frozenset(
    {*keyword.kwlist, "self", "out", "np", "Outputs", "Model", "load", "None", "list", "dict"}
)


def package_name(interface: Interface) -> str:
    """The import's name. ``numpy`` and the like would hide what the model needs."""
    taken = {
        *RESERVED,
        *dir(builtins),
        "numpy",
        "ctypes",
        "json",
        "os",
        "re",
        "threading",
        "typing",
        "platform",
    }
    return identifiers([interface.name], taken, prefix="model")[0]


def argument_names(interface: Interface) -> tuple[list[str], list[str]]:
    """Of inputs and of states: both are arguments of one function."""
    names = identifiers(
        (tensor.name for tensor in interface.inputs + interface.states), RESERVED, prefix="input"
    )
    return names[: len(interface.inputs)], names[len(interface.inputs) :]


def output_names(interface: Interface) -> list[str]:
    return identifiers((tensor.name for tensor in interface.outputs), RESERVED, prefix="output")


def module(interface: Interface) -> str:
    """``python/NAME/__init__.py``."""
    name = package_name(interface)
    inputs, states = argument_names(interface)
    optional = [f"{state}: np.ndarray | None = None" for state in states]
    parameters = [
        "self",
        *(f"{each}: Any" for each in inputs),
        "*",
        *optional,
        "out: Sequence[Any] | Mapping[str, Any] | np.ndarray | None = None",
    ]
    passed = f"[{', '.join(inputs)}]"
    kept = ", ".join(f"{_quoted(tensor.name)}: {state}" for tensor, state in zip(interface.states, states))
    return f'''\
"""The model {interface.name}, compiled by smelt. It needs numpy only.

    model = {name}.load()
    outputs = model({", ".join(inputs)})

``python -m {name}`` shows what the model takes. Written by smelt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from . import numpy_model
from .numpy_model import DtypeError, LoadError, ModelError, ShapeError

__all__ = ["DtypeError", "LoadError", "Model", "ModelError", "Outputs", "ShapeError", "load"]


class Outputs(NamedTuple):
    """What a call gives."""

{_fields(interface)}


class Model(numpy_model.Model):
    """The model {interface.name}; `load` makes one. Threads may call it at once{_states_note(interface)}."""

    def __call__(
        {f",{chr(10)}        ".join(parameters)},
    ) -> Outputs:
        """Runs the model. Inputs are arrays, or anything in the CPU's memory with ``__dlpack__``.

{_arguments(interface, inputs, states)}
        """
        return Outputs(*self.run({passed}, {{{kept}}}, out))


def load(*, threads: int = 0, level: str | None = None, trust_weights: bool = False) -> Model:
    """Loads the model.

    ``threads``: that a call uses, 0: all processors. ``level``: an instruction set by name, None: the best
    that the processor has. ``trust_weights``: the weights' digest is not checked, which is quicker.
    """
    here = Path(__file__).resolve().parent
    folder = here / "package"  # as it is installed; else as it lies in the package's folder
    return Model(
        folder if folder.is_dir() else here.parents[1],
        threads=threads,
        level=level,
        trust_weights=trust_weights,
    )
'''


def _states_note(interface: Interface) -> str:
    return ", where each passes its own states" if interface.states else ""


def _quoted(text: str) -> str:
    return json.dumps(text)


def _fields(interface: Interface) -> str:
    lines = []
    for tensor, name in zip(interface.outputs, output_names(interface)):
        lines += [f"    {name}: np.ndarray", f'    """{tensor.dtype} {tensor.shape_text}"""']
    return "\n".join(lines)


def _arguments(interface: Interface, inputs: Sequence[str], states: Sequence[str]) -> str:
    def lines() -> Iterator[str]:
        for tensor, name in zip(interface.inputs, inputs):
            yield f"``{name}``: {tensor.dtype} {tensor.shape_text}."
        for tensor, name in zip(interface.states, states):
            yield (
                f"``{name}``: {tensor.dtype} {tensor.shape_text}, read and written in place; "
                f"None: ``self.states[{_quoted(tensor.name)}]``."
            )
        yield "``out``: arrays for the results, one for each output (None: a new one), or by name."

    wrapped = "\n".join(
        textwrap.fill(line, 102, break_long_words=False, subsequent_indent="    ") for line in lines()
    )
    return textwrap.indent(wrapped.replace("\\", "\\\\"), "        ")


def main_module(interface: Interface) -> str:
    """``python/NAME/__main__.py``."""
    return f'''\
"""``python -m {package_name(interface)}``: what the model takes."""

from . import load

print(load(trust_weights=True))
'''


def pyproject(interface: Interface) -> str:
    """``pyproject.toml``; the build backend lies in the package and needs nothing."""
    return f"""\
[build-system]
requires = []
build-backend = "smelt_wheel"
backend-path = ["python"]

[project]
name = "{package_name(interface)}"
version = "0.1.0"
description = "The model {interface.name}, compiled by smelt"
requires-python = ">=3.9"
dependencies = ["numpy>=1.23"]
"""
