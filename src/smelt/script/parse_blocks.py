"""The blocks of a script: axes and annotations."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

from sympy import Expr, Integer, Symbol
from sympy.logic.boolalg import Boolean

from smelt.nest.ir import Axis, AxisKind, Block, Stage
from smelt.nest.tree import exprs_of, map_exprs
from smelt.records import dataclass, field, replace
from smelt.script.expressions import Index
from smelt.script.parse import Source, literal
from smelt.script.parse_buffers import Buffers
from smelt.symbolic import free_symbols
from smelt.symbolic.affine import replaced

AXES = {
    "spatial": AxisKind.SPATIAL,
    "S": AxisKind.SPATIAL,
    "reduce": AxisKind.REDUCE,
    "R": AxisKind.REDUCE,
    "opaque": AxisKind.OPAQUE,
    "O": AxisKind.OPAQUE,
    "scan": AxisKind.OPAQUE,
}


@dataclass(slots=True)
class Stated:
    """A stage while it is read."""

    axes: list[Axis] = field(default_factory=list)
    where: list[Boolean] = field(default_factory=list)
    init: Block | None = None
    notes: dict[str, Any] = field(default_factory=dict)
    said: set[str] = field(default_factory=set)


class Blocks(Buffers):
    """The parser state for blocks and their axes."""

    def __init__(self, function: ast.FunctionDef, source: Source) -> None:
        super().__init__(function, source)
        self.around: list[Symbol] = []
        """The variables of the loops around the current statement."""
        self.stage: Stated | None = None

    def axes(self, names: Sequence[str], call: ast.Call, word: str) -> None:
        if self.stage is None:
            raise self.source.error("SM1204", "an axis outside of a block", call)
        if word != "remap":
            if len(call.args) != 2:
                raise self.source.error("SM1204", "an axis is a size and a value", call, remedy="128, i")
            extent, value = call.args
            begin, size = Integer(0), Integer(0)
            if isinstance(extent, ast.Tuple):
                begin, end = (self.reader.index(each) for each in extent.elts)
                size = end - begin
            else:
                size = self.reader.index(extent)
            self._axis(names[0], size, self.reader.index(value), AXES[word], begin, call)
            return
        letters, values = str(literal(call.args[0], self.source)), call.args[1]
        nodes = self.reader.spread([values])
        if not len(letters) == len(nodes) == len(names):
            what = f"{len(names)} axes, {len(letters)} kinds, {len(nodes)} values"
            raise self.source.error("SM1204", what, call)
        for name, letter, node in zip(names, letters, nodes):
            value = self.reader.index(node)
            loop = self.loops.get(value) if isinstance(value, Symbol) else None
            if loop is None or letter not in AXES:
                what = f"{ast.unparse(node)} is no loop" if loop is None else f"{letter!r} is no kind of axis"
                raise self.source.error("SM1204", what, node, remedy="S, R or O, and a loop around the block")
            self._axis(name, loop.end - loop.begin, value, AXES[letter], loop.begin, node)

    def _axis(self, name: str, extent: Expr, value: Expr, kind: AxisKind, begin: Expr, node: ast.AST) -> None:
        assert self.stage is not None
        if name in (axis.label for axis in self.stage.axes):
            raise self.source.error("SM1204", f"{name} is an axis already", node)
        var = self.fresh(name)
        self.reader.names[name] = Index(var)
        self.stage.axes.append(Axis(var, extent, value, kind, begin, label=name))

    def closed(self, stage: Stage) -> Stage:
        """The block with an opaque axis for each loop around it whose variable it uses."""
        blocks = [block for block in (stage.body, stage.init) if block is not None]
        used = free_symbols(expr for block in blocks for expr in exprs_of(block))
        loops = [self.loops[var] for var in self.around if var in used]
        if not loops:
            return stage
        vars = {loop.var: self.fresh(f"v{loop.label}") for loop in loops}
        axes = tuple(
            Axis(
                vars[loop.var],
                replaced(loop.end - loop.begin, vars),
                loop.var,
                AxisKind.OPAQUE,
                replaced(loop.begin, vars),
                label=f"v{loop.label}",
            )
            for loop in loops
        )
        body, init = (
            block and map_exprs(block, lambda e: replaced(e, vars)) for block in (stage.body, stage.init)
        )
        assert body is not None
        return replace(stage, axes=(*stage.axes, *axes), body=body, init=init)

    def note(self, notes: dict[str, Any], added: Mapping[str, Any], node: ast.AST) -> None:
        for key, value in added.items():
            known = notes.get(key, value)
            if isinstance(value, dict) and isinstance(known, dict):
                known = dict(known)
                self.note(known, value, node)
                value = known
            elif known != value:
                raise self.source.error("SM1204", f"{key} is {known!r} already", node)
            notes[key] = value


__all__ = ["AXES", "Blocks", "Stated"]
