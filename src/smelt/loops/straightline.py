"""Straight-line code: the output of a recorder, and the statements of nests (`smelt.nest.ir.Let`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from sympy import Expr, Symbol

from smelt.ops import Handler
from smelt.records import dataclass, field, replace
from smelt.symbolic import free_symbols

RAISING = frozenset(("fmod", "remainder", "floordiv", "truncdiv"))
"""Operators that raise where an integer divisor is 0: never moved, never dropped."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """``name: dtype = op(*args)``.

    ``op`` is an elementwise operator (args: value names), or one of ``load`` (buffer name, index tuple),
    ``constant`` (number,), ``index_expr`` (expr,), ``to_dtype`` (value,), ``bitcast`` (value,),
    ``indirect_index`` (value, size, wrap, check), which binds ``index`` as the Symbol for the position.
    ``of``: the positions of its origins in those of the kernel (`smelt.nest.ir.Kernel`); (): the first.
    """

    name: str
    dtype: torch.dtype
    op: str
    args: tuple[Any, ...]
    index: Symbol | None = None
    of: tuple[int, ...] = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class MaskedInstruction:
    """``name = result of body where mask else other``, as in `smelt.nest.ir.Masked`."""

    name: str
    dtype: torch.dtype
    mask: str
    body: tuple[Instruction | MaskedInstruction, ...]
    result: str
    other: float | int | bool


Recordable = Instruction | MaskedInstruction


def canonical(steps: Iterable[Recordable], result: str) -> tuple[Any, ...]:
    """Straight-line code without its choice of names: equal for equal computations."""
    names: dict[Any, Any] = {}
    return (_canonical(steps, names), names.get(result, result))


def _canonical(steps: Iterable[Recordable], names: dict[Any, Any]) -> tuple[Any, ...]:
    shape: list[Any] = []
    for step in steps:
        if isinstance(step, MaskedInstruction):
            body = _canonical(step.body, names)
            mask, result = names.get(step.mask, step.mask), names.get(step.result, step.result)
            shape.append(("masked", mask, body, result, repr(step.other)))
        else:
            shape.append((step.op, step.dtype, tuple(_rename(arg, names) for arg in step.args)))
            if step.index is not None:
                names[step.index] = Symbol(f"local{len(names)}", integer=True, nonnegative=True)
        names[step.name] = len(names)
    return tuple(shape)


def _rename(arg: Any, names: Mapping[Any, Any]) -> Any:
    if isinstance(arg, str):
        return names.get(arg, arg)
    if isinstance(arg, tuple):
        return tuple(_rename(item, names) for item in arg)
    if isinstance(arg, Expr):
        local = {old: new for old, new in names.items() if isinstance(old, Symbol)}
        return arg.xreplace(local) if local else arg
    return repr(arg) if isinstance(arg, float) else (type(arg), arg)


def with_buffers(steps: Iterable[Recordable], name_of: Callable[[str], str]) -> list[Recordable]:
    """The code with renamed buffers; ``name_of`` is called in the order of the loads.

    >>> load = Instruction("v0", torch.float32, "load", ("weight", ()))
    >>> with_buffers([load], lambda name: f"a {name}")[0].args
    ('a weight', ())
    """
    found: list[Recordable] = []
    for step in steps:
        if isinstance(step, MaskedInstruction):
            found.append(replace(step, body=tuple(with_buffers(step.body, name_of))))
        elif step.op == "load":
            found.append(replace(step, args=(name_of(step.args[0]), *step.args[1:])))
        else:
            found.append(step)
    return found


def used_names(step: Recordable) -> set[str]:
    """The values that an instruction uses (for a masked one, from outside as well as from inside)."""
    if isinstance(step, MaskedInstruction):
        names = {step.mask, step.result}
        return names.union(*(used_names(inner) for inner in step.body))
    return {arg for arg in (step.args[1:] if step.op == "load" else step.args) if isinstance(arg, str)}


def prune(
    steps: Iterable[Recordable], roots: Iterable[str], symbols: Iterable[Symbol] = ()
) -> tuple[Recordable, ...]:
    """Removes dead instructions: those that no root, index symbol or check needs (instructions only, no
    statements).
    """
    needed = set(roots)
    kept: list[Recordable] = []
    symbols = set(symbols)
    for step in reversed(list(steps)):
        raises = step.op == "indirect_index" and step.args[3] if isinstance(step, Instruction) else False
        wanted = step.name in needed or raises
        if isinstance(step, Instruction):
            raises = raises or (step.op in RAISING and not step.dtype.is_floating_point)
            wanted = wanted or raises or step.index in symbols
        if wanted:
            kept.append(step)
            needed |= used_names(step)
            symbols |= _symbols(step)
    return tuple(reversed(kept))


def _symbols(step: Recordable) -> set[Symbol]:
    if isinstance(step, MaskedInstruction):
        return set().union(*(_symbols(inner) for inner in step.body))
    exprs = [*step.args[1]] if step.op == "load" else [arg for arg in step.args if isinstance(arg, Expr)]
    return free_symbols(exprs)


def replay(
    steps: Iterable[Recordable],
    handler: Handler,
    outside: Mapping[str, Any] | None = None,
    places: Mapping[Symbol, Expr] | None = None,
) -> dict[str, Any]:
    """Runs recorded code under another handler; returns the handler's value of every name.

    ``outside`` are values that the code uses and that are computed elsewhere, ``places`` the values of its
    loop variables.

    >>> from smelt.loops.interpreter import Interpreter
    >>> steps = [Instruction("v0", torch.float32, "constant", (2.0,)),
    ...          Instruction("v1", torch.float32, "mul", ("v0", "v0"))]
    >>> replay(steps, Interpreter({}, {}))["v1"]
    tensor(4.)
    """
    values: dict[str, Any] = dict(outside or {})
    _replay(steps, handler, values, dict(places or {}))
    return values


def _replay(
    steps: Iterable[Recordable], handler: Handler, values: dict[str, Any], symbols: dict[Symbol, Expr]
) -> None:
    for step in steps:
        if isinstance(step, MaskedInstruction):
            inner = step

            def body(inner: MaskedInstruction = inner) -> Any:
                _replay(inner.body, handler, values, symbols)
                return values[inner.result]

            values[step.name] = handler.masked(values[step.mask], body, step.other)
        else:
            perform(step, handler, values, symbols)


def perform(step: Instruction, handler: Handler, values: dict[str, Any], symbols: dict[Symbol, Expr]) -> Any:
    """The value of one instruction under a handler; it comes to ``values``, or its index to ``symbols``."""

    def place(expr: Expr) -> Expr:
        return expr.xreplace(symbols) if symbols else expr

    if step.op == "load":
        value = handler.load(step.args[0], tuple(place(expr) for expr in step.args[1]))
    elif step.op == "constant":
        value = handler.constant(step.args[0], step.dtype)
    elif step.op == "index_expr":
        value = handler.index_expr(place(step.args[0]), step.dtype)
    elif step.op == "indirect_index":
        x, size, wrap, check = step.args
        assert step.index is not None
        symbols[step.index] = handler.indirect_index(values[x], size, wrap=wrap, check=check)
        return symbols[step.index]
    elif step.op in ("to_dtype", "bitcast"):
        value = getattr(handler, step.op)(values[step.args[0]], step.dtype)
    else:
        value = handler.elementwise(step.op, *(values[arg] for arg in step.args))
    values[step.name] = value
    return value
