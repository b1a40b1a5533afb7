"""Control flow: ``higher_order.cond`` and its like as operations of ``scf`` (see `smelt.runtime.control`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from sympy import Expr

from smelt.errors import Unsupported
from smelt.mlir.linalg.scalars import Scalar, convert
from smelt.mlir.linalg.writer import Writer

Body = Callable[[Sequence[Any]], list[Any]]
Made = tuple[torch.dtype, Sequence[Expr]] | None
"""Dtype and shape of a result that is a tensor; None for a number."""


def cond(
    writer: Writer, bodies: Sequence[Body], made: Sequence[Made], predicate: Any, operands: Sequence[Any]
) -> list[Any]:
    """``scf.if``: the first body where ``predicate`` holds, else the second."""
    from torch_mlir.dialects import scf

    kinds = [_number() if kind is None else kind for kind in _types(writer, made)]
    branch = scf.IfOp(_truth(writer, predicate), kinds, has_else=True)
    for block, body in zip((branch.then_block, branch.else_block), bodies):
        with writer.region(block):
            results = body(operands)
            if any(isinstance(each, Scalar) and each.dtype is not torch.int64 for each in results):
                raise Unsupported("a branch that gives a number other than an integer")
            scf.YieldOp([_as(each, kind) for each, kind in zip(results, kinds, strict=True)])
    return [
        Scalar(value, torch.int64) if each is None else value for value, each in zip(branch.results, made)
    ]


def while_loop(
    writer: Writer,
    bodies: Sequence[Body],
    made: Sequence[Made],
    carried: Sequence[Any],
    others: Sequence[Any],
) -> list[Any]:
    """``scf.while``: the second body makes new carried values as long as the first says so."""
    from torch_mlir.dialects import scf

    test, step = bodies
    initial = [_plain(each) for each in carried]
    dtypes = [each.dtype if isinstance(each, Scalar) else None for each in carried]
    types = [
        first.type if kind is None else kind
        for first, kind in zip(initial, _types(writer, made), strict=True)
    ]
    loop = scf.WhileOp(types, [_as(each, kind) for each, kind in zip(initial, types)])
    before = loop.before.blocks.append(*types)
    after = loop.after.blocks.append(*types)

    def state(block: Any) -> list[Any]:
        return [
            value if dtype is None else Scalar(value, dtype) for value, dtype in zip(block.arguments, dtypes)
        ]

    with writer.region(before):
        (holds,) = test([*state(before), *others])
        scf.ConditionOp(_truth(writer, holds), list(before.arguments))
    with writer.region(after):
        results = step([*state(after), *others])
        scf.YieldOp([_as(each, kind) for each, kind in zip(results, types, strict=True)])
    return [value if dtype is None else Scalar(value, dtype) for value, dtype in zip(loop.results, dtypes)]


def scan(
    writer: Writer,
    bodies: Sequence[Body],
    made: Sequence[Made],
    initial: Sequence[Any],
    items: Sequence[Any],
    others: Sequence[Any],
) -> list[Any]:
    """``scf.for``: carried values handed on along the first dimension of ``items``; what each turn gives,
    stacked."""
    from torch_mlir import ir
    from torch_mlir.dialects import arith, scf, tensor

    (body,) = bodies
    count = len(initial)
    if any(isinstance(each, Scalar) for each in initial):
        raise Unsupported("a scan that carries numbers")
    index = ir.IndexType.get()
    zero, one = arith.constant(index, 0), arith.constant(index, 1)
    turns = tensor.dim(items[0], zero)
    outs = [writer.empty(*each) for each in made[count:] if each is not None]
    types = [writer.type(*each) for each in made if each is not None]
    start = [_as(each, kind) for each, kind in zip(initial, types)]
    loop = scf.ForOp(zero, turns, one, [*start, *outs])
    with writer.region(loop.body):
        at = loop.induction_variable
        state = list(loop.inner_iter_args)
        lines = [_line(each, at) for each in items]
        results = body([*state[:count], *lines, *others])
        after = [_as(each, kind) for each, kind in zip(results[:count], types)]
        stored = [_store(line, out, at) for line, out in zip(results[count:], state[count:], strict=True)]
        scf.YieldOp([*after, *stored])
    return list(loop.results)


def map_impl(
    writer: Writer, bodies: Sequence[Body], made: Sequence[Made], items: Sequence[Any], others: Sequence[Any]
) -> list[Any]:
    """The body on every element of the first dimension of ``items``, results stacked."""
    return scan(writer, bodies, made, [], items, others)


CONTROL: dict[str, Callable[..., list[Any]]] = {
    f"higher_order.{each.__name__}": each for each in (cond, while_loop, scan, map_impl)
}
"""Target of an extern call → function of (writer, bodies, what the results are, *arguments)."""


def _types(writer: Writer, made: Sequence[Made]) -> list[Any]:
    return [None if each is None else writer.type(*each) for each in made]


def _number() -> Any:
    from torch_mlir import ir

    return ir.IntegerType.get_signless(64)


def _truth(writer: Writer, value: Any) -> Any:
    """A number, or a tensor of one element, as ``i1``."""
    from torch_mlir import ir
    from torch_mlir.dialects import arith

    if not isinstance(value, Scalar):
        zero = arith.constant(ir.IndexType.get(), 0)
        if str(value.type.element_type) != "i1":
            raise Unsupported("a predicate that is not a truth value")
        return writer.element(value, [zero] * value.type.rank, torch.bool).value
    return convert(value, torch.bool).value


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, Scalar) else value


def _as(value: Any, kind: Any) -> Any:
    """A value of the type ``kind``, which knows more or less of a tensor's sizes."""
    from torch_mlir import ir
    from torch_mlir.dialects import arith

    value = _plain(value)
    if kind is None or value.type == kind:
        return value
    if isinstance(kind, ir.RankedTensorType):
        return _cast(value, kind)
    return arith.index_cast(kind, value)


def _cast(value: Any, kind: Any) -> Any:
    from torch_mlir.dialects import tensor

    return value if value.type == kind else tensor.cast(kind, value)


def _bounds(whole: Any, at: Any) -> tuple[Any, ...]:
    """Offsets, sizes and strides of one line of the first dimension: values, then numbers."""
    from torch_mlir import ir
    from torch_mlir.dialects import arith, tensor

    unknown = ir.ShapedType.get_dynamic_size()
    sizes = list(whole.type.shape)[1:]
    dims = [
        tensor.dim(whole, arith.constant(ir.IndexType.get(), d + 1))
        for d, size in enumerate(sizes)
        if size == unknown
    ]
    rest = len(sizes)
    return [at], dims, [], [unknown, *[0] * rest], [1, *sizes], [1] * (rest + 1)


def _line(whole: Any, at: Any) -> Any:
    from torch_mlir import ir
    from torch_mlir.dialects import tensor

    kind = ir.RankedTensorType.get(list(whole.type.shape)[1:], whole.type.element_type)
    return tensor.extract_slice(kind, whole, *_bounds(whole, at))


def _store(line: Any, whole: Any, at: Any) -> Any:
    from torch_mlir.dialects import tensor

    return tensor.insert_slice(line, whole, *_bounds(whole, at))
