"""Higher-order operators in the contract: kept, inlined or decomposed; effects lose their tokens.

- ``invoke_subgraph``, ``run_const_graph``, ``strict_mode``, ``invoke_quant`` and all of their kind
  (``BaseHOP``): a call is replaced by its body, so that fusion sees through it.
- ``with_effects(token, op, …)``: a plain call of ``op`` that is marked as having an effect; the result's
token is the argument's. Calls with effects are never dropped, merged or reordered: no token is needed.
- ``cond``, ``while_loop``, ``while_loop_stack_output``, ``scan``, ``map_impl``: kept; each body is a graph
  that is brought into the contract form itself.
- ``auto_functionalized``, ``auto_functionalized_v2``, ``print``: kept.
- ``flex_attention`` and others (`smelt.contract.definitions`): replaced by PyTorch's definition.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch._higher_order_ops.base_hop import BaseHOP
from torch._ops import HigherOrderOperator
from torch.fx import Graph, GraphModule, Node
from torch.utils import _pytree as pytree

from smelt.capture.program import Input, Program
from smelt.contract.definitions import DEFINED, Definition, definition
from smelt.contract.facts import EFFECT, REFUSED, layout
from smelt.contract.flex import BODIES as FLEX
from smelt.contract.flex import kept_bodies
from smelt.errors import Unsupported
from smelt.runtime.control import CONTROL

BODIES = {name.removeprefix("higher_order."): each.bodies for name, each in CONTROL.items() if each.bodies}
"""Control flow by name, with the positions of the arguments that are bodies."""

FUNCTIONALIZED = ("auto_functionalized", "auto_functionalized_v2")
KEPT = frozenset({*BODIES, *FUNCTIONALIZED, *FLEX, "print"})
"""The higher-order operators that a contract graph may contain."""

_INLINED = {"invoke_subgraph": 2, "run_const_graph": None, "strict_mode": None}
"""Calls that are replaced by their body, with the position of the first operand (None: a tuple at 1)."""


def _is_inlined(target: Any) -> bool:
    return higher_order_name(target) in _INLINED or isinstance(target, BaseHOP)


def higher_order_name(target: Any) -> str | None:
    """The name of a higher-order operator, or None for anything else.

    >>> higher_order_name(torch.ops.higher_order.cond), higher_order_name(torch.ops.aten.add.Tensor)
    ('cond', None)
    """
    return target.name() if isinstance(target, HigherOrderOperator) else None


def bodies_of(node: Node) -> list[Node]:
    """The ``get_attr`` nodes that are the bodies of a control flow operator, or of `smelt.contract.flex`."""
    name = higher_order_name(node.target) or ""
    if name in FLEX and REFUSED not in node.meta:
        *places, last = FLEX[name]
        return [*(node.args[place] for place in places), node.args[last][-1]]  # type: ignore[list-item, index]
    return [node.args[place] for place in BODIES.get(name, ())]  # type: ignore[misc]


def expand(program: Program, left: Callable[[Node], bool] = lambda node: False) -> Program:
    """The program with calls inlined and effects unwrapped; itself if there is nothing to do.

    ``left``: a predicate for calls that stay as they are.

    Raises:
        Unsupported: a subgraph is called with sizes for which it was not traced.
    """
    nodes = program.graph_module.graph.nodes
    targets = {node.target for node in nodes if node.op == "call_function"}
    names = {higher_order_name(target) for target in targets}
    if not names & {*DEFINED, "with_effects"} and not any(map(_is_inlined, targets)):
        return program
    module = program.graph_module
    graph = Graph()
    root = torch.nn.Module()
    _Expander(graph, root, left).run(module)
    expanded = GraphModule(root, graph, "Expanded")
    expanded.meta.update(module.meta)
    return Program(expanded, program.kind, program.inputs, program.output_roles, program.name)


class _Expander:
    def __init__(self, graph: Graph, root: torch.nn.Module, left: Callable[[Node], bool]) -> None:
        self.graph, self.root, self.left = graph, root, left
        self.attributes: dict[int, str] = {}
        self.definitions: dict[Any, Definition] = {}

    def run(self, module: GraphModule) -> None:
        results = self._copy(module, None)
        output = self.graph.output(results)
        output.meta.update(module.graph.output_node().meta)

    def _copy(self, module: GraphModule, operands: list[Any] | None) -> Any:
        """Copy a body's nodes and return its results. ``operands`` replace the placeholders."""
        env: dict[Node, Any] = {}
        given = iter(operands or ())
        for node in module.graph.nodes:
            if node.op == "output":
                return torch.fx.node.map_arg(node.args[0], env.__getitem__)
            if node.op == "placeholder" and operands is not None:
                env[node] = next(given)
                _check_fits(node, env[node])
            else:
                env[node] = self._node(node, module, env)
        return ()

    def _node(self, node: Node, module: GraphModule, env: dict[Node, Any]) -> Any:
        if node.op == "get_attr":
            value = operator.attrgetter(str(node.target))(module)
            if isinstance(value, GraphModule):
                value.meta.setdefault("smelt_name", str(node.target))
            made = self.graph.get_attr(self._attribute(str(node.target), value))
            made.meta.update(node.meta)
            return made
        name = higher_order_name(node.target)
        args: Any = torch.fx.node.map_arg(node.args, env.__getitem__)
        if name in DEFINED and not self.left(node):
            found = self._defined(node, module, env)
            if found is not None:
                return found
        if _is_inlined(node.target) and not self.left(node):
            first = _INLINED.get(str(name), 1)
            body = operator.attrgetter(str(node.args[0].target))(module)  # type: ignore[union-attr]
            return list(self._copy(body, list(args[1] if first is None else args[first:])))
        if name == "with_effects":
            return self._effect(node, args, torch.fx.node.map_arg(node.kwargs, env.__getitem__))
        if node.target is operator.getitem and not isinstance(args[0], Node):
            return args[0][args[1]]
        made = self.graph.node_copy(node, env.__getitem__)
        if name in FLEX and REFUSED not in node.meta:
            self._flex(str(name), made)
        return made

    def _flex(self, name: str, call: Node) -> None:
        """Keeps the bodies alone: of a block mask only the function counts."""
        *places, last = FLEX[name]
        nodes = bodies_of(call)
        given = [operator.attrgetter(str(each.target))(self.root) for each in nodes]
        for position, (node, body, made) in enumerate(zip(nodes, given, kept_bodies(name, given))):
            if made is not body:
                with self.graph.inserting_before(call):
                    nodes[position] = self.graph.get_attr(self._attribute(str(node.target), made))
                nodes[position].meta.update(node.meta)
        for place, each in zip(places, nodes):
            call.update_arg(place, each)
        call.update_arg(last, (nodes[-1],))
        call.meta["val"] = tuple(each for each in call.meta["val"] if isinstance(each, torch.Tensor))

    def _defined(self, node: Node, module: GraphModule, env: dict[Node, Any]) -> Any:
        """The results of a call's definition; None, and the reason, if the definition cannot be traced."""
        try:
            found = definition(node, module, self.definitions)
        except Exception as error:  # PyTorch raises its error when it runs the call, too
            node.meta[REFUSED] = f"{node.target} of this kind: {str(error).strip().splitlines()[0]}"
            return None
        results = self._copy(found.body, [env[each] for each in found.operands])
        return pytree.tree_unflatten(list(results), found.spec)

    def _effect(self, node: Node, args: Any, kwargs: Any) -> list[Any]:
        """``with_effects(token, op, *args)`` → ``[token, *results of op(*args)]``."""
        token, target, *rest = args
        results = list(node.meta["val"])[1:]
        call = self.graph.call_function(target, tuple(rest), dict(kwargs))
        call.meta.update({key: value for key, value in node.meta.items() if key != "val"})
        call.meta[EFFECT] = True
        if len(results) == 1:
            call.meta["val"] = results[0]
            return [token, call]
        call.meta["val"] = tuple(results)
        parts = []
        for position, value in enumerate(results):
            part = self.graph.call_function(operator.getitem, (call, position))
            part.meta.update(call.meta, val=value)
            del part.meta[EFFECT]
            parts.append(part)
        return [token, *parts]

    def _attribute(self, wanted: str, value: Any) -> str:
        """The new root's name for an attribute of a body."""
        known = self.attributes.get(id(value))
        if known is None:
            known = wanted.replace(".", "_")
            while hasattr(self.root, known):
                known += "_"
            if isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter):
                self.root.register_buffer(known, value)
            else:
                setattr(self.root, known, value)
            self.attributes[id(value)] = known
        return known


def _check_fits(placeholder: Node, operand: Any) -> None:
    wanted = placeholder.meta.get("val")
    given = operand.meta.get("val") if isinstance(operand, Node) else operand
    left, right = layout(wanted), layout(given)
    if left is not None and right is not None and (left[:3], left[3][:-1]) != (right[:3], right[3][:-1]):
        raise Unsupported("a subgraph that is called with other sizes than it was traced with")


def body_program(body: GraphModule, name: str) -> Program:
    """A body as a Program of its own: operands in, one flat tuple out.

    >>> from smelt.capture import capture_function
    >>> inner = capture_function(lambda x: x + 1, [torch.ones(2)]).graph_module
    >>> body_program(inner, "then").output_roles
    ('user',)
    """
    graph = body.graph
    output = graph.output_node()
    results = output.args[0]
    if not isinstance(results, (list, tuple)):
        copied = Graph()
        env: dict[Node, Node] = {}
        copied.graph_copy(graph, env)
        made = copied.output((env[results] if isinstance(results, Node) else results,))
        made.meta.update(output.meta)
        body = GraphModule(body, copied, "Body")
        graph = body.graph
        results = graph.output_node().args[0]
    assert isinstance(results, (list, tuple))
    inputs = tuple(
        Input(node.name, "user" if isinstance(node.meta.get("val"), torch.Tensor) else "size")
        for node in graph.find_nodes(op="placeholder")
    )
    return Program(body, "inference", inputs, tuple("user" for _ in results), name)
