"""Detection of matrix products among the stages of the user's function, for smelt's kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sympy import Symbol

from smelt.loops.ir import Contraction, Extern
from smelt.lowering.builder import Builder
from smelt.lowering.products.contractions import factor
from smelt.lowering.tensor import Tensor
from smelt.nest.ir import Alloc, Kernel, Let, Stage, Store
from smelt.nest.tree import reduced_axes, stages, walk
from smelt.records import dataclass


@dataclass(frozen=True, slots=True)
class Operand:
    """A buffer, and its dimensions in a product's order."""

    buffer: str
    dims: tuple[int, ...]

    def of(self, tensors: Mapping[str, Tensor]) -> Tensor:
        x = tensors[self.buffer]
        place = {dim: position for position, dim in enumerate(self.dims)}
        shape = [x.shape[dim] for dim in self.dims]
        return x.view(shape, lambda index: [index[place[dim]] for dim in range(len(place))])


@dataclass(frozen=True, slots=True)
class MatrixProduct:
    """``out[*b, m, n] = sum over k of lhs[*b, m, k] * rhs[*b, k, n]``; ``*b`` is at most one dimension."""

    lhs: Operand
    rhs: Operand

    def add(self, ctx: Builder, tensors: Mapping[str, Tensor]) -> Tensor:
        """The product as a node: smelt's kernel or ATen's, whichever is faster."""
        x, y = self.lhs.of(tensors), self.rhs.of(tensors)
        dtype, shape = x.dtype, (*x.shape[:-1], y.shape[-1])
        target = "aten.mm.default" if len(shape) == 2 else "aten.bmm.default"
        call = Extern(target, (ctx.strided(x), ctx.strided(y)), {})

        def left(index: Sequence[Any], at: Sequence[Any]) -> Any:
            return factor(x, [*index[:-1], *at], dtype)

        def right(index: Sequence[Any], at: Sequence[Any]) -> Any:
            return factor(y, [*index[:-2], *at, index[-1]], dtype)

        return ctx.contraction(Contraction(shape, (x.shape[-1],), dtype, left, right, None, call))


def products_of(kernel: Kernel) -> dict[str, MatrixProduct]:
    """The matrix products among a kernel's stages, by the buffers that they store."""
    dtypes = {param.name: param.dtype for param in kernel.params}
    dtypes.update((stmt.buffer, stmt.dtype) for stmt in walk(kernel.body) if isinstance(stmt, Alloc))
    found = {}
    for stage in stages(kernel.body):
        product, store = _product(stage), stage.body.stmts[-1] if stage.body.stmts else None
        if product is None or not isinstance(store, Store):
            continue
        if dtypes[product.lhs.buffer] == dtypes[product.rhs.buffer] == dtypes[store.buffer]:
            found[store.buffer] = product
    return found


def _product(stage: Stage) -> MatrixProduct | None:
    stmts = stage.body.stmts
    if len(stmts) != 4 or stage.init is None:
        return None
    first, second, third, store = stmts
    if not (isinstance(first, Let) and isinstance(second, Let) and isinstance(third, Let)):
        return None
    if not isinstance(store, Store) or store.mode != "add" or store.value != third.name or third.op != "mul":
        return None
    if first.op != "load" or second.op != "load" or not third.dtype.is_floating_point:
        return None
    if set(third.args) != {first.name, second.name} or first.dtype != second.dtype:
        return None
    reduced = [axis.var for axis in reduced_axes(stage)]
    if (
        len(reduced) != 1
        or not all(isinstance(e, Symbol) for e in store.index)
        or len(store.index) not in (2, 3)
    ):
        return None
    *batch, rows, columns = store.index
    loads = {name.args[0]: name.args[1] for name in (first, second)}
    if len(loads) != 2:
        return None
    for (lhs, at), (rhs, where) in (tuple(loads.items()), tuple(reversed(loads.items()))):
        left, right = (*batch, rows, *reduced), (*batch, *reduced, columns)
        if sorted(at, key=str) == sorted(left, key=str) and sorted(where, key=str) == sorted(right, key=str):
            dims = tuple(at.index(each) for each in left), tuple(where.index(each) for each in right)
            return MatrixProduct(Operand(lhs, dims[0]), Operand(rhs, dims[1]))
    return None
