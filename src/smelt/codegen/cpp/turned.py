"""Stores of a vector loop to neighbouring columns: vectors are turned in registers (``smelt_transpose.h``).

vector(16) for i: for j in 16: y[i*n + j] = x[j*m + i]  →  rows of 16 are stored, not lanes one by one
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import sympy
import torch

from smelt.codegen.cpp.index import Offset, flat_offset
from smelt.codegen.cpp.scope import Memory, Scope
from smelt.nest.ir import FEW_COLUMNS, For, Let, LoopKind, Stmt, Store
from smelt.symbolic import flatten

Memories = Mapping[str, Memory]


@dataclass(frozen=True, slots=True)
class Columns:
    """A loop that makes a column each turn: what it does before it stores ``store``, where its variable would
    begin (``begin``), where the first lane's row begins then (``place``), and how far apart rows are
    (``step``).
    """

    before: tuple[Stmt, ...]
    store: Store
    begin: Offset
    place: Offset
    step: Offset


def columns_turned(loop: For, scope: Scope, memories: Memories) -> Columns | None:
    """The columns that a loop inside a vector loop makes, as many as there are lanes; None where it does
    something else, or where its stores may not wait for its last turn.
    """
    *before, store = loop.body.stmts
    if scope.var is None or not _is_of_kind([store], scope, memories):
        return None
    if (loop.end - loop.begin, loop.step, loop.kind) != (scope.lanes, 1, LoopKind.SERIAL):
        return None
    assert isinstance(store, Store)
    loads = [stmt.args[0] for stmt in before if isinstance(stmt, Let) and stmt.op == "load"]
    if store.buffer in loads or not all(isinstance(stmt, Let) for stmt in before):
        return None
    offset = flat_offset(store.index, memories[store.buffer].strides)
    columns, rows = offset.split(loop.var), offset.split(scope.var)
    if columns is None or rows is None or not columns[1].is_one:
        return None
    step = rows[1]
    if not step.terms or step.is_one or step.depends({loop.var, *scope.varying}):
        return None
    begin = flat_offset([loop.begin], [sympy.Integer(1)])
    return Columns(tuple(before), store, begin, Offset((*columns[0].terms, *begin.terms)), step)


def stores_beside(stmts: Sequence[Stmt], scope: Scope, memories: Memories) -> list[Store]:
    """The first of the statements, if they store to a few neighbouring columns, so that all lanes of them
    fill memory; none where they do something else.
    """
    first = stmts[0]
    if scope.var is None or not isinstance(first, Store):
        return []
    strides = memories[first.buffer].strides
    parts = flat_offset(first.index, strides).split(scope.var)
    count = next((few for few in FEW_COLUMNS if parts is not None and parts[1].is_number(few)), 0)
    stores = [stmt for stmt in stmts[:count] if isinstance(stmt, Store) and stmt.buffer == first.buffer]
    if not count or len(stores) != count or not _is_of_kind(stores, scope, memories):
        return []
    places = [sympy.expand(flatten(store.index, strides)) for store in stores]
    return stores if all(place - places[0] == k for k, place in enumerate(places)) else []


def _is_of_kind(stmts: Sequence[Stmt], scope: Scope, memories: Memories) -> bool:
    """Whether these are stores of whole vectors whose elements the header can exchange."""
    return (
        scope.lanes in (4, 8, 16)
        and scope.mask is None
        and all(
            isinstance(stmt, Store)
            and stmt.mode is None
            and memories[stmt.buffer].dtype in (torch.float32, torch.int32)
            for stmt in stmts
        )
    )
