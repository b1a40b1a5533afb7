"""The parts of a reduction in memory: its terms, and the function that combines them.

A simple reduction is a store with a mode. A reduction of several values (argmax: position and value) loads
the current values, combines them with its terms, and stores the results.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch
from sympy import Expr

from smelt.loops.elementwise import apply
from smelt.nest.ir import Let, Masked, Stage, Stmt, Store
from smelt.nest.primitives.kinds import renamed
from smelt.nest.stages import KINDS, identity
from smelt.nest.tree import walk
from smelt.ops import TABLE
from smelt.records import dataclass, replace

_TAKES = ("add", "mul", "maximum", "minimum")
_TRIALS = 64


@dataclass(frozen=True, slots=True)
class Combiner:
    """A reduction of one or more values.

    ``steps`` come before ``stores``. ``firsts``: the initial constants; ``terms``: the names of the terms,
    one for each store; ``states``: the names of loads of the current values, and their buffers;
    ``combining``: the steps that compute the new values from both. The last two are empty where stores have a
    mode.
    """

    steps: tuple[Stmt, ...]
    stores: tuple[Store, ...]
    firsts: tuple[Let, ...]
    terms: tuple[str, ...]
    combining: tuple[Let, ...] = ()
    states: tuple[tuple[str, str], ...] = ()

    @property
    def index(self) -> tuple[Expr, ...]:
        return self.stores[0].index

    def term_steps(self) -> tuple[Stmt, ...]:
        """The steps that compute the terms."""
        return tuple(needed(self.steps, self.terms))


def combiner_of(stage: Stage, dtypes: Mapping[str, torch.dtype]) -> Combiner | str:
    """The combiner of a stage, or the reason why the stage is no such reduction."""
    stores = tuple(stmt for stmt in stage.body.stmts if isinstance(stmt, Store))
    steps = stage.body.stmts[: -len(stores)] if stores else stage.body.stmts
    if stage.init is None:
        return f"{stage.name} is no reduction: it has no init"
    if not stores or not all(isinstance(step, (Let, Masked)) for step in steps):
        return f"{stage.name} does more than store its combined values"
    if len(stores) == 1 and stores[0].mode is not None:
        if stores[0].mode not in KINDS:
            return f"{stage.name} does not add, multiply, or take the larger or the smaller"
        if any(load.args[0] == stores[0].buffer for load in _loads(steps)):
            return f"{stage.name} reads {stores[0].buffer} and also adds to it"
    elif any(store.mode is not None for store in stores):
        return f"{stage.name} stores more than one value"
    firsts = _firsts(stage, stores)
    if firsts is None:
        return f"{stage.name} initializes other elements than it updates"
    if stores[0].mode is None:
        return _of_several(stage, stores, firsts, steps, dtypes)
    start = identity(KINDS[stores[0].mode], dtypes[stores[0].buffer])
    if firsts[0].args[0] != start:
        return f"{stage.name} is not initialized with {start}"
    return Combiner(tuple(steps), stores, firsts, (stores[0].value,))


def _firsts(stage: Stage, stores: Sequence[Store]) -> tuple[Let, ...] | None:
    """The constants that an init stores, in the order of the body's stores."""
    assert stage.init is not None
    made = {stmt.name: stmt for stmt in stage.init.stmts if isinstance(stmt, Let) and stmt.op == "constant"}
    begun = [stmt for stmt in stage.init.stmts if isinstance(stmt, Store)]
    if len(begun) != len(stores) or len(begun) + len(made) != len(stage.init.stmts):
        return None
    found = {(each.buffer, each.index): made.get(each.value) for each in begun if each.mode is None}
    firsts = [found.get((store.buffer, store.index)) for store in stores]
    known = tuple(first for first in firsts if first is not None)
    return known if len(known) == len(found) == len(stores) else None


def _of_several(
    stage: Stage,
    stores: tuple[Store, ...],
    firsts: tuple[Let, ...],
    steps: Sequence[Stmt],
    dtypes: Mapping[str, torch.dtype],
) -> Combiner | str:
    if any(store.index != stores[0].index for store in stores):
        return f"{stage.name} stores its values at different places"
    steps, names = _once(steps)
    stores = tuple(replace(store, value=names.get(store.value, store.value)) for store in stores)
    outs = {store.buffer for store in stores}
    states: dict[str, str] = {}
    for load in _loads(steps):
        if load.args[0] in outs:
            if load.args[1] != stores[0].index or load not in steps:
                return f"{stage.name} reads other elements of {load.args[0]} than the one it stores"
            states[load.name] = load.args[0]
    after = set(states)
    for step in steps:
        if _names(step) & after:
            if not _is_plain(step):
                return f"{stage.name} does more than combine current values"
            after.add(step.name)  # type: ignore[union-attr]
    made = {step.name: step for step in steps if isinstance(step, Let)}
    terms = []
    for store in stores:
        term = _term(made.get(store.value), store.buffer, states, after)
        if term is None:
            return f"{stage.name} does not store to {store.buffer} either its current value or a new one"
        terms.append(term)
    combining = needed(steps, [store.value for store in stores], stop={*terms, *states})
    if not all(map(_is_plain, combining)):
        return f"{stage.name} combines more than current values and {', '.join(terms)}"
    lets = tuple(step for step in combining if isinstance(step, Let))
    found = Combiner(tuple(steps), stores, firsts, tuple(terms), lets, tuple(states.items()))
    return _broken_law(stage, found, [dtypes[store.buffer] for store in stores]) or found


def _once(steps: Sequence[Stmt]) -> tuple[list[Stmt], dict[str, str]]:
    """The steps without duplicates, and the replacements for the names of the dropped ones."""
    names: dict[str, str] = {}
    known: dict[Let, str] = {}
    kept: list[Stmt] = []
    for step in steps:
        step = renamed(step, names)
        if isinstance(step, Let) and step.index is None:
            first = known.setdefault(replace(step, name=""), step.name)
            if first != step.name:
                names[step.name] = first
                continue
        kept.append(step)
    return kept, names


def _is_plain(step: Stmt) -> bool:
    return isinstance(step, Let) and (step.op in TABLE or step.op in ("constant", "to_dtype", "bitcast"))


def _term(made: Let | None, buffer: str, states: Mapping[str, str], after: Collection[str]) -> str | None:
    """The term that is combined with the current value of an element, or replaces it."""
    if made is None or not (made.op == "where" or made.op in _TAKES):
        return None
    both = made.args[1:] if made.op == "where" else made.args
    old = [arg for arg in both if states.get(arg) == buffer]
    new = [arg for arg in both if arg not in after]
    return new[0] if len(old) == len(new) == 1 else None


def _loads(steps: Sequence[Stmt]) -> list[Let]:
    return [each for step in steps for each in _inside(step) if isinstance(each, Let) and each.op == "load"]


def _inside(step: Stmt) -> list[Stmt]:
    return [step, *walk(step.body)] if isinstance(step, Masked) else [step]


def _names(step: Stmt) -> set[str]:
    """The names of the values that a step may use."""
    found: set[str] = set()
    for each in _inside(step):
        if isinstance(each, Masked):
            found |= {each.mask, each.result}
        elif isinstance(each, Let) and each.op not in ("load", "constant", "index_expr"):
            found |= {arg for arg in each.args if isinstance(arg, str)}
    return found


def needed(steps: Sequence[Stmt], names: Sequence[str], stop: Collection[str] = ()) -> list[Stmt]:
    """The steps that values depend on, in order; the values in ``stop`` are given."""
    wanted, kept = set(names), []
    for step in reversed(steps):
        symbols = isinstance(step, Let) and step.index is not None
        if symbols or (getattr(step, "name", None) in wanted and getattr(step, "name", None) not in stop):
            kept.append(step)
            wanted |= _names(step)
    return kept[::-1]


def _broken_law(stage: Stage, of: Combiner, dtypes: Sequence[torch.dtype]) -> str | None:
    """The law of a reduction (associativity, identity …) that a combiner breaks, tested on distinct
    values.
    """
    generator = torch.Generator().manual_seed(0)

    def draw(dtype: torch.dtype) -> list[torch.Tensor]:
        values = torch.randperm(3 * _TRIALS, generator=generator) - _TRIALS
        values = values % 2 == 0 if dtype is torch.bool else values
        return list(values.to(dtype).reshape(3, _TRIALS))

    x, y, z = zip(*map(draw, dtypes))
    first = [torch.full((_TRIALS,), each.args[0], dtype=dtype) for each, dtype in zip(of.firsts, dtypes)]
    if not _equal(_combined(of, first, x), x):
        return f"{stage.name} has an initial value that is no identity"
    if not _equal(_combined(of, x, y), _combined(of, y, x)):
        return f"the result of {stage.name} depends on the order of its terms"
    if not _equal(_combined(of, _combined(of, x, y), z), _combined(of, x, _combined(of, y, z))):
        return f"the result of {stage.name} depends on the grouping of its terms"
    return None


def _equal(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> bool:
    return all(torch.allclose(a.double(), b.double(), equal_nan=True) for a, b in zip(one, other))


def _combined(
    of: Combiner, before: Sequence[torch.Tensor], terms: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    there = {store.buffer: value for store, value in zip(of.stores, before)}
    values = {name: there[buffer] for name, buffer in of.states} | dict(zip(of.terms, terms))
    for step in of.combining:
        if step.op == "constant":
            values[step.name] = torch.tensor(step.args[0], dtype=step.dtype)
        elif step.op in TABLE:
            values[step.name] = apply(step.op, [values[name] for name in step.args])
        elif step.op == "to_dtype":
            values[step.name] = values[step.args[0]].to(step.dtype)
        else:
            values[step.name] = values[step.args[0]].view(step.dtype)
    return [values[store.value] for store in of.stores]


__all__ = ["Combiner", "combiner_of", "needed"]
