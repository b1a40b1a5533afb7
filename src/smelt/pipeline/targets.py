"""Targets besides C++: what the compiler asks of who prints runs of nests and makes them callable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from smelt.nest.ir import Run
from smelt.runtime.library import Library, PythonLibrary
from smelt.schedule import Choose, Target


@dataclass(frozen=True, slots=True)
class Code:
    """Runs as a target has them: the text, for people; the ``library`` with one function for each run, as
    `smelt.nest.ir.Run` describes it; for each run by name what its error numbers, from 1, mean: the name of a
    built-in exception, and a message.
    """

    text: str
    library: Library | PythonLibrary
    errors: Mapping[str, tuple[tuple[str, str], ...]]


class CodeTarget(Protocol):
    """A machine that kernels are printed for, and the way from text to something to call.

    ``examples/scalar_c.py`` is one. `smelt.backend.backend_for` has ``torch.compile`` use it.
    """

    @property
    def machine(self) -> Target:
        """What the scheduler has to know of it."""

    @property
    def choose(self) -> Choose | None:
        """Which products and attentions become nests (`smelt.schedule.schedule`); None: those of the CPU."""

    def build(self, runs: Sequence[Run]) -> Code:
        """Print runs, and compile the text.

        Raises:
            Unsupported: the target has no text for something in them; PyTorch runs the program then.
        """
