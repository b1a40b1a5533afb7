"""A schedule computes what the loop graph says: nests run by the nest interpreter, the graph by the
reference one.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from sympy import Expr, Integer, Symbol

import smelt
from smelt.config import Config
from smelt.loops.interpreter import run_graph
from smelt.loops.ir import Graph
from smelt.nest.ir import For, LoopKind
from smelt.nest.tree import walk
from smelt.schedule import Target, schedule
from tests.lowering.harness import lowered
from tests.schedule import graphs
from tests.schedule.simulate import simulate

N = Symbol("s0", integer=True, positive=True)
TARGET = Target(16)


def check(graph: Graph, inputs: list[torch.Tensor | int], config: Config | None = None) -> None:
    config = config or Config(parallel_grain=1)
    scheduled = schedule(graph, config, TARGET)
    for plain in (True, False):
        mine = [each.clone() if isinstance(each, torch.Tensor) else each for each in inputs]
        theirs = [each.clone() if isinstance(each, torch.Tensor) else each for each in inputs]
        got, want = simulate(graph, scheduled, mine, plain=plain), run_graph(graph, theirs)
        assert len(got) == len(want)
        for a, b in zip((*got, *mine), (*want, *theirs)):
            if isinstance(a, torch.Tensor):
                torch.testing.assert_close(a, b, rtol=2e-6, atol=1e-6)


def symbolic(graph: Graph) -> Graph:
    graph.inputs = [N, *graph.inputs]
    graph.hints = {N: 16}
    return graph


@pytest.mark.parametrize("fusion", [True, False])
@pytest.mark.parametrize("shape", [(3, 5), (17, 33), (1, 40), (40, 1)])
def test_softmax_norm_static(shape: tuple[int, int], fusion: bool) -> None:
    rows, columns = shape
    graph = graphs.softmax_norm(Integer(rows), Integer(columns))
    check(graph, [torch.randn(rows, columns), torch.randn(columns)], Config(parallel_grain=1, fusion=fusion))


@pytest.mark.parametrize("rows", [1, 2, 19])
def test_softmax_norm_dynamic_rows(rows: int) -> None:
    check(symbolic(graphs.softmax_norm(N, Integer(18))), [rows, torch.randn(rows, 18), torch.randn(18)])


def test_lanes_lie_side_by_side_though_the_last_vector_is_not_full() -> None:
    """24 channels and 16 lanes: lanes along the positions would gather."""
    image, channels = torch.randn(3136, 24), torch.randn(24)
    graph = lowered(lambda x, y, a, b, c, d: x + ((y - a) * b * c + d), image, image, *[channels] * 4)
    (run,) = schedule(graph, Config(), Target(64)).runs
    every = [stmt for call in run.calls for stmt in walk(call.kernel.body)]
    vectors = [stmt for stmt in every if isinstance(stmt, For) and stmt.kind is LoopKind.VECTOR]
    assert [(stmt.end, stmt.step) for stmt in vectors] == [(24, 16)]


def test_softmax_norm_is_one_kernel_and_what_reads_columns() -> None:
    scheduled = schedule(graphs.softmax_norm(Integer(64), Integer(64)), Config(), TARGET)
    assert len(scheduled.runs) == 1
    assert len(scheduled.runs[0].calls) <= 4


@pytest.mark.parametrize("rows", [Integer(7), N])
def test_reshapes_fuse_and_compute_the_same(rows: Expr) -> None:
    graph = graphs.reshaped_chain(rows, 3, 8)
    inputs: list[torch.Tensor | int] = [torch.randn(7, 24), torch.randn(24)]
    check(graph if rows != N else symbolic(graph), inputs if rows != N else [7, *inputs])


@pytest.mark.parametrize("size", [1, 5, 64])
def test_mutation_after_every_read(size: int) -> None:
    check(graphs.inplace_update(Integer(size)), [torch.randn(size) for _ in range(3)])


def test_scatter_adds_duplicates() -> None:
    graph = graphs.embedding_backward(Integer(9), 5, 6)
    check(graph, [torch.tensor([0, 1, 1, 4, -1, 0, 0, 2, 2]), torch.randn(9, 6)])


def test_scatter_out_of_range_raises() -> None:
    graph = graphs.embedding_backward(Integer(2), 5, 6)
    with pytest.raises(IndexError):
        check(graph, [torch.tensor([0, 5]), torch.randn(2, 6)])


@pytest.mark.parametrize("kind", ["sum", "max", "min", "prod"])
@pytest.mark.parametrize("size", [32768, 32771])
def test_long_reductions_are_split(kind: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smelt.schedule.graph.rewrites.SPLIT_ELEMENTS", 64)
    small = size // 256
    check(graphs.long_sum(Integer(small), kind), [torch.rand(small) + 0.5])


@pytest.mark.parametrize("make", [lambda n: graphs.softmax_norm(n, n), graphs.inplace_update])
def test_nothing_to_do_for_empty_tensors(make: Callable[[Expr], Graph]) -> None:
    graph = make(Integer(0))
    shapes = {name: tuple(int(s) for s in graph.buffers[str(name)].shape) for name in graph.inputs}
    scheduled = schedule(graph, Config(), TARGET)
    simulate(graph, scheduled, [torch.empty(shapes[name]) for name in graph.inputs])


@pytest.mark.parametrize("value", [1 / 3, 0.1, -1e30, 7.0])
def test_equal_elements_do_not_deviate(value: float) -> None:
    graph, b = graphs.start()
    x = graphs.given(graph, "x", Integer(5), Integer(11))
    mean, m2, _ = b.reduction(
        "welford",
        lambda i, r: x.load((i[0], r[0])),
        shape=(Integer(5),),
        reduce_shape=(Integer(11),),
        dtype=torch.float32,
    )
    graph.outputs = [b.strided(mean), b.strided(m2)]
    constant = torch.full((5, 11), value)
    got_mean, got_m2 = simulate(graph, schedule(graph, Config(), TARGET), [constant])
    assert torch.equal(got_mean, constant[:, 0])
    assert torch.equal(got_m2, torch.zeros(5))


def test_a_number_that_is_written_again_is_read_when_it_is_done() -> None:
    """A scatter of one element, in place: its sum is rounded after it, not when the buffer has its zero."""

    def function(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return torch.zeros(1, dtype=torch.float16).scatter_add(0, i, x)

    torch._dynamo.reset()
    x, i = torch.full((1,), 2.5, dtype=torch.float16), torch.zeros(1, dtype=torch.int64)
    assert torch.equal(torch.compile(function, backend="smelt", fullgraph=True)(x, i), x)


def test_a_number_that_changes_is_read_before() -> None:
    """Numbers are computed early; what an input becomes is stored when everybody has read what it was."""

    def function(count: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        y = torch.softmax(x, -1) * count
        count.add_(1)
        return y

    torch._dynamo.reset()
    fast = torch.compile(function, backend="smelt", fullgraph=True)
    x = torch.randn(8, 64, generator=torch.Generator().manual_seed(0))
    ours, eager = torch.tensor(3.0), torch.tensor(3.0)
    for _ in range(2):
        torch.testing.assert_close(fast(ours, x), function(eager, x))
        assert torch.equal(ours, eager)


def test_a_number_waits_for_the_sizes_that_it_is_made_of() -> None:
    def function(count: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        found = x.nonzero().shape[0]
        return torch.softmax(x, -1) * (torch.sin(count * found) + count)

    x = torch.randn(8, 64, generator=torch.Generator().manual_seed(0)).relu()
    count = torch.tensor(0.25)
    torch._dynamo.reset()
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        fast = torch.compile(function, backend="smelt", fullgraph=True)
        for each in (x, x * (x > 1)):
            torch.testing.assert_close(fast(count, each), function(count, each))


def test_columns_of_few_and_many_terms_are_summed_by_one_function() -> None:
    """In two levels, and never in equal parts: 14 terms, a multiple of 32 of them, and a prime number."""
    shapes = [(16, terms, 64) for terms in (14, 56, 64, 112, 113)]

    def sums(*tensors: torch.Tensor) -> list[torch.Tensor]:
        return [each.sum(1) for each in tensors]

    compiled = smelt.compile(sums, keep_text=True)
    tensors = [torch.rand(shape) for shape in shapes]
    for found, wanted in zip(compiled(*tensors), sums(*(each.double() for each in tensors)), strict=True):
        torch.testing.assert_close(found.double(), wanted, rtol=1e-6, atol=0)
    text = smelt.reports()[-1].text("cpp")
    assert len(re.findall(r"^static void kernel_\w+\(", text, re.MULTILINE)) == 1


def test_64_shared_iterations_are_enough_for_threads() -> None:
    def mixed(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x.exp().sum(-1)[:, None, :] * w).sum(-1)

    graph = lowered(mixed, torch.ones(64, 100, 50), torch.ones(70, 100))
    assert len(schedule(graph, Config(), Target(32)).kernels) == 1
