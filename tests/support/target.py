"""The target that tests compile for: ``pytest --target triton`` runs them on Triton's interpreter.

Triton has to be on ``PYTHONPATH``, and TRITON_INTERPRET=1 set: ``tests/codegen/triton/test_lowering.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from smelt.config import Config
from smelt.errors import Unsupported
from smelt.loops.interpreter import run_graph
from smelt.loops.ir import Graph

NAMES = ("reference", "triton")
chosen = NAMES[0]


def run(graph: Graph, inputs: Sequence[Any]) -> list[Any]:
    """Runs a loop graph: by the reference interpreter, or compiled for the chosen target."""
    if chosen == "reference":
        return run_graph(graph, inputs)
    from smelt.pipeline.built import with_errors
    from smelt.pipeline.triton import Interpreted
    from smelt.runtime import executor
    from smelt.schedule import schedule

    target = Interpreted()
    scheduled = schedule(graph, Config(), target.machine, choose=target.choose)
    try:
        code = target.build(scheduled.all_runs)
    except Unsupported as error:
        pytest.skip(f"ATen's on this target: {error.reason}")
    constants = {name: value for each in graph.with_bodies() for name, value in each.constants.items()}
    return list(
        executor.build(with_errors(scheduled.plan, code.errors), code.library, constants)(list(inputs))
    )


def backend() -> Any:
    """What ``torch.compile`` takes."""
    if chosen == "reference":
        return "smelt"
    from smelt.backend import backend_for
    from smelt.pipeline.triton import Interpreted

    return backend_for(Interpreted())
