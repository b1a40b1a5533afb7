"""The loads that are operands of a ``linalg.generic``: their index is affine in the tensor or in a view.

    ops.load(x, [j, i])                →  x, affine_map<(i, j) -> (j, i)>
    ops.load(x, [64*i + j]), j < 64    →  tensor.expand_shape of x, (i, j) -> (i, j)
    ops.load(x, [i + 2])               →  tensor.extract_slice of x, (i) -> (i)
    ops.load(x, [2*i + k])             →  x, (i, k) -> (2*i + k)

``tensor.extract`` reads all others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import sympy
from sympy import Expr, Symbol

from smelt.loops.straightline import Instruction, MaskedInstruction, Recordable
from smelt.mlir.arrays import access
from smelt.mlir.linalg.writer import ONE, Operand, Writer
from smelt.symbolic import numel, same
from smelt.symbolic.affine import expand

ZERO = sympy.Integer(0)
Load = tuple[str, tuple[Expr, ...]]
Extents = Mapping[Symbol, Expr]


def loads_of(steps: Sequence[Recordable], masked: bool = False) -> Iterator[tuple[Load, bool]]:
    """Every load in recorded code, and whether it is inside of a mask."""
    for step in steps:
        if isinstance(step, MaskedInstruction):
            yield from loads_of(step.body, True)
        elif isinstance(step, Instruction) and step.op == "load":
            yield (step.args[0], step.args[1]), masked


def operand_of(
    writer: Writer, tensor: Any, shape: Sequence[Expr], index: Sequence[Expr], extents: Extents, masked: bool
) -> Operand | None:
    """A load as an operand of a generic over ``extents``; None if it needs ``tensor.extract``.

    ``masked``: the index may be out of range if the mask hides the load.
    """
    place = plain_place(shape, index, extents)
    if place is not None:
        return Operand(tensor, place)
    if masked:
        return None
    viewed = view_of(writer, tensor, shape, index, extents)
    if viewed is not None:
        return viewed
    return Operand(tensor, tuple(index)) if is_affine(index, extents) else None


def plain_place(shape: Sequence[Expr], index: Sequence[Expr], extents: Extents) -> tuple[Expr, ...] | None:
    """The index, if every part is a loop variable of the dimension's extent, or a number in range."""
    for expr, size in zip(index, shape, strict=True):
        if isinstance(expr, Symbol):
            extent = extents.get(expr)
            if extent is None or not same(extent, size):
                return None
        elif not (expr.is_Integer and size.is_Integer and 0 <= expr < size):
            return None
    return tuple(index)


def is_affine(index: Sequence[Expr], extents: Extents) -> bool:
    """Whether each part is a sum of loop variables with positive factors, and a number."""
    for expr in index:
        for term in sympy.Add.make_args(expr):
            factor, rest = term.as_coeff_Mul()
            if not factor.is_Integer or factor < 0 or not (rest == 1 or rest in extents):
                return False
    return True


# -- views -----------------------------------------------------------------------------------------------


def view_of(
    writer: Writer,
    tensor: Any,
    shape: Sequence[Expr],
    index: Sequence[Expr],
    extents: Extents,
    copies: bool = False,
) -> Operand | None:
    """A load as a load of a view of the tensor, made by ``tensor.expand_shape`` and similar operations; None
    if it is none. The operand's map does the transposing. ``copies``: a tensor that must be transposed before
    the view is copied."""
    used: set[Any] = set().union(*(expr.free_symbols for expr in index))
    if any(symbol.name not in writer.sizes.symbols for symbol in used - extents.keys()):
        return None  # a position read from data, or a surrounding loop
    known = tuple((variable, extent) for variable, extent in extents.items() if variable in used)
    found = _plan(tuple(shape), tuple(index), known, copies)
    if found is None:
        return None
    sizes: list[Expr] = list(shape)
    order: list[int] = list(range(len(sizes)))
    for steps in _runs(found.steps):
        step = steps[0]
        if isinstance(step, access.Transpose):
            order = [order[d] for d in step.order]
            continue
        tensor, sizes = transpose(writer, tensor, sizes, order)
        if isinstance(step, access.Reshape):
            tensor = reshape(writer, tensor, sizes, step.shape)
            sizes = list(step.shape)
        else:
            starts, strides = [ZERO] * len(sizes), [ONE] * len(sizes)
            for each in steps:
                assert isinstance(each, access.Slice)
                starts[each.dim], sizes[each.dim], strides[each.dim] = each.start, each.size, each.step
            tensor = writer.slice(tensor, starts, sizes, strides, range(len(sizes)))
        order = list(range(len(sizes)))
    return Operand(tensor, tuple(found.variables[order.index(d)] for d in range(len(order))))


def _runs(steps: Sequence[access.Step]) -> list[list[access.Step]]:
    """The steps in order; consecutive slices of different dimensions form one run."""
    found: list[list[access.Step]] = []
    for step in steps:
        last = found[-1] if found else []
        together = isinstance(step, access.Slice) and all(
            isinstance(each, access.Slice) and each.dim != step.dim for each in last
        )
        if last and together:
            last.append(step)
        else:
            found.append([step])
    return found


@lru_cache(maxsize=4096)
def _plan(
    shape: tuple[Expr, ...], index: tuple[Expr, ...], known: tuple[tuple[Symbol, Expr], ...], copies: bool
) -> access.Access | None:
    """The steps to a view, if no step copies elements (except transposes, if ``copies``)."""
    if any(size == 0 for size in shape):
        return None
    found = access.plan(shape, index, dict(known))
    sizes, transposed = shape, False
    for step in found.steps:
        if isinstance(step, access.Transpose):
            transposed = True
            sizes = tuple(sizes[d] for d in step.order)
        elif transposed and not copies:
            return None
        elif isinstance(step, access.Reshape):
            if not _foldable(regrouped(sizes, step.shape), sizes, step.shape):
                return None
            sizes = step.shape
        elif isinstance(step, access.Slice):
            sizes = (*sizes[: step.dim], step.size, *sizes[step.dim + 1 :])
        else:
            return None
    return found


def arranged(writer: Writer, operand: Operand, index: Sequence[Symbol], shape: Sequence[Expr]) -> Any:
    """The operand as a tensor over the loop variables ``index``; None if it would need broadcasting."""
    extents = dict(zip(index, shape))
    if not all(isinstance(expr, Symbol) and expr in extents for expr in operand.place):
        return None
    place = [v for v in index if v in operand.place]
    if len(place) != len(operand.place) or any(extents[v] != 1 for v in index if v not in place):
        return None
    sizes = [extents[v] for v in operand.place]  # type: ignore[index]
    order = [operand.place.index(v) for v in place]
    tensor, sizes = transpose(writer, operand.tensor, sizes, order)
    if len(sizes) == len(shape):
        return tensor
    return reshape(writer, tensor, sizes, shape) if _foldable(regrouped(sizes, shape), sizes, shape) else None


def transpose(
    writer: Writer, tensor: Any, shape: Sequence[Expr], order: Sequence[int]
) -> tuple[Any, list[Expr]]:
    """A tensor with its dimensions in another order, and its shape."""
    if list(order) == list(range(len(order))):
        return tensor, list(shape)
    sizes = [shape[d] for d in order]
    return writer.transpose(tensor, order, sizes), sizes


Group = tuple[list[int], list[int]]


def regrouped(old: Sequence[Expr], new: Sequence[Expr]) -> list[Group] | None:
    """The smallest groups of dimensions of ``old`` and ``new`` that contain the same elements.

    >>> n = sympy.Integer
    >>> regrouped([n(6), n(5)], [n(2), n(3), n(5)])
    [([0], [0, 1]), ([1], [2])]
    """
    groups: list[Group] = []
    left, right = 0, 0
    while left < len(old) or right < len(new):
        group: Group = ([], [])
        above: Expr = ONE
        below: Expr = ONE
        while True:
            if group[0] and group[1] and same(above, below):
                break
            if left < len(old) and (not group[0] or (group[1] and _behind(above, below))):
                group[0].append(left)
                above = expand(above * old[left])
                left += 1
            elif right < len(new):
                group[1].append(right)
                below = expand(below * new[right])
                right += 1
            elif left < len(old) and groups and not group[1]:
                group[0].append(left)
                above = expand(above * old[left])
                left += 1
            else:
                break
        if not (group[0] and group[1]):  # trailing ones join the group before them
            if not groups or not same(above, below):
                return None
            groups[-1][0].extend(group[0])
            groups[-1][1].extend(group[1])
            continue
        if not same(above, below):
            return None
        groups.append(group)
    return groups


def _behind(above: Expr, below: Expr) -> bool:
    """Whether the left side needs more dimensions to reach the right side's size."""
    if above.is_Integer and below.is_Integer:
        return bool(above < below)
    quotient = sympy.cancel(below / above)
    return sympy.fraction(quotient)[1] == 1 and quotient != 1


def _foldable(groups: list[Group] | None, old: Sequence[Expr], new: Sequence[Expr]) -> bool:
    """Whether every group is only split or merged, and static sizes stay static on both sides."""
    if groups is None or not old or not new:
        return False
    for left, right in groups:
        if min(len(left), len(right)) != 1:
            return False
        if all(old[d].is_Integer for d in left) != all(new[d].is_Integer for d in right):
            return False
    return True


def reshape(writer: Writer, tensor: Any, old: Sequence[Expr], new: Sequence[Expr]) -> Any:
    """A tensor of shape ``old`` reshaped to ``new``: dimensions are merged first, then split."""
    groups = regrouped(old, new)
    assert groups is not None
    middle = [numel([old[d] for d in left]) for left, _ in groups]
    if len(middle) < len(old):
        tensor = writer.collapse(tensor, [left for left, _ in groups], middle)
    if len(middle) < len(new):
        tensor = writer.expand(tensor, [right for _, right in groups], new)
    return tensor


def covered(places: Sequence[Sequence[Expr]]) -> set[Expr]:
    """The loop variables that index a whole dimension of some operand, which determines the loop's extent."""
    return {expr for place in places for expr in place if isinstance(expr, Symbol)}
