"""Random expressions of te, each with the same in torch's words."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch

from smelt import te
from tests.conformance.te_data import HALVES, Axis, Both, Made, Numbers, Run, Sum

FLOATS = ("float32", "float32", "float32", "float64", "float16", "bfloat16")
WHOLES = ("int32", "int64", "int8", "uint8")

UNARY: dict[str, tuple[Callable[[Any], Any], Callable[[Numbers], Numbers]]] = {
    "tanh": (te.tanh, torch.tanh),
    "sigmoid": (te.sigmoid, torch.sigmoid),
    "exp": (lambda x: te.exp(te.min(x, 2.0)), lambda x: torch.exp(torch.clamp(x, max=2.0))),
    "sqrt": (lambda x: te.sqrt(te.abs(x)), lambda x: torch.sqrt(torch.abs(x))),
}
BINARY: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Numbers, Numbers], Numbers]]] = {
    "add": (lambda a, b: a + b, torch.add),
    "sub": (lambda a, b: a - b, torch.sub),
    "mul": (lambda a, b: a * b, torch.mul),
    "max": (te.max, torch.maximum),
    "min": (te.min, torch.minimum),
}
WHOLE: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Numbers, Numbers], Numbers]]] = {
    "and": (lambda a, b: a & b, torch.bitwise_and),
    "or": (lambda a, b: a | b, torch.bitwise_or),
    "xor": (lambda a, b: a ^ b, torch.bitwise_xor),
}
COMPARE = {
    "lt": (lambda a, b: a < b, torch.lt),
    "le": (lambda a, b: a <= b, torch.le),
    "eq": (lambda a, b: a == b, torch.eq),
    "ne": (lambda a, b: a != b, torch.ne),
    "gt": (lambda a, b: a > b, torch.gt),
}


class Expressions:
    """Draws expressions over axes, and what they load. ``inputs``: tensors that are given; ``made``: those
    that are computed so far.
    """

    def __init__(self, seed: int) -> None:
        self.seed, self.draw = seed, random.Random(seed)
        draw = self.draw
        self.exact = draw.random() < 0.6
        self.dtypes = [draw.choice(FLOATS), draw.choice((*FLOATS, *WHOLES, "bool")), draw.choice(WHOLES)]
        self.inputs: list[Made] = []
        self.made: list[Made] = []

    def given(self, shape: tuple[Any, ...], dtype: str | None = None, below: Any = None) -> Made:
        dtype = dtype or self.draw.choice(self.dtypes)
        tensor = te.placeholder(shape, dtype, f"A{len(self.inputs)}")
        exact = self.exact or not te.dtypes.kind_of(dtype).is_floating_point
        self.inputs.append(Made(tensor, shape, exact, below=below))
        return self.inputs[-1]

    def expression(self, axes: Sequence[Axis], depth: int) -> Both:
        if depth == 0:
            return self.leaf(axes)
        draw = self.draw
        kind = draw.choice(("binary", "binary", "binary", "unary", "choice", "compare", "cast", "whole"))
        left = self.expression(axes, depth - 1)
        if kind == "unary":
            return self.unary(left)
        if kind == "cast":
            return self.converted(left)
        if kind == "whole":
            return self.whole(left)
        right = self.expression(axes, draw.randint(0, depth - 1))
        a, b = _matched(left, right)
        exact = a.exact and b.exact
        if kind == "choice":
            condition = self.condition(axes)
            choose = draw.choice((te.if_then_else, te.select))
            mask, one, two = condition.numbers, a.numbers, b.numbers
            value = choose(condition.value, a.value, b.value)
            return Both(value, lambda run: torch.where(mask(run), one(run), two(run)), exact)
        if kind == "compare" and exact:
            ours, theirs = COMPARE[draw.choice(sorted(COMPARE))]
            return Both(ours(a.value, b.value), _both(theirs, a, b), True)
        if a.kind is torch.bool:
            ours, theirs = WHOLE[draw.choice(sorted(WHOLE))]
            return Both(ours(a.value, b.value), _both(theirs, a, b), True)
        ours, theirs = BINARY[draw.choice(sorted(BINARY))]
        value = ours(a.value, b.value)
        return a if isinstance(value, int) else self.between(Both(value, _both(theirs, a, b), exact), 8)

    def between(self, value: Both, most: int) -> Both:
        """A floating value that is not far from 0."""
        if not value.kind.is_floating_point:
            return value
        low, high = te.const(-most, value.value.dtype), te.const(most, value.value.dtype)
        clamped = te.max(te.min(value.value, high), low)
        numbers = value.numbers
        return Both(clamped, lambda run: torch.clamp(numbers(run), -most, most), value.exact)

    def unary(self, value: Both) -> Both:
        numbers = value.numbers
        if value.kind is torch.bool:
            return Both(~value.value, lambda run: ~numbers(run), True)
        if value.kind.is_floating_point and not self.exact:
            ours, theirs = UNARY[self.draw.choice(sorted(UNARY))]
            return Both(ours(value.value), lambda run: theirs(numbers(run)), False)
        if self.draw.random() < 0.5 and value.kind is not torch.uint8:
            return Both(te.abs(value.value), lambda run: numbers(run).abs(), value.exact)
        return Both(-value.value, lambda run: -numbers(run), value.exact)

    def converted(self, value: Both) -> Both:
        dtype = self.draw.choice(self.dtypes)
        floating = te.dtypes.kind_of(dtype).is_floating_point
        if value.kind.is_floating_point and not floating and not value.exact:
            return value
        if value.kind.is_floating_point and dtype == "uint8":
            return value
        return cast(value, dtype, value.exact and (value.kind.is_floating_point or dtype not in HALVES))

    def whole(self, value: Both) -> Both:
        """What only integers have."""
        numbers, ours = value.numbers, value.value
        if value.kind.is_floating_point or value.kind is torch.bool:
            return value
        divisor = self.draw.choice((2, 3, 5))
        kind = self.draw.choice(("floordiv", "floormod", "shift", "and"))
        if kind == "floordiv":
            return Both(
                te.floordiv(ours, divisor),
                lambda run: torch.div(numbers(run), divisor, rounding_mode="floor"),
                True,
            )
        if kind == "floormod":
            return Both(te.floormod(ours, divisor), lambda run: torch.remainder(numbers(run), divisor), True)
        if kind == "shift":
            return Both(ours >> 1, lambda run: numbers(run) >> 1, True)
        return Both(ours & divisor, lambda run: numbers(run) & divisor, True)

    def condition(self, axes: Sequence[Axis]) -> Both:
        draw = self.draw
        if draw.random() < 0.3:
            value = self.leaf(axes)
            if value.exact:
                zero = te.const(0, value.value.dtype)
                numbers = value.numbers
                return Both(value.value != zero, lambda run: numbers(run) != 0, True)
        axis, other, cut = draw.choice(axes), draw.choice(axes), draw.randint(0, 6)
        rank = len(axes)
        if draw.random() < 0.3:
            return Both(axis.te % 2 == 0, lambda run: axis.grid(run, rank) % 2 == 0, True)
        if draw.random() < 0.4:
            return Both(
                axis.te + other.te < cut,
                lambda run: axis.grid(run, rank) + other.grid(run, rank) < cut,
                True,
            )
        return Both(axis.te < cut, lambda run: axis.grid(run, rank) < cut, True)

    def leaf(self, axes: Sequence[Axis]) -> Both:
        draw = self.draw
        kind = draw.choice(("load",) * 8 + ("index", "number"))
        if kind == "index":
            return self.index_value(axes)
        if kind == "number":
            dtype, number = draw.choice(self.dtypes[:2]), draw.choice((0, 1, 2, 3))
            torch_kind = te.dtypes.kind_of(dtype)
            value = te.const(number, dtype)
            return Both(value, lambda run: run.cast(torch.tensor(number).to(torch_kind), torch_kind), True)
        return self.load(axes)

    def index_value(self, axes: Sequence[Axis]) -> Both:
        axis, rank = self.draw.choice(axes), len(axes)
        kind = te.dtypes.kind_of(axis.te.dtype)
        # arithmetic of indices has no width; as a value it has
        return Both(axis.te.astype(axis.te.dtype) * 1, lambda run: axis.grid(run, rank).to(kind), True)

    def load(self, axes: Sequence[Axis]) -> Both:
        draw = self.draw
        known = [each for each in (*self.made, *self.inputs) if _is_plain(each)]
        if not known or draw.random() < (0.15 if self.made else 0.4):
            shape = tuple(axis.extent for axis in axes if draw.random() < 0.8)
            shape = tuple(d if isinstance(d, int) or draw.random() < 0.97 else 4 for d in shape)
            source = self.given(shape or (draw.choice((1, 3)),))
        else:
            latest = [each for each in self.made if _is_plain(each)]
            source = latest[-1] if latest and draw.random() < 0.5 else draw.choice(known)
        ours, theirs, conditions = [], [], []
        for dim in source.shape:
            at, numbers, condition = self.place(dim, axes)
            ours.append(at)
            theirs.append(numbers)
            conditions += [condition] if condition else []
        tensor = source.tensor

        def loaded(run: Run) -> Numbers:
            value = run.known[id(tensor)]
            index = [numbers(run) for numbers in theirs]
            clamped = [at.clamp(min=0, max=max(size - 1, 0)) for at, size in zip(index, value.shape)]
            if value.numel() == 0:
                sizes = torch.broadcast_shapes(*(at.shape for at in index))
                return torch.zeros(sizes, dtype=value.dtype)
            found = value[tuple(clamped)]
            for _, holds in conditions:
                found = torch.where(holds(run), found, torch.zeros((), dtype=value.dtype))
            return found

        value = tensor(*ours)
        if conditions:
            mask = te.all(*(ours for ours, _ in conditions))
            value = te.if_then_else(mask, value, te.const(0, tensor.dtype))
        return Both(value, loaded, source.exact)

    def place(self, dim: Any, axes: Sequence[Axis]) -> tuple[Any, Callable[[Run], Numbers], Any]:
        """An index of a dimension: te's, torch's, and the condition under which it is one."""
        draw, rank = self.draw, len(axes)
        axis = draw.choice(axes)
        same = [each for each in axes if each.begin == 0 and _same(each.extent, dim)]
        if same and draw.random() < 0.75:
            axis = draw.choice(same)
            if draw.random() < 0.15:
                return dim - 1 - axis.te, lambda run: run.size(dim) - 1 - axis.grid(run, rank), None
            return axis.te, lambda run: axis.grid(run, rank), None
        if not isinstance(dim, int) or dim == 0 or not isinstance(axis.extent, int):
            if isinstance(dim, int) and dim > 0 and draw.random() < 0.5:
                return axis.te % dim, lambda run: axis.grid(run, rank) % dim, None
            return self.outside(dim, axis, rank)
        end = axis.begin + axis.extent
        kinds = ["constant", "outside", "remainder", "gather"]
        kinds += ["shifted"] * 3 if end <= dim else ["quotient"] * 2
        kind = draw.choice(kinds)
        if kind == "constant":
            number = draw.randrange(dim)
            return number, lambda run: torch.tensor(number).view([1] * rank), None
        if kind == "remainder":
            return axis.te % dim, lambda run: axis.grid(run, rank) % dim, None
        if kind == "shifted":
            stride = draw.randint(1, max((dim - 1) // max(end - 1, 1), 1)) if end > 1 else 1
            first = draw.randint(0, dim - 1 - (end - 1) * stride) if end > 0 else 0
            return axis.te * stride + first, lambda run: axis.grid(run, rank) * stride + first, None
        if kind == "quotient":
            by = -(-end // dim)
            return axis.te // by, lambda run: axis.grid(run, rank) // by, None
        if kind == "gather" and axis.begin == 0 and axis.extent > 0:
            table = self.given((axis.extent,), draw.choice(("int32", "int64")), below=dim)
            key = id(table.tensor)
            view = [1] * rank
            view[axis.place] = -1
            return table.tensor[axis.te], lambda run: run.known[key].long().view(view), None
        return self.outside(dim, axis, rank)

    def outside(self, dim: Any, axis: Axis, rank: int) -> tuple[Any, Callable[[Run], Numbers], Any]:
        shift = self.draw.randint(0, 2)

        def holds(run: Run) -> Numbers:
            at = axis.grid(run, rank) - shift
            return (at >= 0) & (at < run.size(dim))

        ours = te.all(axis.te >= shift, axis.te - shift < dim)
        return axis.te - shift, lambda run: axis.grid(run, rank) - shift, (ours, holds)


def _is_plain(made: Made) -> bool:
    """Whether a tensor may be read at any index: it holds no indices, and its sizes have names."""
    return made.below is None and not any(isinstance(dim, Sum) for dim in made.shape)


def _same(one: Any, other: Any) -> bool:
    return one is other or (isinstance(one, int) and isinstance(other, int) and one == other)


def _both(f: Callable[[Numbers, Numbers], Numbers], a: Both, b: Both) -> Callable[[Run], Numbers]:
    return lambda run: f(a.numbers(run), b.numbers(run))


def cast(value: Both, dtype: str, exact: bool) -> Both:
    kind = te.dtypes.kind_of(dtype)
    return Both(value.value.astype(dtype), lambda run: run.cast(value.numbers(run), kind), exact)


def _matched(left: Both, right: Both) -> tuple[Both, Both]:
    """Two operands in the dtype that te converts them to."""
    kinds = {left.value.dtype, right.value.dtype}
    if kinds == set(HALVES):
        left, right = (cast(each, "float32", each.exact) for each in (left, right))
    kind = te.dtypes.promoted(left.kind, right.kind)

    def made(each: Both) -> Both:
        whole = te.dtypes.NAMES[kind] in HALVES and not each.kind.is_floating_point
        exact = each.exact and not whole
        return each if each.kind is kind else cast(each, te.dtypes.NAMES[kind], exact)

    return made(left), made(right)


__all__ = ["FLOATS", "Expressions", "cast"]
