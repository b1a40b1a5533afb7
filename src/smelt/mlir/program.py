"""Emission of a program as a module of one target: arguments, sizes, weights, the loop graph, results."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import torch
from sympy import Symbol

from smelt.capture import Program
from smelt.capture.program import shape_env_of
from smelt.errors import Problem, Unsupported
from smelt.lowering import lower
from smelt.mlir import bindings
from smelt.mlir.arrays.dialect import Array, Kind
from smelt.mlir.bindings import func, ir
from smelt.mlir.diagnostics import UnsupportedOperatorsError, verify
from smelt.mlir.graphs import Evaluation, literal
from smelt.mlir.locations import location
from smelt.mlir.modules import retype
from smelt.mlir.signature import Argument, Weights, signature_of
from smelt.mlir.target import Target
from smelt.symbolic import as_expr


def emit(
    kind: type[Target], program: Program, weights: Weights = "inline", external: Collection[str] = ()
) -> Any:
    """Emit a program in contract form as a module of the target's operations with a function ``main``.

    Args:
        kind: the target: `Linalg`, `StableHlo`, `Tosa`.
        program: the result of `smelt.contract.contract`.
        weights: whether the tensors that the program holds are literals or arguments (see `Signature`).
        external: operators that stay calls of external functions (see `smelt.mlir.external`).

    Raises:
        UnsupportedOperatorsError: SM0711, all calls that the target cannot express.
        SmeltError: SM0710 the bindings are not installed, SM0713 MLIR's verifier refuses the module: a bug.
    """
    context = bindings.new_context()
    target = kind()
    problems: list[Problem] = []
    with context, ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            _write_function(program, weights, target, problems, external)
        if problems:
            raise UnsupportedOperatorsError(target.title, problems)
        with ir.InsertionPoint.at_block_begin(module.body):
            target.declare()
    return target.simplified(verify(module))


def write_function(
    name: str,
    arguments: Sequence[Argument],
    types: Sequence[Any],
    body: Callable[[list[Any]], Sequence[Any] | None],
) -> Any:
    """A function whose ``body`` computes the returned values from the arguments; None if ``body`` returns
    None, and the function is then unfinished."""
    function = func.FuncOp(name, ir.FunctionType.get(list(types), []))
    block = function.add_entry_block([ir.Location.name(each.name) for each in arguments])
    with ir.InsertionPoint(block):
        results = body(list(block.arguments))
        if results is None:
            return None
        func.ReturnOp(results)
    retype(function)
    return function


def _write_function(
    program: Program, weights: Weights, target: Target, problems: list[Problem], external: Collection[str]
) -> None:
    signature = signature_of(program, weights)
    graph = lower(program.graph_module)
    metas = [each.meta for each in signature.arguments]
    try:
        kinds = [target.outside(*kind_of(meta)) for meta in metas]
        types = [
            target.type(*kind) if isinstance(meta, torch.Tensor) else target.number_type(kind[0])
            for meta, kind in zip(metas, kinds)
        ]
    except Unsupported as refusal:
        problems.append(Problem(f"an argument: {refusal.reason}"))
        return

    def body(values: list[Any]) -> list[Any] | None:
        given: dict[Any, Array] = {}
        tensors: dict[str, Array] = {}
        for argument, value, kind in zip(signature.arguments, values, kinds, strict=True):
            if isinstance(argument.meta, torch.Tensor):
                given[argument.node] = tensors[argument.node.name] = Array(value, *kind)
                continue
            given[argument.node] = number = target.number_argument(value, kind[0])
            expr = as_expr(argument.meta) if isinstance(argument.meta, torch.SymInt) else None
            if isinstance(expr, Symbol):
                target.bind(expr, number)
        try:
            target.know(tensors, _guards(program))
        except Unsupported as refusal:
            problems.append(Problem(f"a condition on sizes: {refusal.reason}"))
        for held in signature.literals:
            if held.value is not None and held.node.users:
                try:
                    given[held.node] = literal(target, held.value, held.name)
                except Unsupported as refusal:
                    problems.append(Problem(f"{held.name}: {refusal.reason}"))
        inputs = [given.get(node) for node in program.placeholders]
        mutated, outputs = Evaluation(graph, target, problems, location, external).run(inputs)
        if problems:
            return None
        results = [*mutated, *(each for each in outputs if each is not None)]
        returned = [each.value for each in signature.results if each.value is not None]
        dtypes = [target.outside(_result_dtype(each), ())[0] for each in returned]
        return [target.finish(each, dtype).value for each, dtype in zip(results, dtypes, strict=True)]

    write_function("main", signature.arguments, types, body)


def _guards(program: Program) -> Iterator[Any]:
    """The conditions on sizes that the captured program assumes, as distinct SymPy Booleans."""
    environment = shape_env_of(program.example_inputs)
    seen: set[Any] = set()
    for guard in getattr(environment, "guards", ()):
        condition = guard.expr.xreplace(environment.replacements)  # type: ignore[union-attr]
        if condition not in seen:
            seen.add(condition)
            yield condition


def kind_of(meta: Any) -> Kind:
    """The dtype and shape of a value; a number has rank 0."""
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
