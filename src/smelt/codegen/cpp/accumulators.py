"""Accumulators in C++: one variable per number of update lanes, combined after the loops."""

from __future__ import annotations

from collections.abc import Sequence

from smelt.nest.ir import Block, Stmt, Update
from smelt.nest.tree import walk
from smelt.records import dataclass, field

_FIELDS = {
    "welford": ("mean", "m2", "count"),
    "online_softmax": ("max", "sum()"),
    "argmax": ("position",),
    "argmin": ("position",),
}


@dataclass(slots=True)
class Accumulator:
    """An `Accumulate` statement as printed.

    ``lanes``: 1, or the number of separate accumulations of a vector loop around it. ``slot``: the place in
    the text where the variables are declared, once it is known which are needed.
    """

    name: str
    text: str
    kind: str
    element: str
    lanes: int
    slot: list[str]
    indent: int
    parallel: int
    parts: dict[tuple[int, bool], str] = field(default_factory=dict)
    finished: bool = False

    def part(self, lanes: int, *, masked: bool) -> str:
        """The variable that takes updates of ``lanes`` lanes (``masked``: of some of the lanes only)."""
        masked = masked and self.kind == "welford"
        if lanes == self.lanes:
            masked = False
        name = f"{self.text}_{lanes}{'m' if masked else ''}"
        self.parts.setdefault((lanes, masked), name)
        return name

    def finish(self) -> list[str]:
        """Declares the parts in their slot; gives the statements that combine them into ``final``."""
        self.finished = True
        if not self.parts:
            self.part(self.lanes, masked=False)
        kind = {"any": "reduce_any", "all": "reduce_all"}.get(self.kind, f"reduce_{self.kind}")
        for (lanes, masked), name in self.parts.items():
            struct = f"{kind}_masked" if masked else kind
            self.slot.append("  " * self.indent + f"{struct}<values<{self.element}, {lanes}>> {name};")
        if set(self.parts) == {(self.lanes, False)}:
            return []
        own = self.parts.get((self.lanes, False))
        folded = [
            f"as_uniform(reduce({name}))" if masked else f"reduce({name})"
            for (lanes, masked), name in self.parts.items()
            if (lanes, masked) != (self.lanes, False)
        ]
        first = f"auto {self.text}_all = {own or folded[0]};"
        return [first, *(f"{self.text}_all.merge({other});" for other in (folded if own else folded[1:]))]

    @property
    def final(self) -> str:
        """The variable that holds the whole result, after `finish`."""
        only = self.parts.get((self.lanes, False))
        return only if only is not None and len(self.parts) == 1 else f"{self.text}_all"

    @property
    def final_lanes(self) -> int:
        return self.lanes

    def read(self, position: int) -> tuple[str, int]:
        """Text and lanes of output ``position``."""
        names = _FIELDS.get(self.kind, ("v",))
        text = f"{self.final}.{names[position]}"
        if self.kind == "welford" and position == 2 and self.lanes > 1:
            text = f"splat<{self.lanes}>({text})"
        return text, self.lanes


def updates_in(stmts: Sequence[Stmt]) -> set[str]:
    """The accumulators that any statement in here updates."""
    return {stmt.acc for stmt in walk(Block(tuple(stmts))) if isinstance(stmt, Update)}
