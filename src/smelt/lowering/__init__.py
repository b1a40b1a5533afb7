"""Contract operators → loop functions: one table, one row per operator."""

from importlib import import_module

from smelt.lowering.lower import lower
from smelt.lowering.registry import TABLE, lowers
from smelt.lowering.tensor import Tensor

ROW_MODULES: tuple[str, ...] = (
    "convert",
    "pointwise",
    "activations",
    "bessel",
    "views",
    "structural",
    "checks",
    "creation",
    "data_sizes",
    "divisors",
    "embedding",
    "grouped",
    "scans",
    "incomplete_gamma",
    "indexing",
    "losses",
    "multinomial",
    "normalization",
    "normalization_backward",
    "masked",
    "padding",
    "polynomials",
    "pooling",
    "pooling_backward",
    "pooling_fractional",
    "random",
    "reductions",
    "scatter",
    "segments",
    "sorting",
    "special",
    "statistics",
    "unique",
    "upsample",
    "zeta",
    "complexes",
    "complex_parts",
    "complex_reductions",
)
"""The modules beside this one that hold rows; importing them fills the table."""

for _name in ROW_MODULES:
    import_module(f"smelt.lowering.{_name}")

__all__ = ["ROW_MODULES", "TABLE", "Tensor", "lower", "lowers"]
