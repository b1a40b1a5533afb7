"""Legalization of an operator to a PrimFunc: its lowering rows run on the loops of a te function."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch._decomp import get_decompositions
from torch.fx import GraphModule, Node

from smelt.contract import contract, portable_decompositions
from smelt.contract.facts import is_view
from smelt.errors import SmeltError, Unsupported
from smelt.loops.ir import Extern, Graph, StridedView
from smelt.lowering import lower
from smelt.nest.scopes import with_names
from smelt.nest.stages import Names, staged
from smelt.nest.tree import accesses
from smelt.records import replace
from smelt.relax.infer import is_scalar, known, leaves_of
from smelt.relax.primfuncs import argument_name, free_name, unbound_sizes
from smelt.relax.program import no_primfuncs, traced
from smelt.relax.types import (
    ShapeStructInfo,
    StructInfo,
    TensorStructInfo,
    TupleStructInfo,
    is_determined,
    symbols_of,
)
from smelt.relax.values import (
    BindingBlock,
    Call,
    Constant,
    Expr,
    Function,
    SeqExpr,
    ShapeExpr,
    Tuple,
    TupleGetItem,
    Var,
    VarBinding,
    call_tir,
)
from smelt.script.module import PrimFunc

aten = torch.ops.aten


def _variance(x: Any, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    """A variance by two plain sums, because stages hold no reduction of several values."""
    return _variance_mean(x, dim, correction=correction, keepdim=keepdim)[0]


def _variance_mean(x: Any, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    dims = [each % x.dim() for each in dim or range(x.dim())]
    count = 1
    for each in dims:
        count *= x.shape[each]
    mean = torch.sum(x, dims, True) / count
    apart = x - mean
    var = torch.sum(apart * apart, dims, keepdim) / (count - (1 if correction is None else correction))
    return var, mean if keepdim else mean.sum(dims)


def _log_softmax(x: Any, dim: int, half_to_float: bool) -> Any:
    apart = x - torch.amax(x, [dim], True)
    return apart - torch.log(torch.sum(torch.exp(apart), [dim], True))


def _position(extreme: Any) -> Any:
    """The first position of an extreme: the least of its positions, or that of NaN."""

    def run(x: Any, dim: int | None = None, keepdim: bool = False) -> Any:
        whole = [1] * x.dim()
        if dim is None:
            x, dim = x.reshape(-1), 0
        size = x.shape[dim]
        there = (x == extreme(x, [dim], True)) | torch.isnan(x)
        places = torch.arange(size).reshape([size if each == dim % x.dim() else 1 for each in range(x.dim())])
        found = torch.amin(torch.where(there, places, size), [dim], keepdim)
        return found.reshape(whole) if keepdim and len(whole) != x.dim() else found

    return run


_PLAIN = {
    aten.argmax.default: _position(torch.amax),
    aten.argmin.default: _position(torch.amin),
    aten._log_softmax.default: _log_softmax,
    aten.var.correction: _variance,
    aten.var_mean.correction: _variance_mean,
    **get_decompositions([aten.native_layer_norm, aten.native_group_norm]),
}
"""Additional decompositions for legalization, because stages cannot hold the operators otherwise."""


def legalized(call: Call, add: Callable[[PrimFunc, str], Any]) -> Call | str:
    """A call of the PrimFunc for the operator, or the reason why there is none.

    ``add`` adds the PrimFunc to a module and returns its variable.
    """
    info = known(call)
    if not is_determined(info):
        return "sizes or dtypes are not known"
    if isinstance(info, TupleStructInfo) and len(info.fields) == 1:
        return "a tuple of one tensor"
    leaves: list[Any] = []
    stand_ins: dict[int, Var] = {}
    elements: dict[Var, list[Any]] = {}

    def stand_in(value: Any) -> Any:
        if isinstance(value, Tuple):
            return Tuple([stand_in(each) for each in value.fields])
        if isinstance(value, (list, tuple)):
            return type(value)(stand_in(each) for each in value)
        if isinstance(value, Constant) and value.data.dim() == 0:
            return value
        found = value.struct_info if isinstance(value, Expr) else None
        if isinstance(value, Var) and isinstance(found, ShapeStructInfo) and found.values is not None:
            return ShapeExpr(found.values)
        if isinstance(value, Var) and isinstance(found, TupleStructInfo):
            return Tuple([stand_in(element) for element in elements.setdefault(value, list(value))])
        if found is not None and is_scalar(found):
            found = TensorStructInfo((), found.dtype)
        if not (isinstance(value, (Var, Constant, TupleGetItem)) and isinstance(found, TensorStructInfo)):
            return value
        if id(value) not in stand_ins:
            name = argument_name(value, len(leaves), {each.name_hint for each in stand_ins.values()})
            stand_ins[id(value)] = Var(name, found)
            leaves.append(value)
        return stand_ins[id(value)]

    attrs = {key: stand_in(value) for key, value in call.attrs.items()}
    inner = Call(call.op, [stand_in(each) for each in call.args], attrs)
    params = list(stand_ins.values())
    if not all(is_determined(each.struct_info) for each in params):
        return "sizes or dtypes of arguments are not known"
    try:
        func, used = primfunc(inner, params, info)
    except (SmeltError, Unsupported) as error:
        return str(error)
    var = add(func, call.op.legal)
    out = list(info.fields) if isinstance(info, TupleStructInfo) else info
    sizes = unbound_sizes(func.kernel)
    more = ShapeExpr(sizes) if sizes else None
    return call_tir(var, Tuple([leaves[number] for number in used]), out, more)


def primfunc(call: Call, args: list[Var], info: StructInfo) -> tuple[PrimFunc, list[int]]:
    """The PrimFunc of a call of variables, and the variables that it reads.

    Raises:
        SmeltError: SM1040, a stage cannot hold it; Unsupported: loop functions cannot hold it.
    """
    result = Var("result", info)
    body = SeqExpr([BindingBlock([VarBinding(result, call)])], result)
    symbols = [symbol for each in (*(arg.struct_info for arg in args), info) for symbol in symbols_of(each)]
    symbols += [symbol for each in leaves_of(call) for symbol in getattr(each, "free_symbols", ())]
    alone = {size for arg in args for size in arg.struct_info.sizes}  # type: ignore[attr-defined]
    hidden = [symbol for symbol in dict.fromkeys(symbols) if symbol not in alone]
    sizes = [Var("sizes", ShapeStructInfo(hidden))] if hidden else []
    function = Function([*args, *sizes], body, info, attrs={"global_symbol": call.op.legal})
    found = traced(function, {}, no_primfuncs, None, call.op.legal, {**portable_decompositions(), **_PLAIN})
    program = contract(found.program)
    graph = lower(_whole_outputs(program.graph_module))
    views = {place for place, out in enumerate(graph.outputs) if _is_view(out, graph)}
    if views:
        graph = lower(_whole_outputs(program.graph_module, views))
    if graph.constants:
        raise Unsupported("it holds a tensor of its own")
    for node in graph.nodes:
        if isinstance(node.body, Extern):
            raise Unsupported(f"{node.body.target} has no loop function")
    outputs = [str(getattr(out, "buffer", "")) for out in graph.outputs]
    if "" in outputs or len(set(outputs)) != len(outputs):
        raise Unsupported("a result that is no tensor of its own")
    inputs = [each for each in graph.inputs if isinstance(each, str)]
    kernel = staged(graph, call.op.legal, [*inputs, *outputs], _axes(graph))
    read = {name for name, _, stored in accesses(kernel.body) if not stored}
    used = [number for number, name in enumerate(inputs) if name in read]
    params = tuple(each for each in kernel.params if each.written or each.name in read)
    kernel = replace(kernel, params=params)
    names = {inputs[number]: args[number].name_hint for number in used}
    for number, out in enumerate(outputs):
        own = f"T_{call.op.legal}" + (f"_{number}" if number else "")
        names[str(out)] = free_name(own, names.values())
    kernel = with_names(kernel, names, found.names)
    return PrimFunc(kernel, {"tir.noalias": True}, True), used


def _axes(graph: Graph) -> dict[str, Names]:
    """The names of axes, as in TVM's topi."""
    spatial, reduce = tuple(f"ax{n}" for n in range(12)), tuple(f"k{n}" for n in range(12))
    found = {}
    for node in graph.nodes:
        reduced = getattr(node.body, "reduce_shape", ())
        for out in node.outputs:
            if out is not None:
                found[out] = Names(spatial, ("k",) if len(reduced) == 1 else reduce)
    return found


def _is_view(output: Any, graph: Graph) -> bool:
    """Whether an output is a view and not all of a buffer, row-major."""
    if not isinstance(output, StridedView):
        return False
    buffer = graph.buffers[output.buffer]
    return output.shape != buffer.shape or output.buffer in graph.inputs


def _whole_outputs(graph_module: GraphModule, views: Collection[int] = ()) -> GraphModule:
    """The graph with outputs that are row-major tensors of their own, except those in ``views``."""
    graph = graph_module.graph
    output = graph.output_node()
    made: list[Any] = []
    for place, value in enumerate(output.args[0]):  # type: ignore[arg-type]
        if not isinstance(value, Node) or not isinstance(value.meta.get("val"), torch.Tensor):
            raise Unsupported("a result that is no tensor")
        made_by: Any = value.args[0] if value.target is operator.getitem else value
        view = not isinstance(made_by, Node) or made_by.op != "call_function"
        view = view or (isinstance(made_by.target, torch._ops.OpOverload) and is_view(made_by.target))
        if view or place in views or value in made or not value.meta["val"].is_contiguous():
            with graph.inserting_before(output):
                copy = graph.call_function(
                    aten.clone.default, (value,), {"memory_format": torch.contiguous_format}
                )
                copy.meta["val"] = value.meta["val"].clone(memory_format=torch.contiguous_format)
                copy.meta["where"] = value.meta.get("where", "<unknown>")
            value = copy
        made.append(value)
    output.args = (tuple(made),)
    graph_module.recompile()
    return graph_module
