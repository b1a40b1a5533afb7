"""Operators that do the same to real and imaginary parts: the row for real numbers runs once for each part.

Views, copies, indexing, scatters and sums belong here: they move, add or select elements.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from sympy import Expr

from smelt.errors import Unsupported
from smelt.lowering.builder import Builder
from smelt.lowering.complex.elementwise import as_complex
from smelt.lowering.layouts import real_dtype
from smelt.lowering.registry import COMPLEX, TABLE, lowers_complex
from smelt.lowering.tensor import Complex, Tensor

aten, prims = torch.ops.aten, torch.ops.prims

_CHOOSING = frozenset({"condition", "mask", "index", "indices"})
"""Arguments of any operator that select elements and are no values."""

_VIEWS = """
alias detach lift_fresh view reshape _unsafe_view _reshape_alias unsqueeze squeeze permute transpose t expand
select slice narrow split unsafe_split split_with_sizes unsafe_split_with_sizes unbind diagonal unfold
"""
_COPIES = """
select_copy slice_copy expand_copy diagonal_copy permute_copy transpose_copy t_copy view_copy alias_copy
detach_copy squeeze_copy unsqueeze_copy unfold_copy split_copy split_with_sizes_copy unbind_copy
narrow_copy cat stack flip repeat repeat_interleave pixel_shuffle native_channel_shuffle slice_scatter
select_scatter diagonal_scatter tril triu constant_pad_nd
"""
_CHOICES = """
index gather index_select embedding take scatter index_put index_add index_copy scatter_add put
masked_scatter where index_fill
"""
_SUMS = "sum mean cumsum"
_PRIMS = "view_of reshape squeeze transpose broadcast_in_dim cat rev sum where copy_strided"


def by_parts(overload: torch._ops.OpOverload) -> None:
    """Register an overload's row for real numbers as its row for complex ones."""
    row = TABLE[overload]
    valued = [_is_value(argument) for argument in overload._schema.arguments]
    by_name = {argument.name: _is_value(argument) for argument in overload._schema.arguments}

    @lowers_complex(overload)
    def lowered(ctx: Builder, *args: Any, **kwargs: Any) -> Any:
        if ctx.unbound:
            raise Unsupported("complex numbers whose count depends on data")
        if isinstance(kwargs.get("alpha"), complex):
            raise Unsupported("complex numbers times a complex factor")
        if not _first(ctx.result).dtype.is_complex:
            raise Unsupported("complex numbers go in, and none come out")
        wholes = [_prepared(ctx, each, is_value) for each, is_value in zip(args, valued)]
        named = {name: _prepared(ctx, each, by_name[name]) for name, each in kwargs.items()}
        found = []
        for part in range(2):
            mine = [_part(each, part, is_value) for each, is_value in zip(wholes, valued)]
            own = {name: _part(each, part, by_name[name]) for name, each in named.items()}
            found.append(row(ctx, *mine, **own))
        return _joined(*found)


@lowers_complex(aten.as_strided.default)
def as_strided(ctx: Builder, x: Complex, size: Any, stride: Any, offset: Any = None) -> Complex:
    """``as_strided`` for each part; strides and offset count complex numbers, two places if interleaved."""
    places = 2 if x.real.buffer == x.imaginary.buffer else 1
    steps = [places * step for step in stride]

    def part(which: int) -> Tensor:
        first = None if offset is None else places * offset + which * (places - 1)
        found: Tensor = TABLE[aten.as_strided.default](ctx, x.parts[which], size, steps, first)
        return found

    return Complex(part(0), part(1))


def _first(result: Any) -> torch.Tensor:
    return result if isinstance(result, torch.Tensor) else result[0]


def _is_value(argument: Any) -> bool:
    """Whether an argument holds numbers that go into the result, and no sizes, dims or positions."""
    kind = str(argument.real_type if hasattr(argument, "real_type") else argument.type)
    return argument.name not in (*_CHOOSING, "alpha") and any(
        word in kind for word in ("Tensor", "number", "Scalar")
    )


def _prepared(ctx: Builder, value: Any, is_value: bool) -> Any:
    """Real tensors among complex values as complex ones."""
    if not is_value:
        return value
    if isinstance(value, (list, tuple)):
        return [_prepared(ctx, each, True) for each in value]
    return as_complex(ctx, value) if isinstance(value, Tensor) else value


def _part(value: Any, which: int, is_value: bool) -> Any:
    if isinstance(value, torch.dtype):
        return real_dtype(value)
    if not is_value:
        return value
    if isinstance(value, (list, tuple)):
        return [_part(each, which, True) for each in value]
    if isinstance(value, Complex):
        return value.parts[which]
    if isinstance(value, complex):
        return (value.real, value.imag)[which]
    if isinstance(value, (bool, int, float, Expr)):
        return 0 if which else value
    return value


def _joined(real: Any, imaginary: Any) -> Any:
    if isinstance(real, (list, tuple)):
        return [_joined(*parts) for parts in zip(real, imaginary, strict=True)]
    return Complex(real, imaginary) if isinstance(real, Tensor) else real


def _overloads() -> Iterator[torch._ops.OpOverload]:
    names = {aten: f"{_VIEWS} {_COPIES} {_CHOICES} {_SUMS}", prims: _PRIMS}
    for namespace, listed in names.items():
        for packet in (getattr(namespace, name) for name in listed.split() if hasattr(namespace, name)):
            for overload in (getattr(packet, form) for form in packet.overloads()):
                if overload in TABLE and overload not in COMPLEX:
                    yield overload


for _overload in _overloads():
    by_parts(_overload)
