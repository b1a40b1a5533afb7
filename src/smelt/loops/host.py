"""The environment of loop functions in torch: ATen's operators, views of buffers, sizes, checks."""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from typing import Any

import sympy
import torch
from sympy import Expr, Symbol

from smelt.errors import SmeltError
from smelt.loops.ir import Check, Graph, StridedView
from smelt.symbolic import evaluate

Tensor = torch.Tensor


def resolve(target: str) -> Any:
    """The ATen overload of a name.

    >>> resolve("aten.mm.default")
    <OpOverload(op='aten.mm', overload='default')>
    """
    namespace, name, overload = target.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), name), overload)


def argument(arg: Any, buffers: Mapping[str, Tensor], sizes: Mapping[Symbol, int]) -> Any:
    """An argument of an ATen call: views as tensors, sizes as numbers."""
    if isinstance(arg, StridedView):
        return view_of(arg, buffers, sizes)
    if isinstance(arg, (list, tuple)):
        return [argument(item, buffers, sizes) for item in arg]
    return number(arg, sizes)


def check(body: Check, sizes: Mapping[Symbol, int]) -> None:
    """Raises the exception of a check if its condition does not hold.

    >>> n = sympy.Symbol("n", integer=True)
    >>> check(Check(n > 2, "too small"), {n: 3})
    >>> check(Check(sympy.Ne(n, 0), "no"), {n: False})
    Traceback (most recent call last):
    RuntimeError: no
    """
    values = {  # by name: a condition assumes nothing of them; to SymPy, False is not 0
        symbol.name: int(value) if isinstance(value, bool) else value for symbol, value in sizes.items()
    }
    known = body.condition.subs({symbol: values[symbol.name] for symbol in body.condition.free_symbols})
    if not bool(known):
        kind = getattr(builtins, body.kind, None) or getattr(torch.linalg, body.kind)
        raise kind(body.message)


def number(value: Any, sizes: Mapping[Symbol, int]) -> Any:
    """The Python number of a SymPy expression; other values are unchanged."""
    if not isinstance(value, (Expr, sympy.logic.boolalg.Boolean)):
        return value
    if isinstance(value, Expr) and value.is_integer is not False:
        return evaluate(value, sizes)
    known = value.subs(sizes)
    return bool(known) if isinstance(known, sympy.logic.boolalg.Boolean) else float(known)


def view_of(view: StridedView, buffers: Mapping[str, Tensor], sizes: Mapping[Symbol, int]) -> Tensor:
    """The view as a torch tensor that shares the buffer's memory."""
    tensor = buffers[view.buffer]
    shape = [evaluate(size, sizes) for size in view.shape]
    strides = [evaluate(stride, sizes) for stride in view.strides]
    offset = evaluate(view.offset, sizes)
    if view.dtype is not None and view.dtype.is_complex:  # buffers are pairs of real numbers
        shape, strides, offset = [*shape, 2], [*(2 * stride for stride in strides), 1], 2 * offset
        return torch.view_as_complex(tensor.as_strided(shape, strides, tensor.storage_offset() + offset))
    return tensor.as_strided(shape, strides, tensor.storage_offset() + offset)


def memory(tensor: Tensor) -> Tensor:
    """A tensor in the form of loop functions: complex numbers are pairs of real ones."""
    return torch.view_as_real(tensor.resolve_conj().resolve_neg()) if tensor.is_complex() else tensor


def bind_sizes(graph: Graph, inputs: Sequence[Tensor | int | None]) -> dict[Symbol, Any]:
    """The number of each size symbol: from integer inputs, shapes and strides that consist of the symbol
    alone.

    Raises:
        SmeltError: SM0502, the number of inputs differs, or a shape does not fit.
    """
    if len(inputs) != len(graph.inputs):
        raise SmeltError("SM0502", f"the graph takes {len(graph.inputs)} inputs, {len(inputs)} were given")
    values: dict[Symbol, Any] = {}
    tensors: list[tuple[str, Tensor]] = []
    for name, value in zip(graph.inputs, inputs):
        if isinstance(name, Symbol):
            values[name] = value
        elif isinstance(name, str):
            if not isinstance(value, Tensor):
                raise SmeltError("SM0502", f"input {name} is a tensor, given was {type(value).__name__}")
            tensors.append((name, value))
    for name, value in tensors:
        _, shape, strides = graph.buffers[name].outside
        for expr, seen in zip((*shape, *strides), (*value.shape, *value.stride())):
            if isinstance(expr, Symbol):
                values.setdefault(expr, seen)
    for name, value in tensors:
        dtype, sizes, _ = graph.buffers[name].outside
        wanted = [evaluate(size, values) for size in sizes]
        if list(value.shape) != wanted or value.dtype != dtype:
            what = f"input {name} is {dtype} {wanted}, given was {value.dtype} {list(value.shape)}"
            raise SmeltError("SM0502", what)
    return values
