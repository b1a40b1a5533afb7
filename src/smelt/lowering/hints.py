"""The numbers of size symbols during capture: how large dynamic sizes are."""

from __future__ import annotations

from collections.abc import Iterable

from sympy import Expr, Symbol
from torch.fx import Graph as FxGraph

from smelt.contract.facts import environment_of
from smelt.loops.ir import Graph
from smelt.symbolic import free_symbols

_MOST_HINTED = 1 << 20
"""The largest hint of a data-dependent size."""


def size_symbols(graph: Graph) -> set[Symbol]:
    """The symbols in the inputs, shapes and strides of a graph."""
    exprs: list[Expr] = [symbol for symbol in graph.inputs if isinstance(symbol, Symbol)]
    for buffer in graph.buffers.values():
        exprs += [*buffer.shape, *buffer.strides]
    return free_symbols(exprs)


def hints_of(program: FxGraph, symbols: Iterable[Symbol]) -> dict[Symbol, int]:
    """The numbers of the symbols during capture, from the ShapeEnv of any symbolic size."""
    values = (node.meta.get("val") for node in program.nodes)
    environment = next((env for env in map(environment_of, values) if env is not None), None)
    if environment is None:
        return {}
    seen = getattr(environment, "backed_var_to_val", None)
    seen = getattr(environment, "var_to_val", {}) if seen is None else seen
    seen = {symbol.name: value for symbol, value in seen.items()}  # ours may have more sign assumptions
    ranges = {symbol.name: span for symbol, span in environment.var_to_range.items()}
    hints: dict[Symbol, int] = {}
    for symbol in symbols:
        value, span = seen.get(symbol.name), ranges.get(symbol.name)
        if value is not None and value.is_Integer:
            hints[symbol] = int(value)
        elif value is None and span is not None and span.upper.is_Integer and span.upper > 1:
            hints[symbol] = min(int(span.upper) // 2, _MOST_HINTED)  # data-dependent sizes: half
    return hints
