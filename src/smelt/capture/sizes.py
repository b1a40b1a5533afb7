"""Dynamic sizes, and PyTorch's specializations with their reasons, from the ShapeEnv of a compilation."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import sympy
import torch
from sympy import Symbol
from torch._guards import TracingContext
from torch.fx.experimental.symbolic_shapes import DimDynamic

from smelt.capture.program import Program, shape_env_of
from smelt.errors import SmeltError
from smelt.reporting import DynamicSize, SizeGuard
from smelt.symbolic.text import python_text

_MOST_GUARDS = 100
_USER_LINE = re.compile(r"^(?P<code>.*?)\s+# (?P<file>\S+):(?P<line>\d+) in (?P<function>.+)$", re.DOTALL)
_INPUT = re.compile(r"L\['(?P<name>\w+)'\]")
_CALL = re.compile(r"\.(?P<what>size|stride)\(\)\[(?P<dim>\d+)\]")


def explain_sizes(program: Program) -> tuple[list[DynamicSize], list[SizeGuard]]:
    """The dynamic sizes of a program's inputs, and the conditions under which its graph holds.

    A size of 0 or 1 is never dynamic (unless it is marked unbacked); where the user asked for dynamic sizes,
    such a size is listed with the fixed ones. The lists are empty if nothing is known.
    """
    context = TracingContext.try_get()
    mode = context.fake_mode if context is not None else None
    environment = getattr(mode, "shape_env", None) or shape_env_of(program.example_inputs)
    if environment is None:
        return [], []
    places = _places(environment)
    return _dynamic(environment, places), [*_fixed(environment, places), *_guards(environment, places)]


def _places(environment: Any) -> dict[Symbol, list[str]]:
    """Symbol → its places in the inputs: ``x.size(0)``, or ``n`` for a number."""
    sources = getattr(environment, "var_to_sources", {})
    return {symbol: [place_text(source.name) for source in found] for symbol, found in sources.items()}


def place_text(source: str) -> str:
    """A Dynamo source in the user's syntax.

    >>> place_text("L['x'].size()[0]"), place_text("L['self']._buffers['mean'].stride()[1]")
    ('x.size(0)', "self._buffers['mean'].stride(1)")
    """
    return _CALL.sub(r".\g<what>(\g<dim>)", _INPUT.sub(r"\g<name>", source))


def _dynamic(environment: Any, places: dict[Symbol, list[str]]) -> list[DynamicSize]:
    hints = getattr(environment, "backed_var_to_val", None)
    hints = getattr(environment, "var_to_val", {}) if hints is None else hints
    found = []
    for symbol, where in places.items():
        if symbol in environment.replacements or not where:
            continue
        hint = hints.get(symbol)
        known = int(hint) if hint is not None and getattr(hint, "is_Integer", False) else None
        found.append(DynamicSize(symbol.name, tuple(dict.fromkeys(where)), known))
    return found


def _fixed(environment: Any, places: dict[Symbol, list[str]]) -> Iterator[SizeGuard]:
    """Symbols that became numbers, and sizes of 0 and 1, which never were symbols."""
    for symbol, value in environment.replacements.items():
        if symbol in places and getattr(value, "is_Integer", False):
            lines = getattr(environment, "replacements_slocs", {})
            for place in places[symbol]:
                yield SizeGuard(f"{place} == {value}", True, user_line(lines.get(symbol)))
    for tracked in getattr(environment, "tracked_fakes", None) or ():
        wanted = getattr(tracked.symbolic_context, "dynamic_sizes", ())
        if not isinstance(tracked.fake, torch.Tensor):
            continue
        for dim, (size, kind) in enumerate(zip(tracked.fake.shape, wanted)):
            if kind in (DimDynamic.DYNAMIC, DimDynamic.DUCK) and isinstance(size, int) and size in (0, 1):
                name = place_text(tracked.source.name)
                why = "PyTorch compiles sizes of 0 and 1 separately"
                yield SizeGuard(f"{name}.size({dim}) == {size}", True, None, why)


def _guards(environment: Any, places: dict[Symbol, list[str]]) -> Iterator[SizeGuard]:
    """Conditions on sizes that stay dynamic, without duplicates."""
    seen: set[str] = set()
    for guard in list(environment.guards)[:_MOST_GUARDS]:
        symbols = guard.expr.free_symbols
        if any(getattr(environment.replacements.get(each), "is_Integer", False) for each in symbols):
            continue  # told of as fixed
        text = condition_text(guard.expr, places)
        if text not in seen:
            seen.add(text)
            yield SizeGuard(text, False, user_line(getattr(guard, "sloc", None)))


def condition_text(condition: Any, places: dict[Symbol, list[str]]) -> str:
    """A condition in terms of the places where its symbols occur first.

    >>> s = Symbol("s0", integer=True)
    >>> condition_text(sympy.Le(2 * s, 50), {s: ["x.size(0)"]})
    '2*x.size(0) <= 50'
    """
    names = {
        each: Symbol(places[each][0], integer=True) for each in condition.free_symbols if places.get(each)
    }
    with sympy.evaluate(False):
        named = condition.xreplace(names)
    try:
        return python_text(named)
    except SmeltError:
        return str(named)


def user_line(location: Any) -> str | None:
    """``file.py:12 in forward: the code`` of a ShapeEnv location; None if no user line is known."""
    text = getattr(location, "maybe_user_loc", None)
    found = _USER_LINE.match(text) if text else None
    if found is None:
        return None
    file = found["file"].rsplit("/", 1)[-1]
    return f"{file}:{found['line']} in {found['function']}: {' '.join(found['code'].split())}"
