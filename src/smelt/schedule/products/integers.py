"""Products of quantized weights and quantized activations: sums of integers, then their scales.

Both operands are ``scale * (quant - zero point) + minimum`` with numbers that groups of terms share. So is a
product a sum over groups of a sum of integers, which is exact, and which processors have an instruction for::

    sum over g: x.scale * w.scale * (sum over k of g: x.quant * (w.quant - zero point))
                + w.minimum * x.scale * (sum over k of g: x.quant)

The loop functions say which elements are such numbers: nothing depends on the operators that made them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import sympy
import torch
from sympy import Expr, Symbol

from smelt.contract.weight_formats import LANES
from smelt.loops.dependencies import variables
from smelt.loops.ir import Contraction, Graph, Index, Pointwise, Value
from smelt.loops.record import Recorder
from smelt.loops.straightline import Instruction, Recordable, prune
from smelt.records import dataclass, field, replace
from smelt.schedule.few_rows import FEWEST_TERMS, FEWEST_WEIGHTS
from smelt.schedule.loops import Target
from smelt.schedule.products.operands import Dtypes, Product, is_plain, operand_place
from smelt.symbolic import FloorDiv, Mod, flatten, simplify
from smelt.symbolic.affine import expand, linear, replaced

TERMS = 32
"""The terms that one scale of activations is for, if it is not for all of a row."""
GROUPS = (32, 64, 128)
Function = Callable[[Index, Index], Value]
MOST_TERMS = 1 << 16
"""Limit on the terms: a sum of products of bytes stays within 32 bits."""


@dataclass(frozen=True, slots=True)
class Quantized:
    """The elements of an operand as quants: ``scale * (quant - zero - offset) + minimum``, in that order.

    ``steps``: the code of one element, of which ``scales`` (factors), ``zero`` and ``minimum`` are names of
    values. ``buffer``: that of the quants, of ``bits`` bits; ``place``: the flat index of the first term's.
    ``group``: the number of terms with the same numbers; None: all.
    """

    steps: tuple[Recordable, ...]
    bits: int
    buffer: str
    place: Expr
    group: int | None
    scales: tuple[str, ...]
    offset: int = 0
    zero: str | None = None
    minimum: str | None = None

    @property
    def shifted(self) -> bool:
        """Whether groups have a number that is added."""
        return self.zero is not None or self.minimum is not None


@dataclass(frozen=True, slots=True)
class Computed:
    """A loop function over (index, rindex): an element of a pointwise node, read at ``places`` over
    ``symbols``.
    """

    inner_fn: Callable[[Index], Value]
    places: tuple[Expr, ...]
    symbols: tuple[Symbol, ...]

    def __call__(self, index: Index, rindex: Index) -> Value:
        where = dict(zip(self.symbols, (*index, *rindex), strict=True))
        return self.inner_fn(tuple(replaced(expr, where) for expr in self.places))


@dataclass(frozen=True, slots=True)
class Weight:
    """The loop function of a weight whose products are sums of integers."""

    function: Computed

    def __call__(self, index: Index, rindex: Index) -> Value:
        return self.function(index, rindex)


def with_integers(product: Product, graph: Graph, target: Target) -> Contraction | None:
    """The body of a product that sums integers: its operands read quants and scales; None where it cannot."""
    return graph.worked_out("integers", product.body, lambda: _with_integers(product, graph, target), target)


def _with_integers(product: Product, graph: Graph, target: Target) -> Contraction | None:
    body, rank = product.body, len(product.body.shape)
    if torch.int8 not in target.dot_products or target.vector_bytes < 64 or body.dtype != torch.float32:
        return None
    plain = not (product.batch or product.shared or product.swapped or product.split)
    if (
        not plain
        or rank != 2
        or len(body.reduce_shape) != 1
        or (product.rows, product.columns) != ((0,), (1,))
    ):
        return None
    columns, depth = product.extents[-1], product.depth
    if (
        not (columns.is_Integer and depth.is_Integer)
        or depth % TERMS
        or not FEWEST_TERMS <= depth < MOST_TERMS
    ):
        return None
    if columns * depth < FEWEST_WEIGHTS:
        return None
    lhs, rhs = (_computed(function, body, graph) for function in (body.lhs, body.rhs))
    if lhs is None or rhs is None:
        return None
    made = replace(body, lhs=lhs, rhs=Weight(rhs))
    return None if operands_of(made, graph) is None else made


def operands_of(body: Contraction, graph: Graph) -> tuple[Quantized, Quantized] | None:
    """The quantized rows and columns of a product; None if they have no sums of integers."""
    row, column = variables("i", 2)
    left = _quantized(body.lhs, body, graph, row)
    if left is None or left.bits != 8 or left.shifted or left.offset or (left.group or TERMS) % TERMS:
        return None
    right = _quantized(body.rhs, body, graph, column)
    if right is None or (right.group or TERMS) not in GROUPS:
        return None
    if right.group is None and (right.bits == 4 or right.shifted):
        return None
    if right.bits == 8 and right.shifted and right.group != TERMS:
        return None
    return left, right


def _computed(function: Function, body: Contraction, graph: Graph) -> Computed | None:
    """An operand that is one plain load of what a pointwise node computes, as that computation."""
    if operand_place(function, body, graph) is None:
        return None
    (load,), _ = _code(function, body, graph)
    buffer, places = load.args  # type: ignore[union-attr]
    node = next((node for node in graph.nodes if buffer in node.outputs), None)
    if node is None or not isinstance(node.body, Pointwise):
        return None
    symbols = (*variables("i", len(body.shape)), *variables("r", len(body.reduce_shape)))
    return Computed(node.body.inner_fn, tuple(places), symbols)


def _code(function: Function, body: Contraction, graph: Graph) -> tuple[tuple[Recordable, ...], str]:
    outer, terms = variables("i", len(body.shape)), variables("r", len(body.reduce_shape))
    recorder = Recorder(Dtypes(graph.buffers), dict(zip((*outer, *terms), (*body.shape, *body.reduce_shape))))
    value = recorder.run(function, outer, terms)
    return prune(recorder.instructions, [value.name], set()), value.name


def _quantized(function: Function, body: Contraction, graph: Graph, line: Symbol) -> Quantized | None:
    """An operand's quants and the numbers that groups share; None if it is computed in another way.

    ``line``: the variable of its rows or columns, which have contiguous terms.
    """
    steps, result = _code(function, body, graph)
    if not is_plain(steps):
        return None
    (term,) = variables("r", 1)
    symbols = (*variables("i", 2), term)
    extents = dict(zip(symbols, (*body.shape, *body.reduce_shape)))
    by_name = {step.name: step for step in steps if isinstance(step, Instruction)}
    reader = _Reader(by_name, graph, term, extents)
    found = reader.value(result)
    if found is None or reader.group == 0:
        return None
    place = replaced(found.place, {term: sympy.Integer(0)})
    step, rest = linear(place, line)
    if rest != 0 or not step.is_Integer:
        return None
    return replace(found, steps=steps, place=place, group=reader.group)


@dataclass(slots=True)
class _Reader:
    """Reads code back to front. ``group``: the greatest number of terms with the same numbers so far; 0:
    there is none.
    """

    steps: Mapping[str, Instruction]
    graph: Graph
    term: Symbol
    extents: Mapping[Symbol, Expr]
    group: int | None = None
    known: dict[str, bool] = field(default_factory=dict)

    def value(self, name: str) -> Quantized | None:
        """The quant that a value is computed from, with all that is applied to it."""
        step = self.steps[name]
        if step.op == "load":
            return self._bytes(step)
        if step.op == "bitwise_and":
            return self._nibble(step)
        if step.op == "to_dtype":
            found = self.value(step.args[0])
            exact = step.dtype in (torch.int32, torch.int64, torch.float32)
            return found if exact and found is not None and not found.scales else None
        if step.op not in ("sub", "mul", "add"):
            return None
        quant, number = step.args
        if step.op != "sub" and self._is_shared(quant):
            quant, number = number, quant
        if self._is_shared(quant) or not self._is_shared(number):
            return None
        found = self.value(quant)
        if found is None or found.minimum is not None:
            return None
        if step.op == "sub":
            if step.dtype.is_floating_point or found.zero is not None:
                return None
            by = self.steps[number]
            if by.op == "constant":
                return replace(found, offset=found.offset + int(by.args[0]))
            return replace(found, zero=number)
        if step.dtype is not torch.float32:
            return None
        if step.op == "mul":
            return replace(found, scales=(*found.scales, number))
        return replace(found, minimum=number) if found.scales else None

    def _is_shared(self, name: str) -> bool:
        """Whether a group of terms has one value; narrows the group to the terms that have."""
        if name not in self.known:
            self.known[name] = self._find_shared(name)
        return self.known[name]

    def _find_shared(self, name: str) -> bool:
        step = self.steps[name]
        if step.op == "constant":
            return True
        if step.op in ("load", "index_expr"):
            places = step.args[1] if step.op == "load" else (step.args[0],)
            sizes: set[int] = set()
            for place in places:
                divisions = [each for each in place.atoms(FloorDiv) if each.args[0] == self.term]
                rest = place.xreplace({each: sympy.Integer(0) for each in divisions})
                if rest.has(self.term) or not all(each.args[1].is_Integer for each in divisions):
                    return False
                sizes.update(int(each.args[1]) for each in divisions)
            for size in sizes:
                self.group = size if self.group is None else sympy.gcd(self.group, size)
            self.group = None if self.group is None else int(self.group)
            return True
        return all(self._is_shared(arg) for arg in step.args if isinstance(arg, str))

    def _loaded(self, name: str, dtype: torch.dtype) -> tuple[str, Expr] | None:
        """The buffer of this dtype and the flat index that a value, converted or not, is loaded from."""
        step = self.steps[name]
        if step.op == "to_dtype":
            return self._loaded(step.args[0], dtype)
        if step.op != "load" or step.dtype is not dtype:
            return None
        buffer, index = step.args
        flat = expand(flatten(index, self.graph.buffers[buffer].strides))
        return buffer, expand(simplify(flat, self.extents))

    def _bytes(self, step: Instruction) -> Quantized | None:
        found = self._loaded(step.name, torch.int8)
        if found is None or linear(found[1], self.term)[0] != 1:
            return None
        return Quantized((), 8, *found, None, ())

    def _nibble(self, step: Instruction) -> Quantized | None:
        """Numbers of 4 bits in the order of `smelt.contract.weight_formats.pack`."""
        shifted, mask = (self.steps[arg] for arg in step.args)
        if mask.op != "constant":
            shifted, mask = mask, shifted
        if mask.op != "constant" or mask.args[0] != 15 or shifted.op != "rshift":
            return None
        by, found = self.steps[shifted.args[1]], self._loaded(shifted.args[0], torch.uint8)
        if found is None or by.op != "index_expr":
            return None
        buffer, place = found
        begin = replaced(place, {self.term: sympy.Integer(0)})
        byte: Expr = FloorDiv(self.term, sympy.Integer(2 * LANES)) * LANES + Mod(
            self.term, sympy.Integer(LANES)
        )
        bits: Expr = 4 * FloorDiv(Mod(self.term, sympy.Integer(2 * LANES)), sympy.Integer(LANES))
        for number in range(0, 4 * LANES, 3):
            at = {self.term: sympy.Integer(number)}
            if expand(place.xreplace(at) - begin - byte.xreplace(at)) != 0:
                return None
            if by.args[0].xreplace(at) != bits.xreplace(at):
                return None
        return Quantized((), 4, buffer, begin, None, ())


def numbers_of(
    of: Quantized, names: Sequence[str | None], where: Mapping[Symbol, Expr], extents: Mapping[Symbol, Expr]
) -> list[Instruction]:
    """The code of values that groups share, at the variables' values ``where``."""
    wanted = [name for name in names if name is not None]
    found: list[Instruction] = []
    for step in prune(list(of.steps), wanted, set()):
        assert isinstance(step, Instruction)
        args = step.args
        if step.op == "load":
            args = (args[0], tuple(simplify(replaced(place, where), extents) for place in args[1]))
        elif step.op == "index_expr":
            args = (simplify(replaced(args[0], where), extents),)
        found.append(replace(step, args=args))
    return found
