"""Batched products with one matrix for the whole batch become products without a batch.

    bmm(x, y), a batch of 1        →  mm(x[0], y[0])
    bmm(x, w), w the same for all  →  mm(x as (batch * rows, terms), w[0])
    bmm(w, y), w the same for all  →  mm(y^T as (batch * columns, terms), w[0]^T), transposed back

PyTorch's ``matmul`` expands a weight to a batch where the input is no view of rows and needs no gradient, and
ATen's kernels copy the expanded weight.
"""

from __future__ import annotations

import dataclasses
import operator
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node
from torch.fx._lazy_graph_module import _make_graph_module, _use_lazy_graph_module
from torch.fx.node import map_arg

from smelt.capture import Program
from smelt.contract.facts import number
from smelt.symbolic import as_expr, same

aten = torch.ops.aten

_PRODUCTS: dict[Any, tuple[Any, int]] = {
    aten.bmm.default: (aten.mm.default, 2),
    aten.baddbmm.default: (aten.addmm.default, 3),
}
"""Batched product → the product without a batch, and the number of its tensors."""


def fold_batches(program: Program, context: Any) -> Program:
    """Folds the batch of products that have one matrix for all of it into rows; see the module.

    A product whose first operand is the same for all is folded where that copies no operand.
    """
    del context
    graph = program.graph_module.graph
    if not any(node.target in _PRODUCTS for node in graph.nodes):
        return program
    folder = _Folder()
    for node in graph.nodes:
        folder.take(node)
    with _use_lazy_graph_module(True):
        graph_module = _make_graph_module(program.graph_module, folder.new, "Contract")
    return dataclasses.replace(program, graph_module=graph_module)


class _Folder:
    """Copies a graph node by node."""

    def __init__(self) -> None:
        self.new = Graph()
        self.env: dict[Node, Node] = {}
        self.old: Node
        """The node that is copied now."""

    def take(self, node: Node) -> None:
        self.old = node
        folded = self._folded() if node.target in _PRODUCTS else None
        self.env[node] = folded or self.new.node_copy(node, self.env.__getitem__)

    def _folded(self) -> Node | None:
        """The current product without its batch, in the same shape; None where it stays as it is."""
        args = [self.env[each] for each in self.old.args]  # type: ignore[index]
        if len(args) < _PRODUCTS[self.old.target][1]:
            return None
        *onto, x, y = args
        if any(each.meta["val"].layout is not torch.strided for each in args):
            return None
        if _is_same_for_all(y.meta["val"]):
            return self._product(onto, x, y)
        if onto or not _is_same_for_all(x.meta["val"]) or not _has_rows(y.meta["val"].transpose(1, 2)):
            return None
        return self._dense(self._swapped(self._product([], self._swapped(y), self._swapped(x))))

    def _product(self, onto: list[Node], x: Node, y: Node) -> Node:
        value = self.old.meta["val"].new_empty((*x.meta["val"].shape[:2], y.meta["val"].shape[2]))
        sizes = tuple(self._size(*place) for place in ((x, 0), (x, 1), (y, 2)))
        added = [self._added(each, sizes, value) for each in onto]
        rows, weight = self._rows(x), self._first(y)
        folded = value.new_empty((rows.meta["val"].shape[0], value.shape[2]))
        kwargs = map_arg(self.old.kwargs, self.env.__getitem__)
        product = self._call(_PRODUCTS[self.old.target][0], (*added, rows, weight), folded, kwargs)
        return self._call(aten.view.default, (product, sizes), value)

    def _added(self, x: Node, sizes: tuple[Any, ...], result: Tensor) -> Node:
        """The tensor that is added to a product, for all rows of the batch; `sizes` of the result."""
        value = x.meta["val"]
        lengths = [number(size) for size in (1, 1, 1, *value.shape)][-3:-1]
        if lengths[0] == 1 and (lengths[1] == 1 or number(result.shape[0]) == 1):
            return self._first(x) if value.dim() == 3 else x
        return self._rows(self._call(aten.expand.default, (x, sizes), value.expand(result.shape)))

    def _rows(self, x: Node) -> Node:
        """A tensor (batch, rows, terms) as (batch * rows, terms)."""
        value = x.meta["val"]
        batch, rows, terms = value.shape
        if number(batch) == 1:
            return self._first(x)
        if not _has_rows(value):
            x = self._dense(x)
            value = x.meta["val"]
        count: Any = batch * rows
        if not isinstance(count, int):
            count = self._call(operator.mul, (self._size(x, 0), self._size(x, 1)), count)
        strides = value.stride()[0 if number(rows) == 1 else 1], value.stride()[2]
        folded = value.as_strided((batch * rows, terms), strides)
        return self._call(aten.view.default, (x, (count, self._size(x, 2))), folded)

    def _first(self, x: Node) -> Node:
        """``x[0]``."""
        value = x.meta["val"]
        first = value.as_strided(value.shape[1:], value.stride()[1:])
        return self._call(aten.select.int, (x, 0, 0), first)

    def _swapped(self, x: Node) -> Node:
        return self._call(aten.transpose.int, (x, 1, 2), x.meta["val"].transpose(1, 2))

    def _dense(self, x: Node) -> Node:
        """A row-major copy."""
        value, form = x.meta["val"], torch.contiguous_format
        return self._call(aten.clone.default, (x,), value.new_empty(value.shape), {"memory_format": form})

    def _size(self, x: Node, dim: int) -> Any:
        size = x.meta["val"].shape[dim]
        return size if isinstance(size, int) else self._call(aten.sym_size.int, (x, dim), size)

    def _call(
        self, target: Any, args: tuple[Any, ...], value: Any, kwargs: dict[str, Any] | None = None
    ) -> Node:
        made = self.new.create_node("call_function", target, args, kwargs, name=self.old.name)
        made.meta.update(self.old.meta, val=value)
        return made


def _is_same_for_all(x: Tensor) -> bool:
    """Whether a tensor (batch, *, *), which is not empty, holds the same matrix for all of the batch."""
    batch = as_expr(x.shape[0])
    return bool(batch == 1 or (batch.is_positive and number(x.stride(0)) == 0))


def _has_rows(x: Tensor) -> bool:
    """Whether (batch * rows, terms) is a view of a tensor (batch, rows, terms)."""
    batch, rows = map(as_expr, x.shape[:2])
    step, within = map(as_expr, x.stride()[:2])
    return batch == 1 or rows == 1 or same(step, rows * within)
