"""A relax function as a Program: the FX graph of ATen calls, smelt's common form."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from sympy import Expr as Size
from sympy import Symbol
from torch import Tensor
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.functional_tensor import dispatch_functionalize
from torch.fx import Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from smelt.capture import Program
from smelt.capture.program import Input
from smelt.contract import decompositions
from smelt.records import dataclass, field
from smelt.relax.evaluate import CallTir, Evaluator, constants_of
from smelt.relax.infer import FakeSizes
from smelt.relax.rewrite import check_scopes
from smelt.relax.types import RelaxError, StructInfo, symbols_of
from smelt.relax.values import Constant, Function


@dataclass(frozen=True, slots=True)
class Traced:
    """A function's program. Its first inputs are the constants, then come the leaves of the arguments.

    ``spec``: the nesting of its outputs; ``names``: symbols of the trace → size variables of the function.
    """

    program: Program
    constants: tuple[Tensor, ...]
    spec: pytree.TreeSpec
    names: Mapping[Any, Symbol] = field(default_factory=dict)


def traced(
    function: Function,
    functions: Mapping[str, Any],
    call_tir: CallTir,
    infos: Sequence[StructInfo] | None = None,
    name: str = "main",
    table: Mapping[Any, Any] | None = None,
) -> Traced:
    """The program of a function with arguments described by ``infos`` (default: its parameters' struct info).

    ``table``: the decompositions of ATen calls, by default smelt's own.

    Raises:
        RelaxError: SM1302 to SM1306, the function is invalid.
    """
    check_scopes(function, name)
    infos = [each.struct_info for each in function.params] if infos is None else list(infos)
    symbols = list(dict.fromkeys(symbol for info in infos for symbol in symbols_of(info)))
    sizes = FakeSizes(symbols, _sizes_in(infos))
    constants = [each for each in constants_of(function, functions) if each.number is None]
    args, args_spec = pytree.tree_flatten(tuple(sizes.fake(each) for each in infos))
    given_ones = [each for each in args if isinstance(each, (Tensor, torch.SymInt))]
    spec: list[pytree.TreeSpec] = []

    def run(*given: Tensor) -> tuple[Any, ...]:
        held = {id(each): value for each, value in zip(constants, given)}
        left = iter(given[len(constants) :])
        leaves = [next(left) if isinstance(each, (Tensor, torch.SymInt)) else each for each in args]
        evaluator = Evaluator(functions, call_tir, lambda each: _constant(each, held))
        result = evaluator.function(function, pytree.tree_unflatten(leaves, args_spec))
        found, result_spec = pytree.tree_flatten(result)
        spec.append(result_spec)
        return tuple(found)

    fakes = [sizes.mode.from_tensor(each.data) for each in constants]
    with sizes.mode, torch.no_grad(), enable_python_dispatcher():
        graph_module = make_fx(
            dispatch_functionalize(run),
            decomposition_table=dict(decompositions() if table is None else table),
        )(*fakes, *given_ones)  # type: ignore[arg-type]
    _clean(graph_module.graph)
    graph_module.recompile()
    placeholders = graph_module.graph.find_nodes(op="placeholder")
    names = [f"constant_{number}" for number in range(len(constants))]
    inputs = [
        Input(node.name, "constant", True, path, each.data)
        for node, path, each in zip(placeholders, names, constants)
    ]
    inputs += [
        Input(node.name, "user" if isinstance(each, Tensor) else "size")
        for node, each in zip(placeholders[len(constants) :], given_ones)
    ]
    outputs = graph_module.graph.output_node().args[0]
    roles = tuple("user" for _ in outputs)  # type: ignore[union-attr]
    program = Program(graph_module, "inference", tuple(inputs), roles, name)  # type: ignore[arg-type]
    return Traced(program, tuple(each.data for each in constants), spec[-1], sizes.names)


def _constant(each: Constant, held: Mapping[int, Tensor]) -> Tensor:
    """The value of a constant: a number is filled in at its use."""
    if id(each) in held:
        return held[id(each)]
    assert each.number is not None
    return torch.full([], each.number, dtype=each.data.dtype)


def _sizes_in(infos: Sequence[StructInfo]) -> list[int]:
    sizes = [size for info in infos for size in getattr(info, "sizes", None) or ()]
    return [int(size) for size in sizes if isinstance(size, Size) and size.is_number]


def _clean(graph: torch.fx.Graph) -> None:
    """Remove calls of ``detach``, and give constants that tracing kept their metadata."""
    for node in list(graph.nodes):
        if node.op == "call_function" and node.target is torch.ops.aten.detach.default:
            source = node.args[0]
            assert isinstance(source, Node)
            node.replace_all_uses_with(source)
            graph.erase_node(node)
        elif node.op == "get_attr" and "val" not in node.meta:
            value = operator.attrgetter(str(node.target))(graph.owning_module)
            if isinstance(value, Tensor):
                node.meta["val"] = value


def no_primfuncs(func: Any, args: Sequence[Any], info: StructInfo, evaluator: Evaluator) -> Any:
    """A `CallTir` for contexts in which no PrimFunc may be called: it raises."""
    raise RelaxError("SM1306", f"{func.name} cannot be called here")
