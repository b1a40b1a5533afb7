"""Linalg on tensors as a target: tensors, numbers, control flow by ``scf``, assertions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import sympy
import torch
from sympy import Expr, Symbol

from smelt.loops.ir import Extern, Graph
from smelt.loops.philox import GENERATOR
from smelt.mlir import bindings
from smelt.mlir.arrays.decomposed import DECOMPOSED
from smelt.mlir.arrays.dialect import Arguments, Array, Arrays, Branch, Kind, Number, Shape, Step
from smelt.mlir.arrays.loops import View
from smelt.mlir.attributes import elements
from smelt.mlir.bindings import arith, ir, ml_program, scf, tensor
from smelt.mlir.capabilities import ASSERTIONS, BODIES, CALLS, SEED, Capabilities
from smelt.mlir.linalg.bodies import Bodies
from smelt.mlir.linalg.contractions import contract
from smelt.mlir.linalg.operands import reshape
from smelt.mlir.linalg.scalars import ELEMENTWISE, Scalar, as_index, compare, convert, require, word
from smelt.mlir.linalg.sorting import sort
from smelt.mlir.linalg.writer import ONE, Writer
from smelt.mlir.target import Target
from smelt.symbolic.affine import symbols_in
from smelt.symbolic.solving import solve_sizes

ZERO = sympy.Integer(0)
GLOBAL = "seed"
"""The name of the global with the random generator's state."""

_INLINE = 16
"""The maximal number of elements printed inside of the operation."""


class Linalg(Target):
    """Writes Linalg on tensors. Numbers are `Scalar`: of type ``index``, ``i64``, ``f64`` or ``i1``.

    Sizes stay dynamic (``?``). Assertions (``cf.assert``) check the program's assumptions on sizes, and that
    positions are in range; a message begins with the name of eager's exception. Integers are signless, uint8
    is ``i8``. Long sums of float32 are computed in ``f64``. Random numbers come from a seed in a global of
    the module (``ml_program.global``). Loop bodies are evaluated element by element, not over whole arrays
    (`smelt.mlir.linalg.bodies`).
    """

    title = "Linalg"
    capabilities = Capabilities(
        BODIES, frozenset({*ELEMENTWISE, *DECOMPOSED}), calls=CALLS | {SEED, *ASSERTIONS}
    )
    raises = True

    def __init__(self) -> None:
        super().__init__()
        self.writer = Writer(self.symbols)
        self.seeded = False

    def bodies(self, graph: Graph, buffers: Mapping[str, Array], view: View) -> Bodies:
        return _Bodies(self, self.writer, graph, buffers, view)

    # -- numbers ------------------------------------------------------------------------------------

    def number_type(self, dtype: torch.dtype) -> Any:
        return bindings.element_type(dtype)

    def number_argument(self, value: Any, dtype: torch.dtype) -> Scalar:
        return Scalar(value, dtype)

    def full(self, value: Number, dtype: torch.dtype, shape: Shape) -> Array:
        return Array(self.writer.fill(value, dtype, shape), dtype, shape)

    def literal(self, tensor: torch.Tensor, name: str) -> Array:
        """``arith.constant``; many elements become a resource ``name`` that shares the tensor's memory."""
        shape = tuple(sympy.Integer(size) for size in tensor.shape)
        value = elements(tensor, self.element(tensor.dtype), name, _INLINE)
        return Array(arith.ConstantOp(self.type(tensor.dtype, shape), value).result, tensor.dtype, shape)

    def size(self, expr: Any) -> Scalar:
        return word(self.writer.sizes.number(sympy.sympify(expr)))

    def bind(self, symbol: Symbol, number: Array) -> None:
        self.writer.sizes.know(symbol.name, self.item(number))

    def item(self, x: Array) -> Scalar:
        if isinstance(x, Scalar):
            return x
        zero = [arith.constant(ir.IndexType.get(), 0) for _ in x.shape]
        return self.writer.element(x.value, zero, x.dtype)

    def require(self, condition: Array, message: str) -> None:
        require(self.item(condition), message)

    # -- sizes --------------------------------------------------------------------------------------

    def know(self, arguments: Mapping[str, Array], conditions: Iterable[Any] = ()) -> None:
        """Read each size symbol from a dimension of an argument. Assertions check the other dimensions with
        this symbol, and ``conditions``. The caller checks the range of a single size.

        Raises:
            Unsupported: a condition cannot be expressed.
        """
        sizes, alone = self.writer.sizes, set()
        shapes = [(name, array.shape) for name, array in arguments.items()]
        for each in solve_sizes(shapes, [Symbol(name, integer=True) for name in self.symbols]):
            self.bind(each.size, self.dimension(arguments[each.tensor], each.dim))
            self.bind(each.symbol, sizes.number(each.value))
            alone.add((each.tensor, each.dim) if each.is_plain else None)
        for name, shape in shapes:
            for dim, size in enumerate(shape):
                known = all(symbol.name in self.symbols for symbol in symbols_in(size))
                if not size.is_Integer and known and (name, dim) not in alone:
                    have = self.dimension(arguments[name], dim)
                    self._check(have, size, f"dimension {dim} of {name} is not {size}")
        for condition in conditions:
            known = all(symbol.name in self.symbols for symbol in condition.free_symbols)
            if known and not _is_range(condition):
                holds = Scalar(sizes.number(condition).value, torch.bool)
                require(holds, f"RuntimeError: the program was captured for {condition}")

    def _check(self, have: Scalar, size: Expr, message: str) -> None:
        """Assert that a dimension equals the expression of the captured program."""
        sizes = self.writer.sizes
        want, parts = sympy.fraction(sympy.together(size))
        product = sizes.elementwise("mul", have, sizes.number(parts))
        require(compare("eq", product, sizes.number(want)), f"RuntimeError: {message}")

    def dimension(self, x: Array, dim: int) -> Scalar:
        return self.writer.dimension(x.value, dim)

    # -- tensors ------------------------------------------------------------------------------------

    def convert(self, x: Array, dtype: torch.dtype) -> Array:
        if isinstance(x, Scalar):
            return convert(x, dtype)
        return Array(self.writer.converted(x.value, x.dtype, dtype, x.shape), dtype, x.shape)

    def pairs(self, x: Array) -> Array:
        dtype, shape = x.dtype.to_real(), (*x.shape, sympy.Integer(2))
        return Array(self.writer.pairs(x.value, dtype, shape), dtype, shape)

    def joined(self, real: Array, imaginary: Array) -> Array:
        dtype = real.dtype.to_complex()
        made = self.writer.complex(real.value, imaginary.value, dtype, real.shape)
        return Array(made, dtype, real.shape)

    def reshape(self, x: Array, shape: Shape) -> Array:
        if x.shape == shape:
            return x
        if x.shape and shape:
            made = reshape(self.writer, x.value, x.shape, shape)
        else:
            made = (self.writer.expand if shape else self.writer.collapse)(x.value, [], shape)
        return Array(made, x.dtype, shape)

    def relabel(self, x: Array, shape: Shape) -> Array:
        if isinstance(x, Scalar):
            return x
        return Array(self.writer.cast(x.value, x.dtype, shape), x.dtype, tuple(shape))

    def pick(self, x: Array, dim: int, position: Array) -> Array:
        kept = [d for d in range(x.rank) if d != dim]
        starts, sizes = self._line(x, dim, position)
        line = self.writer.slice(x.value, starts, sizes, [ONE] * x.rank, kept)
        return Array(line, x.dtype, tuple(x.shape[d] for d in kept))

    def store(self, x: Array, line: Array, dim: int, position: Array) -> Array:
        return Array(self.writer.insert(line.value, x.value, *self._line(x, dim, position)), x.dtype, x.shape)

    def _line(self, x: Array, dim: int, position: Array) -> tuple[list[Any], list[Expr]]:
        """Starts and sizes of the slice at one position of ``dim``."""
        starts = [as_index(self.item(position)) if d == dim else ZERO for d in range(x.rank)]
        return starts, [ONE if d == dim else size for d, size in enumerate(x.shape)]

    # -- control ------------------------------------------------------------------------------------

    def branch(self, condition: Array, functions: Sequence[Branch], kinds: Sequence[Kind]) -> list[Array]:
        """``scf.if``; its numbers are returned as tensors of rank 0."""
        types = [self.type(*kind) for kind in kinds]
        made = scf.IfOp(self.item(condition).value, types, has_else=True)
        for block, function in zip((made.then_block, made.else_block), functions, strict=True):
            with self.writer.region(block):
                results = [
                    self.writer.of_number(each) if isinstance(each, Scalar) else each.value
                    for each in function()
                ]
                scf.YieldOp([self.writer.as_type(each, kind) for each, kind in zip(results, types)])
        return [Array(value, *kind) for value, kind in zip(made.results, kinds)]

    def loop(self, initial: Arrays, test: Callable[[Arrays], Array], step: Step) -> list[Array]:
        """``scf.while``."""
        values = self._values(initial)
        types = [each.type for each in values]
        loop = scf.WhileOp(types, values)
        before, after = loop.before.blocks.append(*types), loop.after.blocks.append(*types)
        with self.writer.region(before):
            holds = convert(self.item(test(_state(initial, before.arguments))), torch.bool)
            scf.ConditionOp(holds.value, list(before.arguments))
        with self.writer.region(after):
            scf.YieldOp(self._values(step(_state(initial, after.arguments))))
        return _state(initial, loop.results)

    def repeat(self, turns: Expr, initial: Arrays, step: Callable[[Array, Arrays], Arrays]) -> list[Array]:
        """``scf.for``."""
        zero, one = (arith.constant(ir.IndexType.get(), number) for number in range(2))
        loop = scf.ForOp(zero, self.writer.sizes.size(turns), one, self._values(initial))
        with self.writer.region(loop.body):
            position = word(Scalar(loop.induction_variable, torch.int64))
            scf.YieldOp(self._values(step(position, _state(initial, loop.inner_iter_args))))
        return _state(initial, loop.results)

    def _values(self, state: Arrays) -> list[Any]:
        return [word(each).value if isinstance(each, Scalar) else each.value for each in state]

    # -- the program --------------------------------------------------------------------------------

    def external_call(
        self, body: Extern, arguments: Arguments, results: Sequence[Kind], unsigned: Sequence[bool]
    ) -> list[Array]:
        made = super().external_call(body, arguments, results, unsigned)
        for each in made:
            for dim, size in enumerate(each.shape):
                if not size.is_Integer:
                    self._check(
                        self.dimension(each, dim),
                        size,
                        f"a result of {body.target} is not of the size {size}",
                    )
        return made

    def seed(self) -> Array:
        """The next number of the module's generator (Knuth's, with 64 bits)."""
        self.seeded = True
        kind = self.type(torch.int64, ())
        held = ml_program.GlobalLoadOp(kind, ir.SymbolRefAttr.get([GLOBAL])).result
        before = tensor.extract(held, [])
        factor, step = (arith.constant(kind.element_type, number) for number in GENERATOR)
        after = arith.addi(arith.muli(before, factor), step)
        fresh = tensor.insert(after, held, [])
        ml_program.GlobalStoreOp(ir.SymbolRefAttr.get([GLOBAL]), fresh)
        return Array(self.writer.fill(Scalar(after, torch.int64), torch.int64, ()), torch.int64, ())

    def declare(self) -> None:
        if self.seeded:
            kind = self.type(torch.int64, ())
            first = ir.Attribute.parse(f"dense<0> : {kind}")
            ml_program.GlobalOp(GLOBAL, kind, is_mutable=True, value=first, sym_visibility="private")

    def finish(self, array: Array, dtype: torch.dtype) -> Array:
        return word(convert(array, dtype)) if isinstance(array, Scalar) else array


class _Bodies(Bodies):
    """`Bodies` with the bodies that have their own files: contractions and sorts."""

    contraction, sort = contract, sort


def _state(initial: Arrays, values: Sequence[Any]) -> list[Array]:
    """Values in the form of a loop's state."""
    return [
        Scalar(value, each.dtype) if isinstance(each, Scalar) else Array(value, each.dtype, each.shape)
        for each, value in zip(initial, values)
    ]


def _is_range(condition: Any) -> bool:
    """Whether a condition compares one size with a number (``Ne`` only with 0 or 1, as all dynamic sizes)."""
    if condition in (sympy.true, sympy.false):
        return True
    if not isinstance(condition, sympy.core.relational.Relational):
        return False
    left, right = condition.args
    if not ((isinstance(left, Symbol) and right.is_number) or (isinstance(right, Symbol) and left.is_number)):
        return False
    if isinstance(condition, sympy.Ne):
        return (right if right.is_number else left) in (0, 1)
    return not isinstance(condition, sympy.Eq)
