"""The result type of every capture: an FX graph, and the roles of its inputs and outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from sympy import Symbol
from torch.fx import GraphModule, Node

Kind = Literal["inference", "forward", "backward"]
InputRole = Literal["user", "parameter", "buffer", "constant", "size", "saved", "tangent"]
OutputRole = Literal["user", "alias", "saved", "gradient"]


@dataclass(frozen=True, slots=True)
class Input:
    """A placeholder of the graph.

    ``size`` inputs are numbers (SymInt, int, float …), all others tensors. ``saved`` and ``tangent`` occur in
    backward programs only. ``static``: the same tensor at every call (a parameter, a buffer). ``value``: the
    tensor itself, if known (``torch.export``). ``path``: its qualified name in the user's module, if known.
    """

    name: str
    role: InputRole
    static: bool = False
    path: str | None = None
    value: torch.Tensor | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Program:
    """A captured graph, in the form that `smelt.contract.contract` takes.

    ``graph_module`` has ATen calls with FakeTensor metadata (``node.meta["val"]``); mutations of inputs are
    ``aten.copy_`` calls onto placeholders; the output is one flat tuple. ``output_roles``: the reader of each
    output: the user, the backward (``saved``) or autograd (``gradient``); ``alias``: the user gets a view of
    an input, which AOTAutograd makes from sizes, strides and offset of the output.

    >>> from smelt.capture import capture_function
    >>> program = capture_function(lambda x: x.sin() + 1, [torch.ones(3)])
    >>> program.kind, [each.role for each in program.inputs], program.output_roles
    ('inference', ['user'], ('user',))
    """

    graph_module: GraphModule
    kind: Kind
    inputs: tuple[Input, ...]
    output_roles: tuple[OutputRole, ...]
    name: str = "graph"

    @property
    def placeholders(self) -> list[Node]:
        """The graph's inputs, in order."""
        return self.graph_module.graph.find_nodes(op="placeholder")

    @property
    def output(self) -> Node:
        """The graph's output node."""
        return self.graph_module.graph.output_node()

    @property
    def outputs(self) -> tuple[Any, ...]:
        """The outputs of the graph: nodes, literals or None."""
        return tuple(self.output.args[0])  # type: ignore[arg-type]

    @property
    def example_inputs(self) -> list[Any]:
        """The inputs as seen while capturing: FakeTensors, SymInts, numbers."""
        return [node.meta.get("val") for node in self.placeholders]

    @property
    def static_inputs(self) -> tuple[int, ...]:
        """Positions of inputs that are the same tensor at every call."""
        return tuple(position for position, each in enumerate(self.inputs) if each.static)

    @property
    def frozen_inputs(self) -> frozenset[str]:
        """Names of the inputs that rarely change between calls: static inputs of an inference graph that it
        does not overwrite.
        """
        if self.kind != "inference":
            return frozenset()
        overwritten = {target.name for target, _ in self.mutations()}
        return frozenset(each.name for each in self.inputs if each.static) - overwritten

    @property
    def size_inputs(self) -> tuple[int, ...]:
        """Positions of inputs that are numbers."""
        return tuple(position for position, each in enumerate(self.inputs) if each.role == "size")

    @property
    def user_outputs(self) -> tuple[int, ...]:
        """Positions of outputs for the user (or autograd); the others are for the backward."""
        return tuple(position for position, role in enumerate(self.output_roles) if role != "saved")

    @property
    def saved_outputs(self) -> tuple[int, ...]:
        """Positions of outputs for the backward only."""
        return tuple(position for position, role in enumerate(self.output_roles) if role == "saved")

    @property
    def alias_outputs(self) -> tuple[int, ...]:
        """Positions of outputs of which only sizes, strides and offset are used: views of inputs."""
        return tuple(position for position, role in enumerate(self.output_roles) if role == "alias")

    def mutations(self) -> list[tuple[Node, Node]]:
        """(placeholder, node with its final value), in graph order."""
        found = []
        for node in self.graph_module.graph.find_nodes(
            op="call_function", target=torch.ops.aten.copy_.default
        ):
            target, source = node.args[0], node.args[1]
            if isinstance(target, Node) and target.op == "placeholder" and isinstance(source, Node):
                found.append((target, source))
        return found

    def hints(self) -> dict[Symbol, int]:
        """The size that each backed symbol had while capturing."""
        return {symbol: int(value) for symbol, value in _symbol_hints(self.example_inputs).items()}


def shape_env_of(values: Sequence[Any]) -> Any | None:
    """The ShapeEnv of the symbolic sizes among ``values``, or None if all are static."""
    for value in values:
        if isinstance(value, torch.Tensor):
            numbers: Sequence[Any] = value.shape
        else:
            numbers = (value,)
        for number in numbers:
            if isinstance(number, (torch.SymInt, torch.SymFloat, torch.SymBool)):
                return number.node.shape_env
    return None


def _symbol_hints(values: Sequence[Any]) -> dict[Symbol, int]:
    hints: dict[Symbol, int] = {}
    numbers: list[Any] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            numbers += [*value.shape, *value.stride()] if value.layout is torch.strided else list(value.shape)
        else:
            numbers.append(value)
    for number in numbers:
        if isinstance(number, torch.SymInt):
            expr = number.node.expr
            if isinstance(expr, Symbol) and expr not in hints and number.node.has_hint():
                hints[expr] = int(number.node.hint)
    env = shape_env_of(values)
    known = getattr(env, "backed_var_to_val", None) or getattr(env, "var_to_val", None) or {}
    for number in numbers:
        if isinstance(number, torch.SymInt):
            for symbol in number.node.expr.free_symbols:
                if symbol not in hints and symbol in known:
                    hints[symbol] = int(known[symbol])
    return hints
