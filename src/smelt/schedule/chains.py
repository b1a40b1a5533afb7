"""Sums of one order, whatever the number of results (``numerics="strict"``)."""

from __future__ import annotations

from sympy import Symbol

from smelt.nest.dependence import carried_updates
from smelt.nest.ir import Accumulate, Kernel
from smelt.nest.primitives import vectorize
from smelt.nest.primitives.kinds import annotate
from smelt.nest.tree import find, walk


def in_one_chain(kernel: Kernel, var: Symbol, vector_bytes: int) -> Kernel:
    """Vectorizes a loop whose sums have one order: each lane of one register has one sum."""
    made = {s.name: s for s in walk(kernel.body) if isinstance(s, Accumulate)}
    found = carried_updates(find(kernel.body, var))
    widest = max((made[update.acc].dtype.itemsize for update in found), default=4)
    kernel = vectorize(kernel, var, vector_bytes // max(widest, 4), proved=True)
    return annotate(kernel, var, "chains", 1)
