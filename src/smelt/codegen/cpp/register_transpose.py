"""Stores of a vector loop to adjacent columns: vectors are transposed in registers (``smelt_transpose.h``).

vector(16) for i: for j in 16: y[i*n + j] = x[j*m + i]  →  rows of 16 are stored, not lanes one by one
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sympy
import torch

from smelt.codegen.cpp.scope import Memory, Scope
from smelt.codegen.index import Offset, flat_offset
from smelt.nest.ir import FEW_COLUMNS, For, Let, LoopKind, Stmt, Store
from smelt.records import dataclass
from smelt.symbolic import flatten
from smelt.symbolic.affine import expand, replaced

Memories = Mapping[str, Memory]


@dataclass(frozen=True, slots=True)
class Columns:
    """A loop that computes one column in each iteration: its statements before ``store``, its first value
    (``begin``), the offset of the first lane's row there (``place``), and the distance of rows (``step``).
    """

    before: tuple[Stmt, ...]
    store: Store
    begin: Offset
    place: Offset
    step: Offset

    def copied(self, loop: For, scope: Scope, memories: Memories) -> tuple[str, Offset, Offset] | None:
        """The source of ``loop``, if it only copies: a buffer, the offset of its first column, and the
        distance of columns.
        """
        if len(self.before) != 1 or not isinstance(load := self.before[0], Let) or load.op != "load":
            return None
        name, index = load.args
        source = memories[name]
        if load.name != self.store.value or source.dtype != memories[self.store.buffer].dtype:
            return None
        assert scope.var is not None
        offset = source.offset(index)
        lanes, columns = offset.split(scope.var), offset.split(loop.var)
        if lanes is None or columns is None or not lanes[1].is_one:
            return None
        if columns[0].depends(set(scope.varying) - {scope.var}) or columns[1].depends(set(scope.varying)):
            return None
        first = [replaced(each, {loop.var: loop.begin}) for each in index]
        return name, source.offset(first), columns[1]


def columns_transposed(loop: For, scope: Scope, memories: Memories) -> Columns | None:
    """The columns that a loop inside a vector loop computes, as many as there are lanes; None if it does
    something else, or if its stores may not wait for its last iteration.
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
    offset = memories[store.buffer].offset(store.index)
    columns, rows = offset.split(loop.var), offset.split(scope.var)
    if columns is None or rows is None or not columns[1].is_one:
        return None
    step = rows[1]
    if not step.terms or step.is_one or step.depends({loop.var, *scope.varying}):
        return None
    begin = flat_offset([loop.begin], [sympy.Integer(1)])
    return Columns(tuple(before), store, begin, Offset((*columns[0].terms, *begin.terms)), step)


def stores_adjacent(stmts: Sequence[Stmt], scope: Scope, memories: Memories) -> list[Store]:
    """The first of the statements, if they store to a few adjacent columns, so that all their lanes fill
    memory; empty if they do something else.
    """
    first = stmts[0]
    if scope.var is None or not isinstance(first, Store):
        return []
    memory = memories[first.buffer]
    parts = memory.offset(first.index).split(scope.var)
    count = next((few for few in FEW_COLUMNS if parts is not None and parts[1].is_number(few)), 0)
    stores = [stmt for stmt in stmts[:count] if isinstance(stmt, Store) and stmt.buffer == first.buffer]
    if not count or len(stores) != count or not _is_of_kind(stores, scope, memories):
        return []
    places = [expand(flatten(store.index, memory.strides)) for store in stores]
    return stores if all(place - places[0] == k for k, place in enumerate(places)) else []


def _is_of_kind(stmts: Sequence[Stmt], scope: Scope, memories: Memories) -> bool:
    """Whether these are stores of whole vectors with elements that the header can exchange."""
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
