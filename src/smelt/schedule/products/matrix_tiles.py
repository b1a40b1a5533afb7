"""Tiles of 16-bit products in a processor's matrix registers (AMX): sums of 32 columns of a weight, in place.

    T[32, width] = W[32, :] panel:  for each 32 terms:  tileloadd W, panel; tdpbf16ps

The weight's columns are the rows (swapped operands), since rows of a matrix register are read where they lie,
and the other operand is packed in pairs of terms. The sums are of float32. Registers are configured and
released by each tile's code, so that nothing else ever sees them configured.
"""

from __future__ import annotations

from collections.abc import Sequence

import sympy
import torch
from sympy import Expr, Symbol

from smelt.nest.ir import Advance, Axis, Block, Carry, For, Let, Operand, Stage, Stmt, Store, Text

ROWS, TERMS, PAIR = 16, 32, 2
"""Rows, and 16-bit elements of a row, of a matrix register; terms that one of its elements holds."""
HEIGHT = 2 * ROWS
"""Columns of the weight that are summed at once."""
REQUIRED = ("__AMX_BF16__", "__AMX_TILE__")
F32, BF16 = torch.float32, torch.bfloat16

At = tuple[str, Expr]
"""A buffer, and a flat index."""


def tile_stage(
    loops: Sequence[Symbol],
    width: int,
    terms: int,
    weight: At,
    panel: At,
    into: str,
    axes: tuple[Axis, Axis],
    panels: int,
) -> Stage:
    """``into[row, column] = sum over terms of weight * panel``; ``weight`` and ``panel`` are the elements at
    ``loops``: row, column, pair of terms, term of the pair. ``axes``: the numbers of the tile and of the
    panel. A tile prefetches its share of the next tile's rows of the weight, if ``panels`` are expected to
    use them; 0: the rows are computed.
    """
    row, column, pair, term = loops
    step = (
        Let("aw", BF16, "load", (weight[0], (weight[1],))),
        Let("a", F32, "to_dtype", ("aw",)),
        Let("qw", BF16, "load", (panel[0], (panel[1],))),
        Let("q", F32, "to_dtype", ("qw",)),
        Let("s", F32, "read", ("total", 0)),
        Let("n", F32, "fma", ("a", "q", "s")),
        Advance("total", "n"),
    )
    inner: Stmt = For(term, sympy.Integer(0), sympy.Integer(PAIR), Block(step))
    inner = For(pair, sympy.Integer(0), sympy.Integer(terms // PAIR), Block((inner,)))
    done = (
        Carry("total", F32, 0.0),
        inner,
        Let("made", F32, "read", ("total", 0)),
        Store(into, (row, column), "made"),
    )
    across = For(column, sympy.Integer(0), sympy.Integer(width), Block(done))
    down = For(row, sympy.Integer(0), sympy.Integer(HEIGHT), Block((across,)))
    operands = (
        Operand("weight", BF16, False, 0, (0, 2), (None, PAIR)),
        Operand("panel", BF16, False, 1, (2, 1), (None, PAIR)),
        Operand("tile", F32, True, 2, (0, 1), (None, 1)),
    )
    text = Text("matrix_tile", _source(width // ROWS, terms, panels), operands, REQUIRED)
    return Stage("matrix_tile", axes, Block((down,)), text=text)


def _source(sides: int, terms: int, panels: int) -> str:
    """C++ with assembly: matrix registers 0 to 3 hold sums, 4 and 5 the weight, 6 and 7 the panel."""
    weights = HEIGHT // ROWS
    share = -(-HEIGHT // max(panels, 1))
    lines = [
        "struct alignas(64) { u8 palette, start, zeros[14]; u16 bytes[16]; u8 rows[16]; } config = {1};",
        f"for (int i = 0; i < 8; ++i) {{ config.bytes[i] = 64; config.rows[i] = {ROWS}; }}",
        'asm volatile("ldtilecfg %0" : : "m"(config));',
        *(f'asm volatile("tilezero %%tmm{each}" : : : "memory");' for each in range(weights * sides)),
        "const i64 weight_step = weight_0*2, panel_step = panel_0*2, tile_step = tile_0*4;",
        f"const bf16_buffer* ahead = weight + {HEIGHT}*weight_0 + number*{terms * share};",
        f"for (i64 k = 0; k < {terms}; k += {TERMS}) {{",
    ]

    def load(register: int, place: str, step: str) -> str:
        operands = f'"r"({place}), "r"({step})'
        return f'  asm volatile("tileloadd (%0,%1,1), %%tmm{register}" : : {operands} : "memory");'

    lines += [
        load(6 + side, f"panel + (k/{PAIR})*panel_0 + {side * ROWS * PAIR}", "panel_step")
        for side in range(sides)
    ]
    for down in range(weights):
        lines.append(load(4 + down, f"weight + k + {down * ROWS}*weight_0", "weight_step"))
        for side in range(sides):
            factors = f"%%tmm{6 + side}, %%tmm{4 + down}, %%tmm{down * sides + side}"
            lines.append(f'  asm volatile("tdpbf16ps {factors}" : : : "memory");')
    if panels:  # rows are contiguous: so are those of the next tile
        lines.append(f"  if (number < {panels})")
        lines.append(f"    for (int i = 0; i < {share}; ++i, ahead += {TERMS}) __builtin_prefetch(ahead);")
    lines.append("}")
    for down in range(weights):
        for side in range(sides):
            place = f'"r"(tile + {down * ROWS}*tile_0 + {side * ROWS}), "r"(tile_step)'
            lines.append(
                f'asm volatile("tilestored %%tmm{down * sides + side}, (%0,%1,1)" : : {place} : "memory");'
            )
    return "\n".join(f"  {line}" for line in (*lines, 'asm volatile("tilerelease" : : : "memory");'))
