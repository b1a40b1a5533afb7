"""Loops that store one number, as calls (``smelt_fill.h``): the zero halos of convolution inputs.

for (i64 d0 = 0; d0 < 58; d0 += 1)
  for (i64 d1 = 0; d1 < 64; d1 += 16)         →   fill_rows(out0 + 3712, 58, 3712, 64, 0.0f);
    store(out0 + (d1 + d0*3712 + 3712), splat<16>(0.0f));
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sympy
import torch
from sympy import Expr

from smelt.codegen.cpp.scope import Memory
from smelt.codegen.cpp.types import literal
from smelt.codegen.index import Names, Offset, index_text
from smelt.nest.ir import For, Let, Store
from smelt.records import dataclass
from smelt.symbolic.affine import replaced

ONE = sympy.Integer(1)
_DTYPES = (torch.float32, torch.float64, torch.int32, torch.int64)


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows that are filled with ``value``: from ``place`` in a buffer, ``rows`` of ``length`` elements,
    at a distance of ``step``.
    """

    buffer: str
    value: Any
    place: Offset
    rows: Expr
    step: Offset
    length: Expr

    def call(self, memories: Mapping[str, Memory], names: Names, parallel: bool) -> str:
        """``parallel``: a parallel loop is around it."""
        memory = memories[self.buffer]
        numbers = [index_text(self.rows, names), self.step.text(names), index_text(self.length, names)]
        args = [memory.at(self.place, names), *numbers, literal(self.value, memory.dtype)]
        return f"{'fill_rows' if parallel else 'fill_all_rows'}({', '.join(args)});"


def filled(loop: For, memories: Mapping[str, Memory], outside: Mapping[str, Let]) -> list[Rows]:
    """The fills of ``loop``; empty if it does something else. ``outside``: values bound around it."""
    nest, own, stores = [loop], dict[str, Let](), list[Store]()
    while not stores:
        inner = None
        for stmt in nest[-1].body.stmts:
            if isinstance(stmt, Store):
                stores.append(stmt)
            elif isinstance(stmt, For) and inner is None:
                inner = stmt
            elif isinstance(stmt, Let) and stmt.op == "constant":
                own[stmt.name] = stmt
            else:
                return []
        if (inner is None) != bool(stores):
            return []
        if inner is not None:
            nest.append(inner)
    variables = {each.var for each in nest}
    if any(not variables.isdisjoint(each.begin.free_symbols | each.end.free_symbols) for each in nest):
        return []
    found: list[Rows] = []
    for store in stores:
        rows = _rows(nest, store, own.get(store.value) or outside.get(store.value), memories[store.buffer])
        if rows is None:
            return []
        found.append(rows)
    return found


def _rows(nest: Sequence[For], store: Store, value: Let | None, memory: Memory) -> Rows | None:
    if value is None or value.op != "constant":
        return None
    if memory.dtype not in _DTYPES or memory.streamed or store.mode is not None:
        return None
    variables = {each.var for each in nest}
    offset = memory.offset(store.index)
    dims: list[tuple[Expr, Offset]] = []
    for each in nest:
        count = each.end - each.begin
        parts = offset.split(each.var)
        if parts is None or parts[1].depends(variables) or (each is not nest[-1] and each.step != 1):
            return None
        dims.append((count, parts[1]))
    (length, step), *rows = [each for each in reversed(dims) if each[0] != 1] or dims[-1:]
    while rows and length.is_Integer and rows[0][1].is_number(int(length)):
        length *= rows.pop(0)[0]
    if len(rows) > 1 or not step.is_one:
        return None
    begins = {each.var: each.begin for each in nest}
    place = memory.offset([replaced(index, begins) for index in store.index])
    count, distance = rows[0] if rows else (ONE, Offset(()))
    return Rows(store.buffer, value.args[0], place, count, distance, length)
