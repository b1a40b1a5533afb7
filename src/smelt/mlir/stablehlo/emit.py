"""Program → StableHLO module."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from smelt.capture import Program
from smelt.mlir import bindings
from smelt.mlir.arrays.decomposed import DECOMPOSED
from smelt.mlir.capabilities import Capabilities
from smelt.mlir.graphs import CALLS, SEED
from smelt.mlir.program import write_module
from smelt.mlir.signature import Weights
from smelt.mlir.stablehlo.dialect import StableHlo
from smelt.mlir.stablehlo.elementwise import ELEMENTWISE

CAPABILITIES = Capabilities(
    bodies=frozenset(
        {"Pointwise", "Reduction", "Contraction", "Scan", "Fold", "Scatter", "Sort", "Bind", "Check"}
    ),
    elementwise=frozenset({*ELEMENTWISE, *DECOMPOSED}),
    calls=CALLS | {SEED},
)
"""What StableHLO takes of the loop graph."""


def emit(program: Program, weights: Weights = "inline", external: Collection[str] = ()) -> Any:
    """A program in contract form as a module with one function ``main`` in StableHLO.

    Args:
        program: what `smelt.contract.contract` gave.
        weights: whether the tensors that the program holds are literals or arguments (see `Signature`).
        external: operators that stay calls of external functions (see `smelt.mlir.external`).

    Dynamic sizes are ``?``; operations on them take the sizes as operands, computed from the arguments'
    dimensions. The module is a valid portable artifact. Unsigned integers are ``ui8``. StableHLO cannot
    raise: an index out of range reads the nearest element, and checks of sizes are the caller's.

    Raises:
        UnsupportedOperatorsError: SM0711, all calls that have no form in StableHLO.
        SmeltError: SM0710 the bindings are not installed, SM0713 a bug.
    """
    context = bindings.new_context()
    from torch_mlir.passmanager import PassManager

    module = write_module(program, weights, StableHlo(), "StableHLO", context, external)
    with context:
        PassManager.parse("builtin.module(func.func(canonicalize,cse))").run(module.operation)
    return module
