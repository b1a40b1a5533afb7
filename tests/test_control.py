"""Control flow and other higher-order operators: compiled, right, and without fallbacks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._higher_order_ops.map import map as map_over
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

import smelt
from smelt.capture import capture_function
from smelt.config import Config
from smelt.contract import contract
from smelt.errors import VerificationError
from smelt.loops.interpreter import run_graph
from smelt.loops.ir import Extern
from smelt.loops.printer import print_graph
from smelt.loops.verify import verify
from smelt.lowering import lower
from smelt.runtime import plan_json
from smelt.runtime.control import map_impl, while_loop_stack_output
from smelt.schedule import Target, schedule

pytestmark = pytest.mark.usefixtures("own_cache", "fresh")

Function = Callable[..., Any]


def _copies(args: tuple[Any, ...]) -> list[Any]:
    return [
        arg.detach().clone().requires_grad_(arg.requires_grad) if isinstance(arg, Tensor) else arg
        for arg in args
    ]


def _results(function: Function, args: list[Any]) -> list[Any]:
    """Outputs, then the gradients of the inputs that want one."""
    leaves = pytree.tree_leaves(function(*args))
    wanting = [arg for arg in args if isinstance(arg, Tensor) and arg.requires_grad]
    if wanting:
        sum(leaf.sum() for leaf in leaves if leaf.requires_grad).backward()
    return [*leaves, *(arg.grad for arg in wanting)]


def agree(
    function: Function, *args: Any, dynamic: bool | None = None, compiled: Function | None = None
) -> Function:
    """Compiled and eager give the same, forward and backward, and nothing falls back."""
    if compiled is None:
        compiled = smelt.compile(function, fullgraph=True, dynamic=dynamic, verify=True)
    expected, got = _results(function, _copies(args)), _results(compiled, _copies(args))
    assert len(expected) == len(got)
    for want, have in zip(expected, got):
        torch.testing.assert_close(have, want)
        if isinstance(want, Tensor):
            assert have.stride() == want.stride()
    assert [str(each) for report in smelt.reports() for each in report.fallbacks] == []
    assert all(report.kind != "eager" for report in smelt.reports())
    return compiled


def externs() -> set[str]:
    return {target for report in smelt.reports() for target in report.externs}


def _branches(flag: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return torch.cond(flag, lambda a, b: (a * b).sin(), lambda a, b: a - b, (x, y))


@pytest.mark.parametrize("flag", [True, False])
def test_cond_forward_and_backward(flag: bool) -> None:
    agree(_branches, torch.tensor(flag), torch.randn(3, 4, requires_grad=True), torch.randn(3, 4))
    assert externs() == {"higher_order.cond"}


def test_both_branches_are_one_compile() -> None:
    x, y = torch.randn(5), torch.randn(5)
    compiled = agree(_branches, torch.tensor(True), x, y)
    agree(_branches, torch.tensor(False), x, y, compiled=compiled)
    assert len(smelt.reports()) == 1


def test_cond_on_sizes_and_of_any_size() -> None:
    def function(x: Tensor) -> Tensor:
        return torch.cond(x.shape[0] > 4, lambda a: a + a.shape[1], lambda a: a * 2, (x,))

    compiled = agree(function, torch.randn(3, 7), dynamic=True)
    for rows in (2, 5, 9):
        agree(function, torch.randn(rows, 6), compiled=compiled)
    assert len(smelt.reports()) == 1


def test_branches_close_over_outer_tensors_and_constants() -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        shifted = x + 1
        return torch.cond(
            x.sum() > 0, lambda: shifted * w + torch.tensor([1.0, 2.0, 3.0]), lambda: w - shifted.cos(), ()
        )

    agree(function, torch.ones(3), torch.randn(3))
    agree(function, -torch.ones(3), torch.randn(3))


def test_branches_within_branches() -> None:
    def inner(x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 3, lambda a: a.exp(), lambda a: a.sin(), (x,))

    def function(x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, inner, lambda a: a - 1, (x,)) + 1

    for value in (2.0, 0.1, -1.0):
        agree(function, torch.full((3,), value))


def _turns(i: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    return while_loop(lambda i, x: i < 5, lambda i, x: (i + 1, (x * 1.5).sin()), (i, x))  # type: ignore[no-any-return]


@pytest.mark.parametrize("start", [0, 4, 9])
def test_while_loop(start: int) -> None:
    compiled = agree(_turns, torch.tensor(start), torch.randn(3, 4))
    x = torch.randn(3, 4)
    result = compiled(torch.tensor(9), x)[1]
    assert result.data_ptr() != x.data_ptr()


def test_while_loop_backward() -> None:
    agree(_turns, torch.tensor(0), torch.randn(3, 4, requires_grad=True))


def test_while_loop_counts_with_a_number() -> None:
    def function(x: Tensor) -> Any:
        return while_loop(lambda i, x: i < 5, lambda i, x: (i + 1, x * 1.5), (0, x))

    agree(function, torch.randn(3, 4))


def _recurrence(initial: Tensor, xs: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    return scan(lambda c, v: (c * w + v, (c + v).relu()), initial, xs, dim=0)  # type: ignore[no-any-return]


def test_scan_forward_and_backward() -> None:
    wanting = {"requires_grad": True}
    agree(_recurrence, torch.randn(4), torch.randn(3, 4, **wanting), torch.randn(4, **wanting))  # type: ignore[arg-type]


def test_scan_of_any_length() -> None:
    compiled = agree(_recurrence, torch.randn(4), torch.randn(3, 4), torch.randn(4), dynamic=True)
    for length in (2, 7):
        agree(_recurrence, torch.randn(4), torch.randn(length, 4), torch.randn(4), compiled=compiled)
    assert len(smelt.reports()) == 1


def test_scan_over_columns_backwards() -> None:
    """Each turn gets a strided slice, and what is carried comes as no kernel laid it out."""

    def function(initial: Tensor, xs: Tensor) -> Any:
        return scan(lambda c, v: (c + v.t(), c * 2), initial, xs, dim=2, reverse=True)

    agree(function, torch.randn(3, 4).t().contiguous().t(), torch.randn(4, 3, 5))


def test_map_forward_and_backward() -> None:
    def function(xs: Tensor, w: Tensor) -> Tensor:
        return map_over(lambda v, w: v.sin() * w + 1, xs, w)  # type: ignore[no-any-return]

    agree(function, torch.randn(5, 4, requires_grad=True), torch.randn(4, requires_grad=True))


def test_calls_of_regions_are_seen_through() -> None:
    @torch.compiler.nested_compile_region
    def region(x: Tensor) -> Tensor:
        return x.sin() * 2

    agree(lambda x: region(region(x)), torch.randn(4, requires_grad=True))
    assert externs() == set()
    assert [len(report.kernels) for report in smelt.reports()] == [1, 1]


def test_checkpoints_recompute() -> None:
    def function(x: Tensor) -> Tensor:
        return checkpoint(lambda t: t.sin().cos().exp(), x, use_reentrant=False)  # type: ignore[no-any-return]

    agree(function, torch.randn(4, requires_grad=True))


def test_printing_keeps_its_order(capsys: pytest.CaptureFixture[str]) -> None:
    def function(x: Tensor) -> Tensor:
        torch._higher_order_ops.print("first {}", x.sum())
        y = x * 2
        torch._higher_order_ops.print("second {}", y.sum())
        return y

    smelt.compile(function, fullgraph=True)(torch.ones(2))
    assert capsys.readouterr().out == "first 2.0\nsecond 4.0\n"


def test_asserted_tensors_raise() -> None:
    def function(x: Tensor) -> Tensor:
        torch._assert_async(x.sum() < 3, "too much")
        return x + 1

    compiled = agree(function, torch.ones(2))
    with pytest.raises(RuntimeError, match="too much"):
        compiled(torch.ones(4)[:2] * 9)


# -- the floors -------------------------------------------------------------------------------------------


def _program(function: Function, *args: Any) -> Any:
    return contract(capture_function(function, args))


def test_the_interpreter_runs_bodies() -> None:
    flag, x, y = torch.tensor(True), torch.randn(3), torch.randn(3)
    graph = lower(_program(_branches, flag, x, y).graph_module)
    verify(graph)
    for flag in (torch.tensor(True), torch.tensor(False)):
        torch.testing.assert_close(run_graph(graph, [flag, x, y])[0], _branches(flag, x, y))


def test_bodies_are_printed() -> None:
    graph = lower(_program(_branches, torch.tensor(True), torch.randn(3), torch.randn(3)).graph_module)
    text = print_graph(graph)
    assert "higher_order.cond(" in text and "body 0 = graph(" in text and "sub(" in text


def test_the_plan_of_bodies_survives_json() -> None:
    graph = lower(_program(_branches, torch.tensor(True), torch.randn(3), torch.randn(3)).graph_module)
    plan = schedule(graph, Config(), Target(32)).plan
    assert plan_json.from_json(plan_json.to_json(plan)) == plan


def test_bodies_come_from_the_cache() -> None:
    args = torch.tensor(True), torch.randn(3), torch.randn(3)
    agree(_branches, *args)
    smelt.reset()
    agree(_branches, *args)
    assert [report.cache_hit for report in smelt.reports()] == [True]


def test_the_contract_looks_into_bodies() -> None:
    program = _program(_branches, torch.tensor(True), torch.randn(3), torch.randn(3))
    from smelt.contract.verify import verify as verify_contract

    body = next(
        getattr(program.graph_module, node.target)
        for node in program.graph_module.graph.nodes
        if node.op == "get_attr"
    )
    for node in body.graph.nodes:
        if node.op == "call_function":
            node.meta.pop("val")
    with pytest.raises(VerificationError, match="SM0422"):
        verify_contract(program)


def test_a_body_that_returns_its_operand_is_refused() -> None:
    graph = lower(_program(_branches, torch.tensor(True), torch.randn(3), torch.randn(3)).graph_module)
    call = next(node.body for node in graph.nodes if isinstance(node.body, Extern))
    body = call.bodies[0]
    operand = next(name for name in body.inputs if isinstance(name, str))
    body.outputs[0] = type(body.outputs[0])(operand, *_layout(body, operand))  # type: ignore[misc]
    with pytest.raises(VerificationError, match="memory"):
        verify(graph)


def _layout(body: Any, name: str) -> tuple[Any, ...]:
    buffer = body.buffers[name]
    return buffer.shape, buffer.strides, buffer.shape[0] * 0


def test_loops_without_a_turn() -> None:
    never = [lambda args: [False], lambda args: args]
    stacked = while_loop_stack_output(never, [torch.ones(2), 3], [])  # type: ignore[arg-type]
    assert [tuple(each.shape) for each in stacked] == [(0, 2), (0,)]
    assert map_impl([lambda args: [args[0]]], [torch.ones(0, 2)], []) == []
