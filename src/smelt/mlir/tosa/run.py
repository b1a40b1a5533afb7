"""TOSA modules lowered to Linalg for execution: the upstream passes, and the computed sizes that these lack.

The passes support only constant shape operands. Here operations with other shape operands become operations
of the ``tensor`` dialect, with the sizes as ``index`` values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from smelt.errors import SmeltError
from smelt.mlir.bindings import arith, ir, linalg, tensor
from smelt.mlir.execute import Executable
from smelt.mlir.isolated import IsolatedExecutable, transformed
from smelt.mlir.modules import clone, function_of, operations, type_of

_TO_LINALG = (
    "builtin.module(tosa-to-mlprogram,tosa-to-scf,func.func("
    "tosa-to-linalg-named,tosa-to-linalg,tosa-to-arith{include-apply-rescale=true},tosa-to-tensor,canonicalize))"
)


def executable(
    module: Any, calls: Mapping[str, Callable[..., Any]] | None = None
) -> Callable[..., list[Any]]:
    """A TOSA module, compiled through upstream's passes in a separate process; in this process only for
    ``calls`` of functions (see `Executable`).

    Raises:
        PipelineError: SM0712, an operation cannot be lowered to Linalg.
        SmeltError: SM0740, SM0741 the passes or the function crash or hang.
    """
    module = clone(module)
    with module.context, ir.Location.unknown():
        _lower_shapes(module)
    stages = [(_TO_LINALG, "bringing TOSA to Linalg")]
    if calls:
        for name in calls:
            if "?" in str(type_of(function_of(module, name)).results):
                what = f"{name} gives tensors of sizes that TOSA cannot check"
                raise SmeltError("SM0750", what, remedy="run it as Linalg")
        run: Callable[..., list[Any]] = Executable(transformed(module, stages), calls=calls)
    else:
        run = IsolatedExecutable(module, stages)
    return lambda *values: run(*map(_as_pairs, values))


def _as_pairs(value: Any) -> Any:
    """An argument for a module without complex numbers: a complex tensor as pairs of reals."""
    paired = isinstance(value, torch.Tensor) and value.is_complex()
    return torch.view_as_real(value.resolve_conj()) if paired else value


def _lower_shapes(module: Any) -> None:
    """Rewrite operations with sizes that are not constant, and drop the operations on shapes."""
    every = operations(module)
    sizes = [
        each for each in every if any(str(result.type).startswith("!tosa.shape") for result in each.results)
    ]
    for operation in [each for each in every if each.name in _REWRITES]:
        first, last = _SHAPES[operation.name]
        shapes = list(operation.operands)[first:last]
        if all(each.owner.name == "tosa.const_shape" for each in shapes) and _upstream_knows(operation):
            continue
        with ir.InsertionPoint(operation), operation.location:
            numbers = [_numbers(each) for each in shapes]
            result = _REWRITES[operation.name](operation, *numbers)
        operation.results[0].replace_all_uses_with(result)
        operation.erase()
    for operation in reversed(sizes):
        if not list(operation.results[0].uses):
            operation.erase()


def _upstream_knows(operation: Any) -> bool:
    """Whether upstream's passes support the operation: they tile at most one dynamic dimension."""
    if operation.name == "tensor.bitcast":
        return False
    return operation.name != "tosa.tile" or list(_result(operation).shape).count(_dynamic()) <= 1


# -- sizes as numbers ---------------------------------------------------------------------------------


def _index(number: int) -> Any:
    return arith.constant(ir.IndexType.get(), number)


def _numbers(shape: Any) -> list[Any]:
    """The ``index`` values of an operand of type ``!tosa.shape``."""
    operation = shape.owner
    name = operation.name.removeprefix("tosa.")
    if name == "const_shape":
        text = str(operation.attributes["values"])
        listed = ir.DenseIntElementsAttr(operation.attributes["values"])
        return [_index(listed[n]) for n in range(len(listed))] if "dense<>" not in text else []
    if name == "dim":
        axis = ir.IntegerAttr(operation.attributes["axis"]).value
        return [tensor.dim(operation.operands[0], _index(axis))]
    parts = [_numbers(each) for each in operation.operands]
    if name == "concat_shape":
        return [number for part in parts for number in part]
    combine = {
        "add_shape": arith.addi,
        "sub_shape": arith.subi,
        "mul_shape": arith.muli,
        "div_floor_shape": arith.floordivsi,
        "div_ceil_shape": arith.ceildivsi,
        "mod_shape": arith.remsi,
        "max_shape": arith.maxsi,
        "min_shape": arith.minsi,
    }[name]
    return [combine(x, y) for x, y in zip(*parts, strict=True)]


# -- operations ---------------------------------------------------------------------------------------


def _dynamic() -> int:
    return int(ir.ShapedType.get_dynamic_size())


def _result(operation: Any) -> Any:
    return ir.RankedTensorType(operation.results[0].type)


def _reshape(operation: Any, sizes: Sequence[Any]) -> Any:
    kind = ir.RankedTensorType.get([len(sizes)], ir.IndexType.get())
    return tensor.reshape(_result(operation), operation.operands[0], tensor.from_elements(kind, sizes))


def _slice(operation: Any, starts: Sequence[Any], sizes: Sequence[Any]) -> Any:
    kind = _result(operation)
    known = list(kind.shape)
    unknown = [size for size, static in zip(sizes, known) if static == _dynamic()]
    rank = len(known)
    return tensor.extract_slice(
        kind, operation.operands[0], starts, unknown, [], [_dynamic()] * rank, known, [1] * rank
    )


def _pad(operation: Any, sizes: Sequence[Any]) -> Any:
    kind, low, high = _result(operation), sizes[::2], sizes[1::2]
    value = tensor.extract(operation.operands[2], [_index(0)])
    unknown = [_dynamic()] * kind.rank
    made = tensor.PadOp(kind, operation.operands[0], low, high, unknown, unknown)
    block = made.regions[0].blocks.append(
        *[ir.IndexType.get()] * kind.rank, arg_locs=[ir.Location.unknown()] * kind.rank
    )
    with ir.InsertionPoint(block):
        tensor.YieldOp(value)
    return made.result


def _tile(operation: Any, repeats: Sequence[Any]) -> Any:
    """``tosa.tile`` as a broadcast: `smelt.mlir.tosa.dialect` repeats only dimensions of one element."""
    source, kind = operation.operands[0], _result(operation)
    given = ir.RankedTensorType(source.type)
    sizes, places = [], []
    for dim, size in enumerate(kind.shape):
        repeated = not given.is_dynamic_dim(dim) and given.get_dim_size(dim) == 1
        places.append(ir.AffineExpr.get_constant(0) if repeated else ir.AffineExpr.get_dim(dim))
        if size == _dynamic():
            have = tensor.dim(source, _index(dim))
            sizes.append(arith.muli(have, repeats[dim]))
        else:
            sizes.append(size)
    return _each(source, kind, sizes, ir.AffineMap.get(kind.rank, 0, places), lambda element: element)


def _bitcast(operation: Any) -> Any:
    """``tensor.bitcast`` element by element: bufferization does not support it on tensors."""
    source, kind = operation.operands[0], _result(operation)
    sizes = [
        tensor.dim(source, _index(dim)) if size == _dynamic() else size for dim, size in enumerate(kind.shape)
    ]
    same = ir.AffineMap.get_identity(kind.rank)
    return _each(source, kind, sizes, same, lambda element: arith.bitcast(kind.element_type, element))


def _each(source: Any, kind: Any, sizes: Sequence[Any], place: Any, value: Callable[[Any], Any]) -> Any:
    """A generic that computes every element of a tensor type from the source's element at ``place``."""
    maps = [place, ir.AffineMap.get_identity(kind.rank)]
    parallel = [linalg.IteratorType.parallel] * kind.rank
    made = linalg.generic([source], [tensor.empty(sizes, kind.element_type)], maps, parallel)

    def body(element: Any, old: Any) -> Any:
        return value(element)

    return made(body)


_REWRITES: dict[str, Callable[..., Any]] = {
    "tosa.reshape": _reshape,
    "tosa.slice": _slice,
    "tosa.pad": _pad,
    "tosa.tile": _tile,
    "tensor.bitcast": _bitcast,
}
_SHAPES = {
    "tosa.reshape": (1, 2),
    "tosa.slice": (1, 3),
    "tosa.pad": (1, 2),
    "tosa.tile": (1, 2),
    "tensor.bitcast": (1, 1),
}
"""Operation → the range of its shape operands."""
