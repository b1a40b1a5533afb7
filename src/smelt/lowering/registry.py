"""The lowering table and the only way to add a row to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from smelt.contract import outside

Row = Callable[..., Any]

TABLE: dict[torch._ops.OpOverload, Row] = {}
"""ATen overload → ``row(ctx, *args, **kwargs) -> Tensor | tuple[Tensor | None, ...]``.

The modules of this package fill it.
"""


def lowers(*overloads: torch._ops.OpOverload) -> Callable[[Row], Row]:
    """Register a row for ATen overloads.

    The row gets a `Builder` (see `smelt.lowering.builder`), then the call's arguments: tensors as
    `smelt.lowering.tensor.Tensor`, SymInts as SymPy expressions, everything else as in the graph. If it
    raises `smelt.errors.Unsupported(reason)`, ATen runs this call and the reason is recorded.
    """

    def add(row: Row) -> Row:
        for overload in overloads:
            assert overload not in TABLE, f"{overload} has a row already"
            TABLE[overload] = row
        return row

    return add


def lowers_by_rank(overloads: Mapping[int, torch._ops.OpOverload]) -> Callable[[Row], Row]:
    """Register a row for overloads that differ in their number of dimensions, which it gets as ``rank``."""

    def add(row: Row) -> Row:
        for rank, overload in overloads.items():
            lowers(overload)(partial(row, rank=rank))
        return row

    return add


NAMED: dict[str, Row] = {}
"""Operator name (``prims::fma``) → row, for operators that torch defines only on first use."""


def lowers_named(name: str) -> Callable[[Row], Row]:
    """Register a row for an operator that may not exist yet.

    Dynamo defines ``prims::fma`` when it first writes one into a graph.
    """

    def add(row: Row) -> Row:
        assert name not in NAMED, f"{name} has a row already"
        NAMED[name] = row
        return row

    return add


COMPLEX: dict[torch._ops.OpOverload, Row] = {}
"""ATen overload → row for calls with complex arguments or results.

Tensors of complex numbers are `smelt.lowering.tensor.Complex`.
"""


def lowers_complex(*overloads: torch._ops.OpOverload) -> Callable[[Row], Row]:
    """Register a row for ATen overloads on complex numbers."""

    def add(row: Row) -> Row:
        for overload in overloads:
            assert overload not in COMPLEX, f"{overload} has a row for complex numbers already"
            COMPLEX[overload] = row
        return row

    return add


OWN: dict[torch._ops.OpOverload, Row] = {}
"""ATen overload → row, for operators that ATen computes unless the option ``own`` is on: real or complex."""


def lowers_own(*overloads: torch._ops.OpOverload) -> Callable[[Row], Row]:
    """Register a row for ATen overloads that runs where there is no ATen (`smelt.config.Config.own`)."""

    def add(row: Row) -> Row:
        for overload in overloads:
            assert overload not in OWN, f"{overload} has a row of that kind already"
            OWN[overload] = row
        return row

    return add


def complex_row_of(overload: torch._ops.OpOverload) -> Row | None:
    """The row of an overload for complex numbers, or None."""
    return COMPLEX.get(overload)


def row_of(overload: torch._ops.OpOverload) -> Row | None:
    """The row of an overload, or None."""
    return outside.ROWS.get(overload) or TABLE.get(overload) or NAMED.get(overload.name())
