"""Custom operators (``torch.library``) are called as they are: by choice, in order, on eager's strides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import smelt
from smelt.errors import VerificationError
from smelt.loops.interpreter import run_graph
from smelt.loops.ir import Buffer, Extern, Graph, Node, Origin, StridedView
from smelt.loops.verify import verify
from smelt.symbolic import as_expr
from tests.test_control import agree, externs

SEEN: list[Any] = []


@torch.library.custom_op("smelt_tests::add_", mutates_args={"x"})
def add_(x: Tensor, amount: float) -> None:
    x.add_(amount)


@torch.library.custom_op("smelt_tests::pair", mutates_args=())
def pair(x: Tensor) -> tuple[Tensor, Tensor]:
    return x + 1, x.t() * 2


@pair.register_fake
def _(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(x.t())


@torch.library.custom_op("smelt_tests::many", mutates_args=())
def many(x: Tensor, count: int) -> list[Tensor]:
    return [x + number for number in range(count)]


@many.register_fake
def _(x: Tensor, count: int) -> list[Tensor]:
    return [torch.empty_like(x) for _ in range(count)]


@torch.library.custom_op("smelt_tests::both", mutates_args={"x", "ys"})
def both(x: Tensor, ys: list[Tensor]) -> Tensor:
    x.mul_(2)
    for y in ys:
        y.add_(1)
    return x + ys[0]


@both.register_fake
def _(x: Tensor, ys: list[Tensor]) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("smelt_tests::square", mutates_args=())
def square(x: Tensor) -> Tensor:
    return x * x


@square.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


square.register_autograd(
    lambda ctx, gradient: 2 * ctx.saved_tensors[0] * gradient,
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
)


@torch.library.custom_op("smelt_tests::strides", mutates_args=())
def strides(x: Tensor) -> Tensor:
    return torch.tensor([float(stride) for stride in x.stride()])


@strides.register_fake
def _(x: Tensor) -> Tensor:
    return x.new_empty((x.dim(),))


@torch.library.custom_op("smelt_tests::columns", mutates_args=())
def columns(x: Tensor) -> Tensor:
    return x.t().contiguous().t().clone()


@columns.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)  # the strides are not those that the kernel gives


@torch.library.custom_op("smelt_tests::note", mutates_args=())
def note(x: Tensor, what: str) -> Tensor:
    SEEN.append((what, float(x.sum())))
    return x.clone()


@note.register_fake
def _(x: Tensor, what: str) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("smelt_tests::positive", mutates_args=())
def positive(x: Tensor) -> Tensor:
    return x[x > 0]


@positive.register_fake
def _(x: Tensor) -> Tensor:
    return x.new_empty(torch.library.get_ctx().new_dynamic_size())


LIBRARY = torch.library.Library("smelt_tests", "FRAGMENT")
LIBRARY.define("maybe(Tensor x, bool wanted) -> (Tensor, Tensor?)")
LIBRARY.impl("maybe", lambda x, wanted: (x + 1, x * 2 if wanted else None), "CPU")


@torch.library.register_fake("smelt_tests::maybe")
def _(x: Tensor, wanted: bool) -> tuple[Tensor, Tensor | None]:
    return torch.empty_like(x), torch.empty_like(x) if wanted else None


@pytest.fixture(autouse=True)
def _nothing_seen(own_cache: None, fresh: None) -> None:
    SEEN.clear()


def test_several_results() -> None:
    agree(lambda x: [each + 1 for each in pair(x * 2)], torch.randn(3, 4))
    assert externs() == {"smelt_tests.pair.default"}


def test_one_of_several_results() -> None:
    agree(lambda x: pair(x * 2)[1] + 1, torch.randn(3, 4))


def test_a_list_of_results() -> None:
    agree(lambda x: many(x * 2, 3), torch.randn(3, 4))


@pytest.mark.parametrize("wanted", [True, False])
def test_a_result_that_may_be_none(wanted: bool) -> None:
    agree(lambda x: torch.ops.smelt_tests.maybe(x * 2, wanted), torch.randn(3))


def test_its_own_derivative() -> None:
    agree(lambda x: square(x.sin()).cos(), torch.randn(3, requires_grad=True))


def test_sizes_that_depend_on_data() -> None:
    compiled = agree(lambda x: positive(x) * 2, torch.randn(9))
    agree(lambda x: positive(x) * 2, torch.randn(9), compiled=compiled)


LAYOUTS: dict[str, tuple[Callable[[Tensor], Tensor], tuple[int, ...]]] = {
    "transposed": (lambda x: (x + 1).t(), (3, 4)),
    "channels last": (lambda x: (x + 1).to(memory_format=torch.channels_last), (2, 3, 4, 5)),
    "expanded": (lambda x: (x + 1)[:1].expand(3, 4), (3, 4)),
    "sliced": (lambda x: (x + 1)[:, 1:3], (3, 4)),
    "one element": (lambda x: (x + 1)[:, :1], (3, 4)),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_it_gets_eagers_strides(layout: str) -> None:
    function, shape = LAYOUTS[layout]
    agree(lambda x: strides(function(x)), torch.randn(shape))


def test_a_result_laid_out_otherwise_than_promised() -> None:
    compiled = smelt.compile(lambda x: columns(x) + 1, verify=True)
    x = torch.randn(3, 4)
    torch.testing.assert_close(compiled(x), x + 1)


# -- operators that write to their arguments ---------------------------------------------------------------


def _writes_to_input(x: Tensor) -> Tensor:
    add_(x, 2.0)
    return x * 2


def _writes_to_view(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.sin()
    add_(y[:, 1:], 1.0)
    return y, y * 2


def _writes_twice(x: Tensor) -> Tensor:
    y = x.cos()
    add_(y, 1.0)
    add_(y, 2.0)
    return (y * 2).sum()


def _writes_to_several(x: Tensor) -> tuple[Tensor, ...]:
    y, a, b = x.sin(), x.cos(), x.exp()
    result = both(y[1], [a[0], b[0]])
    return y, a, b, result


def _old_value_is_kept(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.exp()
    before = y + 1
    add_(y, 5.0)
    return before, y


WRITING = [_writes_to_input, _writes_to_view, _writes_twice, _writes_to_several, _old_value_is_kept]


@pytest.mark.parametrize("function", WRITING)
@pytest.mark.parametrize("dynamic", [False, True])
def test_operators_that_write_to_their_arguments(function: Callable[..., Any], dynamic: bool) -> None:
    agree(function, torch.randn(3, 4), dynamic=dynamic)


def test_the_input_that_is_written_to_changes() -> None:
    x = torch.randn(3)
    expected = x + 2
    smelt.compile(_writes_to_input)(x)
    torch.testing.assert_close(x, expected)


def test_what_is_written_to_lies_where_it_was_computed() -> None:
    """The copy that keeps the graph functional is the kernel's own result: nothing is moved."""
    agree(_writes_twice, torch.randn(3, 4))
    (report,) = smelt.reports()
    assert report.externs == {"smelt_tests.add_.default": 2}
    assert report.text("plan").count("_smelt_tests_add_(") == 2


def _overwriting(readers: int) -> Graph:
    two, one, zero = as_expr(2), as_expr(1), as_expr(0)
    graph = Graph(inputs=["x"])
    for name in ("x", "copy", "after", "other"):
        graph.buffers[name] = Buffer(name, torch.float32, (two,), (one,))
    view = StridedView("copy", (two,), (one,), zero)
    source = StridedView("x", (two,), (one,), zero)
    graph.nodes.append(Node(("copy",), Extern("aten.clone.default", (source,), {}), Origin("clone")))
    call = Extern("smelt_tests.add_.default", (view, 1.0), {}, overwrites=("copy",))
    graph.nodes.append(Node(("after",), call, Origin("add_")))
    read = view if readers > 1 else StridedView("after", (two,), (one,), zero)
    graph.nodes.append(Node(("other",), Extern("aten.clone.default", (read,), {}), Origin("clone")))
    graph.outputs.append(StridedView("other", (two,), (one,), zero))
    return graph


def test_the_interpreter_overwrites_a_copy() -> None:
    graph = _overwriting(readers=1)
    verify(graph)
    x = torch.tensor([1.0, 2.0])
    assert run_graph(graph, [x])[0].tolist() == [2.0, 3.0]
    assert x.tolist() == [1.0, 2.0]


def test_nobody_else_may_read_what_is_overwritten() -> None:
    with pytest.raises(VerificationError, match="which others read too"):
        verify(_overwriting(readers=2))


# -- effects ------------------------------------------------------------------------------------------------


def test_operators_with_effects_keep_their_order() -> None:
    try:
        from torch._library.effects import EffectType
    except ImportError:
        pytest.skip("this torch registers effects elsewhere")
    torch.library._register_effectful_op("smelt_tests::note", EffectType.ORDERED)

    def function(x: Tensor) -> Tensor:
        note(x, "first")
        y = note(x * 2, "second")
        note(x, "first")
        return y + 1

    try:
        x = torch.ones(2)
        compiled = smelt.compile(function, fullgraph=True, verify=True)
        torch.testing.assert_close(compiled(x), x * 2 + 1)
    finally:
        torch.library._register_effectful_op("smelt_tests::note", None)
    assert SEEN == [("first", 2.0), ("second", 4.0), ("first", 2.0)]
    assert not any(report.fallbacks for report in smelt.reports())
