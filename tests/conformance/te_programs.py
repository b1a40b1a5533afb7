"""Random te programs, each with the same program in torch's words: what its results must be.

A program is one to four computations. The elements of each are an expression over loads, indices and
constants; a load's indices are axes, also turned, cut, repeated, strided, looked up or, behind a condition,
outside of it: broadcasts, transposes, reshapes, slices, windows, gathers and padding are all of this kind.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from smelt import te
from smelt.nest.stages import identity
from tests.conformance.te_data import HALVES, Axis, Both, Made, Numbers, Run, Sum, TeProgram, drawn
from tests.conformance.te_expressions import FLOATS, Expressions, cast

EXTENTS = (1, 2, 3, 4, 5, 7, 8, 11, 13, 16, 17, 33)
SIZES = (0, 1, 2, 3, 5, 13, 16, 17)
MOST_ELEMENTS = 420
"""Elements, those that are reduced included, of one computation: the interpreter is slow."""

FOLDS: dict[str, Callable[[Numbers, Numbers], Numbers]] = {
    "sum": torch.add,
    "prod": torch.mul,
    "max": torch.maximum,
    "min": torch.minimum,
}


def generate(seed: int) -> TeProgram:
    """The program of a number."""
    return Writer(seed).program()


class Writer(Expressions):
    """Draws computations, one after the other."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        draw = self.draw
        self.dims: list[Any] = [draw.choice(EXTENTS) for _ in range(3)]
        if draw.random() < 0.03:
            self.dims[0] = 0
        self.sizes: list[dict[str, int]] = [{}]
        if draw.random() < 0.3:
            names = ["n", "m"][: draw.randint(1, 2)]
            for place, name in enumerate(names):
                self.dims[place] = te.var(name, draw.choice(["int32", "int64"]))
            first = {name: draw.choice((7, 13)) for name in names}
            more = [{name: draw.choice(SIZES) for name in names} for _ in range(2)]
            self.sizes = [first, *more]
        self.count = itertools.count()

    def program(self) -> TeProgram:
        draw = self.draw
        for _ in range(draw.randint(1, 4)):
            draw.choice((self.elementwise, self.elementwise, self.reduction, self.reduction, self.known))()
        read = {id(each) for made in self.made for each in made.tensor.op.input_tensors}
        wanted = [each for each in self.made if id(each.tensor) not in read or draw.random() < 0.25]
        used = [each for each in self.inputs if id(each.tensor) in read]
        sized = {dim.name for each in (*used, *wanted) for dim in each.shape if isinstance(dim, te.Var)}
        for dim in self.dims:
            if not isinstance(dim, int) and dim.name not in sized:
                used.append(self.given((dim,)))
        unread = [each for each in self.inputs if id(each.tensor) not in read]
        return TeProgram(self.seed, [*used, *wanted], self.made, self.sizes, unread)

    # -- tensors ---------------------------------------------------------------------------------------------

    def shape(self, most: int = 3) -> tuple[Any, ...]:
        rank = self.draw.choice((1, 1, 2, 2, 2, 3)[: 2 * most])
        return tuple(self.draw.choice(self.dims) for _ in range(rank))

    def fitting(self, shape: tuple[Any, ...], room: int) -> tuple[Any, ...]:
        """The dimensions of a shape, the last ones left out, that ``room`` elements are enough for."""
        kept: list[Any] = []
        for dim in shape:
            room //= max(dim if isinstance(dim, int) else 17, 1)
            if room < 1:
                break
            kept.append(dim)
        return tuple(kept) or (1,)

    def add(self, tensors: Any, shape: tuple[Any, ...], evaluate: Sequence[Callable[[Run], Numbers]]) -> None:
        tensors = tensors if isinstance(tensors, tuple) else (tensors,)
        for tensor, numbers in zip(tensors, evaluate):
            made = Made(tensor, shape, self.exact, _as(tensor.dtype, numbers))
            self.made.append(made)
            made.exact = self.is_exact(made)

    def is_exact(self, made: Made) -> bool:
        """Whether a tensor is the same in its own dtypes and in wide ones."""
        if not te.dtypes.kind_of(made.tensor.dtype).is_floating_point:
            return True
        low, high = self.evaluated(False)[-1], self.evaluated(True)[-1]
        few = made.tensor.dtype not in HALVES or high.abs().max() < 64 if high.numel() else True
        return self.exact and bool(few) and torch.equal(low.double(), high)

    def evaluated(self, wide: bool) -> list[Numbers]:
        sizes = self.sizes[0]
        draw = torch.Generator().manual_seed(self.seed)
        run = Run({}, sizes, wide)
        for each in self.inputs:
            shape = [run.size(dim) for dim in each.shape]
            value = drawn(each, shape, draw)
            run.known[id(each.tensor)] = run.cast(value, value.dtype)
        for each in self.made:
            run.known[id(each.tensor)] = each.numbers(run)  # type: ignore[misc]
        return [run.known[id(each.tensor)] for each in self.made]

    # -- computations ----------------------------------------------------------------------------------------

    def elementwise(self) -> None:
        shape = self.fitting(self.shape(), MOST_ELEMENTS)
        several = self.draw.random() < 0.15
        found: list[Both] = []

        def body(*index: Any) -> Any:
            axes = [Axis(at, 0, size, place) for place, (at, size) in enumerate(zip(index, shape))]
            found[:] = [self.expression(axes, self.draw.randint(0, 2)) for _ in range(1 + several)]
            return tuple(each.value for each in found) if several else found[0].value

        made = te.compute(shape, body, name=self.name())
        self.add(made, shape, [_expanded(each, shape) for each in found])

    def name(self) -> str:
        return f"T{next(self.count)}"

    def reduction(self) -> None:
        draw = self.draw
        over = self.fitting(self.shape(2), MOST_ELEMENTS // 4)
        room = MOST_ELEMENTS // max(math.prod(d if isinstance(d, int) else 17 for d in over), 1)
        shape = self.fitting(self.shape(2), room)
        begins = [1 if isinstance(d, int) and d > 2 and draw.random() < 0.1 else 0 for d in over]
        extents = [d - b if b else d for d, b in zip(over, begins)]
        labels = ["k", "q", "r"]
        reduced = [
            te.reduce_axis((b, b + e if b else e), label) for b, e, label in zip(begins, extents, labels)
        ]
        kind = draw.choice(("sum", "sum", "sum", "max", "min", "prod", "arg", "pair", "own"))
        found: list[Both] = []
        mask: list[Both] = []

        def body(*index: Any) -> Any:
            axes = [Axis(at, 0, size, place) for place, (at, size) in enumerate(zip(index, shape))]
            axes += [
                Axis(at, b, e, len(shape) + place)
                for place, (at, b, e) in enumerate(zip(reduced, begins, extents))
            ]
            value = self.expression(axes, draw.randint(0, 1))
            if kind == "arg" and not value.exact:
                value = cast(value, "int32", exact=True) if not value.kind.is_floating_point else None
            if value is None or value.kind is torch.bool:
                value = self.index_value(axes)
            if kind == "prod":
                value = self.between(value, 2)
            found[:] = [value]
            if draw.random() < 0.15 and kind in FOLDS:
                mask.append(self.condition(axes))
            where = mask[0].value if mask else None
            if kind in FOLDS:
                return getattr(te, kind)(value.value, axis=reduced, where=where)
            if kind == "arg":
                return te.argmax((reduced[0], value.value), axis=reduced)
            if kind == "own":
                return _widest()(value.value, axis=reduced)
            return _pair()((value.value, value.value), axis=reduced)

        made = te.compute(shape, body, name=self.name())
        (value,) = found
        dtype = value.kind
        dims = len(shape)

        def terms(run: Run) -> list[tuple[Numbers, Numbers]]:
            whole = [run.size(d) for d in (*shape, *extents)]
            flat = [*whole[:dims], math.prod(whole[dims:])]
            numbers = value.numbers(run).expand(whole).reshape(flat)
            taken = mask[0].numbers(run) if mask else torch.tensor(True)
            taken = taken.expand(whole).reshape(flat)
            return list(zip(numbers.unbind(-1), taken.unbind(-1)))

        def folded(name: str) -> Callable[[Run], Numbers]:
            combine = FOLDS.get(name) or _wider

            def evaluate(run: Run) -> Numbers:
                first = 0 if name == "own" else identity(name, dtype)
                total = run.cast(torch.full([run.size(d) for d in shape], first, dtype=dtype), dtype)
                for term, taken in terms(run):
                    total = torch.where(taken, combine(total, term), total)
                return total

            return evaluate

        def position(run: Run) -> Numbers:
            sizes = [run.size(d) for d in shape]
            best = run.cast(torch.full(sizes, identity("max", dtype), dtype=dtype), dtype)
            kind = te.dtypes.kind_of(reduced[0].dtype)
            at = torch.full(sizes, torch.iinfo(kind).max, dtype=torch.int64)
            inner = math.prod(run.size(d) for d in extents[1:])
            for number, (term, _) in enumerate(terms(run)):
                here = begins[0] + number // max(inner, 1)
                better = (term > best) | ((term == best) & (at > here))
                best, at = torch.where(better, term, best), torch.where(better, here, at)
            return at

        rules = {"arg": (position, folded("max")), "pair": (folded("sum"), folded("max"))}
        self.add(made, shape, rules.get(kind, (folded(kind),)))

    def known(self) -> None:
        """Products, windows, padding: what people write, and what some primitives are for."""
        self.draw.choice((self.product, self.product, self.window, self.padded))()

    def product(self) -> None:
        m, n, k = (self.draw.choice(self.dims) for _ in range(3))
        while math.prod(d if isinstance(d, int) else 13 for d in (m, n, k)) > 4 * MOST_ELEMENTS:
            m, n, k = (d if not isinstance(d, int) else max(d // 2, 1) for d in (m, n, k))
            if not isinstance(m, int) and not isinstance(n, int) and not isinstance(k, int):
                k = 2
        dtype = self.draw.choice((*self.dtypes[:1], "float32", "int32"))
        a, b = self.given((m, k), dtype), self.given((k, n), dtype)
        kk = te.reduce_axis((0, k), "k")
        made = te.compute(
            (m, n), lambda i, j: te.sum(a.tensor[i, kk] * b.tensor[kk, j], axis=kk), name=self.name()
        )

        def numbers(run: Run) -> Numbers:
            x, y = run.known[id(a.tensor)], run.known[id(b.tensor)]
            total = torch.zeros(x.shape[0], y.shape[1], dtype=x.dtype)
            for number in range(x.shape[1]):
                total = total + x[:, number, None] * y[number]
            return total

        self.add(made, (m, n), [numbers])
        if self.draw.random() < 0.5:
            self.chain(self.made[-1])

    def chain(self, source: Made) -> None:
        """One computation of another alone, element by element."""

        def body(*index: Any) -> Any:
            return te.max(source.tensor(*index), 0) + 1

        made = te.compute(source.shape, body, name=self.name())
        self.add(made, source.shape, [lambda run: torch.clamp(run.known[id(source.tensor)], min=0) + 1])

    def window(self) -> None:
        draw = self.draw
        length, width, stride = draw.choice((5, 9, 16)), draw.choice((2, 3)), draw.choice((1, 1, 2))
        rows = draw.choice(self.dims)
        x = self.given((rows, (length - 1) * stride + width))
        if te.dtypes.kind_of(x.tensor.dtype) is torch.bool:
            x = self.given((rows, (length - 1) * stride + width), "float32")
        w = self.given((width,), x.tensor.dtype)
        k = te.reduce_axis((0, width), "k")
        made = te.compute(
            (rows, length),
            lambda i, j: te.sum(x.tensor[i, j * stride + k] * w.tensor[k], axis=k),
            name=self.name(),
        )

        def numbers(run: Run) -> Numbers:
            a, b = run.known[id(x.tensor)], run.known[id(w.tensor)]
            total = torch.zeros(a.shape[0], length, dtype=a.dtype)
            for number in range(width):
                total = total + a[:, number : number + (length - 1) * stride + 1 : stride] * b[number]
            return total

        self.add(made, (rows, length), [numbers])

    def padded(self) -> None:
        source = (
            self.draw.choice(self.made)
            if self.made and self.draw.random() < 0.6
            else self.given(self.shape(2))
        )
        if source.below is not None:
            return
        before, after = self.draw.randint(0, 2), self.draw.randint(0, 2)
        *rest, last = source.shape
        wide = last + before + after

        def body(*index: Any) -> Any:
            at = index[-1]
            inside = te.all(at >= before, at < last + before)
            return te.if_then_else(
                inside, source.tensor(*index[:-1], at - before), te.const(1, source.tensor.dtype)
            )

        made = te.compute((*rest, wide), body, name=self.name())

        def numbers(run: Run) -> Numbers:
            value = run.known[id(source.tensor)]
            one = torch.ones((), dtype=value.dtype)
            edges = [one.expand(*value.shape[:-1], width) for width in (before, after)]
            return torch.cat([edges[0], value, edges[1]], -1)

        shape = (*rest, wide) if isinstance(wide, int) else None
        if shape is None:  # a size that is made of another: what reads it would need its name
            self.made.append(Made(made, (*rest, Sum(last, before + after)), source.exact, numbers))
        else:
            self.add(made, shape, [numbers])


def _widest() -> Any:
    """A reduction of one's own: of two numbers the one that is further from 0, made positive."""
    return te.comm_reducer(lambda a, b: te.max(te.abs(a), te.abs(b)), lambda t: te.const(0, t), "widest")


def _wider(a: Numbers, b: Numbers) -> Numbers:
    return torch.maximum(a.abs(), b.abs())


def _pair() -> Any:
    """The sum and the largest, at once."""
    return te.comm_reducer(
        lambda a, b: (a[0] + b[0], te.max(a[1], b[1])),
        lambda t, u: (te.const(0, t), te.min_value(u) if u not in FLOATS else te.const(-math.inf, u)),
        "pair",
    )


def _as(dtype: str, numbers: Callable[[Run], Numbers]) -> Callable[[Run], Numbers]:
    kind = te.dtypes.kind_of(dtype)
    return lambda run: run.cast(numbers(run), kind)


def _expanded(value: Both, shape: Sequence[Any]) -> Callable[[Run], Numbers]:
    return lambda run: value.numbers(run).expand([run.size(dim) for dim in shape]).clone()


__all__ = ["TeProgram", "generate"]
