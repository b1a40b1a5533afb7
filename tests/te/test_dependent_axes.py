"""Axes that are reduced over as far as other axes say."""

import pytest
import torch

import smelt
from smelt import script, te
from smelt.tir import Schedule
from tests.nest.staging import same
from tests.te.support import run

n = te.var("n")
X = te.placeholder((5, 5, 6), name="X")
S = te.placeholder((n, n), name="S")


def axis(end, name="k"):
    return te.reduce_axis((0, end), name)


def below(i, j):
    k, r = axis(i - 1), te.reduce_axis(te.Range(0, j + 1), "r")
    return te.sum(X[i, k, r], axis=[k, r], where=k != 2)


def chained(i, j):
    k = axis(j + 1)
    r = axis(k, "r")
    m = axis(6, "m")
    return te.max(X[r, k, m], axis=[m, k, r])


def best(i, j):
    k = axis(j + i // 2)
    return te.argmax((k, X[i, k, k]), axis=k)


def begun(i, j):
    k = axis(i)
    return te.sum(X[k, i, j], axis=k, init=X[i, i, j])


def wanted(name):
    def of(x):
        found = torch.zeros(5, 5, dtype=x.dtype)
        for i in range(5):
            for j in range(5):
                if name == "below":
                    found[i, j] = sum(x[i, k, : j + 1].sum() for k in range(i - 1) if k != 2)
                elif name == "chained":
                    parts = [x[r, k].max() for k in range(j + 1) for r in range(k)]
                    found[i, j] = max(parts, default=-torch.inf)
                elif name == "begun":
                    found[i, j] = x[i, i, j] + x[:i, i, j].sum()
        return found

    return of


@pytest.mark.parametrize("body", [below, chained, begun])
def test_only_what_the_others_say_is_reduced(body):
    x, y = torch.randn(5, 5, 6), torch.full((5, 5), 77.0)
    want = wanted(body.__name__)(x.double())
    Y = te.compute((5, 5), body, name="Y")
    torch.testing.assert_close(run([X, Y], x).double(), want, rtol=1e-5, atol=1e-5)
    func = te.create_prim_func([X, Y])
    smelt.build(func)(x, y)
    torch.testing.assert_close(y.double(), want, rtol=1e-5, atol=1e-5)
    script.assert_structural_equal(script.from_source(func.script()), func)
    op = te.as_torch(func)
    compiled = smelt.compile(lambda x: op(x * 1.0) + 1.0)
    torch.testing.assert_close(compiled(x).double(), want + 1, rtol=1e-5, atol=1e-5)


def test_pairs_and_sizes():
    pairs = te.compute((5, 4), best, name="best")
    x = torch.randn(5, 5, 6)
    at, most = run([X, *pairs], x)
    for i in range(5):
        for j in range(4):
            row = torch.tensor([x[i, k, k] for k in range(j + i // 2)])
            assert len(row) == 0 or (at[i, j] == row.argmax() and most[i, j] == row.max())
            assert len(row) > 0 or most[i, j] == -torch.inf
    prefix = te.compute((n,), lambda i: te.sum(S[i, k := axis(i)], axis=k), name="prefix")
    func = te.create_prim_func([S, prefix])
    for size in (7, 1, 0, 33):
        s, p = torch.randn(size, size), torch.empty(size)
        smelt.build(func)(s, p)
        torch.testing.assert_close(p, s.tril(-1).sum(1), rtol=1e-4, atol=1e-5)


def test_its_loops_are_scheduled():
    func = te.create_prim_func([X, te.compute((5, 5), below, name="Y")])
    sch = Schedule(func)
    i, j = sch.get_loops("Y_outer")
    sch.split(j, [None, 2])
    sch.parallel(i)
    same(func.kernel, sch.func.kernel, exactly=False)
    x, one, other = torch.randn(5, 5, 6), torch.empty(5, 5), torch.empty(5, 5)
    smelt.build(func)(x, one)
    smelt.build(sch)(x, other)
    torch.testing.assert_close(one, other)


@pytest.mark.parametrize(
    "program",
    [
        lambda i, j: te.sum(X[i, k := axis(i + 2), j], axis=k),
        lambda i, j: te.sum(X[i, k := axis(j), r := axis(k + 4)], axis=[k, r]),
    ],
)
def test_what_others_say_may_be_too_far(program):
    with pytest.raises(smelt.SmeltError, match="SM1101"):
        te.compute((5, 5), program)


def test_an_axis_is_there_before_those_that_speak_of_it():
    k = axis(5)
    with pytest.raises(smelt.SmeltError, match="SM1105: Y: k is used where nothing goes through it"):
        te.compute((5, 5), lambda i, j: te.sum(X[i, r := axis(k, "r"), j], axis=[r, k]), name="Y")
