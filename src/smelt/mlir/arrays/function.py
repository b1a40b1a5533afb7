"""The function of a program over array operations: arguments, sizes, weights, results."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from sympy import Symbol

from smelt.capture import Program
from smelt.errors import Problem, Unsupported
from smelt.loops.ir import Extern, Graph
from smelt.lowering import lower
from smelt.mlir import bindings
from smelt.mlir.arrays.dialect import Array, ArrayDialect, Shape
from smelt.mlir.arrays.graphs import Evaluation, literal
from smelt.mlir.diagnostics import UnsupportedOperatorsError, verify
from smelt.mlir.external import call
from smelt.mlir.locations import location
from smelt.mlir.signature import Argument, Signature, Weights, signature_of
from smelt.symbolic import as_expr
from smelt.symbolic.solving import solve_sizes


class MlirArrays(ArrayDialect):
    """Array operations that are MLIR operations, at the current insertion point.

    What is remembered (sizes, constants) holds inside of the region where it was made: `region`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.memo: dict[Any, Any] = {}
        self._solvable: dict[Symbol, tuple[Array, int]] = {}

    # -- types --------------------------------------------------------------------------------------

    def element(self, dtype: torch.dtype) -> Any:
        """The element type of arrays."""
        return bindings.element_type(dtype)

    def type(self, dtype: torch.dtype, shape: Shape) -> Any:
        """The tensor type of arrays."""
        from torch_mlir import ir

        unknown = ir.ShapedType.get_dynamic_size()
        sizes = [int(size) if size.is_Integer else unknown for size in shape]
        return ir.RankedTensorType.get(sizes, self.element(dtype))

    def attribute(self, tensor: torch.Tensor) -> Any:
        """The elements of a tensor as an attribute."""
        from torch_mlir import ir

        values = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
        kind = self.element(tensor.dtype)
        if tensor.numel() == 0 or tensor.dtype.is_complex:
            whole = ir.RankedTensorType.get(list(tensor.shape), kind)
            return ir.Attribute.parse(f"{_text(values)} : {whole}")
        if tensor.dtype is torch.bool:
            return ir.DenseElementsAttr.get(values.numpy())
        if tensor.dtype is torch.bfloat16:
            values = values.view(torch.int16)
        return ir.DenseElementsAttr.get(values.numpy(), type=kind, shape=list(tensor.shape))

    # -- sizes --------------------------------------------------------------------------------------

    def dimension(self, x: Array, dim: int) -> Array:
        """The size of one dimension, as int64 of rank 0."""
        raise NotImplementedError

    def size(self, expr: Any) -> Array:
        key = ("size", expr)
        if key not in self.memo:
            self.memo[key] = super().size(expr)
        return self.memo[key]

    def know(self, arguments: Sequence[Array]) -> None:
        """Solve the size symbols from the arguments' dimensions.

        Each call names the dimensions anew: the size of an expression is remembered by its symbols.
        """
        known = len(self.symbols)
        named = {f"known{known}_arg{number}": array for number, array in enumerate(arguments)}
        for each in solve_sizes([(name, array.shape) for name, array in named.items()], self.symbols):
            self.symbols[each.size] = self.dimension(named[each.tensor], each.dim)
            self.symbols[each.symbol] = self.size(each.value)

    def external_call(
        self,
        body: Extern,
        arguments: Sequence[tuple[str, Any]],
        results: Sequence[tuple[torch.dtype, Shape]],
        unsigned: Sequence[bool],
    ) -> list[Array]:
        plain = [(name, each.value if isinstance(each, Array) else each) for name, each in arguments]
        values = call(body, plain, [self.type(*each) for each in results], unsigned)
        return [Array(value, *each) for value, each in zip(values, results)]

    # -- transposed arrays ----------------------------------------------------------------------------

    def remember_transposed(self, result: Array, x: Array, order: Sequence[int]) -> Array:
        """``result``, of which `untransposed` knows then where it comes from."""
        self.memo["transposed", result.value] = (x, tuple(order))
        return result

    def untransposed(self, x: Array, dims: Sequence[int]) -> tuple[Array, list[int]]:
        """What a reduction of ``x`` over ``dims`` may as well be made of: the array that ``x`` is the
        transposed of, where the dimensions that stay have one order in both, and the dimensions there."""
        found = self.memo.get(("transposed", x.value))
        if found is not None:
            source, order = found
            stay = [place for d, place in enumerate(order) if d not in dims]
            if stay == sorted(stay) and tuple(source.shape[d] for d in order) == x.shape:
                return source, [order[d] for d in dims]
        return x, list(dims)

    # -- regions ------------------------------------------------------------------------------------

    @contextmanager
    def region(self) -> Iterator[None]:
        """What is made inside the block is not known outside of it."""
        symbols, memo = dict(self.symbols), dict(self.memo)
        try:
            yield
        finally:
            self.symbols.clear()
            self.symbols.update(symbols)
            self.memo = memo

    def probe(self, function: Callable[[], Sequence[Array]]) -> list[tuple[torch.dtype, Shape]]:
        from torch_mlir import ir

        scratch = ir.Module.create()
        with self.region(), ir.InsertionPoint(scratch.body):
            return [(each.dtype, each.shape) for each in function()]

    # -- the function -------------------------------------------------------------------------------

    def declare(self) -> None:
        """Write what the function needs in the module beside it, where it has been written."""

    def finish(self, array: Array, dtype: torch.dtype) -> Array:
        """A result as it is returned."""
        return array if array.dtype == dtype else self.convert(array, dtype)


def _text(values: torch.Tensor) -> str:
    if values.numel() == 0:
        return "dense<>"

    def nested(part: torch.Tensor) -> str:
        if part.dim() == 0:
            number = complex(part.item())
            return f"({number.real!r}, {number.imag!r})"
        return "[" + ", ".join(map(nested, part)) + "]"

    return f"dense<{nested(values)}>"


def write_module(
    program: Program,
    weights: Weights,
    dialect: MlirArrays,
    name: str,
    context: Any = None,
    external: Collection[str] = (),
) -> Any:
    """A module with one function ``main`` that computes ``program`` by the operations of ``dialect``.

    Args:
        program: what `smelt.contract.contract` gave.
        weights: whether the tensors that the program holds are literals or arguments.
        dialect: fresh.
        name: the dialect's, for messages.
        external: operators that stay calls of external functions (see `smelt.mlir.external`).

    Raises:
        UnsupportedOperatorsError: SM0711, all calls that the dialect cannot express.
        SmeltError: SM0713, MLIR's verifier refuses the module: a bug.
    """
    context = context or bindings.new_context()
    from torch_mlir import ir

    graph = lower(program.graph_module)
    with context, ir.Location.unknown():
        module = ir.Module.create()
        problems: list[Problem] = []
        with ir.InsertionPoint(module.body):
            _write_function(program, graph, signature_of(program, weights), dialect, problems, external)
        if problems:
            raise UnsupportedOperatorsError(name, problems)
        with ir.InsertionPoint.at_block_begin(module.body):
            dialect.declare()
        return verify(module)


def _write_function(
    program: Program,
    graph: Graph,
    signature: Signature,
    dialect: MlirArrays,
    problems: list[Problem],
    external: Collection[str],
) -> None:
    from torch_mlir import ir
    from torch_mlir.dialects import func

    try:
        kinds = [dialect.outside(*_kind(each)) for each in signature.arguments]
        types = [dialect.type(*kind) for kind in kinds]
    except Unsupported as refusal:
        problems.append(Problem(f"an argument: {refusal.reason}"))
        return
    function = func.FuncOp("main", ir.FunctionType.get(types, []))
    block = function.add_entry_block([ir.Location.name(each.name) for each in signature.arguments])
    with ir.InsertionPoint(block):
        arguments = [Array(value, *kind) for kind, value in zip(kinds, block.arguments)]
        given: dict[Any, Array] = {
            each.node: value for each, value in zip(signature.arguments, arguments, strict=True)
        }
        dialect.know(arguments)
        for held in signature.literals:
            if held.value is not None and held.node.users:
                try:
                    given[held.node] = literal(dialect, held.value, held.name)
                except Unsupported as refusal:
                    problems.append(Problem(f"{held.name}: {refusal.reason}"))
        inputs = [given.get(node) for node in program.placeholders]
        mutated, outputs = Evaluation(graph, dialect, problems, location, external).run(inputs)
        if problems:
            return
        results = [*mutated, *(each for each in outputs if each is not None)]
        metas = [each.value for each in signature.results]
        dtypes = [dialect.outside(_result_dtype(value), ())[0] for value in metas if value is not None]
        finished = [dialect.finish(each, dtype) for each, dtype in zip(results, dtypes, strict=True)]
        func.ReturnOp([each.value for each in finished])
    function.attributes["function_type"] = ir.TypeAttr.get(
        ir.FunctionType.get(types, [each.value.type for each in finished])
    )


def _kind(argument: Argument) -> tuple[torch.dtype, Shape]:
    """Dtype and shape; a number is an array of rank 0."""
    meta = argument.meta
    if isinstance(meta, torch.Tensor):
        return meta.dtype, tuple(as_expr(size) for size in meta.shape)
    return _number_dtype(meta), ()


def _number_dtype(value: Any) -> torch.dtype:
    if isinstance(value, (bool, torch.SymBool)):
        return torch.bool
    return torch.int64 if isinstance(value, (int, torch.SymInt)) else torch.float64


def _result_dtype(value: Any) -> torch.dtype:
    meta = value.meta.get("val") if isinstance(value, torch.fx.Node) else value
    return meta.dtype if isinstance(meta, torch.Tensor) else _number_dtype(meta)
