"""This machine as a target, and the interface of targets other than C++: they print runs of nests and make
them callable.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch

from smelt.config import Config
from smelt.loops.ir import Graph
from smelt.nest.ir import Run
from smelt.runtime.cache import Cache
from smelt.runtime.library import Job, Library, PythonLibrary
from smelt.runtime.toolchain import Toolchain
from smelt.schedule import Choose, Target
from smelt.tuning import Measurements


def machine_target(tools: Toolchain) -> Target:
    """The CPU that a compiler found here compiles for."""
    return Target(
        tools.vector_bytes,
        tuple(getattr(torch, name) for name in tools.dot_products),
        tools.multiply_adds,
        matrix_tiles=tools.matrix_tiles,
        registers=32 if tools.isa == "neon" else 0,
    )


@dataclass(frozen=True, slots=True)
class Code:
    """The code of runs: ``text`` for people; the ``library`` with one function for each run, as described by
    `smelt.nest.ir.Run`; for each run by name the meaning of its error numbers, from 1: the name of a built-in
    exception, and a message. ``stage``: the name of the text in a report. ``device``: as in
    `smelt.runtime.plan.Plan`. ``assembly``: prints the machine code. ``stored``: what `CachedTarget.restored`
    makes the code of again, in another process.
    """

    text: str
    library: Library | PythonLibrary | Job
    errors: Mapping[str, tuple[tuple[str, str], ...]]
    stage: str = "cpp"
    device: str | None = None
    assembly: Callable[[], str] | None = None
    stored: bytes | None = None


class CodeTarget(Protocol):
    """A machine that kernels are printed for, and the way from text to something to call.

    ``examples/scalar_c.py`` is one. `smelt.backend.backend_for` has ``torch.compile`` use it.
    """

    @property
    def machine(self) -> Target:
        """The scheduler's description of the machine."""

    @property
    def choose(self) -> Choose | None:
        """The decision which products and attentions become nests (`smelt.schedule.schedule`); None: that of
        the CPU.
        """

    def build(self, runs: Sequence[Run]) -> Code:
        """Prints runs, and compiles the text.

        Raises:
            Unsupported: the target has no text for something in them; PyTorch runs the program then.
        """


@runtime_checkable
class MeasuredTarget(CodeTarget, Protocol):
    """A target whose products are measured in mode ``max``, and whose calls may be recorded."""

    @property
    def records(self) -> bool: ...

    def measured(self, graph: Graph, config: Config, store: Cache, version: str) -> Measurements:
        """The measurements of a graph's contractions, of the cache and new ones; ``version``: smelt's."""


@runtime_checkable
class CachedTarget(CodeTarget, Protocol):
    """A target whose programs are kept in the cache."""

    @property
    def identity(self) -> str:
        """What its code depends on, besides the program, smelt and PyTorch."""

    def restored(self, stored: bytes) -> Code:
        """The code of `Code.stored`; its errors are in the plan.

        Raises:
            ValueError: the bytes are something else.
        """
