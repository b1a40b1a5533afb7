"""`contract`: a captured program → the closed form that all later stages rely on."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch.fx import Graph, Node
from torch.fx._lazy_graph_module import _make_graph_module, _use_lazy_graph_module

from smelt.capture import Program
from smelt.contract import where
from smelt.contract.batches import fold_batches
from smelt.contract.devices import copy_scalars
from smelt.contract.facts import RAISING, has_effect, is_view, layout, number
from smelt.contract.higher_order import bodies_of, body_program, expand
from smelt.contract.verify import verify
from smelt.passes import Watch, run
from smelt.runtime.externs import is_random

aten = torch.ops.aten


def contract(program: Program) -> Program:
    """The contract form of ``program``, verified; the captured graph is unchanged.

    The result satisfies, in addition to `smelt.contract.verify`:

    - no dead call (save those that write, draw random numbers or may raise), no pure call twice; - no call
    that gives its argument back unchanged; - ``copy_`` onto placeholders stands at the end, one per
    placeholder, its result unused; the copied value is never memory of another overwritten input; - two
    outputs share memory only where they did in the captured graph; - ``meta["where"]`` on every node.

    Raises:
        VerificationError: SM0420 to SM0427, all that is wrong at once.
        Unsupported: the graph is well formed but not for smelt (a device, a layout, a higher-order operator).
    """
    result = contracted(program)
    verify(result)
    return result


@dataclass(frozen=True, slots=True)
class Context:
    """``left``: a predicate for higher-order calls that stay whole: PyTorch or a kernel runs them."""

    left: Callable[[Node], bool] = lambda node: False
    watch: Watch | None = None


def contracted(
    program: Program, left: Callable[[Node], bool] = lambda node: False, watch: Watch | None = None
) -> Program:
    """The contract form of a program and of its control flow's bodies, unverified; see `Context`.

    Raises:
        Unsupported: a subgraph is called with sizes for which it was not traced.
    """
    return run(PASSES, program, Context(left, watch), watch)


def inline_calls(program: Program, context: Context) -> Program:
    """Inlines higher-order calls that are no control flow, and unwraps effects."""
    return expand(program, context.left)


def simplify(program: Program, context: Context) -> Program:
    """Drops dead and repeated calls and unobservable copies, and records where each call comes from."""
    del context
    graph = _Rewriter(program).run()
    where.attach(graph)
    with _use_lazy_graph_module(True):
        graph_module = _make_graph_module(program.graph_module, graph, "Contract")
    return dataclasses.replace(program, graph_module=graph_module)


def contract_bodies(program: Program, context: Context) -> Program:
    """Brings the bodies of control flow into the contract form."""
    graph_module = program.graph_module
    graph = graph_module.graph
    for body in dict.fromkeys(body for node in graph.nodes for body in bodies_of(node)):
        name = str(body.target)
        inner = operator.attrgetter(name)(graph_module)
        body.target = name.replace(".", "_")
        made = run(PASSES, body_program(inner, f"{program.name} {name}"), context, context.watch).graph_module
        if isinstance(inner.graph.output_node().args[0], Node):  # PyTorch expects the same form
            output = made.graph.output_node()
            output.args = (output.all_input_nodes[0],)
            made.recompile()
        setattr(graph_module, body.target, made)
    return program


PASSES = (inline_calls, fold_batches, simplify, copy_scalars, contract_bodies)


class _Rewriter:
    """A rewriter that copies the old graph into a new one; every rule is a method ``_rule(node, args)``.

    ``visible``: memory that the caller sees (an output, or the new contents of an input), by the node that
    allocated it. Two visible values are never merged, nor does a visible value become (a view of) an input.
    """

    def __init__(self, program: Program) -> None:
        self.old = program.graph_module.graph
        self.new = Graph()
        self.env: dict[Node, Node] = {}
        self.root: dict[Node, Node] = {}
        self.calls: dict[Any, Node] = {}
        self.copies: list[tuple[Node, Any, dict[str, Any]]] = []
        self.visible_old = _visible(self.old)
        self.visible: set[Node] = set()
        self.returned = {value for value in self.old.output_node().args[0] if isinstance(value, Node)}  # type: ignore[union-attr]
        self.rules: tuple[Callable[[Node, tuple[Any, ...]], Node | None], ...] = (
            self._drop_view_of_all,
            self._drop_copy,
            self._reuse_equal_call,
        )

    def run(self) -> Graph:
        live = _live(self.old)
        for node in self.old.nodes:
            if node in live:
                self._visit(node)
        return self.new

    def _visit(self, node: Node) -> None:
        if node.op == "output":
            self._finish(node)
        elif node.op != "call_function":
            reused = self._reuse_equal_call(node, node.args) if node.op == "get_attr" else None
            self.env[node] = reused or self._emit(node)
        elif node.target is aten.copy_.default and _is_placeholder(node.args[0]):
            target = self.env[node.args[0]]  # type: ignore[index]
            self.copies.append((target, self._map(node.args[1]), dict(node.meta)))
            self.env[node] = target
        elif not (node.target in RAISING and _holds(node)):
            args = self._map(node.args)
            for rule in self.rules:
                found = rule(node, args)
                if found is not None:
                    self.env[node] = found
                    self._see(node, found)
                    return
            self.env[node] = self._emit(node)

    # -- rules ---------------------------------------------------------------------------------------------

    def _drop_view_of_all(self, node: Node, args: tuple[Any, ...]) -> Node | None:
        """``alias(x)``, ``detach(x)``, ``expand(x, x.shape)`` … → ``x``."""
        source = args[0] if args else None
        if not is_view(node.target) or not isinstance(source, Node):
            return None
        own = layout(node.meta.get("val"))
        if own is None or own != layout(source.meta.get("val")):
            return None
        if node in self.returned and (source.op != "call_function" or self.root[source] in self.visible):
            return None  # two outputs, or an output and an input, stay two tensors
        return source

    def _drop_copy(self, node: Node, args: tuple[Any, ...]) -> Node | None:
        """``_to_copy(x, dtype=x.dtype)``, ``constant_pad_nd(x, [0, 0])`` → ``x`` for unobservable copies."""
        pads = node.target is aten.constant_pad_nd.default
        if not (node.target is aten._to_copy.default or pads) or not isinstance(args[0], Node):
            return None
        if pads and not all(type(size) is int and size == 0 for size in args[1]):
            return None
        source = args[0]
        own, given = layout(node.meta.get("val")), layout(source.meta.get("val"))
        # A copy starts its own memory, so its offset is 0; the strides must be the same.
        if own is None or given is None or (own[:3], own[3][:-1]) != (given[:3], given[3][:-1]):
            return None
        return source if self._may_stand_for(source, node) else None

    def _reuse_equal_call(self, node: Node, args: tuple[Any, ...]) -> Node | None:
        """A pure call with the same arguments → the first one's result."""
        if node.op == "call_function" and (has_effect(node) or is_random(node.target)):
            return None
        if node.meta.get("unbacked_bindings"):
            return None  # its sizes are new symbols
        try:
            key = (node.op, node.target, _hashable(args), _hashable(self._map(node.kwargs)))
            first = self.calls.get(key)
        except TypeError:
            return None
        if first is None:
            self.calls[key] = node
            return None
        candidate = self.env[first]
        if node in self.returned and first in self.returned:
            return None
        return candidate if self._may_stand_for(candidate, node) else None

    def _may_stand_for(self, candidate: Node, node: Node) -> bool:
        if node not in self.visible_old:
            return True
        root = self.root[candidate]
        if is_view(node.target) and self.root[self._map(node.args[0])] is root:
            return True  # they shared memory before
        return root.op == "call_function" and root not in self.visible

    # -- writing the new graph -----------------------------------------------------------------------------

    def _map(self, argument: Any) -> Any:
        return torch.fx.node.map_arg(argument, self.env.__getitem__)

    def _emit(self, node: Node) -> Node:
        made = self.new.node_copy(node, self.env.__getitem__)
        if node.target is aten.lift_fresh_copy.default:
            made.target = aten.clone.default  # the constant itself must never be returned
        shares = node.op == "call_function" and (is_view(node.target) or node.target is operator.getitem)
        source = made.args[0] if shares and made.args else None
        self.root[made] = self.root[source] if isinstance(source, Node) else made
        self._see(node, made)
        return made

    def _see(self, node: Node, made: Node) -> None:
        if node in self.visible_old:
            self.visible.add(self.root[made])

    def _finish(self, output: Node) -> None:
        overwritten = {target for target, _, _ in self.copies}
        last = {target: position for position, (target, _, _) in enumerate(self.copies)}
        copies = [copy for position, copy in enumerate(self.copies) if last[copy[0]] == position]
        sources = []
        for target, source, _ in copies:
            root = self.root.get(source)
            if source is not target and root in overwritten:
                clone = self.new.create_node(
                    "call_function", aten.clone.default, (source,), name=f"keep_{source.name}"
                )
                clone.meta.update(source.meta)
                self.root[clone] = clone
                source = clone
            sources.append(source)
        for (target, _, meta), source in zip(copies, sources):
            if source is not target:
                node = self.new.create_node(
                    "call_function", aten.copy_.default, (target, source), name=f"store_{target.name}"
                )
                node.meta.update(meta, val=target.meta.get("val"))
        made = self.new.output(tuple(self._map(output.args[0])))
        made.meta.update(output.meta)


def _visible(graph: Graph) -> set[Node]:
    """Nodes whose memory is returned or written to an input."""
    found: set[Node] = set()
    for node in reversed(graph.nodes):
        if node.op == "output":
            found.update(node.all_input_nodes)
        elif node.op == "call_function":
            if node.target is aten.copy_.default and _is_placeholder(node.args[0]):
                found.update(node.all_input_nodes)
            elif node in found and (is_view(node.target) or node.target is operator.getitem):
                found.update(node.all_input_nodes[:1])
    return found


def _live(graph: Graph) -> set[Node]:
    live: set[Node] = set()
    for node in reversed(graph.nodes):
        if (
            node.op in ("placeholder", "output")
            or node in live
            or (node.op == "call_function" and has_effect(node))
        ):
            live.add(node)
            live.update(node.all_input_nodes)
    return live


def _is_placeholder(value: Any) -> bool:
    return isinstance(value, Node) and value.op == "placeholder"


def _holds(node: Node) -> bool:
    """Whether an assertion is known to hold in every run: then it is removed."""
    subject = node.args[0] if node.args else None
    value = subject.meta.get("val") if isinstance(subject, Node) else subject
    if node.target is aten._assert_scalar.default:
        return value is True or number(value) is sympy.true
    if node.target is aten._assert_tensor_metadata.default:
        return isinstance(value, torch.Tensor) and _metadata_agrees(node, value)
    if node.target in (aten.sym_constrain_range.default, aten.sym_constrain_range_for_size.default):
        return isinstance(value, int)
    return False


def _metadata_agrees(node: Node, value: torch.Tensor) -> bool:
    given = dict(zip(("size", "stride", "dtype", "device", "layout"), node.args[1:]))
    given.update(node.kwargs)
    for name, expected in given.items():
        if expected is None:
            continue
        if name in ("size", "stride"):
            actual: Any = [number(each) for each in (value.shape if name == "size" else value.stride())]
            expected = [number(each.meta["val"]) if isinstance(each, Node) else each for each in expected]  # type: ignore[union-attr]
        else:
            actual = getattr(value, name)
        if actual != expected:
            return False
    return True


def _hashable(value: Any) -> Any:
    """Arguments as a dictionary key in which 1, 1.0 and True, and 0.0 and -0.0, are different."""
    if isinstance(value, Node):
        return value
    if isinstance(value, (tuple, list)):
        return tuple(_hashable(each) for each in value)
    if isinstance(value, dict):
        return tuple((name, _hashable(each)) for name, each in sorted(value.items()))
    if isinstance(value, (bool, int, float, complex)):
        return (type(value).__name__, repr(value))
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return (type(value).__name__, value.node.expr)
    hash(value)
    return value
