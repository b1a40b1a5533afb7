"""Matrix products and convolutions: Linalg's named operations if possible, else sums of products."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from sympy import Expr

from smelt.loops.dependencies import variables
from smelt.loops.ir import Contraction, StridedView, accumulator
from smelt.loops.straightline import Instruction
from smelt.lowering.products.contractions import convolution_of
from smelt.mlir.arrays.dialect import Array
from smelt.mlir.bindings import ir, linalg
from smelt.mlir.linalg.bodies import Bodies, Code
from smelt.mlir.linalg.operands import ZERO, reshape
from smelt.mlir.linalg.scalars import ELEMENTWISE, Scalar, constant
from smelt.mlir.linalg.writer import Operand, Writer, affine_map, result_of
from smelt.ops import ops
from smelt.symbolic import as_expr


def contract(bodies: Bodies, body: Contraction) -> Array:
    """The result of a contraction."""
    return Array(_Contractions(bodies, body).run(), body.dtype, body.shape)


@dataclass(frozen=True, slots=True)
class _Side:
    """A factor that only reads elements of a tensor of ``dtype``."""

    operand: Operand
    dtype: torch.dtype


class _Contractions:
    def __init__(self, bodies: Bodies, body: Contraction) -> None:
        self.bodies, self.body = bodies, body
        self.writer: Writer = bodies.writer
        self.within = accumulator(body.dtype)
        self.index = variables("i", len(body.shape))
        self.rindex = variables("r", len(body.reduce_shape))
        self.extents = dict(zip((*self.index, *self.rindex), (*body.shape, *body.reduce_shape)))

    def run(self) -> Any:
        body, bodies = self.body, self.bodies
        made = self._convolution()
        if made is not None:
            return self._finished(made)
        codes = [self._code(side) for side in (body.lhs, body.rhs)]
        for code in codes:
            bodies.expect(code, self.within)
        sides = [self._side(code) for code in codes]
        if sides[0] is not None and sides[1] is not None:
            made = self._named(sides[0], sides[1])
            if made is not None:
                return self._finished(made)
        return self._finished(self._sum())

    def _code(self, side: Callable[..., Any]) -> Code:
        over = self.index, self.rindex
        return self.bodies.record(self.extents, lambda recorder: [recorder.run(side, *over)])

    def _finished(self, made: Any) -> Any:
        return self.writer.converted(made, self.within, self.body.dtype, self.body.shape)

    def _start(self) -> Any:
        """The initial value of the sums."""
        body = self.body
        if body.start is None:
            return self.writer.fill(0, self.within, body.shape)
        return self.bodies.elements(body.start, self.index, body.shape, self.within)

    def _sum(self) -> Any:
        """A generic that sums the products of any two factors."""
        body, bodies = self.body, self.bodies
        over = self.index, self.rindex
        code = bodies.record(
            self.extents, lambda recorder: [recorder.run(body.lhs, *over), recorder.run(body.rhs, *over)]
        )

        def finish(values: Sequence[Scalar], before: Sequence[Any], _: Any) -> list[Any]:
            product = ELEMENTWISE["mul"](*values)
            return [ELEMENTWISE["add"](Scalar(before[0], self.within), product).value]

        start = Operand(self._start(), self.index)
        return bodies.loop(code, self.extents, [start], finish, len(self.rindex))[0]

    # -- products ----------------------------------------------------------------------------------------

    def _side(self, code: Code) -> _Side | None:
        """The factor as an operand, if it only loads and converts."""
        steps = [step for step in code.steps if isinstance(step, Instruction)]
        if [step.op for step in steps] not in (["load"], ["load", "to_dtype"]):
            return None
        if len(steps) != len(code.steps) or steps[-1].name != code.results[0][0]:
            return None
        found = list(self.bodies.operands(code, self.extents).values())
        dtype = steps[0].dtype
        if dtype is torch.uint8:
            return None
        if not found and len(self.rindex) == 1:  # no operand: copied to a tensor that the product can index
            buffer, place = steps[0].args
            used = set().union(*(expr.free_symbols for expr in place))
            index = [v for v in self.extents if v in used]
            shape = [self.extents[v] for v in index]
            tensor = self.bodies.elements(lambda _: ops.load(buffer, place), index, shape, dtype)
            found = [Operand(tensor, tuple(index))]
        return _Side(found[0], dtype) if found else None

    def _named(self, left: _Side, right: _Side) -> Any:
        """``linalg.matmul`` and other products, transposed by their indexing maps; None if none fits."""
        if len(self.rindex) != 1:
            return None
        (k,) = self.rindex
        rank = len(self.index)
        x, y = left.operand.place, right.operand.place
        if rank in (2, 3):
            *batch, m, n = self.index
            fits = set(x) == {*batch, m, k} and set(y) == {*batch, k, n} and len(x) == len(y) == rank
            fits = fits and list(x[:-2]) == batch == list(y[:-2])
            kind = "MatmulOp" if rank == 2 else "BatchMatmulOp"
            usual = (*batch, m, k), (*batch, k, n)
        elif rank == 1:
            (m,) = self.index
            fits, kind, usual = (x, y) == ((m, k), (k,)), "matvec", ((m, k), (k,))
            if (x, y) == ((k,), (k, m)):
                fits, kind, usual = True, "vecmat", (x, y)
        else:
            fits, kind, usual = (x, y) == ((k,), (k,)), "dot", ((k,), (k,))
        if not fits:
            return None
        return self._written(kind, left, right, usual == (x, y))

    def _written(self, kind: str, left: _Side, right: _Side, usual: bool) -> Any:
        start = self._start()
        inputs = [left.operand.tensor, right.operand.tensor]
        if not kind.endswith("Op"):
            return result_of(getattr(linalg, kind)(*inputs, outs=[start]))
        maps = None
        if not usual:
            places = {v: n for n, v in enumerate((*self.index, *self.rindex))}
            each = (left.operand.place, right.operand.place, self.index)
            maps = ir.ArrayAttr.get([ir.AffineMapAttr.get(affine_map(place, places)) for place in each])
        options = {} if maps is None else {"indexing_maps": maps}
        operation = getattr(linalg, kind)([start.type], inputs, [start], **options)
        linalg.fill_builtin_region(operation.operation)
        return operation.results[0]

    # -- convolutions ------------------------------------------------------------------------------------

    def _convolution(self) -> Any:
        """``linalg.conv_*`` of the padded input; None if there is no such operation."""
        found = convolution_of(self.body.call)
        if found is None or len(found[0]) != 2 or found[1].transposed:
            return None
        (x, weight), geometry = found
        rank, groups, padding = len(weight.shape) - 2, geometry.groups, geometry.padding
        dtype = self.bodies.dtypes[x.buffer]
        if rank not in (1, 2, 3) or dtype is torch.uint8:
            return None
        kind = _NAMES.get((rank, _grouping(weight, groups)))
        if kind is None:
            return None
        seen, taps = self.bodies.view(x).value, self.bodies.view(weight).value
        options = {"strides": list(geometry.stride), "dilations": list(geometry.dilation)}
        if kind == _NAMES[2, "groups"]:
            return self._grouped(kind, seen, taps, padding, options)
        if kind.startswith("depthwise"):
            shape = (weight.shape[0], *weight.shape[2:])
            taps = reshape(self.writer, taps, weight.shape, shape)
        return self._conv(kind, self._padded(seen, x.shape, padding, dtype), taps, self._start(), options)

    def _grouped(
        self, kind: str, seen: Any, taps: Any, padding: Sequence[int], options: Mapping[str, Any]
    ) -> Any:
        """A convolution with the channels split by group.

        Only tensors that no pass can expand earlier are expanded: a pass would move the expansion, but not
        its sizes.
        """
        x, weight, groups = self.body.call.args[0], self.body.call.args[1], self.body.call.args[8]
        into, out = weight.shape[1], weight.shape[0] / groups
        count, whole = as_expr(groups), self.body.shape
        parts = [[0], [1, 2], *([dim] for dim in range(3, len(whole) + 1))]
        split, made = (x.shape[0], count, into, *x.shape[2:]), (whole[0], count, out, *whole[2:])
        seen = self._padded(
            self.writer.expand(seen, parts, split), split, padding, self.bodies.dtypes[x.buffer]
        )
        taps = self.writer.expand(
            taps, [[0, 1], *([dim] for dim in range(2, len(whole) + 1))], (count, out, *weight.shape[1:])
        )
        if self.body.start is None:
            start = self.writer.fill(0, self.within, made)
        else:
            start = self.writer.expand(self._start(), parts, made)
        return self.writer.collapse(self._conv(kind, seen, taps, start, options), parts, whole)

    def _conv(self, kind: str, x: Any, taps: Any, start: Any, options: Mapping[str, Any]) -> Any:
        return result_of(getattr(linalg, kind)(x, taps, outs=[start], **options))

    def _padded(self, x: Any, shape: Sequence[Expr], padding: Sequence[int], dtype: torch.dtype) -> Any:
        if not any(padding):
            return x
        around = [ZERO] * (len(shape) - len(padding)) + [sympy.Integer(pad) for pad in padding]
        wide = [size + 2 * pad for size, pad in zip(shape, around)]
        return self.writer.pad(x, around, around, wide, constant(0, dtype))


_NAMES = {
    (1, "one"): "conv_1d_ncw_fcw",
    (2, "one"): "conv_2d_nchw_fchw",
    (3, "one"): "conv_3d_ncdhw_fcdhw",
    (1, "each"): "depthwise_conv_1d_ncw_cw",
    (2, "each"): "depthwise_conv_2d_nchw_chw",
    (3, "each"): "depthwise_conv_3d_ncdhw_cdhw",
    (2, "groups"): "conv_2d_ngchw_gfchw",
}


def _grouping(weight: StridedView, groups: int) -> str:
    """``one`` group; ``each`` channel is a group; several ``groups``."""
    if groups == 1:
        return "one"
    out, into = weight.shape[:2]
    return "each" if into == 1 and out == groups else "groups"
