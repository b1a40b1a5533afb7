"""Statements of a script that only smelt has: accumulators, carries, prefetches, sorted rows."""

from __future__ import annotations

import ast

from sympy import Expr

from smelt.nest.ir import Accumulate, Advance, Carry, Prefetch, SortRow, Stmt, Store, Update
from smelt.script.parse import Source, literal, word_of
from smelt.script.parse_blocks import Blocks
from smelt.script.words import NAMED_DTYPES


class Own(Blocks):
    """The parser of statements that only smelt has. ``written``: buffers that are stored to."""

    def __init__(self, function: ast.FunctionDef, source: Source) -> None:
        super().__init__(function, source)
        self.written: set[str] = set()

    def add(self, *stmts: Stmt) -> None:
        self.reader.stmts += stmts

    def own_name(self, name: str, call: ast.Call, word: str) -> bool:
        """``name = word(…)``; False if the word is not smelt's."""
        if word == "smelt_accumulator":
            kind, dtype = (literal(arg, self.source) for arg in call.args)
            self.add(Accumulate(name, kind, NAMED_DTYPES[dtype]))
        elif word == "smelt_carry":
            initial, dtype = (literal(arg, self.source) for arg in call.args)
            self.add(Carry(name, NAMED_DTYPES[dtype], initial))
        else:
            return False
        return True

    def own(self, word: str, node: ast.Call) -> bool:
        """``word(…)``; False if the word is not smelt's."""
        if word == "smelt_update":
            self._update(node)
        elif word == "smelt_advance":
            value = self.reader.value(self.reader.read(node.args[1]), None, node.args[1])
            self.add(Advance(word_of(node.args[0]), value.name))
        elif word == "smelt_prefetch":
            place = node.args[0]
            assert isinstance(place, ast.Subscript)
            self.add(Prefetch(*self.reader.place(place)))
        elif word == "smelt_sort_row":
            self._sort(node)
        elif word == "smelt_store":
            place = node.args[0]
            assert isinstance(place, ast.Subscript)
            dtype = self.reader.buffer(place.value).dtype
            value = self.reader.value(self.reader.read(node.args[1], dtype), dtype, node.args[1])
            name, index = self.reader.place(place)
            self.written.add(name)
            self.add(Store(name, index, value.name, str(literal(node.args[2], self.source))))
        else:
            return False
        return True

    def _update(self, node: ast.Call) -> None:
        given = {each.arg: each.value for each in node.keywords}
        if "merge" in given:
            self.add(Update(word_of(node.args[0]), word_of(node.args[1]), None, merge=True))
            return
        value = self.reader.value(self.reader.read(node.args[1]), None, node.args[1])
        position = self.reader.index(given["position"]) if "position" in given else None
        self.add(Update(word_of(node.args[0]), value.name, position))

    def _sort(self, node: ast.Call) -> None:
        def place(part: ast.AST) -> tuple[str, tuple[Expr, ...]]:
            assert isinstance(part, ast.Subscript)
            return self.reader.place(part)

        source, start = place(node.args[0])
        results = {str(each.arg): place(each.value) for each in node.keywords}
        into = next(iter(results.values()))[1]
        self.written |= {name for name, _ in results.values()}
        length, limit = (self.reader.index(arg) for arg in node.args[1:3])
        descending = bool(literal(node.args[3], self.source))
        values, positions = (results.get(key, (None, ()))[0] for key in ("values", "positions"))
        self.add(SortRow(source, start, length, limit, descending, values, positions, into))


__all__ = ["Own"]
