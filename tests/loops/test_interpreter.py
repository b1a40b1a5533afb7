"""The oracle against eager: bodies, masks, indirect indices, mutations, externs, sizes."""

from __future__ import annotations

from typing import Any

import pytest
import sympy
import torch

from smelt.errors import SmeltError
from smelt.loops.interpreter import evaluate_body, run_graph
from smelt.loops.ir import (
    Attention,
    Bind,
    Buffer,
    Extern,
    Graph,
    Mutation,
    Node,
    Origin,
    Pointwise,
    Reduction,
    Scatter,
    StridedView,
)
from smelt.ops import ops
from smelt.symbolic import FloorDiv, contiguous_strides
from tests.lowering.harness import lowered

ORIGIN = Origin("aten.test.default", "model.py:7 in forward")
S0 = sympy.Symbol("s0", integer=True, positive=True)


def sizes(*numbers: int) -> tuple[sympy.Expr, ...]:
    return tuple(sympy.Integer(number) for number in numbers)


def buffer(name: str, shape: tuple[Any, ...], dtype: torch.dtype = torch.float32) -> Buffer:
    shape = tuple(sympy.sympify(size) for size in shape)
    return Buffer(name, dtype, shape, contiguous_strides(shape))


def whole(graph: Graph, name: str) -> StridedView:
    b = graph.buffers[name]
    return StridedView(name, b.shape, b.strides, sympy.Integer(0))


def test_pointwise_broadcasts_to_its_domain() -> None:
    body = Pointwise(sizes(3, 2), torch.float32, lambda i: ops.load("x", [i[1]]))
    x = torch.randn(2)
    (got,) = evaluate_body(body, {"x": x})
    assert torch.equal(got, x.expand(3, 2))


def test_zero_dimensional_and_empty_domains() -> None:
    scalar = Pointwise((), torch.float32, lambda i: ops.exp(ops.load("x", i)))
    x = torch.tensor(1.5)
    assert torch.equal(evaluate_body(scalar, {"x": x})[0], x.exp())
    empty = Pointwise(sizes(0, 3), torch.float32, lambda i: ops.load("x", i))
    assert evaluate_body(empty, {"x": torch.empty(0, 3)})[0].shape == (0, 3)


def test_padding_loads_only_where_the_mask_holds() -> None:
    def inner(index: Any) -> Any:
        position = index[0] - 2
        at = ops.index_expr(position, torch.int64)
        inside = ops.logical_and(
            ops.ge(at, ops.constant(0, torch.int64)), ops.lt(at, ops.constant(3, torch.int64))
        )
        return ops.masked(inside, lambda: ops.load("x", [position]), -7.0)

    (got,) = evaluate_body(Pointwise(sizes(7), torch.float32, inner), {"x": torch.tensor([1.0, 2.0, 3.0])})
    assert got.tolist() == [-7, -7, 1, 2, 3, -7, -7]


def test_load_outside_is_the_compilers_error() -> None:
    body = Pointwise(sizes(3), torch.float32, lambda i: ops.load("x", [i[0] + 1]))
    with pytest.raises(SmeltError, match=r"SM0501: x: index i0 \+ 1 of dimension 0 leaves \[0, 3\)"):
        evaluate_body(body, {"x": torch.zeros(3)}, origin=ORIGIN)


def test_masked_division_by_zero_raises_only_where_the_mask_holds() -> None:
    def inner(index: Any) -> Any:
        y = ops.load("y", index)
        nonzero = ops.ne(y, ops.constant(0, torch.int64))
        return ops.masked(nonzero, lambda: ops.floordiv(ops.load("x", index), y), 0)

    x, y = torch.tensor([7, 7, -7]), torch.tensor([2, 0, 2])
    assert evaluate_body(Pointwise(sizes(3), torch.int64, inner), {"x": x, "y": y})[0].tolist() == [3, 0, -4]
    bare = Pointwise(sizes(3), torch.int64, lambda i: ops.floordiv(ops.load("x", i), ops.load("y", i)))
    with pytest.raises(RuntimeError, match="ZeroDivision"):
        evaluate_body(bare, {"x": x, "y": y})


def test_indirect_index_wraps_and_checks() -> None:
    def inner(index: Any) -> Any:
        return ops.load("x", [ops.indirect_index(ops.load("at", index), sympy.Integer(3))])

    body = Pointwise(sizes(3), torch.float32, inner)
    x = torch.tensor([10.0, 20.0, 30.0])
    assert evaluate_body(body, {"x": x, "at": torch.tensor([-1, 0, 1])})[0].tolist() == [30, 10, 20]
    with pytest.raises(IndexError, match="index out of range in self"):
        evaluate_body(body, {"x": x, "at": torch.tensor([-4, 0, 1])})


def test_indirect_index_under_a_mask_is_checked_only_where_it_holds() -> None:
    def inner(index: Any) -> Any:
        at = ops.load("at", index)
        positive = ops.ge(at, ops.constant(0, torch.int64))

        def gather() -> Any:
            return ops.load("x", [ops.indirect_index(at, sympy.Integer(2), wrap=False)])

        return ops.masked(positive, gather, 0.0)

    body = Pointwise(sizes(3), torch.float32, inner)
    x = torch.tensor([10.0, 20.0])
    assert evaluate_body(body, {"x": x, "at": torch.tensor([-9, 1, 0])})[0].tolist() == [0, 20, 10]
    with pytest.raises(IndexError):
        evaluate_body(body, {"x": x, "at": torch.tensor([-9, 2, 0])})


@pytest.mark.parametrize("kind", ["sum", "prod", "max", "min"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.int32])
def test_simple_reductions(kind: str, dtype: torch.dtype) -> None:
    x = torch.randint(-3, 4, (4, 5, 3)).to(dtype)
    body = Reduction(kind, sizes(4), sizes(5, 3), dtype, lambda i, r: ops.load("x", [*i, *r]))
    (got,) = evaluate_body(body, {"x": x})
    eager = {"sum": torch.sum, "prod": torch.prod, "max": torch.amax, "min": torch.amin}[kind]
    assert got.dtype == dtype
    assert torch.equal(got, eager(x.reshape(4, 15), 1).to(dtype))


@pytest.mark.parametrize(
    ("kind", "dtype", "want"),
    [
        ("sum", torch.float32, 0.0),
        ("prod", torch.float32, 1.0),
        ("max", torch.float32, float("-inf")),
        ("min", torch.int32, 2**31 - 1),
        ("any", torch.bool, False),
        ("all", torch.bool, True),
        ("xor_sum", torch.int64, 0),
    ],
)
def test_empty_reduction_gives_the_identity(kind: str, dtype: torch.dtype, want: object) -> None:
    body = Reduction(kind, sizes(2), sizes(0), dtype, lambda i, r: ops.load("x", [*i, *r]))
    (got,) = evaluate_body(body, {"x": torch.empty(2, 0, dtype=dtype)})
    assert got.tolist() == [want, want]
    assert got.dtype == dtype


def test_argmax_takes_the_first_and_counts_nan_as_extreme() -> None:
    nan = float("nan")
    x = torch.tensor([[1.0, 5.0, 5.0, 2.0], [1.0, nan, 7.0, nan], [-1.0, -1.0, -1.0, -1.0]])
    for kind, eager in (("argmax", torch.argmax), ("argmin", torch.argmin)):
        body = Reduction(kind, sizes(3), sizes(4), torch.float32, lambda i, r: ops.load("x", [*i, *r]))
        (got,) = evaluate_body(body, {"x": x})
        assert torch.equal(got, eager(x, 1))


def test_max_propagates_nan() -> None:
    body = Reduction("max", (), sizes(3), torch.float32, lambda i, r: ops.load("x", r))
    (got,) = evaluate_body(body, {"x": torch.tensor([1.0, float("nan"), 3.0])})
    assert got.isnan()


def test_welford_and_online_softmax() -> None:
    x = torch.randn(3, 50) + 100
    body = Reduction("welford", sizes(3), sizes(50), torch.float32, lambda i, r: ops.load("x", [*i, *r]))
    mean, squares, count = evaluate_body(body, {"x": x})
    assert torch.allclose(mean, x.mean(1))
    assert torch.allclose(squares / 49, x.var(1))
    assert count.tolist() == [50, 50, 50]
    body = Reduction(
        "online_softmax", sizes(3), sizes(50), torch.float32, lambda i, r: ops.load("x", [*i, *r])
    )
    top, total = evaluate_body(body, {"x": x})
    assert torch.equal(top, x.amax(1))
    assert torch.allclose((x - top[:, None]).exp() / total[:, None], x.softmax(1))


def test_online_softmax_of_minus_infinity_is_nan_as_in_eager() -> None:
    x = torch.full((1, 4), float("-inf"))
    body = Reduction(
        "online_softmax", sizes(1), sizes(4), torch.float32, lambda i, r: ops.load("x", [*i, *r])
    )
    top, total = evaluate_body(body, {"x": x})
    assert top.item() == float("-inf")
    assert total.isnan().all()
    assert x.softmax(1).isnan().all()


def test_xor_sum_any_all() -> None:
    x = torch.tensor([[3, 5, 6], [1, 1, 8]])
    body = Reduction("xor_sum", sizes(2), sizes(3), torch.int64, lambda i, r: ops.load("x", [*i, *r]))
    assert evaluate_body(body, {"x": x})[0].tolist() == [0, 8]
    flags = torch.tensor([[True, False], [True, True], [False, False]])
    for kind, want in (("any", [True, True, False]), ("all", [False, True, False])):
        body = Reduction(kind, sizes(3), sizes(2), torch.bool, lambda i, r: ops.load("x", [*i, *r]))
        assert evaluate_body(body, {"x": flags})[0].tolist() == want


def test_sum_is_as_accurate_as_float64() -> None:
    x = torch.rand(100_000)
    body = Reduction("sum", (), sizes(100_000), torch.float32, lambda i, r: ops.load("x", r))
    assert evaluate_body(body, {"x": x})[0] == x.double().sum().float()


def _scatter(mode: str | None, check: bool | str = True) -> Scatter:
    def place(index: Any) -> Any:
        return (ops.indirect_index(ops.load("at", index), sympy.Integer(3), check=check),)

    return Scatter("base", sizes(4), torch.float32, lambda i: ops.load("v", i), place, mode)


def test_scatter_last_of_duplicates_wins_and_add_accumulates() -> None:
    tensors = {
        "base": torch.tensor([1.0, 2.0, 3.0]),
        "at": torch.tensor([0, -1, 0, 2]),
        "v": torch.tensor([10.0, 20.0, 30.0, 40.0]),
    }
    assert evaluate_body(_scatter(None), tensors)[0].tolist() == [30, 2, 40]
    assert evaluate_body(_scatter("add"), tensors)[0].tolist() == [41, 2, 63]
    assert evaluate_body(_scatter("mul"), tensors)[0].tolist() == [300, 2, 2400]
    assert evaluate_body(_scatter("maximum"), tensors)[0].tolist() == [30, 2, 40]
    assert evaluate_body(_scatter("minimum"), tensors)[0].tolist() == [1, 2, 3]
    assert tensors["base"].tolist() == [1, 2, 3]
    tensors["at"][0] = 3
    with pytest.raises(IndexError):
        evaluate_body(_scatter("add"), tensors)
    with pytest.raises(RuntimeError, match="out of bounds"):
        evaluate_body(_scatter("add", check="RuntimeError"), tensors)


def test_graph_with_symbolic_sizes_mutation_extern_and_views() -> None:
    graph = Graph(inputs=["x", "w", S0])
    for b in (buffer("x", (S0, 4)), buffer("w", (4, 3)), buffer("y", (S0, 3)), buffer("z", (S0, 4))):
        graph.buffers[b.name] = b
    call = Extern("aten.mm.default", (whole(graph, "x"), whole(graph, "w")), {})
    double = Pointwise((S0, sympy.Integer(4)), torch.float32, lambda i: ops.mul(ops.load("x", i), _two()))
    graph.nodes = [Node(("y",), call, ORIGIN), Node(("z",), double, ORIGIN)]
    transposed = StridedView("y", (*sizes(3), S0), sizes(1, 3), sympy.Integer(0))
    graph.outputs = [transposed, S0 * 2, None, whole(graph, "x")]
    graph.mutations = [Mutation("x", "z")]
    x, w = torch.randn(5, 4), torch.randn(4, 3)
    before = x.clone()
    y, size, nothing, alias = run_graph(graph, [x, w, 5])
    assert torch.equal(y, (before @ w).t())
    assert (size, nothing) == (10, None)
    assert torch.equal(x, before * 2)
    assert alias.data_ptr() == x.data_ptr()


def _two() -> Any:
    return ops.constant(2.0, torch.float32)


def test_sizes_come_from_shapes_and_buffers_have_their_strides() -> None:
    graph = Graph(inputs=["x"])
    graph.buffers["x"] = buffer("x", (S0, 6))
    shape = (S0, *sizes(6))
    graph.buffers["y"] = Buffer("y", torch.float32, shape, (sympy.Integer(1), S0))

    def inner(index: Any) -> Any:
        return ops.load("x", [index[0], FloorDiv(index[1], 2) * 2])

    graph.nodes = [Node(("y",), Pointwise(shape, torch.float32, inner), ORIGIN)]
    graph.outputs = [whole(graph, "y")]
    x = torch.randn(4, 6)
    (y,) = run_graph(graph, [x])
    assert y.stride() == (1, 4)
    assert torch.equal(y, x[:, [0, 0, 2, 2, 4, 4]])


def test_extern_may_give_a_number_and_a_list() -> None:
    u0 = sympy.Symbol("u0", integer=True)
    graph = Graph(inputs=["x"])
    for b in (buffer("x", (3,)), buffer("top", ()), buffer("at", (), torch.int64)):
        graph.buffers[b.name] = b
    graph.nodes = [
        Node((None, "at"), Extern("aten.max.dim", (whole(graph, "x"), 0), {}), ORIGIN),
        Node((), Extern("aten._local_scalar_dense.default", (whole(graph, "at"),), {}, symbol=u0), ORIGIN),
    ]
    graph.outputs = [u0 + 1]
    assert run_graph(graph, [torch.tensor([1.0, 9.0, 2.0])]) == [2]


def test_inputs_that_do_not_fit_are_refused() -> None:
    graph = Graph(inputs=["x"], buffers={"x": buffer("x", (2,))})
    with pytest.raises(SmeltError, match="SM0502"):
        run_graph(graph, [])
    with pytest.raises(SmeltError, match=r"SM0502: input x is torch.float32 \[2\]"):
        run_graph(graph, [torch.zeros(3)])


def test_nothing_is_out_of_range_where_nothing_is_computed() -> None:
    body = Pointwise(sizes(0), torch.float32, lambda index: ops.load("x", sizes(0)))
    assert evaluate_body(body, {"x": torch.ones(0)})[0].shape == (0,)


def test_a_bound_size_may_depend_on_a_condition() -> None:
    n = sympy.Symbol("n", integer=True)
    wrapped = Bind(S0, sympy.Piecewise((n + 4, sympy.Lt(n, 0)), (n, True)))
    assert [evaluate_body(wrapped, {}, {n: number}) for number in (-1, 2)] == [[3], [2]]


@pytest.mark.parametrize("causal", [False, True])
def test_attention_over_few_keys_of_nan_is_as_eagers(causal: bool) -> None:
    """ATen counts a row of NaN as one that sees nothing, as long as it takes keys one by one."""
    x = torch.tensor([[[[-1.0, 4.0], [0.0, 1.0], [2.0, -3.0]]]])

    def attention(x: torch.Tensor) -> torch.Tensor:
        call = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        result: torch.Tensor = call(x.rsqrt(), x, x, 0.0, causal)[0]
        return result

    graph = lowered(attention, x)
    assert any(isinstance(node.body, Attention) for node in graph.nodes)
    assert torch.allclose(run_graph(graph, [x])[0], attention(x), equal_nan=True)
