"""Program → module of Linalg on tensors."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import sympy
import torch
from sympy import Expr, Symbol

from smelt.capture import Program
from smelt.capture.program import shape_env_of
from smelt.errors import Problem, Unsupported
from smelt.loops.ir import Graph
from smelt.loops.philox import GENERATOR
from smelt.lowering import lower
from smelt.mlir import bindings
from smelt.mlir.arrays.decomposed import DECOMPOSED
from smelt.mlir.capabilities import Capabilities
from smelt.mlir.diagnostics import UnsupportedOperatorsError, verify
from smelt.mlir.linalg.graphs import CALLS, Evaluation
from smelt.mlir.linalg.literals import literal
from smelt.mlir.linalg.scalars import ELEMENTWISE, Scalar, compare, convert, require, word
from smelt.mlir.linalg.writer import Writer
from smelt.mlir.locations import location
from smelt.mlir.signature import Argument, Weights, signature_of
from smelt.symbolic import as_expr
from smelt.symbolic.affine import symbols_in
from smelt.symbolic.solving import solve_sizes

CAPABILITIES = Capabilities(
    bodies=frozenset(
        {"Pointwise", "Reduction", "Contraction", "Scan", "Fold", "Scatter", "Sort", "Bind", "Check"}
    ),
    elementwise=frozenset({*ELEMENTWISE, *DECOMPOSED}),
    calls=CALLS,
)
"""What Linalg takes of the loop graph."""


def emit(program: Program, weights: Weights = "inline", external: Collection[str] = ()) -> Any:
    """A program in contract form as a module with one function ``main`` of Linalg on tensors.

    Args:
        program: what `smelt.contract.contract` gave.
        weights: whether the tensors that the program holds are literals or arguments (see `Signature`).
        external: operators that stay calls of external functions (see `smelt.mlir.external`).

    Sizes stay dynamic (``?``); what the program takes for granted of them is asserted (``cf.assert``), as is
    that positions are in range; a message begins with the name of the exception that eager raises. Integers
    have no sign, uint8 is ``i8``. Long sums of float32 are made in ``f64``. Random numbers come from a seed
    that the module keeps (``ml_program.global``).

    Raises:
        UnsupportedOperatorsError: SM0711, all calls that have no form in Linalg.
        SmeltError: SM0710 the bindings are not installed, SM0713 a bug.
    """
    context = bindings.new_context()
    from torch_mlir import ir
    from torch_mlir.passmanager import PassManager

    graph = lower(program.graph_module)
    problems: list[Problem] = []
    with context, ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            _Function(program, graph, weights, problems, external).write(module)
        if problems:
            raise UnsupportedOperatorsError("Linalg", problems)
        verify(module)
        PassManager.parse("builtin.module(func.func(canonicalize,cse))").run(module.operation)
    return module


class _Function:
    def __init__(
        self,
        program: Program,
        graph: Graph,
        weights: Weights,
        problems: list[Problem],
        external: Collection[str],
    ) -> None:
        self.external = external
        self.program, self.graph, self.problems = program, graph, problems
        self.signature = signature_of(program, weights)
        self.writer = Writer()
        self.seeded = False

    def write(self, module: Any) -> None:
        from torch_mlir import ir
        from torch_mlir.dialects import func

        arguments = self.signature.arguments
        try:
            kinds = [self._kind(each) for each in arguments]
        except Unsupported as refusal:
            self.problems.append(Problem(f"an argument: {refusal.reason}"))
            return
        function = func.FuncOp("main", ir.FunctionType.get(kinds, []))
        block = function.add_entry_block([ir.Location.name(each.name) for each in arguments])
        with ir.InsertionPoint(block):
            given: dict[Any, Any] = {}
            for each, value in zip(arguments, block.arguments):
                meta = each.meta
                given[each.node] = (
                    value if isinstance(meta, torch.Tensor) else Scalar(value, _number_dtype(meta))
                )
            self._solve(arguments, list(block.arguments))
            for held in self.signature.literals:
                if held.value is not None and held.node.users:
                    try:
                        given[held.node] = literal(held.value, held.name)
                    except Unsupported as refusal:
                        self.problems.append(Problem(f"{held.name}: {refusal.reason}"))
            inputs = [given.get(node) for node in self.program.placeholders]
            evaluation = Evaluation(
                self.graph, self.writer, self.problems, location, self._seed, self.external
            )
            mutated, outputs = evaluation.run(inputs)
            if self.problems:
                return
            results = [*mutated, *(each for each in outputs if each is not None)]
            metas = [each.value for each in self.signature.results if each.value is not None]
            finished = [self._finished(each, meta) for each, meta in zip(results, metas, strict=True)]
            func.ReturnOp(finished)
        kind = ir.FunctionType.get(kinds, [each.type for each in finished])
        function.attributes["function_type"] = ir.TypeAttr.get(kind)
        if self.seeded:
            _declare_seed(module)

    def _kind(self, argument: Argument) -> Any:
        meta = argument.meta
        if isinstance(meta, torch.Tensor):
            return self.writer.type(meta.dtype, [as_expr(size) for size in meta.shape])
        return bindings.element_type(_number_dtype(meta))

    def _finished(self, value: Any, source: Any) -> Any:
        meta = source.meta.get("val") if isinstance(source, torch.fx.Node) else source
        if not isinstance(value, Scalar):
            return value
        wanted = meta.dtype if isinstance(meta, torch.Tensor) else _number_dtype(meta)
        return word(convert(value, wanted)).value

    # -- sizes -------------------------------------------------------------------------------------------

    def _solve(self, arguments: Sequence[Argument], values: Sequence[Any]) -> None:
        """Each size symbol from a dimension of an argument, or from a number; all other dimensions that
        depend on it are checked."""
        sizes = self.writer.sizes
        tensors: dict[str, Any] = {}
        shapes: list[tuple[str, list[Expr]]] = []
        given: list[Symbol] = []
        for argument, value in zip(arguments, values):
            meta = argument.meta
            if isinstance(meta, torch.Tensor):
                tensors[argument.node.name] = value
                shapes.append((argument.node.name, [as_expr(size) for size in meta.shape]))
                continue
            expr = as_expr(meta) if isinstance(meta, torch.SymInt) else getattr(meta.node, "expr", None)
            if isinstance(expr, Symbol):
                sizes.know(expr.name, Scalar(value, _number_dtype(meta)))
                given.append(expr)
        alone = set()
        for each in solve_sizes(shapes, given):
            sizes.know(each.size.name, self.writer.dimension(tensors[each.tensor], each.dim))
            sizes.know(each.symbol.name, sizes.number(each.value))
            alone.add((each.tensor, each.dim) if each.is_plain else None)
        for name, shape in shapes:
            for dim, size in enumerate(shape):
                known = all(symbol.name in sizes.symbols for symbol in symbols_in(size))
                if not size.is_Integer and known and (name, dim) not in alone:
                    self._check_size(name, dim, size, self.writer.dimension(tensors[name], dim))
        self._assume()

    def _assume(self) -> None:
        """What the program was captured for besides, of which no shape tells: a size that is a multiple of 4,
        one that is not another. The range of a single size is the caller's to check."""
        environment, sizes = shape_env_of(self.program.example_inputs), self.writer.sizes
        seen: set[Any] = set()
        for guard in getattr(environment, "guards", ()):
            condition = guard.expr.xreplace(environment.replacements)  # type: ignore[union-attr]
            if condition in seen or _is_range(condition):
                continue
            seen.add(condition)
            if any(symbol.name not in sizes.symbols for symbol in condition.free_symbols):
                continue
            try:
                holds = Scalar(sizes.number(condition).value, torch.bool)
            except Unsupported as refusal:
                self.problems.append(Problem(f"a condition on sizes: {refusal.reason}"))
                continue
            require(holds, f"RuntimeError: the program was captured for {condition}")

    def _check_size(self, name: str, dim: int, size: Expr, value: Scalar) -> None:
        """Assert that a dimension is the expression that it was captured as."""
        sizes = self.writer.sizes
        want, parts = sympy.fraction(sympy.together(size))
        have = sizes.elementwise("mul", value, sizes.number(parts))
        message = f"RuntimeError: dimension {dim} of {name} is not {size}"
        require(compare("eq", have, sizes.number(want)), message)

    # -- random numbers ----------------------------------------------------------------------------------

    def _seed(self) -> Scalar:
        """The next number of the generator that the module keeps (Knuth's, of 64 bits)."""
        from torch_mlir import ir
        from torch_mlir.dialects import arith, ml_program, tensor

        self.seeded = True
        kind = ir.RankedTensorType.get([], ir.IntegerType.get_signless(64))
        held = ml_program.GlobalLoadOp(kind, ir.SymbolRefAttr.get([_SEED])).result
        before = tensor.extract(held, [])
        factor, step = (arith.constant(kind.element_type, number) for number in GENERATOR)
        after = arith.addi(arith.muli(before, factor), step)
        fresh = tensor.insert(after, held, [])
        ml_program.GlobalStoreOp(ir.SymbolRefAttr.get([_SEED]), fresh)
        return Scalar(after, torch.int64)


def _is_range(condition: Any) -> bool:
    """Whether a condition compares one size with a number (not equal to 0 or 1: as all dynamic sizes)."""
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


_SEED = "seed"


def _declare_seed(module: Any) -> None:
    from torch_mlir import ir
    from torch_mlir.dialects import ml_program

    with ir.InsertionPoint.at_block_begin(module.body):
        kind = ir.RankedTensorType.get([], ir.IntegerType.get_signless(64))
        first = ir.Attribute.parse(f"dense<0> : {kind}")
        ml_program.GlobalOp(_SEED, kind, is_mutable=True, value=first, sym_visibility="private")


def _number_dtype(value: Any) -> torch.dtype:
    if isinstance(value, (bool, torch.SymBool)):
        return torch.bool
    return torch.int64 if isinstance(value, (int, torch.SymInt)) else torch.float64
