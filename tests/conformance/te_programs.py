"""Random te programs, each with the same program in torch's words: what its results must be.

A program is one to four computations. The elements of each are an expression over loads, indices and
constants; a load's indices are axes, also turned, cut, repeated, strided, looked up or, behind a condition,
outside of it: broadcasts, transposes, reshapes, slices, windows, gathers and padding are all of this kind.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from smelt import te
from smelt.nest.stages import identity
from smelt.script.module import PrimFunc

FLOATS = ("float32", "float32", "float32", "float64", "float16", "bfloat16")
WHOLES = ("int32", "int64", "int8", "uint8")
EXTENTS = (1, 2, 3, 4, 5, 7, 8, 11, 13, 16, 17, 33)
SIZES = (0, 1, 2, 3, 5, 13, 16, 17)
MOST_ELEMENTS = 420
"""Elements, those that are reduced included, of one computation: the interpreter is slow."""
HALVES = ("float16", "bfloat16")

Numbers = torch.Tensor


def number_of(dim: Any, sizes: Mapping[str, int]) -> int:
    """What a size is."""
    if isinstance(dim, _Sum):
        return sizes[dim.dim.name] + dim.more
    return dim if isinstance(dim, int) else sizes[dim.name]


class Run:
    """One evaluation: what tensors hold, and what sizes are. ``wide``: floats are float64."""

    def __init__(self, given: Mapping[int, Numbers], sizes: Mapping[str, int], wide: bool) -> None:
        self.sizes, self.wide = sizes, wide
        self.known = {key: self.cast(value, value.dtype) for key, value in given.items()}

    def cast(self, value: Numbers, kind: torch.dtype) -> Numbers:
        return value.to(torch.float64 if self.wide and kind.is_floating_point else kind)

    def size(self, dim: Any) -> int:
        return number_of(dim, self.sizes)


@dataclass(slots=True)
class Axis:
    """An axis of a computation: te's, where it begins, its extent; its place among all of them."""

    te: Any
    begin: int
    extent: Any
    place: int

    def grid(self, run: Run, rank: int) -> Numbers:
        view = [1] * rank
        view[self.place] = -1
        return torch.arange(self.begin, self.begin + run.size(self.extent)).view(view)


@dataclass(slots=True)
class Both:
    """An expression of te, and all of its elements of torch. ``exact``: it is computed without rounding."""

    value: Any
    numbers: Callable[[Run], Numbers]
    exact: bool

    @property
    def kind(self) -> torch.dtype:
        return te.dtypes.kind_of(self.value.dtype)


@dataclass(slots=True)
class Made:
    """A tensor, and how its numbers are found."""

    tensor: te.Tensor
    shape: tuple[Any, ...]
    exact: bool
    numbers: Callable[[Run], Numbers] | None = None
    below: Any = None
    """Of a tensor of indices: what they are less than."""


@dataclass(slots=True)
class TeProgram:
    """Tensors in the order of the parameters, what is computed in the order in which it is."""

    seed: int
    params: list[Made]
    made: list[Made]
    sizes: list[dict[str, int]]
    unread: list[Made]
    """What torch reads and te does not, whose conditions never hold."""
    func: PrimFunc = field(init=False)

    def __post_init__(self) -> None:
        self.func = te.create_prim_func([each.tensor for each in self.params])

    def shape(self, made: Made, sizes: Mapping[str, int]) -> list[int]:
        return [number_of(dim, sizes) for dim in made.shape]

    def inputs(self, sizes: Mapping[str, int]) -> list[Numbers]:
        """Numbers for the parameters that are given, in order."""
        draw = torch.Generator().manual_seed(self.seed)
        given = [each for each in self.params if each.numbers is None]
        return [_drawn(each, self.shape(each, sizes), draw) for each in given]

    def results(self, inputs: Sequence[Numbers], sizes: Mapping[str, int], wide: bool) -> list[Numbers]:
        """What the other parameters hold in the end, in order."""
        given = [each for each in self.params if each.numbers is None]
        known = {id(each.tensor): value for each, value in zip(given, inputs)}
        for each in self.unread:
            kind = te.dtypes.kind_of(each.tensor.dtype)
            known.setdefault(id(each.tensor), torch.zeros(self.shape(each, sizes), dtype=kind))
        run = Run(known, sizes, wide)
        for each in self.made:
            assert each.numbers is not None
            run.known[id(each.tensor)] = each.numbers(run)
        return [run.known[id(each.tensor)] for each in self.params if each.numbers is not None]


def _drawn(made: Made, shape: Sequence[int], draw: torch.Generator) -> Numbers:
    kind = te.dtypes.kind_of(made.tensor.dtype)
    if made.below is not None:
        return torch.randint(0, max(made.below, 1), shape, generator=draw).to(kind)
    if kind.is_floating_point and not made.exact:
        return torch.randn(shape, generator=draw).to(kind)
    low, high = {torch.bool: (0, 2), torch.uint8: (0, 6)}.get(kind, (-3, 4))
    return torch.randint(low, high, shape, generator=draw).to(kind)


def generate(seed: int) -> TeProgram:
    """The program of a number."""
    return _Writer(seed).program()


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
FOLDS: dict[str, Callable[[Numbers, Numbers], Numbers]] = {
    "sum": torch.add,
    "prod": torch.mul,
    "max": torch.maximum,
    "min": torch.minimum,
}


class _Writer:
    def __init__(self, seed: int) -> None:
        self.seed, self.draw = seed, random.Random(seed)
        draw = self.draw
        self.exact = draw.random() < 0.6
        self.dtypes = [draw.choice(FLOATS), draw.choice((*FLOATS, *WHOLES, "bool")), draw.choice(WHOLES)]
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
        self.inputs: list[Made] = []
        self.made: list[Made] = []
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

    def given(self, shape: tuple[Any, ...], dtype: str | None = None, below: Any = None) -> Made:
        dtype = dtype or self.draw.choice(self.dtypes)
        tensor = te.placeholder(shape, dtype, f"A{len(self.inputs)}")
        exact = self.exact or not te.dtypes.kind_of(dtype).is_floating_point
        self.inputs.append(Made(tensor, shape, exact, below=below))
        return self.inputs[-1]

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
            value = _drawn(each, shape, draw)
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
                value = _cast(value, "int32", exact=True) if not value.kind.is_floating_point else None
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
            self.made.append(Made(made, (*rest, _Sum(last, before + after)), source.exact, numbers))
        else:
            self.add(made, shape, [numbers])

    # -- expressions -----------------------------------------------------------------------------------------

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
        return _cast(value, dtype, value.exact and (value.kind.is_floating_point or dtype not in HALVES))

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


class _Sum:
    """A size that is another and a number."""

    def __init__(self, dim: Any, more: int) -> None:
        self.dim, self.more = dim, more


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


def _is_plain(made: Made) -> bool:
    """Whether a tensor may be read at any index: it holds no indices, and its sizes have names."""
    return made.below is None and not any(isinstance(dim, _Sum) for dim in made.shape)


def _same(one: Any, other: Any) -> bool:
    return one is other or (isinstance(one, int) and isinstance(other, int) and one == other)


def _as(dtype: str, numbers: Callable[[Run], Numbers]) -> Callable[[Run], Numbers]:
    kind = te.dtypes.kind_of(dtype)
    return lambda run: run.cast(numbers(run), kind)


def _expanded(value: Both, shape: Sequence[Any]) -> Callable[[Run], Numbers]:
    return lambda run: value.numbers(run).expand([run.size(dim) for dim in shape]).clone()


def _both(f: Callable[[Numbers, Numbers], Numbers], a: Both, b: Both) -> Callable[[Run], Numbers]:
    return lambda run: f(a.numbers(run), b.numbers(run))


def _cast(value: Both, dtype: str, exact: bool) -> Both:
    kind = te.dtypes.kind_of(dtype)
    return Both(value.value.astype(dtype), lambda run: run.cast(value.numbers(run), kind), exact)


def _matched(left: Both, right: Both) -> tuple[Both, Both]:
    """Two operands in the dtype that te converts them to."""
    kinds = {left.value.dtype, right.value.dtype}
    if kinds == set(HALVES):
        left, right = (_cast(each, "float32", each.exact) for each in (left, right))
    kind = te.dtypes.promoted(left.kind, right.kind)

    def made(each: Both) -> Both:
        whole = te.dtypes.NAMES[kind] in HALVES and not each.kind.is_floating_point
        exact = each.exact and not whole
        return each if each.kind is kind else _cast(each, te.dtypes.NAMES[kind], exact)

    return made(left), made(right)


__all__ = ["TeProgram", "generate"]
