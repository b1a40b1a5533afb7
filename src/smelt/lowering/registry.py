"""The lowering table and the only way to add a row to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar

import torch

from smelt.contract import outside

Row = Callable[..., Any]

TABLE: dict[torch._ops.OpOverload, Row] = {}
"""ATen overload → ``row(ctx, *args, **kwargs) -> Tensor | tuple[Tensor | None, ...]``.

The modules of this package fill it.
"""

Key = TypeVar("Key", torch._ops.OpOverload, str)


def _adds(table: dict[Key, Row], keys: Iterable[Key]) -> Callable[[Row], Row]:
    """A decorator that adds a row to a table, under each of the keys."""

    def add(row: Row) -> Row:
        for key in keys:
            assert key not in table, f"{key} has a row of that kind already"
            table[key] = row
        return row

    return add


def lowers(*overloads: torch._ops.OpOverload) -> Callable[[Row], Row]:
    """Register a row for ATen overloads.

    The row gets a `Builder` (see `smelt.lowering.builder`), then the call's arguments: tensors as
    `smelt.lowering.tensor.Tensor`, SymInts as SymPy expressions, everything else as in the graph. If it
    raises `smelt.errors.Unsupported(reason)`, ATen runs this call and the reason is recorded.
    """
    return _adds(TABLE, overloads)


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
    return _adds(NAMED, (name,))


COMPLEX: dict[torch._ops.OpOverload, Row] = {}
"""ATen overload → row for calls with complex arguments or results.

Tensors of complex numbers are `smelt.lowering.tensor.Complex`.
"""


def lowers_complex(*overloads: torch._ops.OpOverload) -> Callable[[Row], Row]:
    """Register a row for ATen overloads on complex numbers."""
    return _adds(COMPLEX, overloads)


OWN: dict[torch._ops.OpOverload, Row] = {}
"""ATen overload → row, for operators that ATen computes unless the option ``own`` is on: real or complex."""


def lowers_own(*overloads: torch._ops.OpOverload) -> Callable[[Row], Row]:
    """Register a row for ATen overloads that runs where there is no ATen (`smelt.config.Config.own`)."""
    return _adds(OWN, overloads)


def complex_row_of(overload: torch._ops.OpOverload) -> Row | None:
    """The row of an overload for complex numbers, or None."""
    return COMPLEX.get(overload)


def row_of(overload: torch._ops.OpOverload) -> Row | None:
    """The row of an overload, or None."""
    return outside.ROWS.get(overload) or TABLE.get(overload) or NAMED.get(overload.name())
