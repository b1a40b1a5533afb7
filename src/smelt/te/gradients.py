"""The gradient of the user's function of loops, as another one: reverse mode over its straight-line code.

An element that is loaded at plain axes, ``A[i, k]``, gets the sum of its uses' gradients over the axes that
it lacks. Loads at other indices (``A[i + r]``), and operators without a rule in `RULES`, are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from sympy import Expr, Integer, Symbol

from smelt.errors import SmeltError
from smelt.loops.dependencies import analyze, variables
from smelt.loops.ir import Buffer, Graph, Node, Origin, Pointwise, Reduction, StridedView
from smelt.loops.record import Recorder
from smelt.nest.ir import Kernel, Let
from smelt.nest.stages import raised, staged
from smelt.ops import ops
from smelt.records import dataclass
from smelt.symbolic import contiguous_strides
from smelt.symbolic.affine import replaced

Value = Any
Rule = Callable[[int, Callable[[int], Value], Callable[[], Value], Value, torch.dtype], Value]
"""``rule(k, argument, result, g, dtype)``: the gradient of argument ``k`` for the result's ``g``, or None."""


def _number(value: float, dtype: torch.dtype) -> Value:
    return ops.constant(value, dtype)


def _larger(sign: str) -> Rule:
    """The chosen operand gets all of the gradient; equal operands get half each, as in PyTorch."""

    def rule(k: int, x: Callable[[int], Value], out: Any, g: Value, dtype: torch.dtype) -> Value:
        del out
        half = ops.mul(g, _number(0.5, dtype))
        mine, other = x(k), x(1 - k)
        chosen = getattr(ops, sign)(mine, other)
        return ops.where(chosen, g, ops.where(ops.eq(mine, other), half, _number(0.0, dtype)))

    return rule


def _chosen(k: int, x: Callable[[int], Value], out: Any, g: Value, dtype: torch.dtype) -> Value:
    del out
    if k == 0:
        return None
    zero = _number(0.0, dtype)
    return ops.where(x(0), g, zero) if k == 1 else ops.where(x(0), zero, g)


def _quotient(k: int, x: Callable[[int], Value], out: Callable[[], Value], g: Value, dtype: Any) -> Value:
    del dtype
    share = ops.truediv(g, x(1))
    return share if k == 0 else ops.neg(ops.mul(share, out()))


RULES: dict[str, Rule] = {
    "add": lambda k, x, out, g, dtype: g,
    "sub": lambda k, x, out, g, dtype: ops.neg(g) if k else g,
    "mul": lambda k, x, out, g, dtype: ops.mul(g, x(1 - k)),
    "truediv": _quotient,
    "fma": lambda k, x, out, g, dtype: g if k == 2 else ops.mul(g, x(1 - k)),
    "neg": lambda k, x, out, g, dtype: ops.neg(g),
    "exp": lambda k, x, out, g, dtype: ops.mul(g, out()),
    "log": lambda k, x, out, g, dtype: ops.truediv(g, x(0)),
    "sqrt": lambda k, x, out, g, dtype: ops.truediv(g, ops.mul(_number(2.0, dtype), out())),
    "tanh": lambda k, x, out, g, dtype: ops.mul(g, ops.sub(_number(1.0, dtype), ops.mul(out(), out()))),
    "sin": lambda k, x, out, g, dtype: ops.mul(g, ops.cos(x(0))),
    "cos": lambda k, x, out, g, dtype: ops.neg(ops.mul(g, ops.sin(x(0)))),
    "maximum": _larger("gt"),
    "minimum": _larger("lt"),
    "where": _chosen,
}


def gradient_of(kernel: Kernel) -> Kernel:
    """The function of the gradients: its parameters are those of ``kernel`` and a gradient for each result;
    it fills a gradient for each floating argument, in order.

    Raises:
        SmeltError: SM1047 no gradient can be derived.
    """
    graph = raised(kernel)
    if isinstance(graph, str):
        raise refusal(kernel, graph)
    return _Reverse(kernel, graph).run()


def refusal(kernel: Kernel, why: str) -> SmeltError:
    """The error that no gradient of a function is derived, with the reason."""
    remedy = "give one: te.operator(…, gradient=function)"
    return SmeltError("SM1047", f"no gradient of {kernel.name} is derived", why=why, remedy=remedy)


class _Reverse:
    def __init__(self, kernel: Kernel, graph: Graph) -> None:
        self.kernel, self.source = kernel, graph
        self.graph = Graph(buffers=dict(graph.buffers), nodes=list(graph.nodes), inputs=list(graph.inputs))
        self.parts: dict[str, list[str]] = {}

    def run(self) -> Kernel:
        source, graph = self.source, self.graph
        results = [out.buffer for out in source.outputs if isinstance(out, StridedView)]
        for name in results:
            self.parts[name] = [self._buffer(f"{name}_upstream", name)]
        graph.inputs += [f"{name}_upstream" for name in results]
        for node in reversed(source.nodes):
            (out,) = node.outputs
            if out in self.parts and source.buffers[out].dtype.is_floating_point:
                self._node(node, self._whole(out))
        given = [name for name in source.inputs if isinstance(name, str)]
        wanted = [name for name in given if source.buffers[name].dtype.is_floating_point]
        made = [self._result(name) for name in wanted]
        for name in made:
            buffer = graph.buffers[name]
            graph.outputs.append(StridedView(name, buffer.shape, buffer.strides, Integer(0)))
        needed = self._needed(made)
        graph.nodes = [node for node in graph.nodes if node.outputs[0] in needed]
        params = [*given, *(f"{name}_upstream" for name in results), *made]
        return staged(graph, f"{self.kernel.name}_gradient", params)

    def _needed(self, made: Sequence[str]) -> set[str]:
        """The values from which the gradients are computed: not all of the function is recomputed."""
        needed = set(made)
        for node in reversed(self.graph.nodes):
            if node.outputs[0] in needed:
                needed.update(analyze(node).buffers_read)
        return needed

    def _buffer(self, name: str, like: str) -> str:
        known = self.graph.buffers[like]
        while name in self.graph.buffers:
            name += "_"
        self.graph.buffers[name] = Buffer(name, known.dtype, known.shape, contiguous_strides(known.shape))
        return name

    def _add(self, name: str, body: Pointwise | Reduction) -> None:
        self.graph.nodes.append(Node((name,), body, Origin("gradient")))

    def _whole(self, name: str) -> str:
        """The sum of the gradients of a buffer's uses."""
        parts = self.parts[name]
        if len(parts) == 1:
            return parts[0]
        return self._sum(name, parts)

    def _sum(self, name: str, parts: Sequence[str]) -> str:
        total = self._buffer(f"{name}_grad", name)
        buffer = self.graph.buffers[total]

        def value(index: Sequence[Expr]) -> Value:
            if not parts:
                return _number(0.0, buffer.dtype)
            found = ops.load(parts[0], index)
            for part in parts[1:]:
                found = ops.add(found, ops.load(part, index))
            return found

        self._add(total, Pointwise(buffer.shape, buffer.dtype, value))
        return total

    def _result(self, name: str) -> str:
        """The gradient of an argument, in a buffer of its own."""
        parts = self.parts.get(name, [])
        alone = len(parts) == 1 and parts[0] not in self.graph.inputs
        return parts[0] if alone else self._sum(name, parts)

    def _node(self, node: Node, upstream: str) -> None:
        body = node.body
        assert isinstance(body, (Pointwise, Reduction))
        if isinstance(body, Reduction) and body.kind != "sum":
            raise refusal(self.kernel, f"{node.outputs[0]} is a {body.kind} over elements")
        outer = variables("i", len(body.shape))
        terms = variables("r", len(body.reduce_shape)) if isinstance(body, Reduction) else ()
        reduced = body.reduce_shape if isinstance(body, Reduction) else ()
        extents = dict(zip((*outer, *terms), (*body.shape, *reduced)))
        dtypes = {name: buffer.dtype for name, buffer in self.graph.buffers.items()}
        recorder = Recorder(dtypes, extents)
        result = recorder.run(body.inner_fn, outer, *([terms] if isinstance(body, Reduction) else []))
        steps = {}
        for step in recorder.instructions:
            if not isinstance(step, Let):
                raise refusal(self.kernel, f"{node.outputs[0]} loads something only in places")
            steps[step.name] = step
        code = _Code(steps, result.name, outer, upstream)
        for step in steps.values():
            if step.op == "load" and step.dtype.is_floating_point and code.reaches(step.name):
                self._contribution(step, code, extents, str(node.outputs[0]))

    def _contribution(self, step: Let, code: _Code, extents: dict[Symbol, Expr], where: str) -> None:
        name, index = step.args
        shape = self.source.buffers[name].shape
        plain = all(isinstance(e, Symbol) and extents.get(e) == size for e, size in zip(index, shape))
        if not plain or len(set(index)) != len(index):
            place = ", ".join(map(str, index))
            raise refusal(self.kernel, f"{where} reads {name}[{place}], which is no element at its axes")
        missing = code.unknown(step.name)
        if missing is not None:
            raise refusal(self.kernel, f"{where} computes {missing}")
        part = self._buffer(f"{name}_grad", name)
        rest = [var for var in extents if var not in index]
        value = partial(code.gradient, step.name)
        dtype = step.dtype
        body: Pointwise | Reduction
        if rest:
            over = tuple(extents[var] for var in rest)
            body = Reduction(
                "sum", shape, over, dtype, lambda i, r: value(dict(zip((*index, *rest), (*i, *r))))
            )
        else:
            body = Pointwise(shape, dtype, lambda i: value(dict(zip(index, i))))
        self._add(part, body)
        self.parts.setdefault(name, []).append(part)


@dataclass(frozen=True, slots=True)
class _Code:
    """Straight-line code whose values and gradients are computed on demand."""

    steps: dict[str, Let]
    result: str
    outer: tuple[Symbol, ...]
    upstream: str

    def users(self, name: str) -> list[tuple[Let, int]]:
        """The statements that use a value, and the position of the argument."""
        return [
            (step, place)
            for step in self.steps.values()
            if step.op not in ("load", "constant", "index_expr")
            for place, arg in enumerate(step.args)
            if isinstance(arg, str) and arg == name
        ]

    def reaches(self, name: str) -> bool:
        """Whether the result depends on a value through floating numbers."""
        if name == self.result:
            return True
        return any(s.dtype.is_floating_point and self.reaches(s.name) for s, _ in self.users(name))

    def unknown(self, name: str) -> str | None:
        """An operation without a rule between a value and the result, or None."""
        for step, _ in self.users(name):
            if step.dtype.is_floating_point and self.reaches(step.name):
                if step.op not in RULES and step.op != "to_dtype":
                    return step.op
                found = self.unknown(step.name)
                if found is not None:
                    return found
        return None

    def gradient(self, name: str, symbols: dict[Symbol, Expr]) -> Value:
        """The gradient of the value ``name``, with axes replaced by these expressions."""
        values: dict[str, Value] = {}
        gradients: dict[str, Value] = {}

        def value(of: str) -> Value:
            if of not in values:
                step = self.steps[of]
                if step.op == "load":
                    values[of] = ops.load(step.args[0], [replaced(e, symbols) for e in step.args[1]])
                elif step.op == "constant":
                    values[of] = ops.constant(step.args[0], step.dtype)
                elif step.op == "index_expr":
                    values[of] = ops.index_expr(replaced(step.args[0], symbols), step.dtype)
                elif step.op == "to_dtype":
                    values[of] = ops.to_dtype(value(step.args[0]), step.dtype)
                else:
                    values[of] = getattr(ops, step.op)(*map(value, step.args))
            return values[of]

        def gradient(of: str) -> Value:
            if of not in gradients:
                found: list[Value] = []
                if of == self.result:
                    found.append(ops.load(self.upstream, [replaced(e, symbols) for e in self.outer]))
                for step, place in self.users(of):
                    if step.dtype.is_floating_point and self.reaches(step.name):
                        found.append(passed(step, place, self.steps[of].dtype))
                total = None
                for each in found:
                    total = each if total is None else total if each is None else ops.add(total, each)
                gradients[of] = total
            return gradients[of]

        def passed(step: Let, place: int, dtype: torch.dtype) -> Value:
            g = gradient(step.name)
            if g is None:
                return None
            if step.op == "to_dtype":
                return ops.to_dtype(g, dtype)
            return RULES[step.op](
                place, lambda k: value(step.args[k]), lambda: value(step.name), g, step.dtype
            )

        found = gradient(name)
        return ops.constant(0.0, self.steps[name].dtype) if found is None else found
