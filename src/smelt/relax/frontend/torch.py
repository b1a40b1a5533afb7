"""PyTorch programs as relax modules: smelt imports every program that it compiles.

A call without a relax operator is ``R.aten.…``. As long as the function is unchanged, `build` compiles the
captured program itself.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.export import Dim, ExportedProgram
from torch.fx import Node
from torch.utils import _pytree as pytree

from smelt.capture import Program, capture_export
from smelt.contract import export_decompositions
from smelt.errors import describe
from smelt.relax.builder import BlockBuilder
from smelt.relax.frontend.names import named
from smelt.relax.infer import FakeSizes
from smelt.relax.operators import AtenOperator
from smelt.relax.program import Traced
from smelt.relax.types import (
    RelaxError,
    StructInfo,
    TensorStructInfo,
    dtype_name,
    plain,
    size_of,
    symbols_of,
    torch_dtype,
)
from smelt.relax.values import (
    Call,
    Constant,
    Expr,
    Function,
    MatchCast,
    SeqExpr,
    Tuple,
    TupleGetItem,
    Var,
)
from smelt.script.module import IRModule
from smelt.symbolic import as_expr


def from_exported_program(
    exported_program: ExportedProgram,
    *,
    keep_params_as_input: bool = False,
    unwrap_unit_return_tuple: bool = False,
    no_bind_return_tuple: bool = False,
    custom_convert_map: Custom = None,
    run_ep_decomposition: bool = True,
) -> IRModule:
    """A ``torch.export`` program as a module; its function ``main`` takes the program's inputs.

    ``keep_params_as_input``: parameters and buffers become parameters after the inputs; ``main`` has them as
    attribute ``params``, and ``num_input`` (see `detach_params`). ``unwrap_unit_return_tuple``: a single
    result is no tuple. ``no_bind_return_tuple``: the results are variables, but their tuple is not.
    ``custom_convert_map``: the user's own import functions of operators (`Importer`).

    >>> exported = torch.export.export(torch.nn.ReLU(), (torch.ones(2),))
    >>> "R.nn.relu" in from_exported_program(exported)["main"].script()
    True
    """
    program = capture_export(exported_program, _kept_whole(custom_convert_map), "main")
    importer = Importer(program, keep_params_as_input, custom=custom_convert_map)
    return importer.module(unwrap_unit_return_tuple, no_bind_return_tuple, True)


def from_fx(
    model: fx.GraphModule,
    input_info: Sequence[tuple[Sequence[Any], str]],
    *,
    keep_params_as_input: bool = False,
    unwrap_unit_return_tuple: bool = False,
    no_bind_return_tuple: bool = False,
    custom_convert_map: Custom = None,
    default_image_layout: str = "NCHW",
) -> IRModule:
    """A traced module (``torch.fx.symbolic_trace``) as a module.

    ``input_info``: shape and dtype of each input. Sizes may be variables (``te.var("n")``).

    Raises:
        RelaxError: SM1308, ``input_info`` does not fit, or the module does not run on such inputs.

    >>> mod = from_fx(fx.symbolic_trace(torch.nn.ReLU()), [((2, 3), "float32")])
    >>> print(mod["main"].ret_struct_info)
    R.Tensor((2, 3), dtype="float32")
    """
    placeholders = model.graph.find_nodes(op="placeholder")
    wanted = [node for node in placeholders if not _is_number(node)]
    if len(input_info) != len(wanted):
        names = ", ".join(str(node.target) for node in wanted)
        what = f"input_info has {len(input_info)} entries; the graph has the inputs {names or 'none'}"
        raise RelaxError("SM1308", what, remedy="give (shape, dtype) for each input")
    symbols = list(
        dict.fromkeys(s for shape, _ in input_info for size in shape for s in size_of(size).free_symbols)
    )
    sizes = FakeSizes(
        symbols, [int(plain(size)) for shape, _ in input_info for size in shape if size_of(size).is_number]
    )
    hints = {symbol: int(made.node.hint) for symbol, made in sizes.sizes.items()}
    args = []
    dynamic: list[Any] = []
    for shape, dtype in input_info:
        exact = [size_of(size) for size in shape]
        numbers = [int(size.xreplace(hints)) for size in exact]
        args.append(torch.zeros(numbers, dtype=torch_dtype(dtype)))
        dynamic.append({dim: Dim(str(size)) for dim, size in enumerate(exact) if size.is_Symbol})
    try:
        with torch.no_grad():
            exported = torch.export.export(
                model, tuple(args), dynamic_shapes=tuple(dynamic) if symbols else None
            )
    except Exception as error:
        remedy = "run the module on tensors of these shapes and dtypes, and mend what it says"
        raise RelaxError(
            "SM1308", "the module does not run on such inputs", why=describe(error), remedy=remedy
        ) from error
    program = capture_export(exported, _kept_whole(custom_convert_map), "main")
    renames: dict[Any, Any] = {}
    users = [node for node, each in zip(program.placeholders, program.inputs) if each.value is None]
    for node, (shape, _) in zip(users, input_info):
        for have, want in zip(node.meta["val"].shape, shape):
            if as_expr(have).is_Symbol:
                renames[as_expr(have)] = size_of(want)
    is_tuple = exported.call_spec.out_spec.type in (tuple, list)
    importer = Importer(program, keep_params_as_input, renames, custom_convert_map)
    return importer.module(unwrap_unit_return_tuple or not is_tuple, no_bind_return_tuple, is_tuple)


def _is_number(node: Node) -> bool:
    grapharg = node.meta.get("grapharg")
    return grapharg is not None and getattr(grapharg, "fake_tensor", None) is None


def _kept_whole(custom: Custom) -> dict[Any, Any]:
    """The decompositions without those of operators that have a custom function."""
    return {op: how for op, how in export_decompositions().items() if _custom(op, custom) is None}


def _custom(target: Any, custom: Custom) -> Callable[[Node, Importer], Any] | None:
    """The custom function of an overload, by its name (``"add.Tensor"``) or its packet's (``"add"``)."""
    if not custom or not isinstance(target, torch._ops.OpOverload):
        return None
    return custom.get(target.__name__) or custom.get(target.overloadpacket.__name__)


_NO_SIZES = FakeSizes()

Custom = Mapping[str, Callable[[Node, "Importer"], Any]] | None


class HigherOrder:
    """A higher-order operator of PyTorch whose bodies are graphs."""

    def __init__(self, target: Any) -> None:
        self.target = target
        self.legal = str(getattr(target, "__name__", target))

    @property
    def name(self) -> str:
        return f"higher_order.{self.legal}"

    @property
    def text(self) -> str:
        return f"R.{self.name}"

    def run(self, *args: Any, **kwargs: Any) -> Any:
        return self.target(*args, **kwargs)


class Importer:
    """Imports a program's graph: every call becomes a binding, whose struct info is the node's metadata.

    ``custom``: name of an ATen overload (``"add.Tensor"``, ``"add"``) → a function of the node and this
    importer, which returns the node's value. ``env`` has the values of nodes, ``block_builder`` binds new
    ones.
    """

    def __init__(
        self, program: Program, keep: bool, renames: Mapping[Any, Any] | None = None, custom: Custom = None
    ) -> None:
        self.program, self.keep, self.renames, self.custom = program, keep, dict(renames or {}), custom
        self.env: dict[Node, Any] = {}
        self.block_builder = BlockBuilder()
        self.block_builder._begin_dataflow_block()
        self.bound: set[Any] = set()

    def module(self, unwrap: bool, no_bind: bool, is_tuple: bool) -> IRModule:
        """The module of the program."""
        inputs: list[Var] = []
        held: list[Var] = []
        params: list[Tensor] = []
        for node, each in zip(self.program.placeholders, self.program.inputs):
            if each.value is None:
                info = self._info(node.meta["val"])
                self.env[node] = var = Var(node.name, info)
                inputs.append(var)
                self.bound |= _symbols(info)
            elif self.keep:
                self.env[node] = var = Var(each.path or node.name, self._info(each.value))
                held.append(var)
                params.append(each.value.detach())
            else:
                self.env[node] = Constant(each.value.detach())
        for node in self.program.graph_module.graph.nodes:
            self._visit(node)
        results = [self._value(each) for each in self.program.outputs]
        body = self._result(results, unwrap, no_bind, is_tuple)
        attrs: dict[str, Any] = {"global_symbol": "main"}
        if self.keep:
            attrs.update(num_input=len(inputs), params=params)
        captured = None if self.keep or self.custom else self._captured(len(results), unwrap)
        pure = not self.program.mutations()
        function = Function([*inputs, *held], body, None, pure, attrs, captured)
        return IRModule({"main": function})

    def _captured(self, count: int, unwrap: bool) -> Traced | None:
        """The program itself if its inputs are row-major tensors."""
        users = [
            n.meta["val"]
            for n, each in zip(self.program.placeholders, self.program.inputs)
            if each.value is None
        ]
        if not all(isinstance(each, Tensor) and each.is_contiguous() for each in users):
            return None
        tensors = [each.value for each in self.program.inputs if each.value is not None]
        nested: Any = 0 if unwrap and count == 1 else (0,) * count
        return Traced(self.program, tuple(tensors), pytree.tree_flatten(nested)[1])

    def _result(self, results: list[Any], unwrap: bool, no_bind: bool, is_tuple: bool) -> SeqExpr:
        if unwrap and len(results) == 1:
            body: Any = self._output(results[0])
        elif no_bind:
            body = Tuple([self._output(each) for each in results])
        else:
            body = self._output(Tuple(results))
        block = self.block_builder._end_block()
        return SeqExpr([block] if block.bindings else [], body)

    def _output(self, value: Any) -> Var:
        return self.block_builder.emit_output(value)

    def _visit(self, node: Node) -> None:
        if node.op == "get_attr":
            value = operator.attrgetter(str(node.target))(self.program.graph_module)
            self.env[node] = Constant(value.detach()) if isinstance(value, Tensor) else value
        elif node.op == "call_function":
            meta = node.meta.get("val")
            is_call = isinstance(node.target, torch._ops.OpOverload)
            size = isinstance(meta, torch.SymInt)
            known = size and not (is_call and _symbols(self._info(meta)) - self.bound)
            self.env[node] = self._size(meta) if known else self._bind(node, meta)

    def _bind(self, node: Node, meta: Any) -> Any:
        make = _custom(node.target, self.custom)
        if make is not None:
            return make(node, self)
        args = [self._value(each) for each in node.args]
        kwargs = {key: self._value(each) for key, each in node.kwargs.items()}
        target = node.target
        if target is operator.getitem and isinstance(args[0], Expr):
            return self._new(TupleGetItem(args[0], args[1]), meta)
        if isinstance(target, torch._ops.OpOverload):
            call = named(target, args, kwargs)
            if call is not None:
                return self._new(call, meta)
            return self._new(Call(AtenOperator(target), args, kwargs), meta)
        return self._new(Call(HigherOrder(target), args, kwargs), meta)

    def _new(self, value: Any, meta: Any) -> Var:
        value.struct_info_ = info = self._info(meta)
        new = _symbols(info) - self.bound
        self.bound |= new
        if not new:
            return self.block_builder.emit(value)
        var = self.block_builder._new_var(info, False, "")
        self.block_builder.emit_normalized(MatchCast(var, value, info))
        return var

    def _info(self, meta: Any) -> StructInfo:
        found = _NO_SIZES.info(meta)
        return _renamed(found, self.renames) if self.renames else found

    def _size(self, value: Any) -> Any:
        return plain(as_expr(value).xreplace(self.renames))

    def _value(self, value: Any) -> Any:
        if isinstance(value, Node):
            return self.env[value]
        if isinstance(value, (list, tuple)):
            return type(value)(self._value(each) for each in value)
        return self._size(value) if isinstance(value, torch.SymInt) else value


def _renamed(info: StructInfo, names: Mapping[Any, Any]) -> StructInfo:
    if isinstance(info, TensorStructInfo) and info.sizes is not None:
        return TensorStructInfo([size.xreplace(dict(names)) for size in info.sizes], info.dtype)
    fields = getattr(info, "fields", None)
    return type(info)([_renamed(each, names) for each in fields]) if fields else info  # type: ignore[call-arg]


def _symbols(info: StructInfo) -> set[Any]:
    return set(symbols_of(info))


def detach_params(mod: IRModule) -> tuple[IRModule, dict[str, list[Tensor]]]:
    """The module without its functions' attribute ``params``, and the params by function name."""
    found = IRModule(mod.functions)
    params: dict[str, list[Tensor]] = {}
    for var, function in mod.functions.items():
        if isinstance(function, Function) and "params" in function.attrs:
            params[var.name_hint] = list(function.attrs["params"])
            found[var] = function.without_attr("params")
    return found, params


def relax_dynamo(pipeline: Callable[[IRModule], IRModule] | None = None) -> Callable[..., Any]:
    """A ``torch.compile`` backend that compiles through a relax module; ``pipeline``: a pass over it."""

    def backend(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        from smelt.relax.build import VirtualMachine, build

        tensors = [each for each in example_inputs if isinstance(each, Tensor)]
        numbers = [n for n, each in enumerate(example_inputs) if not isinstance(each, Tensor)]
        if numbers:
            remedy = "compile with dynamic=False"
            raise RelaxError("SM1308", "sizes as inputs of a graph", remedy=remedy)
        info = [(tuple(int(size) for size in each.shape), dtype_name(each.dtype) or "") for each in tensors]
        mod = from_fx(graph_module, info)
        main = VirtualMachine(build(mod if pipeline is None else pipeline(mod)))["main"]

        def call(*args: Any) -> Any:
            result = main(*args)
            return result if isinstance(result, tuple) else (result,)

        return call

    return backend


def dynamo_capture_subgraphs(
    model: Any, *params: Any, keep_params_as_input: bool = False, **kwargs: Any
) -> IRModule:
    """The graphs that Dynamo captures of a model, as functions ``subgraph_0`` … of one module."""
    mod = IRModule()

    def capture(graph_module: fx.GraphModule, example_inputs: Sequence[Tensor]) -> Callable[..., Any]:
        info = [(tuple(each.shape), dtype_name(each.dtype) or "") for each in example_inputs]
        found = from_fx(
            graph_module, info, keep_params_as_input=keep_params_as_input, unwrap_unit_return_tuple=True
        )
        name = f"subgraph_{len(mod)}"
        mod[name] = found["main"].with_attr("global_symbol", name)
        return graph_module.forward

    torch.compiler.reset()
    with torch.no_grad():
        torch.compile(model, backend=capture, dynamic=False)(*params, **kwargs)
    return mod


__all__ = ["detach_params", "dynamo_capture_subgraphs", "from_exported_program", "from_fx", "relax_dynamo"]
