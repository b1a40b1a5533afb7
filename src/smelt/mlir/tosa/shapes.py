"""Sizes in TOSA: operands of type ``!tosa.shape``, and sizes as data."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import sympy
import torch
from sympy import Expr

from smelt.errors import Unsupported
from smelt.mlir.arrays.dialect import Array, Shape
from smelt.mlir.attributes import i32
from smelt.mlir.bindings import ir
from smelt.mlir.tosa.operations import Operations
from smelt.symbolic import same

ZERO, ONE = sympy.Integer(0), sympy.Integer(1)
INFERRED = sympy.Integer(-1)


def operand(tosa: Operations, sizes: Shape) -> Any:
    """Sizes as an operand.

    Raises:
        Unsupported: no argument determines a size.
    """
    key = ("shape", tuple(sizes))
    if key not in tosa.memo:
        if all(size.is_Integer for size in sizes):
            tosa.memo[key] = constant(tosa, [int(size) for size in sizes])
        else:
            parts = [_size(tosa, size) for size in sizes]
            made = parts[0]
            if len(parts) > 1:
                made = tosa.operation("concat_shape", [_type(len(parts))], parts, {}).results[0]
            tosa.memo[key] = made
    return tosa.memo[key]


def one_unknown(sizes: Shape) -> Shape:
    """The sizes with -1 for the only dynamic one, which TOSA infers."""
    unknown = [d for d, size in enumerate(sizes) if not size.is_Integer]
    if len(unknown) != 1:
        return sizes
    return tuple(INFERRED if d in unknown else size for d, size in enumerate(sizes))


def _type(rank: int) -> Any:
    return ir.Type.parse(f"!tosa.shape<{rank}>")


def constant(tosa: Operations, numbers: Sequence[int]) -> Any:
    """Static sizes as a ``tosa.const_shape`` operation."""
    index = ir.IndexType.get()
    whole = ir.RankedTensorType.get([len(numbers)], index)
    values = ir.Attribute.parse(f"dense<{list(numbers) if numbers else ''}> : {whole}")
    return tosa.operation("const_shape", [_type(len(numbers))], [], {"values": values}).results[0]


_FOLDED = {"Add": "add_shape", "Mul": "mul_shape", "Max": "max_shape", "Min": "min_shape"}
_OF_TWO = {
    "FloorDiv": "div_floor_shape",
    "CeilDiv": "div_ceil_shape",
    "Mod": "mod_shape",
    "PythonMod": "mod_shape",
}


def _size(tosa: Operations, expr: Expr) -> Any:
    """One size as a shape of rank 1."""
    key = ("shape", (expr,))
    if key in tosa.memo:
        return tosa.memo[key]
    tosa.memo[key] = made = _new_size(tosa, expr)
    return made


def _new_size(tosa: Operations, expr: Expr) -> Any:
    if expr.is_Integer:
        return constant(tosa, [int(expr)])
    found = tosa.extents.get(expr) or next((v for k, v in tosa.extents.items() if same(k, expr)), None)
    if found is not None:
        array, dim = found
        return tosa.operation("dim", [_type(1)], [array.value], {"axis": i32(dim)}).results[0]
    name = expr.func.__name__
    if name == "Add":
        minus = [arg for arg in expr.args if arg.as_coeff_Mul()[0] < 0]
        plus = [arg for arg in expr.args if arg not in minus]
        if minus and plus:
            return _two(tosa, "sub_shape", sympy.Add(*plus), sympy.Add(*(-arg for arg in minus)))
    if name == "Pow" and expr.args[1].is_Integer and expr.args[1] > 0:
        return _fold(tosa, "mul_shape", [expr.args[0]] * int(expr.args[1]))
    above, below = sympy.fraction(expr)
    if below != 1:
        return _two(tosa, "div_floor_shape", above, below)
    if name in _FOLDED:
        return _fold(tosa, _FOLDED[name], expr.args)
    if name in _OF_TWO:
        return _two(tosa, _OF_TWO[name], *expr.args)
    given = all(symbol in tosa.extents for symbol in expr.free_symbols)
    why = "no operation on shapes does that" if given else "it is computed from data"
    raise Unsupported(f"TOSA has no way to the size {expr}: {why}")


def _two(tosa: Operations, name: str, left: Expr, right: Expr) -> Any:
    return tosa.operation(name, [_type(1)], [_size(tosa, left), _size(tosa, right)], {}).results[0]


def _fold(tosa: Operations, name: str, args: Sequence[Expr]) -> Any:
    parts = [_size(tosa, arg) for arg in args]
    return reduce(lambda x, y: tosa.operation(name, [_type(1)], [x, y], {}).results[0], parts)


# -- as data ------------------------------------------------------------------------------------------


def counted_size(tosa: Operations, x: Array, dim: int) -> Array:
    """The size of a dimension as int64 of rank 0, by a sum of ones: TOSA cannot convert shapes to data."""
    return tosa.reduce("sum", tosa.full(1, torch.int64, (x.shape[dim],)), [0])


def counted(tosa: Operations, size: Expr) -> Array:
    """``[0, 1, … size - 1]`` of a dynamic size: numbers are doubled until there are enough, then cut."""
    some = sympy.Symbol("_some", integer=True, positive=True)
    wanted = tosa.size(size)
    kind = tosa.type(torch.int64, (some,))
    first = Array(tosa.full(0, torch.int64, (ONE,)).value, torch.int64, (ONE,))
    flat = tosa.operation("reshape", [kind], [first.value, operand(tosa, (INFERRED,))], {}).results[0]

    def test(state: Sequence[Array]) -> Array:
        return tosa.apply("lt", state[0], wanted)

    def step(state: Sequence[Array]) -> list[Array]:
        length, numbers = state
        more = tosa.plain(
            "add", [numbers, Array(_line(tosa, length), torch.int64, numbers.shape)], torch.int64
        )
        longer = tosa.operation("concat", [kind], [numbers.value, more.value], {"axis": i32(0)}).results[0]
        return [tosa.apply("add", length, length), Array(longer, torch.int64, (some,))]

    start = tosa.full(1, torch.int64, ())
    found = tosa.loop([start, Array(flat, torch.int64, (some,))], test, step)[1]
    operands = [found.value, operand(tosa, (ZERO,)), operand(tosa, (size,))]
    return tosa.write("slice", operands, torch.int64, (size,))


def _line(tosa: Operations, number: Array) -> Any:
    return tosa.reshape(number, (ONE,)).value
