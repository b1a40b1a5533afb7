"""A run of kernels as a C function: its parameters, and the arguments of each call of a kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from sympy import Expr, Symbol

from smelt.nest.ir import Call, InArena, Run


def run_parameters(run: Run, integer: str) -> tuple[list[str], dict[Symbol, str]]:
    """The parameters of a run's function, and the names of its sizes; ``integer``: the 64-bit type."""
    sizes = {symbol: f"s{position}" for position, symbol in enumerate(run.sizes)}
    pointers = (f"void* p{position}" for position in range(len(run.arguments)))
    return ["char* arena", *pointers, *(f"{integer} {name}" for name in sizes.values())], sizes


def call_arguments(
    call: Call, offset: Callable[[Expr], str], types: Mapping[torch.dtype, str], sizes: Mapping[Symbol, str]
) -> list[str]:
    """The arguments of a call: buffers, then sizes. ``offset`` prints a place in the arena, in bytes;
    ``types``: element types in memory.
    """
    places = [
        f"(arena + {offset(place.offset)})" if isinstance(place, InArena) else f"p{place.position}"
        for place in call.args
    ]
    casts = [f"({types[param.dtype]}*)" for param in call.kernel.params]
    buffers = [cast + place for cast, place in zip(casts, places, strict=True)]
    return [*buffers, *(sizes[symbol] for symbol in call.kernel.sizes)]
