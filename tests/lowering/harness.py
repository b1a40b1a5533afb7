"""Trace a function, lower it, run its loop graph with the interpreter, compare with eager and float64."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from smelt.contract import decompositions as production
from smelt.loops.ir import Extern, Graph
from smelt.loops.verify import verify
from smelt.lowering import lower
from tests.support import target

Function = Callable[..., Any]
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
DTYPES = (*FLOATS, *INTEGERS, torch.bool)


def lowered(
    function: Function,
    *inputs: Any,
    symbolic: bool = False,
    functionalize: bool = False,
    decompositions: dict[Any, Any] | None = None,
    own: bool = False,
) -> Graph:
    """The loop graph of a function on these inputs, as make_fx traces it with the contract's decompositions
    (or others).
    """
    traced = make_fx(
        torch.func.functionalize(function) if functionalize else function,
        tracing_mode="symbolic" if symbolic else "fake",
        decomposition_table=production() if decompositions is None else decompositions,
    )(*copies(inputs))
    traced.graph.eliminate_dead_code()
    graph = lower(traced, own=own)
    verify(graph)
    return graph


def check(
    function: Function,
    *inputs: Any,
    symbolic: bool = False,
    functionalize: bool = False,
    decompositions: dict[Any, Any] | None = None,
    fallbacks: Sequence[str] = (),
    slack: float = 0.0,
    strides: bool = True,
    zeros: bool = True,
    others: Sequence[Sequence[Any]] = (),
    own: bool = False,
) -> Graph:
    """Assert that the lowered function does what eager does; returns the loop graph.

    Numbers: each element within ``4 * eager's error + 8 ulp`` of float64 (each part of a complex number, its
    ulp being that of the length); ``slack`` adds that many ulp of the largest result (for sums, where a small
    result may come from large terms). Integers and booleans exact.
    ``fallbacks``: the ATen overloads that are expected to go to ATen with a reason, no others.
    ``zeros``: whether the sign of a zero must be eager's (ATen itself differs between its own code paths).
    ``others``: more inputs (of other sizes) to run the same graph on. ``own``: nothing is ATen's by choice.
    """
    traced = {"symbolic": symbolic, "functionalize": functionalize, "decompositions": decompositions}
    graph = lowered(function, *inputs, own=own, **traced)
    assert fallen_back(graph) == sorted(fallbacks), [n.body.reason for n in graph.nodes if _fell_back(n.body)]
    for given in (inputs, *others):
        compare_run(graph, function, given, slack=slack, strides=strides, zeros=zeros)
    return graph


def fallen_back(graph: Graph) -> list[str]:
    """The overloads that went to ATen with a reason."""
    return sorted(node.body.target for node in graph.nodes if _fell_back(node.body))


def _fell_back(body: Any) -> bool:
    return isinstance(body, Extern) and body.reason is not None


def copies(inputs: Sequence[Any]) -> list[Any]:
    """Copies with the same strides (an expanded tensor stays expanded)."""
    return [copy.deepcopy(x.detach()) if isinstance(x, torch.Tensor) else x for x in inputs]


def compare_run(
    graph: Graph,
    function: Function,
    inputs: Sequence[Any],
    *,
    slack: float = 0.0,
    strides: bool = True,
    zeros: bool = True,
) -> None:
    """Run the graph and eager on copies of the inputs; results and mutated inputs must agree."""
    mine, theirs, wide = copies(inputs), copies(inputs), [widened(x) for x in copies(inputs)]
    expected = flat(function(*theirs))
    got = target.run(graph, mine)
    try:
        reference = flat(function(*wide))
    except (RuntimeError, TypeError, IndexError):
        reference = [widened(x) for x in expected]
    assert len(got) == len(expected)
    pairs = [*zip(got, expected, reference)]
    pairs += [(a, b, c) for a, b, c in zip(mine, theirs, wide) if isinstance(a, torch.Tensor)]
    for value, eager, exact in pairs:
        compare(value, eager, exact, slack=slack, strides=strides, zeros=zeros)


def compare(
    value: Any, eager: Any, exact: Any, *, slack: float = 0.0, strides: bool = True, zeros: bool = True
) -> None:
    """One result against eager's and against the float64 reference."""
    if not isinstance(eager, torch.Tensor):
        assert value == eager
        return
    assert value.dtype == eager.dtype
    assert value.shape == eager.shape
    if strides and eager.numel():
        sizes = eager.shape
        mine = [stride for size, stride in zip(sizes, value.stride()) if size > 1]
        theirs = [stride for size, stride in zip(sizes, eager.stride()) if size > 1]
        assert mine == theirs, f"strides {value.stride()}, eager has {eager.stride()}"
    if not _is_float(eager):
        _same_where("value", value != eager, value, eager)
        return
    exact = widened(exact) if exact.shape == eager.shape else widened(eager)
    scale = exact.abs()
    if eager.is_complex():
        scale = scale.unsqueeze(-1).expand(*scale.shape, 2)
        value, eager, exact = (torch.view_as_real(each.resolve_conj()) for each in (value, eager, exact))
    _same_where("NaN", value.isnan() != eager.isnan(), value, eager)
    special = eager.isinf() | value.isinf()
    _same_where("infinity", special & (value != eager) & ~eager.isnan(), value, eager)
    if zeros:
        both = (eager == 0) & (value == 0)
        _same_where("sign of zero", both & (value.signbit() != eager.signbit()), value, eager)
    usual = eager.isfinite() & exact.isfinite()
    if not usual.any():
        return
    info = torch.finfo(eager.dtype)
    value, eager, exact, scale = value[usual].double(), eager[usual].double(), exact[usual], scale[usual]
    slack = max(slack, 8.0) if info.dtype == "float64" else slack  # eager is its own reference there
    error, theirs = (value - exact).abs(), (eager - exact).abs()
    allowed = 4 * theirs + 8 * info.eps * scale + slack * info.eps * scale.max() + info.tiny
    worst = int((error - allowed).argmax())
    assert (error <= allowed).all(), (
        f"error {error[worst]:.3g}, allowed {allowed[worst]:.3g}, eager's {theirs[worst]:.3g}: "
        f"got {value[worst]!r}, eager {eager[worst]!r}, exact {exact[worst]!r}"
    )


def _same_where(what: str, differs: torch.Tensor, value: torch.Tensor, eager: torch.Tensor) -> None:
    places = differs.nonzero()[:4].tolist()
    found = [f"{at}: {value[tuple(at)].item()}, eager {eager[tuple(at)].item()}" for at in places]
    assert not places, f"{what} differs at {'; '.join(found)}"


def _is_float(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and (x.dtype.is_floating_point or x.dtype.is_complex)


def widened(x: Any) -> Any:
    """Floating tensors in float64, complex ones in complex128, all else as it is."""
    if not _is_float(x):
        return x
    return x.to(torch.complex128) if x.is_complex() else x.double()


def flat(result: Any) -> list[Any]:
    """One result or several, as a list."""
    return list(result) if isinstance(result, (list, tuple)) else [result]
