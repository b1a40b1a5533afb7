"""Sort as a merge sort of every row: passes merge runs of 1, 2, 4 … elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from smelt.loops.dependencies import variables
from smelt.loops.ir import Sort
from smelt.mlir.arrays.dialect import Array
from smelt.mlir.bindings import arith, ir, scf, tensor
from smelt.mlir.linalg.bodies import Bodies
from smelt.mlir.linalg.operands import ZERO
from smelt.mlir.linalg.scalars import ELEMENTWISE, Scalar, compare, isnan, select
from smelt.mlir.linalg.writer import ONE, Operand, Writer, loop_index


def sort(bodies: Bodies, body: Sort) -> list[Array]:
    """The sorted values and their original positions, up to ``body.shape``; stable, NaN is the largest."""
    writer, source = bodies.writer, bodies.graph.buffers[body.source]
    values, shape = bodies.tensor(body.source), source.shape
    last = len(shape) - 1

    def number(n: int) -> Any:
        return arith.constant(ir.IndexType.get(), n)

    index = variables("i", len(shape))
    word = ir.IntegerType.get_signless(64)
    positions = writer.generic(
        index,
        0,
        [],
        [Operand(writer.empty(torch.int64, shape), index)],
        lambda *_: [arith.index_cast(word, loop_index(last))],
    )[0]
    count = writer.sizes.size(shape[last])
    state = [number(1), values, positions]
    kinds = [each.type for each in state]
    loop = scf.WhileOp(kinds, state)
    before = loop.before.blocks.append(*kinds)
    after = loop.after.blocks.append(*kinds)
    with writer.sizes.before(loop.operation):
        with ir.InsertionPoint(before):
            width = before.arguments[0]
            more = arith.cmpi(arith.CmpIPredicate.slt, width, count)
            scf.ConditionOp(more, list(before.arguments))
        with ir.InsertionPoint(after):
            width, *tensors = after.arguments
            room = [writer.empty(body.dtype, shape), writer.empty(torch.int64, shape)]
            merged = _merge(writer, body, shape, width, count, tensors, room)
            back = [
                writer.generic(index, 0, [Operand(new, index)], [Operand(old, index)], lambda x, _: x)[0]
                for new, old in zip(merged, tensors)
            ]
            scf.YieldOp([arith.muli(width, number(2)), *back])
    results = list(loop.results)[1:]
    if list(body.shape) != list(shape):
        starts, steps = [ZERO] * len(shape), [ONE] * len(shape)
        results = [writer.slice(each, starts, body.shape, steps, range(len(shape))) for each in results]
    return [Array(each, dtype, body.shape) for each, dtype in zip(results, (body.dtype, torch.int64))]


def _merge(
    writer: Writer,
    body: Sort,
    shape: Sequence[Any],
    width: Any,
    count: Any,
    tensors: Sequence[Any],
    into: Sequence[Any],
) -> list[Any]:
    """Merge adjacent runs of ``width`` elements of values and positions into two other tensors."""
    values, positions = tensors
    kind = ir.IndexType.get()

    def line(at: list[Any], carried: list[Any]) -> list[Any]:
        zero, one = arith.constant(kind, 0), arith.constant(kind, 1)
        last = arith.subi(count, one)
        loop = scf.ForOp(zero, count, one, [zero, zero, *carried])
        with ir.InsertionPoint(loop.body):
            turn = loop.induction_variable
            left, right, *outs = loop.inner_iter_args
            double = arith.addi(width, width)
            rest = arith.remsi(turn, double)
            base = arith.subi(turn, rest)
            fresh = arith.cmpi(arith.CmpIPredicate.eq, rest, zero)
            middle = arith.minsi(arith.addi(base, width), count)
            end = arith.minsi(arith.addi(base, double), count)
            left = arith.select(fresh, base, left)
            right = arith.select(fresh, middle, right)
            x, y = (
                writer.element(values, [*at, arith.minsi(each, last)], body.dtype) for each in (left, right)
            )
            has_left = _is(arith.cmpi(arith.CmpIPredicate.slt, left, middle))
            no_right = _is(arith.cmpi(arith.CmpIPredicate.sge, right, end))
            stays = ELEMENTWISE["logical_not"](_before(y, x, body.descending))
            first = ELEMENTWISE["logical_and"](has_left, ELEMENTWISE["logical_or"](no_right, stays))
            place = arith.minsi(arith.select(first.value, left, right), last)
            origin = writer.element(positions, [*at, place], torch.int64)
            chosen = select(first, x, y)
            stored = [
                tensor.insert(each.value, out, [*at, turn]) for each, out in zip((chosen, origin), outs)
            ]
            step = [
                arith.select(first.value, arith.addi(left, one), left),
                arith.select(first.value, right, arith.addi(right, one)),
            ]
            scf.YieldOp([*step, *stored])
        return list(loop.results)[2:]

    return writer.loops(shape[:-1], into, line)


def _is(value: Any) -> Scalar:
    return Scalar(value, torch.bool)


def _before(x: Scalar, y: Scalar, descending: bool) -> Scalar:
    """Whether x comes strictly before y."""
    if descending:
        x, y = y, x
    less = compare("lt", x, y)
    if not x.dtype.is_floating_point:
        return less
    missing = ELEMENTWISE["logical_and"](isnan(y), ELEMENTWISE["logical_not"](isnan(x)))
    return ELEMENTWISE["logical_or"](less, missing)
