"""What targets take of loop graphs: the bodies, and the operators that stay calls."""

from __future__ import annotations

from smelt.mlir.control import CONTROL
from smelt.mlir.determinants import DETERMINANTS

CALLS = frozenset({"aten.clone.default", "aten._local_scalar_dense.default", *CONTROL, *DETERMINANTS})
"""The operators that every target has, of those that a loop graph calls."""

ASSERTIONS = ("aten._assert_async.default", "aten._assert_async.msg")
"""Those of a target that can raise (`ArrayDialect.raises`)."""

SEED = "aten.randint.low"
"""How a loop graph draws the seed of its random numbers (`ArrayDialect.seed`)."""

BODIES = frozenset(
    {"Pointwise", "Reduction", "Contraction", "Scan", "Fold", "Scatter", "Sort", "Bind", "Check"}
)
"""The bodies that every target evaluates."""
