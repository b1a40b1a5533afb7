"""Partial compilation: a program is split into clusters, which are programs, and calls of PyTorch.

A *region* runs in one go: a cluster on one device, or calls that PyTorch runs one by one. Each region has a
step: even for calls of PyTorch, odd for clusters. A call is at the first step of its kind that no argument
comes after. So a region is convex, the number of regions is the least that the alternation of kinds allows,
and independent calls share a cluster. Calls with effects keep their order; collectives begin early and are
waited for late (`smelt.contract.overlap`).

Views and arithmetic on sizes belong to no region: each user recomputes them from their bases.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.utils._pytree import tree_leaves

from smelt.capture.program import Input, InputRole, OutputRole, Program
from smelt.contract.devices import devices_of
from smelt.contract.facts import has_effect, is_view, new_sizes, number, reads_number
from smelt.contract.higher_order import BODIES, FUNCTIONALIZED, bodies_of, higher_order_name
from smelt.contract.overlap import Overlap, in_order
from smelt.contract.verify import QUANTIZED, located, unfit
from smelt.contract.where import STACK
from smelt.errors import Unsupported
from smelt.reporting import Region
from smelt.runtime import executor
from smelt.runtime.externs import is_collective, is_wait
from smelt.symbolic import as_expr
from smelt.symbolic.solving import solve_sizes

aten = torch.ops.aten

Compiled = Callable[[list[Any]], Sequence[Any]]

_WITHOUT_EFFECT = frozenset({*BODIES, *FUNCTIONALIZED})
_LAST = 1 << 62
_NO_WORK = (aten.full.default, aten.scalar_tensor.default, aten.arange.start_step, aten.empty.memory_format)


@dataclass(frozen=True, slots=True)
class Cluster:
    """A maximal part of a program that smelt compiles: a program of its own.

    ``nodes``: its calls in the whole program's graph; ``outputs``: those whose values are used outside.
    """

    program: Program
    nodes: tuple[Node, ...]
    outputs: tuple[Node, ...]


class Call:
    """A cluster's call in the outer graph: a function of ONE list, once it is compiled."""

    def __init__(self, name: str) -> None:
        self.__name__ = self.__qualname__ = name
        self.__module__ = "smelt_clusters"
        self.run: Compiled | None = None

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        assert self.run is not None
        return self.run(args)


@dataclass(frozen=True, slots=True)
class Clustered:
    """A split program: ``outer`` takes ONE list, as a compiled program does; ``calls`` run the clusters."""

    outer: GraphModule
    clusters: tuple[Cluster, ...]
    calls: tuple[Call, ...]
    regions: tuple[Region, ...]


def clustered(program: Program, reasons: Mapping[Node, Sequence[str]], least: int) -> Clustered:
    """``program``, in the contract form, in clusters; ``reasons``: what `unsupported` found.

    ``least``: the least number of operators in a cluster, not counting views and sizes.

    Raises:
        Unsupported: no cluster is left; the text is the reasons.
    """
    plan = _Steps(program, reasons, least)
    plan.leave_small()
    if not plan.clusters():
        raise Unsupported("; ".join(dict.fromkeys(plan.texts())))
    return _Cutter(program, plan).run()


# -- which region a call is in ------------------------------------------------------------------------------


class _Steps:
    """The step of every call that is not free, and the reasons for calls that PyTorch runs."""

    def __init__(self, program: Program, reasons: Mapping[Node, Sequence[str]], least: int) -> None:
        self.program = program
        self.nodes = list(program.graph_module.graph.nodes)
        self.given = {node: "; ".join(dict.fromkeys(found)) for node, found in reasons.items()}
        self.free = {node for node in self.nodes if _is_free(node)}
        self.base: dict[Node, tuple[Node, ...]] = {}
        for node in self.nodes:
            self.base[node] = self._bases(node)
        self.why: dict[Node, str] = {}
        for node in self.nodes:
            if node.op == "call_function" and node not in self.free:
                self._ask(node)
        self.least = least
        self.devices = devices_of(self.nodes)
        self.ordered = [node for node in self.nodes if self._is_ordered(node)]
        self.parts = {
            node: node.args[0]
            for node in self.nodes
            if node.target is operator.getitem and node not in self.free and isinstance(node.args[0], Node)
        }
        self.calls = {
            node: self.bases_of(node)
            for node in self.nodes
            if node.op == "call_function" and node not in self.free and not _is_copy_back(node)
        }
        self.steps = self._assign(self.why)

    def _bases(self, node: Node) -> tuple[Node, ...]:
        """The inputs and calls from which a node's value is computed, seen through free nodes."""
        if node not in self.free:
            return (node,)
        return self.bases_of(node)

    def bases_of(self, node: Node) -> tuple[Node, ...]:
        """The inputs and calls from which a node's arguments are computed."""
        return tuple(dict.fromkeys(base for arg in node.all_input_nodes for base in self.base[arg]))

    def _ask(self, node: Node) -> None:
        if node in self.given:
            self.why[node] = self.given[node]
            return
        source = node.args[0] if node.args else None
        if node.target is operator.getitem and isinstance(source, Node) and source in self.why:
            self.why[node] = self.why[source]
            return
        for arg in node.all_input_nodes:
            for each in (arg, *self.base[arg]):
                reason = self.given.get(each)
                made = each.op == "call_function" and reason != QUANTIZED and _gives_strided(each)
                if reason is not None and not made:
                    self.why[node] = reason
                    return

    def _assign(self, why: Mapping[Node, str]) -> dict[Node, int]:
        overlap = Overlap(
            *(self.calls, self.parts, self.ordered, self.users_of, why.keys(), work_of, self.least),
            *(self._device, max(1, len(self.devices))),
        )
        return overlap.steps()

    def _device(self, node: Node) -> int:
        """The number of a call's device; a call of no tensors goes with the first."""
        found = devices_of([node, *node.all_input_nodes])
        return self.devices.index(found[0]) if found else 0

    def _is_ordered(self, node: Node) -> bool:
        """Whether a call keeps its position among the calls with effects."""
        if self.is_collective(node):
            return not is_wait(node.target)
        return (
            node.op == "call_function"
            and has_effect(node)
            and higher_order_name(node.target) not in _WITHOUT_EFFECT
            and not _is_copy_back(node)
        )

    def is_collective(self, node: Node) -> bool:
        """Whether a call communicates with other processes, also in a body of control flow."""
        module = self.program.graph_module
        bodies = [getattr(module, str(body.target), None) for body in bodies_of(node)]
        inner = (each for body in bodies if isinstance(body, GraphModule) for each in body.graph.nodes)
        return any(is_collective(each.target) for each in (node, *inner))

    def users_of(self, node: Node) -> list[Node]:
        """The users of a value, seen through free nodes."""
        found: list[Node] = []
        for user in node.users:
            found += self.users_of(user) if user in self.free else [user]
        return found

    def end_of(self, node: Node) -> int:
        """The step up to which a call reads its arguments; for a collective, that of the wait."""
        if not self.is_collective(node) or is_wait(node.target):
            return self.steps[node]
        parts = [part for part in self.users_of(node) if self.parts.get(part) is node]
        waits = [user for each in (node, *parts) for user in self.users_of(each) if is_wait(user.target)]
        return max((self.steps[wait] for wait in waits), default=_LAST)

    # -- regions ---------------------------------------------------------------------------------------------

    def clusters(self, steps: Mapping[Node, int] | None = None) -> dict[int, list[Node]]:
        """Step → the calls of its cluster, in the order of the graph."""
        found: dict[int, list[Node]] = {}
        for node, step in (self.steps if steps is None else steps).items():
            if step % 2:
                found.setdefault(step, []).append(node)
        return found

    def leave_small(self) -> None:
        """Give PyTorch the clusters that are too small to be worth a call."""
        reason = f"fewer than {self.least} operators together (min_cluster)"
        while True:
            clusters = self.clusters().values()
            small = {node for nodes in clusters if work_of(nodes) < self.least for node in nodes}
            if not small:
                return
            self.why.update((node, reason) for node in small)
            self.steps = self._assign(self.why)

    def without(self, reason: str) -> int:
        """The number of clusters if the calls with this reason could be compiled."""
        why = {node: each for node, each in self.why.items() if each != reason}
        return len(self.clusters(self._assign(why)))

    def texts(self) -> Iterator[str]:
        for node, reason in self.given.items():
            yield located(node, reason)


def work_of(nodes: Iterable[Node]) -> int:
    """The number of operators in a cluster that compute; a body counts as one."""
    return sum(
        1 + len(bodies_of(node))
        for node in nodes
        if node.target is not operator.getitem and node.target not in _NO_WORK
    )


def _is_free(node: Node) -> bool:
    """Whether a node is free (recomputed for each user): a view, or arithmetic on sizes."""
    if node.op != "call_function" or has_effect(node):
        return False
    if is_view(node.target):
        return True
    if node.target is operator.getitem:
        source = node.args[0]
        return isinstance(source, Node) and source.op == "call_function" and is_view(source.target)
    if new_sizes(node) or reads_number(node.target):
        return False
    return isinstance(node.meta.get("val"), (torch.SymInt, torch.SymFloat, torch.SymBool, int, float, bool))


def _gives_strided(node: Node) -> bool:
    """Whether smelt can take the results of a call that PyTorch runs: they are plain tensors."""
    tensors = (value for value in tree_leaves(node.meta.get("val")) if isinstance(value, torch.Tensor))
    return all(unfit(value) is None for value in tensors)


def _is_row_major(value: torch.Tensor) -> bool:
    """Whether a tensor of symbolic sizes is row-major (no guard is added)."""
    step = 1
    for size, stride in zip(reversed(value.shape), reversed(value.stride())):
        if number(stride) != step:
            return False
        step = step * number(size)
    return True


def _is_copy_back(node: Node) -> bool:
    target = node.args[0] if node.args else None
    return node.target is aten.copy_.default and isinstance(target, Node) and target.op == "placeholder"


# -- the graphs ---------------------------------------------------------------------------------------------


class _Cutter:
    """Writes a graph for each cluster, and the outer one that calls them."""

    def __init__(self, program: Program, plan: _Steps) -> None:
        self.program, self.plan = program, plan
        self.module = program.graph_module
        self.inputs = {each.name: each for each in program.inputs}
        self.outer = Graph()
        self.env: dict[Node, Node] = {}
        self.copies = [node for node in plan.nodes if _is_copy_back(node)]
        self.overwritten = {node.args[0] for node in self.copies}
        self.joined: dict[str, int] = {}
        self.laid_out: dict[Node, Node] = {}

    def run(self) -> Clustered:
        plan = self.plan
        for node in plan.nodes:
            if node.op == "placeholder":
                self.env[node] = self.outer.node_copy(node)
        inside = {node: self._step_of_copy(node) for node in self.copies}
        ordered = set(plan.ordered)
        made: list[Cluster] = []
        calls: list[Call] = []
        regions: list[Region] = []
        by_step: dict[int, list[Node]] = {}
        for node in plan.nodes:
            if node in plan.steps:
                by_step.setdefault(plan.steps[node], []).append(node)
        for step, nodes in sorted(by_step.items()):
            if step % 2:
                number = len(made) + 1
                copies = [node for node, place in inside.items() if place == step]
                cluster = self._cluster(nodes, copies, f"{self.program.name} cluster {number}")
                call = Call(f"cluster_{number}")
                self._call(cluster, call, len(regions))
                made.append(cluster)
                calls.append(call)
                regions.append(Region(f"cluster {number}", work_of(nodes)))
            else:
                for region, group in self._left(in_order(nodes, plan.bases_of, ordered)):
                    for node in group:
                        self._outside(node).meta["smelt_region"] = len(regions)
                        self._hold(node)
                    regions.append(region)
        for node in self.copies:
            if inside[node] is None:
                self._outside(node)
        roles = self.program.output_roles
        results = [
            torch.fx.node.map_arg(value, self._laid_out if role == "saved" else self._outside)
            for value, role in zip(self.program.outputs, roles, strict=True)
        ]
        self.outer.output(tuple(results))
        self.outer.set_codegen(torch.fx.graph._BoxedCodeGen())
        root = GraphModule(self.module, self.outer, "Clustered")
        return Clustered(root, tuple(made), tuple(calls), tuple(regions))

    def _left(self, nodes: Sequence[Node]) -> Iterator[tuple[Region, list[Node]]]:
        """PyTorch's calls at one step, in order: consecutive calls with the same reason are grouped."""
        for reason, neighbours in itertools.groupby(nodes, self.plan.why.__getitem__):
            group = list(neighbours)
            work = [node for node in group if node.target is not operator.getitem]
            ops = tuple(dict.fromkeys(str(node.target) for node in work))
            where = next((node.meta.get("where") for node in work), None)
            stack = next((node.meta.get(STACK) or "" for node in work), "")
            yield Region("PyTorch", len(work), ops, reason, where, self._joined(reason), stack=stack), group

    def _joined(self, reason: str) -> int:
        """The reduction of the number of clusters if the calls with this reason could be compiled."""
        if reason not in self.joined:
            self.joined[reason] = max(0, len(self.plan.clusters()) - self.plan.without(reason))
        return self.joined[reason]

    # -- the outer graph -------------------------------------------------------------------------------------

    def _outside(self, node: Node) -> Node:
        """The node in the outer graph; a free node is added there on demand."""
        found = self.env.get(node)
        if found is None:
            for arg in node.all_input_nodes:
                self._outside(arg)
            found = self.env[node] = self.outer.node_copy(node, self.env.__getitem__)
        return found

    def _hold(self, node: Node) -> None:
        """Keep the memory that a collective reads and writes alive until its wait, whoever runs it."""
        if is_wait(node.target):
            start, read = node.args[0], []
            while isinstance(start, Node) and start.op == "call_function":
                read += [arg for arg in start.all_input_nodes if arg in self.env]
                if self.plan.is_collective(start):
                    break
                start = start.args[0]
            self.outer.call_function(held, tuple(self.env[arg] for arg in read))

    def _call(self, cluster: Cluster, call: Call, region: int) -> None:
        """Call a cluster; its outputs become values of the outer graph."""
        inner = cluster.program.placeholders
        given = tuple(self._source(node.meta["smelt_source"]) for node in inner)
        packed = self.outer.call_function(packed_list, given)
        results = self.outer.call_function(call, (packed,))
        results.meta["smelt_region"] = region
        for position, source in enumerate(cluster.outputs):
            got = self.outer.call_function(operator.getitem, (results, position))
            got.meta.update(source.meta)
            self.env[source] = got

    def _source(self, source: Any) -> Node:
        if isinstance(source, Node):
            return self._laid_out(source)
        tensor, dim = source  # a size that no node holds as a number
        return self.outer.call_function(aten.sym_size.int, (self._outside(tensor), dim))

    def _laid_out(self, node: Node) -> Node:
        """A value in the layout that a compiled program expects; PyTorch's result may differ from it."""
        found, value = self._outside(node), node.meta.get("val")
        made = all(self.plan.steps.get(base, 1) % 2 for base in self.plan.base[node])
        if made or not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
            return found
        if node not in self.laid_out:
            strides = [stride if isinstance(stride, int) else None for stride in value.stride()]
            order = None if None in strides else tuple(strides)
            if order is None and not _is_row_major(value):
                return found
            self.laid_out[node] = self.outer.call_function(laid_out, (found, value.dtype, order))
        return self.laid_out[node]

    def _step_of_copy(self, node: Node) -> int | None:
        """The step of the cluster that computes an input's new value, if nobody reads the input later."""
        target, source = node.args[0], node.args[1]
        assert isinstance(target, Node)
        if not isinstance(source, Node):
            return None
        steps = self.plan.steps
        bases = self.plan.base[source]
        if len(bases) != 1 or not steps.get(bases[0], 0) % 2:
            return None
        step = steps[bases[0]]
        for each in self.plan.nodes:
            if each is not node and target in (
                base for arg in each.all_input_nodes for base in self.plan.base[arg]
            ):
                if each in self.plan.free:
                    continue
                if each.op == "output" or _is_copy_back(each) or self.plan.end_of(each) > step:
                    return None
        return step

    # -- a cluster -------------------------------------------------------------------------------------------

    def _cluster(self, nodes: Sequence[Node], copies: Sequence[Node], name: str) -> Cluster:
        graph = Graph()
        writer = _Inside(graph, set(nodes), self.plan.free)
        for node in (*nodes, *copies):
            writer.add(node)
        outputs = _wanted(self.plan, nodes, copies)
        known = [
            node
            for node in self.plan.nodes
            if node.op != "output" and all(each in self.env for each in self.plan.base[node])
        ]
        writer.bind_sizes(known)
        made = graph.output(tuple(writer.env[node] for node in outputs))
        made.meta["where"] = None
        module = GraphModule(self.module, graph, "Cluster")
        inputs = tuple(self._input(node) for node in graph.find_nodes(op="placeholder"))
        roles: tuple[OutputRole, ...] = tuple("user" for _ in outputs)
        program = replace(self.program, graph_module=module, inputs=inputs, output_roles=roles, name=name)
        return Cluster(program, (*nodes, *copies), tuple(outputs))

    def _input(self, node: Node) -> Input:
        source = node.meta["smelt_source"]
        known = (
            self.inputs.get(source.name) if isinstance(source, Node) and source.op == "placeholder" else None
        )
        if known is not None:
            return replace(known, name=node.name, static=known.static and source not in self.overwritten)
        tensor = isinstance(node.meta.get("val"), torch.Tensor)
        role: InputRole = "size" if not tensor else "saved" if self.program.kind == "backward" else "user"
        return Input(node.name, role)


def held(*values: Any) -> None:
    """Keeps memory alive that a collective has used until now."""


def packed_list(*values: Any) -> list[Any]:
    """The arguments of a cluster: a list that the cluster may empty."""
    return [*values]


def laid_out(x: torch.Tensor, dtype: torch.dtype, strides: tuple[int, ...] | None) -> torch.Tensor:
    """``x`` with these strides (None: contiguous), a copy if it has others.

    Raises:
        SmeltError: SM0406 it has another dtype, which a copy cannot repair.

    >>> laid_out(torch.ones(2, 3), torch.float32, (1, 2)).stride()
    (1, 2)
    """
    wanted = torch.empty(x.shape, device="meta").stride() if strides is None else strides
    return executor.laid_out(x, x.shape, wanted, dtype, "an operator")


def _wanted(plan: _Steps, nodes: Sequence[Node], copies: Collection[Node]) -> list[Node]:
    """The values of a cluster that are used outside of it."""
    own = {*nodes, *copies}
    return [
        node
        for node in nodes
        if not isinstance(node.meta.get("val"), (list, tuple))
        and any(user not in own for user in plan.users_of(node))
    ]


class _Inside:
    """One cluster's graph: its calls, the free nodes that it uses, and placeholders for all other values."""

    def __init__(self, graph: Graph, own: Collection[Node], free: Collection[Node]) -> None:
        self.graph, self.own, self.free = graph, own, free
        self.env: dict[Node, Node] = {}

    def add(self, node: Node) -> Node:
        found = self.env.get(node)
        if found is not None:
            return found
        if node.op == "get_attr":
            found = self.graph.node_copy(node)
        elif node in self.own or _is_copy_back(node) or self._follows(node):
            for arg in node.all_input_nodes:
                self.add(arg)
            found = self.graph.node_copy(node, self.env.__getitem__)
        else:
            found = self._placeholder(node.name, node.meta, node)
        self.env[node] = found
        return found

    def _follows(self, node: Node) -> bool:
        """Whether a value is recomputed inside: views are, sizes only if a tensor inside has them."""
        if node not in self.free:
            return False
        if is_view(node.target) or node.target is operator.getitem:
            return True
        return any(self._is_inside(arg) for arg in node.all_input_nodes)

    def _is_inside(self, node: Node) -> bool:
        return node in self.own or (node in self.free and any(map(self._is_inside, node.all_input_nodes)))

    def _placeholder(self, name: str, meta: Mapping[str, Any], source: Any) -> Node:
        first = next((node for node in self.graph.nodes if node.op != "placeholder"), None)
        with self.graph.inserting_before(first) if first is not None else self.graph.inserting_after():
            made = self.graph.placeholder(name)
        made.meta.update({key: meta[key] for key in ("val", "where", "stack_trace") if key in meta})
        made.meta["smelt_source"] = source
        return made

    def bind_sizes(self, known: Sequence[Node]) -> None:
        """Add inputs for the size symbols that no value in the cluster determines.

        Raises:
            Unsupported: no value outside has such a size either.
        """
        bound: set[Any] = set()
        needed: set[Any] = set()
        shapes = []
        for node in self.graph.nodes:
            value = node.meta.get("val")
            if node.op == "placeholder":
                bound.update(
                    each for each in _numbers(value) if hasattr(each, "is_symbol") and each.is_symbol
                )
                if isinstance(value, torch.Tensor):
                    shapes.append((node.name, [as_expr(size) for size in value.shape]))
            if node.op == "call_function":
                bound.update(new_sizes(node))
            for each in _numbers(value):
                needed.update(getattr(each, "free_symbols", ()))
        bound.update(each.symbol for each in solve_sizes(shapes, bound))
        for symbol in sorted(needed - bound, key=str):
            source, value = _source_of(symbol, known)
            self._placeholder(str(symbol), {"val": value, "where": None}, source)


def _source_of(symbol: Any, known: Iterable[Node]) -> tuple[Any, Any]:
    """A size's source (a node, or a tensor and a dimension), and the size in the traced metadata."""
    tensors = []
    for node in known:
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt) and number(value) == symbol:
            return node, value
        if isinstance(value, torch.Tensor) and value.layout is torch.strided:
            tensors += [(node, dim, size) for dim, size in enumerate(value.shape) if number(size) == symbol]
    if not tensors:
        raise Unsupported(f"the size {symbol} is no dimension of a tensor")
    node, dim, size = tensors[0]
    return (node, dim), size


def _numbers(value: Any) -> Iterator[Any]:
    for each in tree_leaves(value):
        if isinstance(each, torch.Tensor):
            yield from (number(size) for size in each.shape)
            if each.layout is torch.strided:
                yield from (number(size) for size in (*each.stride(), each.storage_offset()))
        elif isinstance(each, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            yield number(each)
