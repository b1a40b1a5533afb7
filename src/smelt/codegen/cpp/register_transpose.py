"""Columns stored as rows: vectors are transposed in registers (``smelt_transpose.h``).

vector(16) for i: turn for j in 16: y[i*n + j] = x[j*m + i]  →  rows of 16 are stored, not lanes one by one
"""

from __future__ import annotations

from collections.abc import Mapping

from smelt.codegen.cpp.scope import Memory, Scope
from smelt.codegen.index import Offset
from smelt.nest.ir import For, Let, Store
from smelt.records import dataclass
from smelt.symbolic.affine import replaced

Memories = Mapping[str, Memory]


@dataclass(frozen=True, slots=True)
class Columns:
    """Where a loop stores its columns: the offset of the first lane's row (``place``), and the distance of
    rows (``step``).
    """

    place: Offset
    step: Offset


def columns_of(loop: For, store: Store, scope: Scope, memories: Memories) -> Columns:
    """Where a TURN loop stores its columns in the lanes of ``scope``."""
    assert scope.var is not None
    first = [replaced(each, {loop.var: loop.begin}) for each in store.index]
    place = memories[store.buffer].offset(first)
    rows = place.split(scope.var)
    assert rows is not None, f"{loop.var} is no loop that can be turned"
    return Columns(place, rows[1])


def copied(loop: For, scope: Scope, memories: Memories) -> tuple[str, Offset, Offset] | None:
    """The source of a TURN loop that only copies adjacent elements: a buffer, the offset of its first column,
    and the distance of columns.
    """
    load, *others = loop.body.stmts
    if len(others) != 1 or not isinstance(load, Let) or load.op != "load":
        return None
    (store,) = others
    name, index = load.args
    source = memories[name]
    if not isinstance(store, Store) or source.dtype != memories[store.buffer].dtype:
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
