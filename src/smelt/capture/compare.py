"""Comparison of all capture methods on one function: the captured graphs, the refusals, and the results for
other arguments.
"""

from __future__ import annotations

import io
import logging
import random
import re
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from smelt.capture.torch_export import export_function
from smelt.errors import describe

_TORCH = str(Path(torch.__file__).parent)
_HERE = str(Path(__file__).parents[1])
_MOST = 120
"""Limit on the characters of a reason; PyTorch's can be paragraphs long."""


@dataclass(frozen=True, slots=True)
class Check:
    """The result of a capture on other arguments: ``right``, ``right, with other random numbers``, ``wrong``,
    or the error that it raised.
    """

    case: str
    verdict: str

    @property
    def is_right(self) -> bool:
        """Whether it gives the results of the function."""
        return self.verdict.startswith("right")


@dataclass(slots=True)
class Capture:
    """A capture method, and its result.

    ``reason`` and ``where``: the reason of a failure, and the user's line. ``graphs``: the number of graphs;
    ``breaks``: the reasons of graph breaks. ``fixed``: the parts that are specialized to the example.
    ``checks``: see `Check`.
    """

    way: str
    reason: str | None = None
    where: str | None = None
    graphs: int = 0
    breaks: list[str] = field(default_factory=list)
    fixed: list[str] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    text: str = ""

    @property
    def is_captured(self) -> bool:
        """Whether there is a graph."""
        return self.reason is None

    @property
    def is_right(self) -> bool:
        """Whether there is a graph, and it is right for all tested arguments."""
        return self.is_captured and all(check.is_right for check in self.checks)

    def summary(self) -> str:
        """The result, in a few words."""
        if not self.is_captured:
            return "refused"
        if not self.is_right:
            return "wrong: " + ", ".join(check.case for check in self.checks if not check.is_right)
        return "right" + (f", in {self.graphs} graphs" if self.graphs > 1 else "")

    def outcome(self) -> str:
        """Captured or refused, in a line."""
        if self.reason is not None:
            return f"refused: {self.reason}" + (f" (at {self.where})" if self.where else "")
        many = f"{self.graphs} graph{'s' * (self.graphs != 1)}"
        return many + (f", {len(self.breaks)} break{'s' * (len(self.breaks) != 1)}" if self.breaks else "")


@dataclass(frozen=True, slots=True)
class Comparison:
    """The captures of one function; printed, a table."""

    name: str
    captures: tuple[Capture, ...]

    def __getitem__(self, way: str) -> Capture:
        return next(each for each in self.captures if each.way == way)

    def rows(self) -> list[tuple[str, str, str, str]]:
        """Method, result, specialized parts, results on other arguments."""
        return [
            (
                each.way,
                "; ".join([each.outcome(), *(f"break: {reason}" for reason in each.breaks)]),
                "; ".join(each.fixed) or "-",
                "; ".join(f"{check.case}: {check.verdict}" for check in each.checks) or "-",
            )
            for each in self.captures
        ]

    def __str__(self) -> str:
        heads = ("way", "captured", "fixed", "with other arguments")
        rows = [heads, *self.rows()]
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
        return "\n".join([self.name, *lines])


def compare(function: Callable[..., Any], *examples: Any) -> Comparison:
    """Captures a function by ``fx.symbolic_trace``, ``torch.jit.trace``, ``make_fx``, ``torch.export`` and
    Dynamo, and runs each captured graph on other arguments.

    Each example has the arguments of one call: a tuple, or one tensor. The first is used for the capture;
    each capture then runs with the others, and always with the first one again, with its numbers negated, and
    with other sizes (calls that the function itself refuses are left out). Random generators of Python, NumPy
    and PyTorch are seeded before each call, differently for a second one, to detect numbers that were drawn
    during capture.

    >>> print(compare(lambda x: x + 1, torch.ones(2))["make_fx"].outcome())
    1 graph
    """
    calls = [_arguments(example) for example in examples]
    if not calls:
        raise TypeError("compare(function, *examples) takes at least one example")
    cases = _cases(function, calls)
    captures = [_captured(way, make, function, calls[0], cases) for way, make in _WAYS.items()]
    return Comparison(getattr(function, "__name__", type(function).__name__), tuple(captures))


def tee(*looking: Callable[..., Any], then: Any = "smelt") -> Callable[..., Any]:
    """A Dynamo backend that shows each graph to other backends, and compiles it by ``then``.

    If a backend returns the ``forward`` of another graph, the next backend gets that graph.

    >>> seen = []
    >>> def mine(graph_module, example_inputs):
    ...     seen.append(len(graph_module.graph.nodes))
    ...     return graph_module.forward
    >>> torch.compile(lambda x: x.sin() + 1, backend=tee(mine, then="eager"))(torch.zeros(1)), seen
    (tensor([1.]), [4])
    """

    def backend(graph_module: GraphModule, example_inputs: Sequence[Any], **options: Any) -> Any:
        for each in looking:
            given = each(graph_module, example_inputs)
            owner = given if isinstance(given, GraphModule) else getattr(given, "__self__", None)
            graph_module = owner if isinstance(owner, GraphModule) else graph_module
        compile_graph: Any = torch._dynamo.lookup_backend(then) if isinstance(then, str) else then
        return compile_graph(graph_module, example_inputs, **options)

    return backend


# -- the ways -----------------------------------------------------------------------------------------------

Made = Callable[..., Any]


def _symbolic(function: Callable[..., Any], args: tuple[Any, ...], found: Capture) -> Made:
    traced = torch.fx.symbolic_trace(function)
    found.text = str(traced.graph)
    return traced


def _jit(function: Callable[..., Any], args: tuple[Any, ...], found: Capture) -> Made:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        traced = torch.jit.trace(function, args, check_trace=False)
    for each in caught:
        if issubclass(each.category, torch.jit.TracerWarning):
            what = str(each.message).partition(". ")[0]
            found.fixed.append(f"{_short(what)} (at {Path(each.filename).name}:{each.lineno})")
    found.text = str(getattr(traced, "inlined_graph", traced.graph))
    return traced


def _make_fx(function: Callable[..., Any], args: tuple[Any, ...], found: Capture) -> Made:
    traced = make_fx(function)(*args)
    found.text = str(traced.graph)
    return traced


def _export(function: Callable[..., Any], args: tuple[Any, ...], found: Capture) -> Made:
    exported = export_function(function, args, {}, dynamic=True)
    for node in exported.graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        if node.name in exported.graph_signature.user_inputs and isinstance(value, Tensor):
            fixed = [f"{dim}" for dim, size in enumerate(value.shape) if isinstance(size, int) and size > 1]
            if fixed:
                found.fixed.append(f"sizes {', '.join(fixed)} of {node.name}")
    found.text = str(exported.graph)
    return exported.module()


def _dynamo(function: Callable[..., Any], args: tuple[Any, ...], found: Capture) -> Made:
    torch.compiler.reset()
    explained = torch._dynamo.explain(function)(*args)
    found.graphs = len(explained.graphs)
    for each in explained.break_reasons:
        frame = each.user_stack[-1] if each.user_stack else None
        where = f" (at {Path(frame.filename).name}:{frame.lineno})" if frame else ""
        found.breaks.append(_short(str(each.reason)) + where)
    found.text = "\n\n".join(str(graph.graph) for graph in explained.graphs)
    torch.compiler.reset()
    return torch.compile(function, backend="eager")


_WAYS: dict[str, Callable[[Callable[..., Any], tuple[Any, ...], Capture], Made]] = {
    "fx.symbolic_trace": _symbolic,
    "torch.jit.trace": _jit,
    "make_fx": _make_fx,
    "torch.export": _export,
    "Dynamo": _dynamo,
}


def _captured(
    way: str,
    make: Callable[[Callable[..., Any], tuple[Any, ...], Capture], Made],
    function: Callable[..., Any],
    args: tuple[Any, ...],
    cases: Sequence[_Case],
) -> Capture:
    found = Capture(way, graphs=1)
    try:
        with _seeded(0), torch.no_grad(), _silent():
            made = make(function, _copied(args), found)
    except Exception as error:
        return Capture(way, _short(describe(error)), _line_of(error))
    if not found.graphs:
        return Capture(way, "; ".join(found.breaks) or "no tensor is computed")
    found.checks = [Check(case.name, _verdict(made, case)) for case in cases]
    found.fixed += _shown_by(found.checks)
    return found


def _shown_by(checks: Sequence[Check]) -> list[str]:
    """The specializations that the checks reveal."""
    wrong = {check.case for check in checks if not check.is_right}
    names = {
        _AGAIN: "a value from outside of the graph",
        _NEGATIVE: "what follows from the numbers: a branch",
        _SIZES: "sizes",
    }
    if _AGAIN in wrong:
        return [names[_AGAIN]]
    return [what for case, what in names.items() if case in wrong]


# -- other arguments ----------------------------------------------------------------------------------------

_AGAIN, _NEGATIVE, _SIZES = "called again", "negative numbers", "other sizes"


@dataclass(frozen=True, slots=True)
class _Case:
    """Arguments, the state of the random generators, the function's result, and whether the result differs in
    another state.
    """

    name: str
    args: tuple[Any, ...]
    seed: int
    expected: Any
    is_drawn: bool


def _cases(function: Callable[..., Any], calls: Sequence[tuple[Any, ...]]) -> list[_Case]:
    first = calls[0]
    tried = [
        (_AGAIN, first),
        *((f"example {number}", args) for number, args in enumerate(calls[1:], 2)),
        (_NEGATIVE, pytree.tree_map(lambda x: -x if _is_float(x) else x, first)),
        (_SIZES, pytree.tree_map(_longer, first)),
    ]
    found = []
    for name, args in tried:
        try:
            with torch.no_grad():
                with _seeded(1):
                    expected = function(*_copied(args))
                with _seeded(2):
                    again = function(*_copied(args))
        except Exception:
            continue  # the function refuses such arguments itself
        drawn = not all(map(_same, pytree.tree_leaves(expected), pytree.tree_leaves(again)))
        found.append(_Case(name, args, 1, expected, drawn))
    return found


def _verdict(made: Made, case: _Case) -> str:
    try:
        with _seeded(case.seed), torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            got = made(*_copied(case.args))
    except Exception as error:
        return f"raises {type(error).__name__}"
    left, right = pytree.tree_leaves(got), pytree.tree_leaves(case.expected)
    if len(left) != len(right):
        return "wrong"
    if all(map(_same, left, right)):
        return "right"
    if not case.is_drawn:
        return "wrong"
    with _seeded(case.seed + 1), torch.no_grad():
        again = pytree.tree_leaves(made(*_copied(case.args)))
    return "wrong" if all(map(_same, left, again)) else "right, with other random numbers"


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, Tensor) and isinstance(right, Tensor):
        if left.shape != right.shape or left.dtype != right.dtype:
            return False
        return torch.allclose(left, right, 1e-4, 1e-5, equal_nan=True)
    return bool(left == right)


def _arguments(example: Any) -> tuple[Any, ...]:
    return tuple(example) if isinstance(example, (tuple, list)) else (example,)


def _copied(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return pytree.tree_map(lambda x: x.clone() if _is_tensor(x) else x, args)


def _longer(x: Any) -> Any:
    """A tensor with one more element in each dimension that has several."""
    if not _is_tensor(x):
        return x
    for dim, size in enumerate(x.shape):
        if size > 1:
            x = torch.cat([x, x.narrow(dim, 0, 1)], dim)
    return x


def _is_tensor(x: Any) -> bool:
    return isinstance(x, Tensor)


def _is_float(x: Any) -> bool:
    return isinstance(x, float) or (isinstance(x, Tensor) and x.is_floating_point())


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seeds the random generators; their states are restored afterwards."""
    state, others = numpy.random.get_state(), random.getstate()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        numpy.random.seed(seed)
        random.seed(seed)
        try:
            yield
        finally:
            numpy.random.set_state(state)
            random.setstate(others)


@contextmanager
def _silent() -> Iterator[None]:
    """Suppresses PyTorch's printed and logged messages on failures; the exception has their contents."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(level)


# -- reasons ------------------------------------------------------------------------------------------------


def _short(text: str) -> str:
    line = re.sub(r"\s+", " ", text.strip().splitlines()[0] if text.strip() else "")
    return line if len(line) <= _MOST else line[: _MOST - 1] + "…"


def _line_of(error: BaseException) -> str | None:
    """The user's line: the innermost frame that is neither PyTorch's nor ours; or the line that the text
    names.
    """
    frames = traceback.extract_tb(error.__traceback__)
    own = [each for each in frames if not each.filename.startswith((_TORCH, _HERE, "<"))]
    if own:
        return f"{Path(own[-1].filename).name}:{own[-1].lineno} in {own[-1].name}"
    named = [
        each
        for each in re.findall(r'File "([^"]+)", line (\d+)', str(error))
        if not each[0].startswith((_TORCH, _HERE))
    ]
    return f"{Path(named[-1][0]).name}:{named[-1][1]}" if named else None
