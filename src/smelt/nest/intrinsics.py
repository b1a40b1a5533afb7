"""Intrinsics that targets know: what each computes, as a small kernel, and the form of its code.

A recipe places them by `tensorize`; the interpreter runs the description, and a target prints code of its own
(`smelt.codegen.cpp.register_tiles`).
"""

from __future__ import annotations

import re
from functools import lru_cache

import sympy
import torch
from sympy import Symbol

from smelt.nest.ir import Axis, AxisKind, Block, For, Kernel, Let, Param, Stage, Store
from smelt.nest.primitives.blocks import Intrinsic, text_of
from smelt.records import replace
from smelt.symbolic import loop_var

F32 = torch.float32
ZERO, ONE = sympy.Integer(0), sympy.Integer(1)
RESULTS = {
    "store": ("", ()),
    "add": ("add", ("before", "sum")),
    "scale": ("mul", ("sum", "factor")),
    "rescale": ("fma", ("before", "factor", "sum")),
}
"""The value that a register tile stores: its sum, or an operator of that and of what was there before, or of
the row's factor.
"""
_TRANSPOSE = re.compile(r"smelt\.transpose_(4|8|16)")
_TILE = re.compile(r"smelt\.tile_(\d+)x(\d+)(?:_of_(\d+))?(_add)?(_transposed)?")


def tile_name(rows: int, width: int, step: int = 0, *, adds: bool = False, transposed: bool = False) -> str:
    """The name of a register tile.

    >>> tile_name(8, 48), tile_name(4, 16, 48, adds=True)
    ('smelt.tile_8x48', 'smelt.tile_4x16_of_48_add')
    """
    of = f"_of_{step}" if step not in (0, width) else ""
    return f"smelt.tile_{rows}x{width}{of}{'_add' * adds}{'_transposed' * transposed}"


def intrinsic_named(name: str, lanes: int) -> Intrinsic | None:
    """The intrinsic of a name that targets know, for vectors of so many float32; None: there is none."""
    if (turned := _TRANSPOSE.fullmatch(name)) is not None:
        return transpose(int(turned[1]))
    found = _TILE.fullmatch(name)
    if found is None:
        return None
    rows, width, step, adds, transposed = found.groups()
    return register_tile(
        int(rows), int(width), lanes, int(step or width), adds=bool(adds), transposed=bool(transposed)
    )


@lru_cache(maxsize=256)
def register_tile(
    rows: int, width: int, lanes: int, step: int = 0, *, adds: bool = False, transposed: bool = False
) -> Intrinsic:
    """A few rows and a panel's columns of a product, each sum in a register from its first to its last term.

    C[rows, width] = sum over k of A[rows, k] * P[k, width]

    ``lanes``: float32 elements of a vector. ``step``: the distance of P's rows, ``width`` by default.
    ``adds``: the sums are added to C. ``transposed``: A is ``A[k, rows]``. C is contiguous along columns.

    >>> intrinsic = register_tile(8, 48, 16)
    >>> intrinsic.name, [operand.strides for operand in intrinsic.impl.operands]
    ('smelt.tile_8x48', [(None, 1), (48, 1), (None, 1)])
    """
    name, step = tile_name(rows, width, step, adds=adds, transposed=transposed), step or width
    desc = _sums(rows, width, adds, transposed)
    strides = {"A": (None, 1), "P": (step, 1), "C": (None, 1)}
    text = text_of(name, desc, "", strides)
    assert not isinstance(text, str), text
    form = ("register_tile", rows, width, lanes, "add" if adds else "store", 0)
    return Intrinsic(name, desc, replace(text, form=form))


@lru_cache(maxsize=8)
def transpose(lanes: int) -> Intrinsic:
    """A square block, turned in registers: Y[j, i] = X[i, j]

    >>> transpose(16).name
    'smelt.transpose_16'
    """
    i, j = (loop_var(name) for name in "ij")
    size = sympy.Integer(lanes)
    at = tuple(
        Axis(loop_var(f"v_{name}"), size, var, label=f"v_{name}") for name, var in (("i", i), ("j", j))
    )
    v_i, v_j = (axis.var for axis in at)
    body = Block((Let("x", F32, "load", ("X", (v_i, v_j))), Store("Y", (v_j, v_i), "x")))
    inner = For(j, ZERO, size, Block((Stage("turn", at, body),)), label="j")
    outer = For(i, ZERO, size, Block((inner,)), label="i")
    params = [Param(name, F32, (size, size), (size, ONE), written=name == "Y") for name in "XY"]
    name = f"smelt.transpose_{lanes}"
    desc = Kernel("transpose", tuple(params), (), Block((outer,)))
    text = text_of(name, desc, "", {"X": (None, 1), "Y": (None, 1)})
    assert not isinstance(text, str), text
    return Intrinsic(name, desc, replace(text, parts=("transpose",), form=("transpose", lanes)))


def _sums(rows: int, width: int, adds: bool, transposed: bool) -> Kernel:
    """The description of a register tile, of any number of terms ``n``."""
    n = Symbol("n", integer=True, positive=True)
    sizes = {"i": sympy.Integer(rows), "j": sympy.Integer(width), "k": n}
    kinds = {"i": AxisKind.SPATIAL, "j": AxisKind.SPATIAL, "k": AxisKind.REDUCE}
    loops = {name: loop_var(name) for name in sizes}
    axes = tuple(
        Axis(loop_var(f"v_{name}"), size, loops[name], kinds[name], label=f"v_{name}")
        for name, size in sizes.items()
    )
    i, j, k = (axis.var for axis in axes)
    body = (
        Let("a", F32, "load", ("A", (k, i) if transposed else (i, k))),
        Let("p", F32, "load", ("P", (k, j))),
        Let("product", F32, "mul", ("a", "p")),
        Store("C", (i, j), "product", "add"),
    )
    zero = Block((Let("zero", F32, "constant", (0.0,)), Store("C", (i, j), "zero")))
    inside: For | Stage = Stage("tile", axes, Block(body), None if adds else zero)
    for name in reversed(sizes):
        inside = For(loops[name], ZERO, sizes[name], Block((inside,)), label=name)
    params = (
        Param(
            "A", F32, *(((n, sizes["i"]), (sizes["i"], ONE)) if transposed else ((sizes["i"], n), (n, ONE)))
        ),
        Param("P", F32, (n, sizes["j"]), (sizes["j"], ONE)),
        Param("C", F32, (sizes["i"], sizes["j"]), (sizes["j"], ONE), written=True),
    )
    return Kernel("tile", params, (n,), Block((inside,)))
