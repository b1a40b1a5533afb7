"""Operators that users register with smelt: `smelt.lowers` and `smelt.decomposes`."""

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
"""Overload → row; these rows precede those of smelt's own table."""

DECOMPOSITIONS: dict[OpOverload, Callable[..., Any]] = {}

_DIGESTS: dict[OpOverload, str] = {}


def lowers(*operators: Any) -> Callable[[Function], Function]:
    """Register a lowering row for an operator: ``@smelt.lowers(op)`` above a row, as in smelt's own table.

    ``operators``: a result of ``torch.library.custom_op``, an overload or packet of ``torch.ops``, or a name
    as ``"mine::twice"``. The row gets a `smelt.lowering.builder.Builder` and the call's arguments, tensors as
    `smelt.lowering.tensor.Tensor` (``shape``, ``dtype``, ``load(index)``), and returns the operator's result:
    ``ctx.pointwise(inner_fn, shape=…, dtype=…)`` with a function from an index to a value, in which
    ``smelt.ops.ops`` computes. If the row raises ``Unsupported(reason)``, PyTorch runs that call.

    A row replaces the forward only; the gradient is that of ``register_autograd``. Programs that are compiled
    already stay as they are until `smelt.reset`. Programs in the cache depend on the row's source file.

    Raises:
        SmeltError: SM0106 ``operators`` holds something that is no operator.
    """

    def add(row: Function) -> Function:
        digest = _digest(row)
        for overload in (each for operator in operators for each in _overloads(operator)):
            ROWS[overload], _DIGESTS[overload] = row, digest
        return row

    return add


def add_row(overload: OpOverload, row: Callable[..., Any], digest: str) -> None:
    """Register a row that has no source file: ``digest`` identifies the computation."""
    ROWS[overload], _DIGESTS[overload] = row, digest


def decomposes(*operators: Any) -> Callable[[Function], Function]:
    """Register a decomposition: ``@smelt.decomposes(op)`` above a function of PyTorch calls.

    The function takes the operator's arguments and is traced in its place, under ``torch.compile`` and
    `smelt.export`. ``operators`` as in `lowers`. ``NotImplemented`` keeps a call whole.

    Raises:
        SmeltError: SM0106 ``operators`` holds something that is no operator.
    """

    def add(function: Function) -> Function:
        for overload in (each for operator in operators for each in _overloads(operator)):
            DECOMPOSITIONS[overload] = function
        return function

    return add


def digest_of(target: Any) -> str | None:
    """The part of a compiled program's key for a user's row; None if there is none."""
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
    """The digest of the file with the row, which may hold functions that the row calls.

    A row without a file has a key of this process alone.
    """
    file = inspect.getsourcefile(row)
    if file is None or not Path(file).is_file():
        return uuid.uuid4().hex
    return hashlib.sha256(Path(file).read_bytes()).hexdigest() + getattr(row, "__qualname__", "")
