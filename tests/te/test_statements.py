"""Functions called in tensor expressions, and recurrences."""

import pytest
import torch

from smelt import build, script, te, tir
from smelt.errors import SmeltError
from smelt.nest.tree import stages
from smelt.nest.verify import verify
from tests.support.refusals import refused
from tests.te.support import run


def sums():
    """Sums of rows, times 2: through memory of its own."""
    X = te.placeholder((te.var("n"), 4), name="X")
    k = te.reduce_axis((0, 4), "k")
    Y = te.compute(X.shape, lambda i, j: X[i, j] * 2, name="Y")
    return te.create_prim_func([X, te.compute((X.shape[0],), lambda i: te.sum(Y[i, k], axis=k), name="Z")])


def scheduled():
    sch = tir.Schedule(sums())
    sch.split(sch.get_loops(sch.get_block("Z"))[0], [None, 3])
    return sch


@pytest.mark.parametrize("make", [sums, scheduled, lambda: te.as_torch(sums())])
def test_calls_between_other_operations(make):
    called = make()
    A = te.placeholder((8, 4), name="A")
    B = te.compute((8, 4), lambda i, j: A[i, j] + 1, name="Y")
    C = te.extern((8,), [B], lambda ins, outs: called, name="C")
    D = te.extern((8,), [A], lambda ins, outs: called, name="D")
    E = te.compute((8,), lambda i: C[i] - D[i] * 3, name="E")
    func = te.create_prim_func([A, E])
    verify(func.kernel)
    names = [stage.name for stage in stages(func.kernel.body)]
    assert len(set(names)) == len(names) and {"C", "D", "E"} <= set(names)
    assert script.structural_equal(script.from_source(func.script()), func)
    a = torch.randn(8, 4)
    want = ((a.double() + 1) * 2).sum(1) - (a.double() * 2).sum(1) * 3
    assert (run([A, E], a) - want).abs().max() < 1e-5
    e = torch.empty(8)
    build(func)(a, e)
    assert (e - want).abs().max() < 1e-5


def test_several_results_and_another_order_of_parameters():
    X = te.placeholder((5,), name="X")
    one, two = te.compute((5,), lambda i: (X[i] + 1, X[i] * X[i]), name="P")
    func = te.create_prim_func([one, X, two])
    A = te.placeholder((5,), name="A")
    p, q = te.extern([(5,), (5,)], [A], lambda ins, outs: func, name="R")
    a = torch.randn(5)
    found = run([A, p, q], a)
    assert torch.equal(found[0], a + 1) and torch.equal(found[1], a * a)


def test_a_size_of_an_extern_function_that_follows_from_two_inputs():
    n, m, k = te.var("n"), te.var("m"), te.var("k")
    X, Y = te.placeholder((n,), name="X"), te.placeholder((n + m,), name="Y")
    func = te.create_prim_func([X, Y, te.compute((m,), lambda i: Y[i] + 1, name="Z")])
    A, B = te.placeholder((k,), name="A"), te.placeholder((2 * k,), name="B")
    C = te.extern((k,), [A, B], lambda ins, outs: func, name="C")
    a, b = torch.randn(3), torch.randn(6)
    assert torch.equal(run([A, B, C], a, b, sizes={"k": 3}), b[:3] + 1)


def test_statements_without_loops_of_their_own():
    func = script.from_source(
        "@T.prim_func\ndef f(X: T.Buffer((2,), 'float32'), Y: T.Buffer((1,), 'float32')):\n"
        "    for i in range(1):\n        with T.sblock('Y'):\n            v = T.axis.spatial(1, i)\n"
        "            Y[v] = X[v] + X[v + 1]\n"
    )
    A = te.placeholder((2,), name="A")
    assert run([A, te.extern_primfunc([A], func, name="B")], torch.tensor([2.0, 3.0])) == 5.0


def test_extern_primfunc_has_the_shapes_that_its_function_makes():
    A = te.placeholder((te.var("m"), 4), name="A")
    B = te.extern_primfunc([A], sums(), name="B")
    assert (B.shape[0].name, B.dtype, B.op.name) == ("m", "float32", "B")
    a = torch.randn(3, 4)
    assert (run([A, B], a, sizes={"m": 3}) - (a * 2).sum(1)).abs().max() < 1e-5


def test_what_may_not_be_called():
    A, W = te.placeholder((8, 4), name="A"), te.placeholder((8,), "float64", name="W")

    def made(fcompute, shape=(8,), inputs=(A,)):
        return lambda: te.create_prim_func(
            [*inputs, te.extern(shape, list(inputs), fcompute, "C", "float32")]
        )

    refused("SM1111", made(lambda ins, outs: tir.call_packed("f", ins[0], outs[0])), "packed", "'f'")
    refused("SM1111", made(lambda ins, outs: None), "NoneType is no function of loops")
    refused("SM1111", made(lambda ins, outs: sums(), shape=(7,)), "Z, float32 of (8,)", "C, float32 of (7,)")
    refused("SM1111", made(lambda ins, outs: sums(), inputs=(W,)), "2 dimensions, not 1")
    refused("SM1111", made(lambda ins, outs: sums(), inputs=(A, W)), "reads 1 buffers, not 2")
    half = script.from_source(
        "@T.prim_func\ndef f(X: T.Buffer((8, 4), 'float32'), Y: T.Buffer((8,), 'float32')):\n"
        "    for i in range(4):\n        with T.sblock('Y'):\n            v = T.axis.spatial(4, i)\n"
        "            Y[v] = X[v, 0]\n"
    )
    refused("SM1111", made(lambda ins, outs: half), "nothing shows that f fills Y")
    refused("SM1111", lambda: te.extern_primfunc([W], sums()), "2 dimensions")


# -- recurrences ---------------------------------------------------------------------------------------------


def test_states_of_several_steps_in_one_loop():
    n = te.var("n")
    x, s, u = (te.placeholder((n + 2, n), name=name) for name in "xsu")
    first = te.compute((2, n), lambda t, i: x[t, i], name="first")
    p = te.compute((n + 2, n), lambda t, i: s[t - 1, i] + u[t - 2, n - 1 - i] + x[t, i], name="p")
    q = te.compute((n + 2, n), lambda t, i: x[t, i] - u[t - 1, i], name="q")
    r0, r1 = te.scan([first, first], [p, q], [s, u], name="r")
    assert (type(r0.op), r1.value_index) == (te.ScanOp, 1)
    func = te.create_prim_func([x, r0, r1])
    verify(func.kernel)
    assert script.structural_equal(script.from_source(func.script()), func)
    given = torch.randn(6, 4)
    a, b = given.double().clone(), given.double().clone()
    for t in range(2, 6):
        a[t] = a[t - 1] + b[t - 2].flip(0) + given[t]
        b[t] = given[t] - b[t - 1]
    for one, two in (run([x, r0, r1], given, sizes={"n": 4}), te.as_torch(func)(given)):
        assert (one - a).abs().max() < 1e-5 and (two - b).abs().max() < 1e-5


def test_a_step_that_reduces():
    x, w, s = te.placeholder((9, 6), name="x"), te.placeholder((6, 6), name="w"), te.placeholder((9, 6))
    k = te.reduce_axis((0, 6), "k")
    first = te.compute((1, 6), lambda t, i: x[t, i])
    step = te.compute((9, 6), lambda t, i: te.sum(w[i, k] * s[t - 1, k], axis=k))
    r = te.scan(first, step, s, name="r")
    y = te.compute((9, 6), lambda i, j: te.tanh(r[i, j]) + x[i, j], name="y")
    func = te.create_prim_func([x, w, y])
    given, weight = torch.randn(9, 6), torch.randn(6, 6) / 3
    states = given.double().clone()
    for t in range(1, 9):
        states[t] = weight.double() @ states[t - 1]
    want = states.tanh() + given
    assert (run([x, w, y], given, weight) - want).abs().max() < 1e-5
    assert (te.as_torch(func)(given, weight) - want).abs().max() < 1e-5
    refused("SM1047", lambda: te.as_torch(func)(given.requires_grad_(), weight).sum().backward())


def test_rows_stay_in_order():
    x, s = te.placeholder((8, 4), name="x"), te.placeholder((8, 4), name="s")
    r = te.scan(te.compute((1, 4), lambda t, i: x[t, i]), te.compute((8, 4), lambda t, i: s[t - 1, i] * 2), s)
    sch = tir.Schedule(te.create_prim_func([x, r]))
    t, i = sch.get_loops(sch.get_block("scan"))
    for refuse in (sch.parallel, sch.vectorize):
        with pytest.raises(SmeltError):
            refuse(t)
    sch.vectorize(i)
    given, found = torch.randn(8, 4), torch.empty(8, 4)
    build(sch)(given, found)
    assert torch.equal(found, given[:1] * 2 ** torch.arange(8)[:, None])


def test_no_recurrence():
    x, s = te.placeholder((8, 4), name="x"), te.placeholder((8, 4), name="s")
    first = te.compute((1, 4), lambda t, i: x[t, i], name="first")

    def made(step, begin=first):
        return lambda: te.create_prim_func([x, te.scan(begin, step, s)])

    def step(body, name="step"):
        return te.compute((8, 4), body, name=name)

    refused("SM1101", lambda: te.create_prim_func([s, step(lambda t, i: s[t - 1, i])]), "begins at -1")
    refused("SM1101", made(step(lambda t, i: s[t - 2, i])), "s[t - 2, i]")
    refused("SM1111", made(step(lambda t, i: s[t, i] + 1)), "nothing shows that the row is one before")
    refused("SM1111", made(step(lambda t, i: te.if_then_else(t < 7, s[t + 1, i], 0.0))), "one before")
    between = te.compute((8, 4), lambda t, i: s[t, i] * 2, name="between")
    refused("SM1111", made(step(lambda t, i: between[t, i])), "made of the states")
    refused("SM1111", made(x), "no te.compute")
    refused(
        "SM1111", made(step(lambda t, i: x[t, i]), te.compute((1, 3), lambda t, i: x[t, i])), "more than rows"
    )
    refused("SM1111", lambda: te.scan([first, first], step(lambda t, i: x[t, i]), s), "as many")
