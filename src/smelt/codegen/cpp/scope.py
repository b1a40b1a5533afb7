"""What statements are printed with: values and buffers as C++ has them, and the loops around."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from sympy import Expr, Symbol


@dataclass(frozen=True, slots=True)
class Value:
    """A printed value: its C++ text, and in how many lanes it lives (1: the same for all lanes)."""

    text: str
    dtype: torch.dtype
    lanes: int = 1
    number: float | int | bool | None = None


@dataclass(frozen=True, slots=True)
class Memory:
    """A printed buffer: name, dtype and strides; ``streamed``: vectors are stored past the caches."""

    text: str
    dtype: torch.dtype
    strides: tuple[Expr, ...]
    streamed: bool = False


@dataclass(frozen=True, slots=True)
class Scope:
    """Where a statement is printed: ``lanes`` of loop variable ``var`` at once, of which only ``mask`` count.

    ``maybe_empty``: the mask can be off in all lanes. ``varying``: the symbols that differ from lane to lane.
    ``parallel``: how many parallel loops are around.
    """

    lanes: int = 1
    var: Symbol | None = None
    mask: str | None = None
    maybe_empty: bool = False
    varying: frozenset[Symbol] = frozenset()
    parallel: int = 0
