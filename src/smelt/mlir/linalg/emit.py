"""Program → module of Linalg on tensors."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from smelt.capture import Program
from smelt.mlir import bindings
from smelt.mlir.arrays.decomposed import DECOMPOSED
from smelt.mlir.capabilities import Capabilities
from smelt.mlir.graphs import ASSERTIONS, CALLS, SEED
from smelt.mlir.linalg.dialect import Linalg
from smelt.mlir.linalg.scalars import ELEMENTWISE
from smelt.mlir.program import write_module
from smelt.mlir.signature import Weights

CAPABILITIES = Capabilities(
    bodies=frozenset(
        {"Pointwise", "Reduction", "Contraction", "Scan", "Fold", "Scatter", "Sort", "Bind", "Check"}
    ),
    elementwise=frozenset({*ELEMENTWISE, *DECOMPOSED}),
    calls=CALLS | {SEED, *ASSERTIONS},
)
"""What Linalg takes of the loop graph."""


def emit(program: Program, weights: Weights = "inline", external: Collection[str] = ()) -> Any:
    """A program in contract form as a module with one function ``main`` of Linalg on tensors.

    Args:
        program: what `smelt.contract.contract` gave.
        weights: whether the tensors that the program holds are literals or arguments (see `Signature`).
        external: operators that stay calls of external functions (see `smelt.mlir.external`).

    Sizes stay dynamic (``?``); what the program takes for granted of them is asserted (``cf.assert``), as is
    that positions are in range; a message begins with the name of the exception that eager raises. Integers
    have no sign, uint8 is ``i8``. Long sums of float32 are made in ``f64``. Random numbers come from a seed
    that the module keeps (``ml_program.global``).

    Raises:
        UnsupportedOperatorsError: SM0711, all calls that have no form in Linalg.
        SmeltError: SM0710 the bindings are not installed, SM0713 a bug.
    """
    context = bindings.new_context()
    from torch_mlir.passmanager import PassManager

    module = write_module(program, weights, Linalg(), "Linalg", context, external)
    with context:
        PassManager.parse("builtin.module(func.func(canonicalize,cse))").run(module.operation)
    return module
