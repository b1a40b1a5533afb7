"""Prefetches memory while an intrinsic runs."""

from __future__ import annotations

import torch

from smelt.nest.ir import Block, Kernel, Operand, Prefetch
from smelt.nest.primitives.common import refusal, stage_place
from smelt.nest.primitives.layouts import IndexMap, mapped
from smelt.nest.scopes import shapes_of
from smelt.nest.tree import accesses, exchanged
from smelt.records import replace


def prefetch_during(kernel: Kernel, stage: str, buffer: str, index_map: IndexMap, step: int) -> Kernel:
    """Prefetches a piece of a buffer while a register tile is summed: ``step`` elements with each term, from
    an element on that the map gives of the block's axes, even beyond the end.

    tile: C[vi, vj] = A[vi, :] P   →   tile: C[vi, vj] = A[vi, :] P; prefetch B[f(vi, vj)]

    No number changes. The hint is for memory that later tiles use, such as the columns of the next panel.

    Raises:
        ScheduleError: SM1002 there is no such block; SM1031 there is no such buffer of float32; SM1035 the
        map does not take the block's axes or gives no index of the buffer; SM1038 the block is no register
        tile, or prefetches already.
    """
    what = f"prefetch during {stage}"
    target, _ = stage_place(kernel, stage, what)
    shape = shapes_of(kernel).get(buffer)
    dtypes = {param.name: param.dtype for param in kernel.params}
    if shape is None or dtypes.get(buffer) is not torch.float32:
        raise refusal("SM1031", what, f"there is no parameter {buffer} of float32")
    if target.text is None or target.text.form[:1] != ("register_tile",) or target.text.form[-1] != 0:
        raise refusal("SM1038", what, "it is no register tile, or prefetches already", "tensorize it first")
    try:
        index = mapped(index_map, [axis.var for axis in target.axes])
    except TypeError as error:
        raise refusal("SM1035", what, f"the map does not take {len(target.axes)} indices") from error
    if len(index) != len(shape) or step < 1:
        why = f"{buffer} has {len(shape)} dimensions, the map gives {len(index)}; the step is {step}"
        raise refusal("SM1035", what, why)
    place = Operand("N", torch.float32, False, len(accesses(target.body)), (), ())
    text = replace(
        target.text,
        name=f"{target.text.name}_ahead",
        operands=(*target.text.operands, place),
        form=(*target.text.form[:-1], step),
    )
    body = Block((*target.body.stmts, Prefetch(buffer, index)))
    return exchanged(kernel, target, replace(target, body=body, text=text))
