"""Program → TOSA module."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from smelt.capture import Program
from smelt.errors import SmeltError
from smelt.mlir import bindings
from smelt.mlir.arrays.decomposed import DECOMPOSED
from smelt.mlir.capabilities import Capabilities
from smelt.mlir.graphs import CALLS
from smelt.mlir.isolated import transformed
from smelt.mlir.program import write_module
from smelt.mlir.signature import Weights
from smelt.mlir.tosa.dialect import Tosa
from smelt.mlir.tosa.elementwise import ELEMENTWISE

CAPABILITIES = Capabilities(
    bodies=frozenset(
        {"Pointwise", "Reduction", "Contraction", "Scan", "Fold", "Scatter", "Sort", "Bind", "Check"}
    ),
    elementwise=frozenset({*ELEMENTWISE, *DECOMPOSED}),
    calls=CALLS,
)
"""What TOSA takes of the loop graph."""


def emit(program: Program, weights: Weights = "inline", external: Collection[str] = ()) -> Any:
    """A program in contract form as a module with one function ``main`` in TOSA.

    Args:
        program: what `smelt.contract.contract` gave.
        weights: whether the tensors that the program holds are literals or arguments (see `Signature`).
        external: operators that stay calls of external functions (see `smelt.mlir.external`).

    Integers are signless, uint8 in ``i8``. Where the program has int64 or float64, so has the module. Sizes
    that are dynamic are computed by TOSA's operations on shapes. TOSA cannot raise: an index out of range
    reads the nearest element, and checks of sizes are the caller's. A division is a product with the
    reciprocal. The seed of random numbers is a ``tosa.variable`` that each run moves on. The bits of floats
    are read by ``tensor.bitcast``. Complex arguments and results are pairs of reals, in a last dimension of
    two.

    Raises:
        UnsupportedOperatorsError: SM0711, all calls that have no form in TOSA.
        SmeltError: SM0710 the bindings are not installed, SM0713 a bug.
    """
    module = write_module(program, weights, Tosa(), "TOSA", bindings.new_context(), external)
    try:
        return transformed(module, [("builtin.module(func.func(canonicalize,cse))", "simplifying TOSA")])
    except SmeltError:
        return module  # right as it is, and longer
