"""Contract graph → Torch dialect: one operation per call, in graph order."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx import GraphModule, Node

from smelt.capture import Program
from smelt.contract.facts import number
from smelt.errors import Problem, Unsupported
from smelt.lowering.needs import METHODS, needs_of
from smelt.mlir import bindings
from smelt.mlir.arrays.decomposed import DECOMPOSED
from smelt.mlir.bindings import ir
from smelt.mlir.capabilities import Capabilities
from smelt.mlir.diagnostics import UnsupportedOperatorsError, verify
from smelt.mlir.locations import location_of
from smelt.mlir.program import write_function
from smelt.mlir.signature import Argument, Weights, signature_of
from smelt.mlir.torch_dialect import control, loops, special
from smelt.mlir.torch_dialect.arguments import Constants, Operands, with_numbers
from smelt.mlir.torch_dialect.constraints import Constraints
from smelt.mlir.torch_dialect.dialect import TorchDialect
from smelt.mlir.torch_dialect.elementwise import ELEMENTWISE
from smelt.mlir.torch_dialect.literals import literal
from smelt.mlir.torch_dialect.pipelines import FAULT, reason_against
from smelt.mlir.torch_dialect.types import type_of
from smelt.symbolic import as_expr
from smelt.symbolic.expr import with_known_signs

aten = torch.ops.aten

CAPABILITIES = Capabilities(
    bodies=frozenset({"Pointwise", "Reduction", "Contraction", "Scan", "Fold", "Scatter", "Sort"}),
    elementwise=frozenset({*ELEMENTWISE, *DECOMPOSED}) - {"nextafter"},
    methods=METHODS - {"bitcast"},
)
"""The parts of a call's loop graph that the dialect's arrays support."""

_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
_NUMBERS = ("!torch.int", "!torch.float", "!torch.bool", "!torch.list<int>")


def emit(
    program: Program, weights: Weights = "inline", *, name: str = "main", symbolic_shapes: bool = False
) -> Any:
    """A program in contract form as a module with one function in the Torch dialect.

    Args:
        program: the result of `smelt.contract.contract`.
        weights: whether the tensors that the program holds are literals or arguments (see `Signature`).
        name: the function's name.
        symbolic_shapes: whether to state how sizes depend on one another (``torch.symbolic_int`` and
            ``torch.bind_symbolic_shape``). Off by default, because torch-mlir's backend pipelines have no
            rule for these; `smelt.mlir.run_pipeline_with_repro_report` erases them for such a pipeline.

    An operator that the dialect lacks becomes ``torch.operator``; integers are signed, bool is i1. Results
    that are None are omitted.

    Raises:
        UnsupportedOperatorsError: SM0711, all calls that the dialect cannot express.
        SmeltError: SM0710 the bindings are not installed, SM0713 a bug.
    """
    context = bindings.new_context()
    with context, ir.Location.unknown():
        module = ir.Module.create()
        problems: list[Problem] = []
        with ir.InsertionPoint(module.body):
            _Function(program, weights, name, symbolic_shapes, problems).run()
        if problems:
            raise UnsupportedOperatorsError("the Torch dialect", problems)
        return verify(module)


class _Function:
    """The function of a program: its signature, its body, its results."""

    def __init__(
        self, program: Program, weights: Weights, name: str, symbolic_shapes: bool, problems: list[Problem]
    ) -> None:
        self.program, self.name, self.problems = program, name, problems
        self.symbolic_shapes = symbolic_shapes
        self.signature = signature_of(program, weights)

    def run(self) -> None:
        arguments = self.signature.arguments
        try:
            inputs = [type_of(each.meta) for each in arguments]
        except Unsupported as refusal:
            self.problems.append(Problem(f"an argument: {refusal.reason}"))
            return
        function = write_function(self.name, arguments, inputs, self._body)
        if function is not None:
            drop_unused_numbers(function.regions[0].blocks[0])

    def _body(self, values: Sequence[Any]) -> list[Any] | None:
        """Write the operations; the returned values, or None if a call is not supported."""
        graph = self.program.graph_module.graph
        constraints = None
        if self.symbolic_shapes:
            constraints = Constraints(node.meta.get("val") for node in graph.nodes)
        walk = Walk(self.program.graph_module, self.problems, constraints)
        for argument, value in zip(self.signature.arguments, values, strict=True):
            walk.take(argument.node, value)
        for held in self.signature.literals:
            walk.attempt(held.node, partial(self._hold, walk, held))
        walk.run()
        if self.problems:
            return None
        results = [each.value for each in self.signature.results if each.value is not None]
        return [
            walk.value_of(value) if isinstance(value, Node) else walk.constants.get(value)
            for value in results
        ]

    @staticmethod
    def _hold(walk: Walk, held: Argument) -> None:
        assert held.value is not None
        walk.take(held.node, literal(held.value, held.name))


class Walk:
    """Writes the calls of one graph in order at the current insertion point; control-flow bodies get their
    own instances. ``values``: the MLIR value (or list of values) of each FX node. ``faults``: the errors of
    torch-mlir's pipelines for calls without another form. ``sized``: the tensors with dynamic sizes."""

    def __init__(
        self,
        module: GraphModule,
        problems: list[Problem],
        constraints: Constraints | None = None,
        outer: Walk | None = None,
    ) -> None:
        self.module, self.problems, self.constraints = module, problems, constraints
        self.constants: Constants = Constants(None if outer is None else outer.constants)
        self.dialect = TorchDialect(self.constants)
        self.sized: list[tuple[Any, torch.Tensor]] = [] if outer is None else list(outer.sized)
        if outer is not None:
            self.dialect.symbols.update(outer.dialect.symbols)
            self.dialect.memo.update(outer.dialect.memo)
        self.operands = Operands(self.constants, self.value_of)
        self.values: dict[Node, Any] = {}
        self.failed: set[Node] = set()
        self.faults: dict[Node, str] = {}

    def run(self) -> None:
        """Write every call; unsupported calls are added to ``problems``."""
        for node in self.module.graph.nodes:
            if node.op == "get_attr" and node.users:
                self.attempt(node, partial(self._constant, node))
            elif node.op == "call_function" and self.failed.isdisjoint(node.all_input_nodes):
                self.attempt(node, partial(self._call, node))
            elif node.op == "call_function":
                self._stand_in(node)

    def attempt(self, node: Node, write: Callable[[], None]) -> None:
        """Write one node at its line; record it if it is not supported."""
        with location_of(node):
            try:
                write()
            except Unsupported as refusal:
                self.problems.append(Problem(f"{node.target}: {refusal.reason}", node.meta.get("where")))
                self._stand_in(node)

    def take(self, node: Node, value: Any) -> None:
        """Set a node's value."""
        self.values[node] = value
        meta = node.meta.get("val")
        if isinstance(meta, _SYMBOLIC):
            self.dialect.memo["number", str(meta.node.expr)] = value
        elif isinstance(meta, torch.Tensor) and not all(isinstance(size, int) for size in meta.shape):
            self.sized.append((value, meta))
        if self.constraints is not None and isinstance(meta, torch.Tensor):
            self.constraints.bind(value, meta)

    def value_of(self, node: Node) -> Any:
        """The MLIR value of an FX node; a known number becomes a constant."""
        value = self.values.get(node)
        if value is None:
            meta = node.meta.get("val")
            if isinstance(meta, (bool, int, float)):
                return self.constants.get(meta)
            raise Unsupported(f"the value {node.name} has no form in the dialect")
        return value

    # -- nodes -----------------------------------------------------------------------------------------------

    def _constant(self, node: Node) -> None:
        held = operator.attrgetter(str(node.target))(self.module)
        if isinstance(held, torch.Tensor):
            self.take(node, literal(held, str(node.target)))

    def _call(self, node: Node) -> None:
        target = node.target
        if isinstance(target, HigherOrderOperator):
            control.write(self, node)
        elif target is operator.getitem and isinstance(self.values.get(node.args[0]), list):  # type: ignore[arg-type]
            self.values[node] = self.values[node.args[0]][node.args[1]]  # type: ignore[index]
        elif target is aten.copy_.default:
            pass  # the signature returns the new value instead
        elif isinstance(target, OpOverload) and self._by_loops(node, target):
            pass
        elif target in special.WRITERS:
            special.WRITERS[target](self, node)
        elif isinstance(node.meta.get("val"), _SYMBOLIC) or not isinstance(target, OpOverload):
            self._number(node)
        else:
            self.write(node, target)

    def _by_loops(self, node: Node, overload: OpOverload) -> bool:
        """Write a call by its loop functions, if torch-mlir's pipelines are wrong about it or the dialect
        lacks it; False if that is unnecessary or impossible."""
        name = operation_name(renamed(with_numbers(node, overload)))
        fault = reason_against(node, name, *described(node))
        if fault is None and (overload in special.WRITERS or is_registered(name)):
            return False
        try:
            loops.write(self, node)
        except Unsupported as refusal:
            if fault is not None and fault.silent:
                self.faults[node] = f"{fault.what}, and by loop functions: {refusal.reason}"
            return False
        return True

    def _number(self, node: Node) -> None:
        """A number computed from sizes, as an expression of the function's symbols."""
        meta = node.meta.get("val")
        if not isinstance(number(meta), (bool, int, float)):  # else `value_of` makes it a constant
            node_of: Any = meta.node  # type: ignore[union-attr]
            signed = with_known_signs(node_of.expr, node_of.shape_env)
            expr = as_expr(meta) if isinstance(meta, torch.SymInt) else signed
            self.know(expr.free_symbols)
            self.values[node] = self.dialect.number(expr)

    def know(self, symbols: Collection[Any]) -> None:
        """Read size symbols from the tensors that have them as dimensions."""
        for value, own in self.sized:
            if any(not as_expr(size).free_symbols.isdisjoint(symbols) for size in own.shape):
                self.dialect.know_sizes(value, own)

    def write(self, node: Node, overload: OpOverload) -> None:
        """The call as an operation of the same name with the schema's arguments, or as a ``torch.operator``
        if the dialect has none; sets the node's values."""
        overload = renamed(with_numbers(node, overload))
        operands = self.operands.of_call(node, overload)
        meta: Any = node.meta.get("val")
        name = operation_name(overload)
        packed = len(overload._schema.returns) == 1 and isinstance(meta, (list, tuple))
        metas = [meta] if packed or not isinstance(meta, (list, tuple)) else list(meta)
        if not overload._schema.returns:
            metas = []
        results = [type_of(each) for each in metas]
        if is_registered(name):
            made = ir.Operation.create(name, results=results, operands=operands)
        else:
            attributes = {"name": ir.StringAttr.get(name)}
            made = ir.Operation.create(
                "torch.operator", results=results, operands=operands, attributes=attributes, regions=0
            )
        if node in self.faults:
            made.attributes[FAULT] = ir.StringAttr.get(self.faults[node])
        if packed:
            self.unpack(node, made.results[0], meta)
        elif isinstance(meta, (list, tuple)):
            self.values[node] = list(made.results)
        elif metas:
            self.take(node, made.results[0])

    def unpack(self, node: Node, packed: Any, metas: Sequence[Any]) -> None:
        """The tensors of a list."""
        parts = ir.Operation.create(
            "torch.prim.ListUnpack", results=[type_of(each) for each in metas], operands=[packed]
        )
        self.values[node] = list(parts.results)

    def cast(self, value: Any, kind: Any) -> Any:
        """A tensor with a type that has more or fewer static sizes."""
        if value.type == kind:
            return value
        return ir.Operation.create("torch.tensor_static_info_cast", results=[kind], operands=[value]).results[
            0
        ]

    def _stand_in(self, node: Node) -> None:
        """Placeholder values of the right types for a failed node, so that later problems are found too."""
        meta = node.meta.get("val")
        try:
            kinds = [type_of(each) for each in (meta if isinstance(meta, (list, tuple)) else (meta,))]
        except Unsupported:
            self.failed.add(node)
            return
        name = {"name": ir.StringAttr.get("unsupported")}
        made = ir.Operation.create("torch.operator", results=kinds, attributes=name, regions=0)
        self.values[node] = list(made.results) if isinstance(meta, (list, tuple)) else made.results[0]


def described(node: Node) -> tuple[set[torch.dtype], int]:
    """The dtypes of a call's operands and results, and the element count of the largest static tensor."""
    metas: list[Any] = [node.meta.get("val"), *(each.meta.get("val") for each in node.all_input_nodes)]
    flat = [one for each in metas for one in (each if isinstance(each, (list, tuple)) else [each])]
    tensors = [each for each in flat if isinstance(each, torch.Tensor)]
    counts = [number(each.numel()) for each in tensors]
    return {each.dtype for each in tensors}, max((n for n in counts if isinstance(n, int)), default=0)


def operation_name(overload: OpOverload) -> str:
    """The name of an overload's operation.

    >>> operation_name(torch.ops.aten.add.Tensor), operation_name(torch.ops.aten.tanh.default)
    ('torch.aten.add.Tensor', 'torch.aten.tanh')
    """
    base = overload._schema.name.replace("::", ".")
    suffix = "" if overload._overloadname == "default" else f".{overload._overloadname}"
    return f"torch.{base}{suffix}"


def drop_unused_numbers(block: Any) -> None:
    """Erase unused operations whose results are numbers, or lists or tensors of numbers."""
    for operation in reversed(list(block.operations)):
        kinds = [str(result.type) for result in operation.results]
        numbers = all(kind in _NUMBERS for kind in kinds) or operation.name == "torch.aten.scalar_tensor"
        if kinds and numbers and all(not any(each.uses) for each in operation.results):
            operation.erase()


def how(overload: OpOverload) -> str:
    """How a call of an operator on float32 is written (under a context): ``yes``, an operation of its name or
    an equivalent one; ``loops``, by its loop functions; ``operator``, as a ``torch.operator``."""
    name = operation_name(renamed(overload))
    written = overload in special.WRITERS or is_registered(name)
    if reason_against(None, name, {torch.float32}) is not None or not written:
        needs = needs_of(overload)
        if needs is not None and not CAPABILITIES.lacks(needs):
            return "loops"
    return "yes" if written else "operator"


def renamed(overload: OpOverload) -> OpOverload:
    """An equivalent overload to write instead, or the overload itself (under a context).

    ``diagonal_copy`` → ``diagonal``: copies and views of value tensors are equivalent, and torch-mlir's
    pipelines support the views. ``prims.exp`` → ``aten.exp``, if the dialect lacks the prim.
    """
    namespace, _, name = overload._schema.name.partition("::")
    wanted = overload._overloadname
    if namespace == "prims" and not is_registered(operation_name(overload)):
        count = len(overload._schema.arguments)
        choices = [getattr(getattr(aten, name, None), each, None) for each in ("default", "Tensor", "self")]
        choices = [each for each in choices if each is not None and _takes(each, count)]
    elif namespace == "aten" and name.endswith("_copy"):
        choices = [getattr(getattr(aten, name.removesuffix("_copy"), None), wanted, None)]
    else:
        return overload
    found = [each for each in choices if each is not None and is_registered(operation_name(each))]
    return found[0] if found else overload


def _takes(overload: OpOverload, count: int) -> bool:
    """Whether an overload can be called with ``count`` tensors."""
    first, rest = overload._schema.arguments[:count], overload._schema.arguments[count:]
    tensors = len(first) == count and all(each.type.kind() == "TensorType" for each in first)
    return tensors and all(each.has_default_value() for each in rest)


def is_registered(name: str) -> bool:
    """Whether the dialect has an operation of this name (under a context)."""
    return bool(ir.Context.current.is_registered_operation(name))
