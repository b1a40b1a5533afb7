"""The verifier of the loop IR: it collects all problems of a graph before it raises."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from sympy import Expr, Symbol

from smelt.errors import Problem, VerificationError
from smelt.loops.dependencies import analyze, attention_values, domain, variables, views_in
from smelt.loops.host import resolve
from smelt.loops.ir import (
    ACCUMULATIONS,
    REDUCTIONS,
    Attention,
    Attentions,
    Body,
    Buffer,
    Contraction,
    Contractions,
    Extern,
    Fold,
    Graph,
    Host,
    Native,
    Node,
    Pointwise,
    Reduction,
    Scan,
    Scatter,
    Sort,
    StridedView,
    accumulator,
)
from smelt.loops.typing import TypeChecker
from smelt.ops import using
from smelt.runtime.control import CONTROL
from smelt.symbolic import contiguous_strides, numel, same
from smelt.symbolic.bounds import bounds


def verify(graph: Graph) -> None:
    """Check every rule of `smelt.loops.ir`.

    Raises:
        VerificationError: SM0520, with every problem and the user's line where it is known.
    """
    problems = list(find_problems(graph))
    if problems:
        raise VerificationError("SM0520", "loops", problems)


def find_problems(graph: Graph) -> Iterator[Problem]:
    """All problems of the graph, in order."""
    yield from _buffers(graph)
    defined: set[str] = set()
    sizes: set[Symbol] = set()
    for entry in graph.inputs:
        if isinstance(entry, Symbol):
            sizes.add(entry)
        elif entry is not None:
            if entry in defined:
                yield Problem(f"{entry} is an input twice")
            defined.add(entry)
    for name in graph.constants:
        if name in defined:
            yield Problem(f"the constant {name} is an input too")
        defined.add(name)
    for name in sorted(defined - set(graph.buffers)):
        yield Problem(f"{name} is given but is no buffer")
    defined &= set(graph.buffers)
    written = set(defined)
    for node in graph.nodes:
        where = node.origin.where or node.origin.op
        yield from (Problem(what, where) for what in _node(node, graph, defined, written))
        defined.update(name for name in node.outputs if name is not None)
    yield from _ends(graph, defined, written)


def _buffers(graph: Graph) -> Iterator[Problem]:
    for name, buffer in graph.buffers.items():
        if buffer.name != name:
            yield Problem(f"buffer {buffer.name} is filed under {name}")
        if len(buffer.shape) != len(buffer.strides):
            yield Problem(f"{name} has {len(buffer.shape)} dimensions and {len(buffer.strides)} strides")
        if buffer.dtype.is_complex:
            yield Problem(f"{name} is {buffer.dtype}: complex numbers are pairs of real ones")
        elif buffer.paired and (buffer.shape[-1:], buffer.strides[-1:]) != ((2,), (1,)):
            yield Problem(f"{name} has pairs, its last dimension is none: {buffer.shape}, {buffer.strides}")
        if any(size.is_negative for size in buffer.shape):
            yield Problem(f"{name} has a negative size: {buffer.shape}")
    for name, tensor in graph.constants.items():
        known = graph.buffers.get(name)
        if known is None:
            continue
        dtype, shape, _ = known.outside
        if tensor.dtype != dtype or not _equal(tensor.shape, shape):
            yield Problem(f"the constant {name} is {tensor.dtype} {list(tensor.shape)}, its buffer is not")


def _equal(left: Sequence[int | Expr], right: Sequence[Expr]) -> bool:
    return len(left) == len(right) and all(a == b or same(b * 0 + a, b) for a, b in zip(left, right))


# -- nodes ------------------------------------------------------------------------------------------------


def _node(node: Node, graph: Graph, defined: set[str], written: set[str]) -> Iterator[str]:
    for name in node.outputs:
        if name is None:
            continue
        if name not in graph.buffers:
            yield f"{name} is written but is no buffer"
        elif name in written:
            yield f"{name} is written twice"
        written.add(name)
    if isinstance(node.body, Extern):
        yield from _extern(node.body, graph, defined)
    if isinstance(node.body, Contractions) and not node.body.call.target.startswith("higher_order."):
        yield from _extern(node.body.call, graph, defined)
    if isinstance(node.body, Host):
        return
    yield from _outputs(node, graph)
    if isinstance(node.body, Sort):
        yield from _sort(node.body, graph, defined)
    elif isinstance(node.body, Native):
        yield from _native(node, node.body, graph, defined)
    else:
        yield from _loop_function(node, graph, defined)


def _outputs(node: Node, graph: Graph) -> Iterator[str]:
    body = node.body
    count = 1
    if isinstance(body, Reduction):
        if body.kind not in REDUCTIONS:
            yield f"there is no reduction {body.kind!r}"
            return
        count = REDUCTIONS[body.kind]
    elif isinstance(body, Scan):
        count = len(body.dtypes)
    elif isinstance(body, Fold):
        count = len(body.state)
    elif isinstance(body, Sort):
        count = 2
    elif isinstance(body, (Native, Attentions)):
        count = len(body.shapes)
    if len(node.outputs) != count:
        yield f"the node has {len(node.outputs)} outputs, its body {count}"
    for position, name in enumerate(node.outputs):
        buffer = graph.buffers.get(name) if name is not None else None
        if buffer is None:
            continue
        shape = (
            graph.buffers[body.base].shape
            if isinstance(body, Scatter) and body.base in graph.buffers
            else None
        )
        if isinstance(body, (Attentions, Native)):
            shape = body.shapes[position]
        elif shape is None:
            shape = body.shape  # type: ignore[union-attr]
        if not _equal(shape, buffer.shape):
            yield f"{buffer.name} has the shape {buffer.shape}, its node writes {shape}"
        dtype = _output_dtype(body, position)
        if (isinstance(body, Reduction) and body.kind in ("argmax", "argmin")) or (
            isinstance(body, Sort) and position == 1
        ):
            dtype = torch.int64
        if buffer.dtype != dtype:
            yield f"{buffer.name} is {buffer.dtype}, its node writes {dtype}"


def _loop_function(node: Node, graph: Graph, defined: set[str]) -> Iterator[str]:
    body = node.body
    assert isinstance(body, (Pointwise, Reduction, Contraction, Attentions, Scan, Fold, Scatter))
    problem = _state_head(body) if isinstance(body, (Scan, Fold)) else None
    if problem is not None:
        yield problem
        return
    index = variables("i", len(body.shape))
    checker = TypeChecker(
        {name: buffer.dtype for name, buffer in graph.buffers.items()},
        {name: len(buffer.shape) for name, buffer in graph.buffers.items()},
    )
    with using(checker):
        if isinstance(body, Reduction):
            given: tuple[Any, ...] = (body.inner_fn(index, variables("r", len(body.reduce_shape))),)
        elif isinstance(body, Contraction):
            over = index, variables("r", len(body.reduce_shape))
            given = (body.lhs(*over), body.rhs(*over), *(() if body.start is None else (body.start(index),)))
        elif isinstance(body, Attentions):
            given = tuple(attention_values(body, index, variables("r", 2), accumulator(body.dtype)))
        elif isinstance(body, Scan):
            after, values = body.inner_fn(index, tuple(dtype for dtype, _ in body.state))
            given = (*after, *values)
        elif isinstance(body, Fold):
            parts = tuple(dtype for dtype, _ in body.state)
            given = tuple(body.inner_fn(index, variables("r", 1)[0], parts))
        else:
            given = (body.inner_fn(index),)
        place = tuple(body.place(index)) if isinstance(body, Scatter) else ()
    yield from dict.fromkeys(checker.problems)
    said = _dtypes_of_iteration(body, len(given))
    if given != said:
        yield f"the loop function gives {_listed(given)}, the node says {_listed(said)}"
    if isinstance(body, Scatter):
        yield from _scatter(body, place, graph)
    found = analyze(node)
    for name in found.buffers_read:
        if name in graph.buffers and name not in defined:
            yield f"{name} is read before it is written"
    extents = dict(zip((*found.variables, *found.reduce_variables), domain(node)))
    if any(size == 0 for size in extents.values()):
        return
    for read in found.reads:
        buffer = graph.buffers.get(read.buffer)
        if buffer is not None and not read.masked and len(read.index) == len(buffer.shape):
            yield from _in_range(buffer, read.index, extents)


def _listed(dtypes: Sequence[torch.dtype]) -> str:
    return ", ".join(map(str, dtypes))


def _output_dtype(body: Body, position: int) -> torch.dtype:
    """The stored dtype; for a reduction that gives positions, the reduced dtype."""
    if isinstance(body, (Scan, Native)):
        return body.dtypes[position]
    if isinstance(body, Fold):
        return body.state[position][0]
    if isinstance(body, Attention) and position > 0:
        return accumulator(body.dtype) if position == 1 else body.others[position - 2][1]
    return body.dtype  # type: ignore[union-attr]


def _dtypes_of_iteration(body: Body, count: int) -> tuple[torch.dtype, ...]:
    """The dtypes of a loop function's results: of a scan the state's parts, then the outputs."""
    if isinstance(body, (Scan, Fold)):
        outputs = body.dtypes if isinstance(body, Scan) else ()
        return (*(dtype for dtype, _ in body.state), *outputs)
    if isinstance(body, Contractions):
        return (accumulator(body.dtype),) * count
    return (body.dtype,)  # type: ignore[union-attr]


def _state_head(body: Scan | Fold) -> str | None:
    """A problem with the dimension, the iterations or the state of a scan or fold."""
    name = type(body).__name__.lower()
    if isinstance(body, Scan) and not 0 <= body.dim < len(body.shape):
        return f"the scan runs along dimension {body.dim} of {len(body.shape)}"
    if isinstance(body, Fold) and body.turns.is_negative:
        return f"the fold has {body.turns} iterations"
    for dtype, number in body.state:
        kind = bool if dtype is torch.bool else float if dtype.is_floating_point else int
        if type(number) is not kind:
            return f"the {name}'s first value {number!r} is no {dtype}"
    return None


def _native(node: Node, body: Native, graph: Graph, defined: set[str]) -> Iterator[str]:
    for name in body.reads:
        if name not in defined:
            yield f"{name} is read before it is written"
    for buffer in map(graph.buffers.get, (*body.reads, *(name for name in node.outputs if name is not None))):
        if buffer is not None and not _equal(contiguous_strides(buffer.shape), buffer.strides):
            yield f"{buffer.name} goes to a kernel as it is, and has the strides {buffer.strides}"


def _sort(body: Sort, graph: Graph, defined: set[str]) -> Iterator[str]:
    source = graph.buffers.get(body.source)
    if source is None or body.source not in defined:
        yield f"{body.source} is sorted before it is written"
        return
    if not body.shape or not _equal(body.shape[:-1], source.shape[:-1]):
        yield f"{body.source} of shape {source.shape} is sorted by rows into the shape {body.shape}"
    elif not _equal(contiguous_strides(source.shape), source.strides):
        yield f"{body.source} is sorted by rows and has the strides {source.strides}"
    if source.dtype != body.dtype:
        yield f"{body.source} is {source.dtype}, the node says {body.dtype}"


def _scatter(body: Scatter, place: Sequence[Expr], graph: Graph) -> Iterator[str]:
    base = graph.buffers.get(body.base)
    if base is None:
        yield f"the scatter's base {body.base} is no buffer"
        return
    if len(place) != len(base.shape):
        yield f"the scatter's place has {len(place)} indices, {body.base} has {len(base.shape)} dimensions"
    if body.mode not in (None, *ACCUMULATIONS):
        yield f"a scatter has no mode {body.mode!r}"
    elif body.dtype is torch.bool and body.mode in ("add", "mul"):
        yield f"a scatter of booleans has no mode {body.mode!r}"


def _in_range(buffer: Buffer, index: Sequence[Expr], extents: Mapping[Symbol, Expr]) -> Iterator[str]:
    """Reports only certain violations: an affine index reaches its bounds. Halo zeros may be loaded."""
    halos = buffer.halo or ((0, 0),) * len(buffer.shape)
    for dim, (expr, size, (before, after)) in enumerate(zip(index, buffer.shape, halos)):
        low, high = bounds(expr, extents)
        if not expr.is_Integer and not _reaches_bounds(expr, extents):
            continue
        below = low is not None and bool((low + before).is_negative)
        above = high is not None and bool((high - size - after).is_nonnegative)
        if below or above:
            yield f"load of {buffer.name}: index {expr} of dimension {dim} leaves [0, {size})"


def _reaches_bounds(expr: Expr, extents: Mapping[Symbol, Expr]) -> bool:
    """Whether the index is a sum of distinct loop variables times numbers."""
    for term in expr.as_ordered_terms():
        coefficient, rest = term.as_coeff_Mul()
        if not coefficient.is_Integer or (rest != 1 and rest not in extents):
            return False
    return True


# -- externs, outputs, mutations --------------------------------------------------------------------------


def _extern(body: Extern, graph: Graph, defined: set[str]) -> Iterator[str]:
    if body.target not in CONTROL:
        try:
            resolve(body.target)
        except (AttributeError, ValueError):
            yield f"there is no ATen operator {body.target!r}"
    for number, inner in enumerate(body.bodies):
        yield from (f"body {number} of {body.target}: {problem}" for problem in find_problems(inner))
        own = {name for name in (*inner.inputs, *inner.constants) if isinstance(name, str)}
        for position, out in enumerate(inner.outputs):
            if isinstance(out, StridedView) and out.buffer in own:
                yield f"body {number} of {body.target}: output {position} is {out.buffer}'s memory"
        if inner.mutations:
            yield f"body {number} of {body.target} writes to its operands"
    for name in body.overwrites:
        if name in graph.inputs or name in graph.constants:
            yield f"{body.target} overwrites {name}, which is given"
        if _readers(graph, name) != 1:
            yield f"{body.target} overwrites {name}, which others read too"
    for view in views_in((body.args, body.kwargs)):
        if view.buffer not in defined:
            yield f"{view.buffer} is read before it is written"
        yield from _view(view, graph)


def _readers(graph: Graph, name: str) -> int:
    """The number of nodes and outputs that read a buffer."""
    ends = [out.buffer for out in graph.outputs if isinstance(out, StridedView)]
    ends += [mutation.source for mutation in graph.mutations]
    return ends.count(name) + sum(name in analyze(node).buffers_read for node in graph.nodes)


def _view(view: StridedView, graph: Graph) -> Iterator[str]:
    if view.buffer not in graph.buffers:
        yield f"a view of {view.buffer}, which is no buffer"
    if len(view.shape) != len(view.strides):
        yield f"a view of {view.buffer} has {len(view.shape)} dimensions and {len(view.strides)} strides"


def _ends(graph: Graph, defined: set[str], written: set[str]) -> Iterator[Problem]:
    for position, out in enumerate(graph.outputs):
        if isinstance(out, StridedView):
            if out.buffer in graph.buffers and out.buffer not in defined:
                yield Problem(f"output {position} is a view of {out.buffer}, which is never written")
            yield from (Problem(f"output {position}: {what}") for what in _view(out, graph))
    inputs = {name for name in graph.inputs if isinstance(name, str)}
    for mutation in graph.mutations:
        if mutation.target not in inputs:
            yield Problem(f"{mutation.target} is mutated but is no input")
        if mutation.source not in defined:
            yield Problem(f"{mutation.target} takes the value of {mutation.source}, which is never written")
        target, source = graph.buffers.get(mutation.target), graph.buffers.get(mutation.source)
        if target is None or source is None:
            continue
        if target.dtype != source.dtype:
            yield Problem(f"{target.name} is {target.dtype}, it is to hold {source.name}: {source.dtype}")
        if not _equal(target.shape, source.shape):
            yield Problem(f"{target.name} has the shape {target.shape}, {source.name} has {source.shape}")
    for name, buffer in graph.buffers.items():
        if name not in written and numel(buffer.shape) != 0:
            yield Problem(f"{name} is never written")
