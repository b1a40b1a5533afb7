"""`captured`: torch.compile with a compiler that keeps the Programs and runs them by ATen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from smelt.capture import Compiled, Program, capture_aot
from smelt.contract import decompositions


class Captured:
    """Programs in the order in which they came; ``compile`` is ``torch.compile`` with the keeping backend."""

    def __init__(self) -> None:
        self.programs: list[Program] = []
        self.boxed: list[bool] = []

    def compile(self, function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        return torch.compile(function, backend=self._backend, **options)

    def of_kind(self, kind: str) -> Program:
        (found,) = [program for program in self.programs if program.kind == kind]
        return found

    def _backend(self, graph_module: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        return capture_aot(graph_module, example_inputs, self._keep, decompositions())

    def _keep(self, program: Program) -> Compiled:
        self.programs.append(program)

        def call(args: list[Any]) -> Any:
            self.boxed.append(type(args) is list)
            results = program.graph_module(*args)
            args.clear()
            return results

        return call


@pytest.fixture
def captured() -> Iterator[Captured]:
    torch.set_num_threads(1)
    torch.compiler.reset()
    yield Captured()
    torch.compiler.reset()
