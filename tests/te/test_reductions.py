"""Reductions of te against torch, by the interpreter."""

import pytest
import torch

from smelt import te
from smelt.nest.ir import Store
from smelt.nest.stages import raised
from smelt.nest.tree import stages, walk
from tests.te.support import run

torch.manual_seed(0)


def modes(kernel):
    return [stmt.mode for stmt in walk(kernel.body) if isinstance(stmt, Store)]


@pytest.mark.parametrize("name", ["sum", "prod", "max", "min"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "uint8"])
def test_plain_reductions(name, dtype):
    A = te.placeholder((3, 4, 5), name="A", dtype=dtype)
    j, k = te.reduce_axis((0, 4), "j"), te.reduce_axis((0, 5), "k")
    B = te.compute((3,), lambda i: getattr(te, name)(A[i, j, k], axis=[j, k]), name="B")
    a = (torch.randn(3, 4, 5) * 3).to(getattr(torch, dtype))
    want = getattr(torch, {"max": "amax", "min": "amin"}.get(name, name))
    flat = a.reshape(3, -1)
    torch.testing.assert_close(run([A, B], a), want(flat, 1).to(a.dtype))
    assert not isinstance(raised(te.create_prim_func([A, B]).kernel), str)


def test_max_is_nan_where_an_element_is():
    A, k = te.placeholder((2, 3), name="A"), te.reduce_axis((0, 3), "k")
    B = te.compute((2,), lambda i: te.max(A[i, k], axis=k))
    found = run([A, B], torch.tensor([[1, float("nan"), 2], [-1, -2, -3.0]]))
    assert found[0].isnan() and found[1] == -1


def test_an_axis_that_begins_later():
    A, k = te.placeholder((6,), name="A"), te.reduce_axis((2, 5), "k")
    a = torch.randn(6)
    torch.testing.assert_close(
        run([A, te.compute((1,), lambda _: te.sum(A[k], axis=k))], a), a[2:5].sum()[None]
    )


@pytest.mark.parametrize("name", ["sum", "prod", "max"])
def test_only_where_a_condition_holds(name):
    A, k = te.placeholder((3, 4), name="A"), te.reduce_axis((0, 6), "k")
    B = te.compute(
        (3,), lambda i: getattr(te, name)(A[i, k - 1], axis=k, where=te.all(k >= 1, k < 5, k != 2))
    )
    a = torch.randn(3, 4)
    want = getattr(torch, {"max": "amax"}.get(name, name))(a[:, [0, 2, 3]], 1)
    torch.testing.assert_close(run([A, B], a), want)


def test_initial_values():
    A, s, k = te.placeholder((3, 4), name="A"), te.placeholder((3,), name="s"), te.reduce_axis((0, 4), "k")
    a, b = torch.randn(3, 4), torch.randn(3)
    five = te.compute((3,), lambda i: te.sum(A[i, k], axis=k, init=5.0))
    torch.testing.assert_close(run([A, five], a), a.sum(1) + 5)
    assert modes(te.create_prim_func([A, five]).kernel) == [None, "add"]
    given = te.compute((3,), lambda i: te.max(A[i, k], axis=k, where=k > 0, init=s[i]))
    torch.testing.assert_close(run([A, s, given], a, b), torch.maximum(a[:, 1:].amax(1), b))


@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_positions(name):
    A, k = te.placeholder((4, 5), name="A"), te.reduce_axis((0, 5), "k")
    at, value = te.compute((4,), lambda i: getattr(te, name)((k, A[i, k]), axis=k), name="P")
    a = torch.tensor(
        [[1, 3, 3, -2, -2], [5, 5, 5, 5, 5], [0, float("nan"), 9, float("nan"), 1], [-1, -2, -3, -4, -5.0]]
    )
    best = getattr(a, name[3:])(1)
    found, extreme = run([A, at, value], a)
    assert torch.equal(found.long(), best.indices) or found.tolist() == getattr(a, name)(1).tolist()
    torch.testing.assert_close(extreme, best.values, equal_nan=True)
    # the value alone is memory inside; one output is one tensor
    only = te.compute((4,), lambda i: getattr(te, name)((k, A[i, k]), axis=k)[0], name="only")
    assert torch.equal(run([A, only], a), found)


def test_positions_of_rows_without_larger_ones():
    A, k = te.placeholder((1, 3), name="A"), te.reduce_axis((0, 3), "k")
    at = te.compute((1,), lambda i: te.argmax((k, A[i, k]), axis=k)[0])
    assert run([A, at], torch.full((1, 3), float("-inf"))).tolist() == [0]


def test_any_and_all():
    A, k = te.placeholder((3, 4), name="A", dtype="bool"), te.reduce_axis((0, 4), "k")
    a = torch.tensor([[0, 0, 1, 0], [1, 1, 1, 1], [0, 0, 0, 0]]).bool()
    assert torch.equal(run([A, te.compute((3,), lambda i: te.any(A[i, k], axis=k))], a), a.any(1))
    assert torch.equal(run([A, te.compute((3,), lambda i: te.all(A[i, k], axis=k))], a), a.all(1))


def test_reducers_of_ones_own():
    A, k = te.placeholder((3, 4), name="A"), te.reduce_axis((0, 4), "k")
    a = torch.randn(3, 4)
    total = te.comm_reducer(lambda x, y: x + y, lambda t: te.const(0, t), name="total")
    B = te.compute((3,), lambda i: total(A[i, k], axis=k))
    assert modes(te.create_prim_func([A, B]).kernel) == [None, "add"], "it is te.sum"
    torch.testing.assert_close(run([A, B], a), a.sum(1))
    longest = te.comm_reducer(lambda x, y: te.max(te.abs(x), te.abs(y)), lambda t: te.const(0, t))
    torch.testing.assert_close(
        run([A, te.compute((3,), lambda i: longest(A[i, k], axis=k))], a), a.abs().amax(1)
    )
    assert total(2, 3) is not None and te.max(2, 3) is not None


def test_several_outputs_at_once():
    X, Y = (te.placeholder((3, 4), name=each, dtype="int32") for each in "XY")
    k = te.reduce_axis((0, 4), "k")
    both = te.comm_reducer(
        lambda x, y: (x[0] + y[0], x[1] * y[1]), lambda s, t: (te.const(0, s), te.const(1, t)), name="both"
    )
    S, P = te.compute(
        (3,), lambda i: both((X[i, k], Y[i, k]), axis=k, where=te.floormod(k, 2) == 0), name="T"
    )
    x, y = (torch.randint(-4, 5, (3, 4), dtype=torch.int32) for _ in range(2))
    found = run([X, Y, S, P], x, y)
    assert torch.equal(found[0], x[:, ::2].sum(1).int()) and torch.equal(found[1], y[:, ::2].prod(1).int())
    Z = te.compute((3,), lambda i: S[i] + P[i])  # both are memory inside
    assert torch.equal(run([X, Y, Z], x, y), found[0] + found[1])


def test_convolution_with_padding_inside():
    A, W = te.placeholder((2, 5, 5), name="A"), te.placeholder((3, 2, 3, 3), name="W")
    c, y, x = te.reduce_axis((0, 2), "c"), te.reduce_axis((0, 3), "y"), te.reduce_axis((0, 3), "x")

    def at(f, i, j):
        row, column = 2 * i + y - 1, 2 * j + x - 1
        inside = te.all(row >= 0, row < 5, column >= 0, column < 5)
        return te.sum(te.if_then_else(inside, A[c, row, column], 0.0) * W[f, c, y, x], axis=[c, y, x])

    a, w = torch.randn(2, 5, 5), torch.randn(3, 2, 3, 3)
    want = torch.nn.functional.conv2d(a[None], w, stride=2, padding=1)[0]
    torch.testing.assert_close(run([A, W, te.compute((3, 3, 3), at)], a, w), want)


def test_reducers_that_know_their_place():
    A, b, k = te.placeholder((3, 3), name="A"), te.placeholder((3,), name="b"), te.reduce_axis((0, 3), "k")
    a, start = torch.randn(3, 3), torch.randn(3)

    def from_start(i):
        return te.comm_reducer(lambda x, y: x + y, lambda t: b[i])(A[i, k], axis=k)

    torch.testing.assert_close(run([A, b, te.compute((3,), from_start)], a, start), a.sum(1) + start)

    def scaled(i):
        return te.comm_reducer(lambda x, y: x + y * b[k], lambda t: te.const(0, t))(A[i, k], axis=k)

    made = te.compute((3,), scaled, name="scaled")
    assert made.op.input_tensors == (A, b)
    torch.testing.assert_close(run([A, b, made], a, start), a @ start)


def test_stages_of_one_name_are_told_apart():
    A, k = te.placeholder((3, 4), name="A"), te.reduce_axis((0, 4), "k")
    both = [te.compute((3,), lambda i: te.argmax((k, A[i, k]), axis=k), name="best") for _ in range(2)]
    names = [stage.name for stage in stages(te.create_prim_func([A, *both[0], *both[1]]).kernel.body)]
    assert names == ["best", "best_1"]
