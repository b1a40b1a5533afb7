"""The base class that writes StableHLO operations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from smelt.mlir.arrays.dialect import Array, Shape
from smelt.mlir.bindings import element_type
from smelt.mlir.target import Target


class Operations(Target):
    """Writes operations of StableHLO. Unsigned integers are ``ui8``."""

    namespace, branching, looping, ending = "stablehlo", "if", "while", "return"

    def element(self, dtype: torch.dtype) -> Any:
        return element_type(dtype, unsigned="u")

    def write(
        self, name: str, operands: Sequence[Array], dtype: torch.dtype, shape: Shape, **attributes: Any
    ) -> Array:
        """An operation with one result."""
        values = [each.value for each in operands]
        made = self.operation(name, [self.type(dtype, shape)], values, attributes)
        return Array(made.results[0], dtype, tuple(shape))
