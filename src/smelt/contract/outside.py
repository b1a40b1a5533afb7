"""Operators that people teach smelt from outside: `smelt.lowers` and `smelt.decomposes`."""

from __future__ import annotations

import hashlib
import inspect
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch._ops import OpOverload, OpOverloadPacket

from smelt.errors import SmeltError

Function = TypeVar("Function", bound=Callable[..., Any])

ROWS: dict[OpOverload, Callable[..., Any]] = {}
"""Overload → row, before those of smelt's own table."""

DECOMPOSITIONS: dict[OpOverload, Callable[..., Any]] = {}

_DIGESTS: dict[OpOverload, str] = {}


def lowers(*operators: Any) -> Callable[[Function], Function]:
    """Teach smelt to compile an operator: ``@smelt.lowers(op)`` above a row, as smelt's own table has them.

    ``operators``: what ``torch.library.custom_op`` gives, an overload or packet of ``torch.ops``, or a name
    as ``"mine::twice"``. The row gets a `smelt.lowering.builder.Builder` and the call's arguments, tensors as
    `smelt.lowering.tensor.Tensor` (``shape``, ``dtype``, ``load(index)``), and gives what the operator gives:
    ``ctx.pointwise(inner_fn, shape=…, dtype=…)`` with a function from an index to a value, in which
    ``smelt.ops.ops`` computes. ``Unsupported(reason)`` raised in it has PyTorch run that call.

    A row stands in for the forward only; its gradient is what ``register_autograd`` says. What is compiled
    already stays as it is until `smelt.reset`. Programs in the cache depend on the row's source file.

    Raises:
        SmeltError: SM0106 that is no operator.
    """

    def add(row: Function) -> Function:
        digest = _digest(row)
        for overload in (each for operator in operators for each in _overloads(operator)):
            ROWS[overload], _DIGESTS[overload] = row, digest
        return row

    return add


def add_row(overload: OpOverload, row: Callable[..., Any], digest: str) -> None:
    """Teach smelt an operator whose row is no source file's: ``digest`` is what it computes."""
    ROWS[overload], _DIGESTS[overload] = row, digest


def decomposes(*operators: Any) -> Callable[[Function], Function]:
    """Teach smelt what an operator is made of: ``@smelt.decomposes(op)`` above a function of PyTorch's.

    It takes what the operator takes and is traced in its place, under ``torch.compile`` and `smelt.export`.
    ``operators`` as for `lowers`. ``NotImplemented`` leaves a call whole.

    Raises:
        SmeltError: SM0106 that is no operator.
    """

    def add(function: Function) -> Function:
        for overload in (each for operator in operators for each in _overloads(operator)):
            DECOMPOSITIONS[overload] = function
        return function

    return add


def digest_of(target: Any) -> str | None:
    """What a compiled program's key has of a row from outside; None where there is none."""
    return _DIGESTS.get(target)


def _overloads(operator: Any) -> list[OpOverload]:
    found = getattr(operator, "_opoverload", operator)
    if isinstance(found, str):
        namespace, _, name = found.replace("::", ".").partition(".")
        for part in (namespace, *name.split(".")):
            found = getattr(torch.ops if isinstance(found, str) else found, part, None)
            if found is None:
                break
    if isinstance(found, OpOverloadPacket):
        return [getattr(found, name) for name in found.overloads()]
    if not isinstance(found, OpOverload):
        remedy = (
            'an operator is torch.ops.mine.twice, or what torch.library.custom_op gives, or "mine::twice"'
        )
        raise SmeltError("SM0106", f"{operator!r} is no operator", remedy=remedy)
    return [found]


def _digest(row: Callable[..., Any]) -> str:
    """Of the file that has the row: what it calls may stand there too. A row without a file is of this
    process alone.
    """
    file = inspect.getsourcefile(row)
    if file is None or not Path(file).is_file():
        return uuid.uuid4().hex
    return hashlib.sha256(Path(file).read_bytes()).hexdigest() + getattr(row, "__qualname__", "")
