"""Array operations on torch tensors: the oracle's side of whole-array evaluation, without MLIR."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from sympy import Expr, Symbol

from smelt.loops.elementwise import apply
from smelt.loops.reductions import reduce
from smelt.mlir.arrays import Array, EvaluatedArrays
from smelt.mlir.arrays.dialect import Number, Shape
from smelt.symbolic import evaluate

Tensor = torch.Tensor


class TorchArrays(EvaluatedArrays):
    """``values``: what each size is. Every operation checks that the shape is the one that was said."""

    def __init__(self, values: Mapping[Symbol, int] | None = None) -> None:
        super().__init__()
        self.known = dict(values or {})
        for symbol, number in self.known.items():
            self.bind(symbol, Array(torch.tensor(number), torch.tensor(number).dtype, ()))

    def array(self, tensor: Tensor, shape: Shape) -> Array:
        assert list(tensor.shape) == self.sizes(shape), (tensor.shape, shape)
        return Array(tensor, tensor.dtype, tuple(shape))

    def sizes(self, shape: Sequence[Expr]) -> list[int]:
        return [evaluate(size, self.known) for size in shape]

    def full(self, value: Number, dtype: torch.dtype, shape: Shape) -> Array:
        return self.array(torch.full(self.sizes(shape), value, dtype=dtype), shape)

    def iota(self, size: Expr, dtype: torch.dtype) -> Array:
        return self.array(torch.arange(evaluate(size, self.known), dtype=dtype), (size,))

    def elementwise(self, name: str, *args: Array) -> Array:
        assert all(arg.value.shape == args[0].value.shape for arg in args), [arg.shape for arg in args]
        return self.array(apply(name, [arg.value for arg in args]), args[0].shape)

    def convert(self, x: Array, dtype: torch.dtype) -> Array:
        return self.array(x.value.to(dtype), x.shape)

    def bitcast(self, x: Array, dtype: torch.dtype) -> Array:
        return self.array(x.value.contiguous().view(dtype), x.shape)

    def parts(self, x: Array) -> tuple[Array, Array]:
        return self.array(x.value.real, x.shape), self.array(x.value.imag, x.shape)

    def joined(self, real: Array, imaginary: Array) -> Array:
        return self.array(torch.complex(real.value, imaginary.value), real.shape)

    def broadcast(self, x: Array, shape: Shape, dims: Sequence[int]) -> Array:
        assert list(dims) == sorted(dims)
        view = [1] * len(shape)
        for size, dim in zip(x.value.shape, dims, strict=True):
            view[dim] = size
        return self.array(x.value.reshape(view).expand(self.sizes(shape)), shape)

    def reshape(self, x: Array, shape: Shape) -> Array:
        return self.array(x.value.reshape(self.sizes(shape)), shape)

    def transpose(self, x: Array, order: Sequence[int]) -> Array:
        return self.array(x.value.permute(*order), tuple(x.shape[d] for d in order))

    def slice(self, x: Array, starts: Shape, sizes: Shape, steps: Shape) -> Array:
        tensor = x.value
        for dim, (start, size, step) in enumerate(zip(*map(self.sizes, (starts, sizes, steps)), strict=True)):
            assert start >= 0 and step > 0
            assert size == 0 or start + (size - 1) * step < tensor.shape[dim], (
                start,
                size,
                step,
                tensor.shape,
            )
            tensor = tensor.narrow(dim, 0, tensor.shape[dim])[
                (slice(None),) * dim + (slice(start, None, step),)
            ]
            tensor = tensor.narrow(dim, 0, size)
        return self.array(tensor, sizes)

    def reverse(self, x: Array, dims: Sequence[int]) -> Array:
        return self.array(x.value.flip(*dims), x.shape)

    def pad(self, x: Array, low: Shape, high: Shape, value: Number) -> Array:
        before, after = self.sizes(low), self.sizes(high)
        assert min(before) >= 0 and min(after) >= 0
        flat = [n for pair in reversed(list(zip(before, after))) for n in pair]
        padded = torch.nn.functional.pad(x.value, flat, value=value)
        return self.array(padded, tuple(a + b + c for a, b, c in zip(x.shape, low, high, strict=True)))

    def concatenate(self, arrays: Sequence[Array], dim: int) -> Array:
        shape = list(arrays[0].shape)
        shape[dim] = sum((each.shape[dim] for each in arrays[1:]), arrays[0].shape[dim])
        return self.array(torch.cat([each.value for each in arrays], dim), tuple(shape))

    def take(self, x: Array, positions: Array) -> Array:
        assert positions.dtype is torch.int64
        return self.array(x.value[positions.value], (*positions.shape, *x.shape[1:]))

    def put(self, base: Array, positions: Array, values: Array, mode: str | None) -> Array:
        out = base.value.clone()
        for place, value in zip(positions.value.tolist(), values.value):
            out[place] = value if mode is None else apply(mode, (out[place], value))
        return self.array(out, base.shape)

    def reduce(self, kind: str, x: Array, dims: Sequence[int]) -> Array:
        rest = [d for d in range(x.rank) if d not in dims]
        moved = x.value.permute(*rest, *dims).reshape(*(x.value.shape[d] for d in rest), -1)
        (result,) = reduce(kind, moved)
        return self.array(result, tuple(x.shape[d] for d in rest))

    def sort(self, x: Array, descending: bool) -> tuple[Array, Array]:
        values, positions = torch.sort(x.value, dim=-1, stable=True, descending=descending)
        return self.array(values, x.shape), self.array(positions, x.shape)

    def matmul(self, lhs: Array, rhs: Array) -> Array:
        dtype = lhs.dtype
        wide = torch.float64 if dtype.is_floating_point else torch.int64
        product = torch.bmm(lhs.value.to(wide), rhs.value.to(wide)).to(dtype)
        return self.array(product, (*lhs.shape[:2], rhs.shape[2]))

    def loop(
        self,
        initial: Sequence[Array],
        test: Callable[[Sequence[Array]], Array],
        step: Callable[[Sequence[Array]], Sequence[Array]],
    ) -> list[Array]:
        state = list(initial)
        while bool(test(state).value):
            state = list(step(state))
        return state

    def branch(self, condition: Array, functions: Sequence[Callable[[], Any]], kinds: Any) -> list[Array]:
        return list(functions[0 if bool(condition.value) else 1]())
