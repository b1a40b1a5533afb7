"""Contract operators → loop functions: one table with one row per operator."""

from importlib import import_module

from smelt.lowering.lower import lower
from smelt.lowering.registry import TABLE, lowers
from smelt.lowering.tensor import Tensor

ROW_MODULES: tuple[str, ...] = (
    "elementwise.convert",
    "elementwise.pointwise",
    "elementwise.activations",
    "special.bessel",
    "shapes.views",
    "shapes.structural",
    "checks",
    "elementwise.creation",
    "indexing.data_sizes",
    "elementwise.divisors",
    "indexing.embedding",
    "products.dequantize",
    "products.grouped",
    "reductions.scans",
    "special.incomplete_gamma",
    "indexing.indexing",
    "reductions.losses",
    "random.multinomial",
    "reductions.normalization",
    "indexing.masked",
    "shapes.padding",
    "special.polynomials",
    "windows.pooling",
    "windows.pooling_backward",
    "windows.pooling_fractional",
    "random.random",
    "reductions.reductions",
    "indexing.scatter",
    "indexing.segments",
    "reductions.sorting",
    "special.special",
    "reductions.statistics",
    "indexing.unique",
    "shapes.upsample",
    "special.zeta",
    "complex.elementwise",
    "complex.parts",
    "complex.reductions",
    "linear.algebra",
    "linear.fourier",
)
"""The modules below this one that hold rows; importing them fills the table."""

for _name in ROW_MODULES:
    import_module(f"smelt.lowering.{_name}")

__all__ = ["ROW_MODULES", "TABLE", "Tensor", "lower", "lowers"]
