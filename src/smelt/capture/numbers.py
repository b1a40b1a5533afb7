"""TorchScript's operators on numbers (``aten::ge.int``, ``aten::Bool.float``) as Python's.

PyTorch runs them on known numbers only; Python's own also accept data-dependent numbers.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

aten = torch.ops.aten


class OperatorsOfNumbers(TorchFunctionMode):
    """Inside, these operators are Python's.

    >>> with OperatorsOfNumbers():
    ...     torch.ops.aten.ge(3, 2), torch.ops.aten.Bool(0.5), torch.ops.aten.IntImplicit(torch.tensor(3))
    (True, True, 3)
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is aten.numel:
            return _count(args[0].shape)
        if func is aten.Int and isinstance(args[0], torch.Tensor):
            return args[0].to(torch.int64).item()
        if func in _OF_TENSORS and isinstance(args[0], torch.Tensor):
            return _CONVERSIONS[func](args[0].item())
        if func in _CONVERSIONS and len(args) == 1 and not isinstance(args[0], torch.Tensor):
            return _CONVERSIONS[func](args[0])
        if func in _OF_TWO and not any(isinstance(each, torch.Tensor) for each in args) and not kwargs:
            return _OF_TWO[func](args[0], args[1])
        return func(*args, **(kwargs or {}))


def _count(sizes: Any) -> Any:
    count: Any = 1
    for size in sizes:
        count = count * size
    return count


def _ratio(number: Any, other: Any) -> Any:
    """A tensor, as in eager."""
    return torch.scalar_tensor(number) / torch.scalar_tensor(other)


def _truth(number: Any) -> Any:
    return number if isinstance(number, (bool, torch.SymBool)) else number != 0


def _integer(number: Any) -> Any:
    if isinstance(number, (bool, torch.SymBool)):
        return torch.sym_ite(number, 1, 0)
    return torch.sym_int(number)


def _same(number: Any) -> Any:
    return number


_CONVERSIONS: dict[Any, Callable[[Any], Any]] = {
    aten.Bool: _truth,
    aten.Int: _integer,
    aten.Float: torch.sym_float,
    aten.sqrt: torch.sym_sqrt,  # type: ignore[attr-defined]
    aten.ceil: math.ceil,
    aten.IntImplicit: _same,
    aten.FloatImplicit: _same,
    aten.ScalarImplicit: _same,
}
_OF_TENSORS = (aten.Bool, aten.Float, aten.IntImplicit, aten.FloatImplicit, aten.ScalarImplicit)
_OF_TWO: dict[Any, Callable[[Any, Any], Any]] = {
    aten.div: _ratio,
    aten.eq: operator.eq,
    aten.ne: operator.ne,
    aten.lt: operator.lt,
    aten.le: operator.le,
    aten.gt: operator.gt,
    aten.ge: operator.ge,
}
