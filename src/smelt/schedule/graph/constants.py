"""Moves nodes that depend on frozen inputs alone into graphs that run ahead.

    y = x @ pack(weight) + bias * scale    →    ahead: c0 = pack(weight);  c1 = bias * scale
                                                at every call: y = x @ c0 + c1

The nodes that run ahead form parts that share no buffer. Equal parts (the layers of a model) are scheduled
and compiled once, and run for each use with its own inputs.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Sequence
from typing import Any

import sympy
import torch
from sympy import Expr, Symbol

from smelt.loops.dependencies import Dependencies, analyze, bound_symbols, domain, variables, views_in
from smelt.loops.ir import (
    Attentions,
    Buffer,
    Contraction,
    Extern,
    Graph,
    Host,
    Node,
    Pointwise,
    Reduction,
    StridedView,
)
from smelt.loops.record import Recorder
from smelt.loops.straightline import canonical, with_buffers
from smelt.records import dataclass, replace
from smelt.runtime.externs import gives_fresh_memory, is_dequantization, is_mutating, is_random, resolve
from smelt.symbolic import free_symbols, numel

SPARE_BYTES = 2**16
"""Bytes that a constant may take in addition to four times its inputs."""
WORTH_KEEPING = 8
"""A larger constant is kept only if each of its elements costs at least as many additions."""


@dataclass(frozen=True, slots=True)
class Use:
    """A part: ``sources`` are its frozen inputs, ``results`` the constants."""

    sources: tuple[str, ...]
    results: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """A graph with the sources and results of its uses as inputs and outputs, in order.

    ``digest``: equal for graphs that compute the same.
    """

    graph: Graph
    digest: str
    uses: tuple[Use, ...]


def split_constants(graph: Graph) -> tuple[Graph, list[Part]]:
    """The graph that runs at every call, and the parts that run ahead; see the module.

    The first graph has the computed constants in ``constants`` as tensors without memory (meta), and None for
    inputs that are no longer read. Contractions have their kernels already: packing is a node.
    """
    if not graph.frozen:
        return graph, []
    found = _Splitter(graph)
    found.decide()
    if not found.kept:
        return graph, []
    return found.every_call(), _parts(graph, found.ahead, found.kept)


def frozen_buffers(graph: Graph) -> frozenset[str]:
    """The buffers whose content depends on frozen inputs alone, these included."""
    if not graph.frozen:
        return frozenset()
    found = _Splitter(graph)
    found.analyze()
    return frozenset(found.cost)


class _Splitter:
    """Splits nodes: those that run ahead (``ahead``), those that run at every call (``later``), and the
    buffers that are ``kept``.

    A node may be in both: its result is not kept, but parts need it as well.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.found: dict[int, Dependencies] = {}
        self.bytes: dict[str, int] = {name: _bytes(graph.buffers[name]) for name in graph.frozen}
        self.cost: dict[str, int] = dict.fromkeys(graph.frozen, 0)
        self.sources: dict[str, frozenset[str]] = {name: frozenset((name,)) for name in graph.frozen}
        self.ahead: list[Node] = []
        self.later: list[Node] = []
        self.kept: dict[str, None] = {}
        self.whole = set[str]()
        """Buffers that must be in memory at every call: ATen or a contraction reads them."""
        sizes = [size for each in graph.buffers.values() for size in (*each.shape, *each.strides)]
        self.sizes = free_symbols(sizes) | {each for each in graph.inputs if isinstance(each, Symbol)}
        self.sizes |= {symbol for node in graph.nodes for symbol in bound_symbols(node)}

    def analyze(self) -> None:
        for node in self.graph.nodes:
            self.found[id(node)] = analyze(node)
            if self._is_frozen(node):
                self._note(node)

    def decide(self) -> None:
        self.analyze()
        given_out = {view.buffer for view in self.graph.outputs if isinstance(view, StridedView)}
        given_out |= {mutation.source for mutation in self.graph.mutations} | self._shared_with_calls()
        needed_later, needed_ahead = set(given_out), set[str]()
        for node in reversed(self.graph.nodes):
            writes = {name for name in node.outputs if name is not None}
            reads = self.found[id(node)].buffers_read
            now = bool(writes & needed_later)
            if not writes <= self.cost.keys() or not writes or (now and writes & given_out):
                self._run_later(node, reads, needed_later)
                now = False
            elif now and self._is_worth_it(node):
                self.kept.update(dict.fromkeys(name for name in node.outputs if name in needed_later))
                needed_ahead |= writes
                now = False
            if now:
                self._run_later(node, reads, needed_later)
            if writes & needed_ahead:
                self.ahead.append(node)
                needed_ahead.update(reads)
        self.ahead.reverse()
        self.later.reverse()

    def _run_later(self, node: Node, reads: Iterable[str], needed: set[str]) -> None:
        self.later.append(node)
        needed.update(reads)
        if isinstance(node.body, (Attentions, Contraction, Host)):
            self.whole.update(reads)

    def _is_frozen(self, node: Node) -> bool:
        """Whether the node depends on frozen inputs alone, and may run ahead."""
        found = self.found[id(node)]
        writes = [name for name in node.outputs if name is not None]
        if not writes or not (found.buffers_read or isinstance(node.body, Pointwise)) or not _is_pure(node):
            return False
        if is_dequantization(node.origin.op):
            return False
        if not all(name in self.cost for name in found.buffers_read):
            return False
        exprs = [*found.exprs, *(expr for read in found.reads for expr in read.index), *(found.place or ())]
        exprs += [*domain(node), *_exprs(_arguments(node))]
        exprs += [expr for name in writes for expr in self.graph.buffers[name].strides]
        return self.sizes.isdisjoint(free_symbols(exprs))

    def _note(self, node: Node) -> None:
        found = self.found[id(node)]
        sources = frozenset[str]().union(*(self.sources[name] for name in found.buffers_read))
        cost = found.cost + sum(self.cost[name] for name in found.buffers_read)
        for name in node.outputs:
            if name is not None:
                self.sources[name], self.cost[name] = sources, cost

    def _is_worth_it(self, node: Node) -> bool:
        """Whether to keep the result of a node rather than compute it at every call."""
        if not isinstance(node.body, Pointwise):
            return True
        (name,) = node.outputs
        assert name is not None
        if self.cost[name] == 0 and name not in self.whole:
            return False  # a view in all but name: read where it is
        if not self.sources[name]:
            return name in self.whole
        made_of = sum(self.bytes[source] for source in self.sources[name])
        small = _bytes(self.graph.buffers[name]) <= 4 * made_of + SPARE_BYTES
        return small or self.cost[name] >= WORTH_KEEPING or name in self.whole

    def _shared_with_calls(self) -> set[str]:
        """Buffers that ATen calls write to, or whose memory their results may alias."""
        bodies = [node.body for node in self.graph.nodes if isinstance(node.body, Extern)]
        risky = [body for body in bodies if body.bodies or not gives_fresh_memory(body.target)]
        read = {view.buffer for body in risky for view in views_in([body.args, list(body.kwargs.values())])}
        return read.union(*(body.overwrites for body in bodies))

    def every_call(self) -> Graph:
        """The graph without the nodes that run ahead."""
        graph = self.graph
        read = {name for node in self.later for name in self.found[id(node)].buffers_read}
        read |= {view.buffer for view in graph.outputs if isinstance(view, StridedView)}
        read |= {name for each in graph.mutations for name in (each.source, each.target)}
        made = {name for node in self.later for name in node.outputs if name is not None}
        inputs: list[str | Symbol | None] = [
            None if name in graph.frozen and name not in read else name for name in graph.inputs
        ]
        constants = {**graph.constants, **{name: _without_memory(graph.buffers[name]) for name in self.kept}}
        here = {*(name for name in inputs if isinstance(name, str)), *constants, *made}
        return replace(
            graph,
            buffers={name: buffer for name, buffer in graph.buffers.items() if name in here},
            nodes=list(self.later),
            inputs=inputs,
            constants=constants,
            frozen=graph.frozen & read,
        )


def _is_pure(node: Node) -> bool:
    body = node.body
    if not isinstance(body, Extern):
        return not isinstance(body, Host)
    if body.bodies or body.overwrites or not gives_fresh_memory(body.target):
        return False
    overload = resolve(body.target)
    return not is_mutating(overload) and not is_random(overload)


def _arguments(node: Node) -> Any:
    return [node.body.args, list(node.body.kwargs.values())] if isinstance(node.body, Extern) else []


def _exprs(argument: Any) -> list[Expr]:
    """Every expression in a call's arguments."""
    if isinstance(argument, StridedView):
        return [*argument.shape, *argument.strides, argument.offset]
    if isinstance(argument, (list, tuple)):
        return [expr for item in argument for expr in _exprs(item)]
    return [argument] if isinstance(argument, Expr) else []


def _bytes(buffer: Buffer) -> int:
    return int(numel(buffer.shape)) * buffer.dtype.itemsize


def _without_memory(buffer: Buffer) -> torch.Tensor:
    shape, strides = [int(size) for size in buffer.shape], [int(stride) for stride in buffer.strides]
    return torch.empty_strided(shape, strides, dtype=buffer.dtype, device="meta")


# -- parts -------------------------------------------------------------------------------------------------


def _parts(graph: Graph, nodes: Sequence[Node], kept: Iterable[str]) -> list[Part]:
    wanted = set(kept)
    found: dict[str, Part] = {}
    for group in _connected(nodes):
        writer = _Digest(graph)
        for node in group:
            writer.node(node)
        results = tuple(name for node in group for name in node.outputs if name in wanted)
        digest = writer.digest([str(name) for name in results])
        use = Use(tuple(writer.sources), tuple(str(name) for name in results))
        if digest in found:
            found[digest] = replace(found[digest], uses=(*found[digest].uses, use))
        else:
            found[digest] = Part(_graph_of(graph, group, use), digest, (use,))
    return list(found.values())


def _connected(nodes: Sequence[Node]) -> list[list[Node]]:
    """The nodes, in order, in groups that share no buffer except inputs."""
    group_of: dict[str, list[Node]] = {}
    groups: dict[int, list[Node]] = {}
    order = {id(node): number for number, node in enumerate(nodes)}
    for node in nodes:
        joined = [node]
        reads = analyze(node).buffers_read
        for other in {id(group_of[name]): group_of[name] for name in reads if name in group_of}.values():
            joined = [*other, *joined]
            del groups[id(other)]
        joined.sort(key=lambda each: order[id(each)])
        groups[id(joined)] = joined
        for each in joined:
            group_of.update((name, joined) for name in each.outputs if name is not None)
    return sorted(groups.values(), key=lambda group: order[id(group[0])])


def _graph_of(graph: Graph, nodes: Sequence[Node], use: Use) -> Graph:
    names = [*use.sources, *(name for node in nodes for name in node.outputs if name is not None)]
    buffers = {name: graph.buffers[name] for name in names}
    results = [buffers[name] for name in use.results]
    zero = sympy.Integer(0)
    return Graph(
        buffers=buffers,
        nodes=list(nodes),
        inputs=list(use.sources),
        outputs=[StridedView(each.name, each.shape, each.strides, zero) for each in results],
    )


class _Digest:
    """A structural digest of nodes, without names; ``sources`` are the inputs in the order of first use."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.dtypes = {name: buffer.dtype for name, buffer in graph.buffers.items()}
        self.names: dict[str, str] = {}
        self.sources: list[str] = []
        self.parts: list[str] = []

    def digest(self, results: Iterable[str]) -> str:
        text = "\n".join([*self.parts, *(self.names[name] for name in results)])
        return hashlib.sha256(text.encode()).hexdigest()

    def node(self, node: Node) -> None:
        reads = analyze(node).buffers_read
        for name in reads:
            if name not in self.names:
                self.sources.append(name)
                self._name(name)
        for output in node.outputs:
            if output is not None:
                self._name(output)
        body = node.body
        outputs = ",".join("_" if name is None else self.names[name] for name in node.outputs)
        if isinstance(body, Pointwise):
            self.parts.append(f"{outputs}=pointwise {body.shape} {self._code(body.inner_fn, body.shape)}")
        elif isinstance(body, Reduction):
            code = self._code(body.inner_fn, body.shape, body.reduce_shape)
            sizes = f"{body.shape} {body.reduce_shape} {body.dtype}"
            self.parts.append(f"{outputs}={body.kind} {sizes} {code}")
        elif isinstance(body, Extern):
            arguments = f"{self._value(body.args)} {self._value(body.kwargs)}"
            self.parts.append(f"{outputs}={body.target} {arguments}")
        else:  # like nothing else
            self.parts.append(f"{outputs}={type(body).__name__} {secrets.token_hex()}")

    def _name(self, name: str) -> None:
        self.names[name] = f"b{len(self.names)}"
        buffer = self.graph.buffers[name]
        self.parts.append(f"{self.names[name]}: {buffer.dtype} {buffer.shape} {buffer.strides}")

    def _code(self, function: Any, *shapes: Any) -> str:
        indices = [variables(letter, len(shape)) for letter, shape in zip("ir", shapes)]
        extents = {v: size for index, shape in zip(indices, shapes) for v, size in zip(index, shape)}
        recorder = Recorder(self.dtypes, extents)
        value = recorder.run(function, *indices)
        steps = with_buffers(recorder.instructions, lambda name: f"buffer {self.names[name]}")
        return repr(canonical(steps, value.name))

    def _value(self, value: Any) -> str:
        if isinstance(value, StridedView):
            return f"{self.names[value.buffer]}{value.shape}{value.strides}{value.offset}"
        if isinstance(value, (list, tuple)):
            return f"[{','.join(self._value(each) for each in value)}]"
        if isinstance(value, dict):
            return f"[{','.join(f'{name}:{self._value(each)}' for name, each in value.items())}]"
        return f"{type(value).__name__} {value!r}"
