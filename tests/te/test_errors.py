"""Each error of te: what is wrong, where, and what to do."""

import pytest

from smelt import te
from tests.support import refusals


def refused(code, program, *words):
    error = refusals.refused(code, program, *words)
    assert error.where is not None and error.where.startswith("test_errors.py:"), error.where
    return error


A = te.placeholder((4,), name="A")
B = te.placeholder((4, 5), name="B")
N = te.placeholder((4,), name="N", dtype="int32")
X = te.placeholder((1,), name="X")
n, m = te.var("n"), te.var("m")
S = te.placeholder((n,), name="S")
k = te.reduce_axis((0, 5), "k")


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (lambda: te.compute((5,), lambda i: A[i]), ["A[i]", "reaches 4", "A has 4"]),
        (
            lambda: te.create_prim_func([A, te.compute((4,), lambda i: A[i - 1])]),
            ["A[i - 1]", "begins at -1"],
        ),
        (lambda: te.compute((4,), lambda i: A[2 - i]), ["A[2 - i]", "begins at -1"]),
        (lambda: te.compute((4, 5), lambda i, j: B[j, i]), ["B[j, i]", "reaches 4", "dimension 0"]),
        (lambda: te.compute((n,), lambda i: S[i + 1]), ["S[i + 1]", "n"]),
        (
            lambda: te.create_prim_func(
                [X, S, te.compute((m,), lambda i: te.if_then_else(X[0] > 0, S[i], 0))]
            ),
            ["nothing shows", "n"],
        ),
        (
            lambda: te.create_prim_func([S, m, te.compute((4,), lambda i: S[i % (m + 1) + i])]),
            ["nothing shows", "n"],
        ),
        (lambda: te.compute((6,), lambda i: te.if_then_else(i < 5, A[i], 0.0)), ["reaches"]),
        (lambda: te.compute((6,), lambda i: te.if_then_else(te.any(i < 4, i > 7), A[i], 0.0)), ["A[i]"]),
        (lambda: te.compute((6,), lambda i: te.select(i < 4, A[i], 0.0)), ["A[i]"]),
        (lambda: te.compute((2,), lambda i: te.sum(A[k], axis=k)), ["A[k]", "reaches 4"]),
    ],
)
def test_an_index_may_be_outside(program, words):
    refused("SM1101", program, *words, "te.if_then_else")


@pytest.mark.parametrize(
    "program",
    [
        lambda: te.compute((6,), lambda i: te.if_then_else(te.all(i >= 1, i <= 4), A[i - 1], 0.0)),
        lambda: te.compute((6,), lambda i: te.if_then_else(i > 3, 0.0, A[i])),
        lambda: te.compute((6,), lambda i: te.if_then_else(te.any(i < 1, i > 4), 0.0, A[i - 1])),
        lambda: te.compute((8,), lambda i: te.if_then_else((i < 4) & (i != 0), A[i - 1], A[i // 2])),
        lambda: te.compute((6,), lambda i: te.if_then_else(~(i >= 4), A[i], 0.0)),
        lambda: te.compute(
            (9,), lambda i: te.if_then_else(te.all(i >= 1, i < 9, (i - 1) % 2 == 0), A[(i - 1) // 2], 0.0)
        ),
        lambda: te.compute((2 * n,), lambda i: S[i // 2]),
        lambda: te.compute((n + 4,), lambda i: te.if_then_else(i < n, S[i], A[i - n])),
        lambda: te.compute((n,), lambda i: S[n - 1 - i]),
        lambda: te.compute((n * 3,), lambda i: S[i % n]),
        lambda: te.compute((0,), lambda i: A[i + 100]),
        lambda: te.compute((4, 5), lambda i, j: te.if_then_else(i + j < 4, A[i + j], 0.0)),
        lambda: te.compute((4, 5), lambda i, j: te.if_then_else(te.all(i - j >= 0), A[i - j], 0.0)),
    ],
)
def test_an_index_is_shown_to_be_inside(program):
    program()


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (lambda: te.compute((4, 4), lambda i: A[i]), ["takes 1", "2 dimensions"]),
        (lambda: te.compute((4,), lambda i, j: B[i, j]), ["takes 2", "1 dimensions"]),
        (lambda: te.compute((4,), lambda i: A[i, i]), ["A[i, i]", "2 indices", "1"]),
        (lambda: te.compute((4,), lambda i: B(i)), ["1 indices", "2"]),
        (lambda: te.compute((4,), lambda i: B[i]), ["B[i]", "1 of 2"]),
        (lambda: te.compute((4,), lambda i=0: A[i]), ["defaults"]),
        (lambda: te.compute((4,), lambda *i: A(*i), varargs_names=["a", "b"]), ["varargs_names"]),
    ],
)
def test_as_many_indices_as_dimensions(program, words):
    refused("SM1102", program, *words)


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (lambda: te.placeholder((4,), dtype="float31"), ["float31", "float32"]),
        (lambda: te.compute((4,), lambda i: A[i].astype("complex64")), ["complex64"]),
        (lambda: te.const(1, "float16") + te.const(1, "bfloat16"), ["float16 and bfloat16", "astype"]),
        (lambda: te.compute((4,), lambda i: te.exp(N[i])), ["exp", "int32", "astype"]),
        (lambda: te.compute((4,), lambda i: A[i] << 2), ["float32"]),
        (lambda: te.compute((4,), lambda i: ~A[i]), ["float32"]),
        (lambda: te.compute((4,), lambda i: B + 1), ["add"]),
        (lambda: te.compute((4,), lambda i: te.exp(B)), ["exp"]),
        (lambda: te.compute((4,), lambda i: "text"), ["str", "no value"]),
        (lambda: te.compute((4,), lambda i: None), ["nothing"]),
        (lambda: te.const(float("nan"), "int32"), ["nan", "int32"]),
        (lambda: te.const(1, "uint8") + 300, ["300", "uint8"]),
        (lambda: te.reinterpret("int32", te.const(1, "float64")), ["bits"]),
        (lambda: te.popcount(te.const(1.0)), ["popcount"]),
        (lambda: te.all(), ["no conditions"]),
    ],
)
def test_dtypes(program, words, monkeypatch):
    monkeypatch.setattr(te.tensor, "OPERATORS", {})
    refused("SM1103", program, *words)


def test_no_python_if_of_what_is_not_known():
    refused("SM1104", lambda: te.compute((4,), lambda i: A[i] if i > 2 else 0.0), "i > 2", "te.if_then_else")
    refused("SM1104", lambda: te.compute((4,), lambda i: A[i] if A[i] > 0 else 0.0), "te.if_then_else")
    refused("SM1104", lambda: te.compute((4,), lambda i: te.exp(A[i]) and 1), "te.all")
    refused("SM1104", lambda: te.compute((4,), lambda i: 0 < i < 3), "te.all")
    refused("SM1104", lambda: range(n))


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (lambda: te.compute((4,), lambda i: te.sum(B[i, k], axis=k) + 1), ["inside of an expression"]),
        (lambda: te.compute((4,), lambda i: te.sum(te.max(B[i, k], axis=k), axis=k)), ["inside"]),
        (lambda: te.compute((4,), lambda i: B[i, k]), ["k", "te.sum(value, axis=k)"]),
        (lambda: te.compute((4,), lambda i: te.sum(B[i, k], axis=[k, k])), ["twice"]),
        (lambda: te.compute((4,), lambda i: te.sum(B[i, 0])), ["no axis", "reduce_axis"]),
        (lambda: te.compute((4,), lambda i: te.sum(B[i, k], axis=[i])), ["i is no reduce_axis"]),
        (lambda: te.compute((4,), lambda i: (te.sum(B[i, k], axis=k), A[i])), ["outputs"]),
    ],
)
def test_reductions(program, words):
    refused("SM1105", program, *words)


def test_parameters():
    C = te.compute((4,), lambda i: A[i] + N[i], name="C")
    refused("SM1106", lambda: te.create_prim_func([A, C]), "N is read", "create_prim_func([N")
    refused("SM1106", lambda: te.create_prim_func([A, N, A, C]), "twice")
    refused("SM1106", lambda: te.create_prim_func([A, N, 3, C]), "3 is no tensor")
    m = te.var("m")
    scaled = te.compute((4,), lambda i: A[i] * m, name="scaled")
    refused("SM1106", lambda: te.create_prim_func([A, scaled]), "m is in the shape of no parameter")


def test_quotients():
    refused("SM1107", lambda: te.compute((4,), lambda i: N[i] / 2), "te.floordiv")
    refused("SM1107", lambda: te.compute((4,), lambda i: i / 2), "te.truncdiv")
    refused("SM1107", lambda: te.compute((4,), lambda i: A[i // 0]), "divided by 0")


def test_what_is_no_index():
    refused("SM1108", lambda: te.compute((4,), lambda i: A[A[i]]), "float32", "astype")
    refused("SM1108", lambda: te.compute((4,), lambda i: A[1.5]), "A[1.5]")
    refused("SM1108", lambda: A[0:2], "slice")


def test_reducers():
    def reduced(combine, identity, values):
        return te.comm_reducer(combine, identity, "mine")(values, axis=k)

    pair = (B[0, k], B[1, k])
    zero = lambda *t: tuple(te.const(0, each) for each in t)  # noqa: E731
    refused("SM1109", lambda: reduced(lambda x, y: x[0] + y[0], zero, pair), "combiner gives 1 values, 2")
    refused(
        "SM1109", lambda: reduced(lambda x, y: (x[0], y[1]), lambda *t: 0, pair), "identity gives 1 values, 2"
    )
    refused(
        "SM1109", lambda: reduced(lambda x, y: x > y, lambda t: te.const(0, t), pair[0]), "bool", "float32"
    )
    refused("SM1109", lambda: te.argmax(pair, axis=k, init=(1, 2, 3)), "init has 3")


@pytest.mark.parametrize("shape", [(-1,), (2.5,), ("4",), (A,), (n - n - 2,)])
def test_sizes(shape):
    refused("SM1110", lambda: te.placeholder(shape, name="T"), "T")


def test_more_sizes():
    refused("SM1110", lambda: te.reduce_axis((3, 1), "r"), "r")
    refused("SM1110", lambda: te.reduce_axis((0, A), "r"), "r")
    refused("SM1110", lambda: te.var("n", "float32"), "float32")
    refused("SM1110", lambda: te.compute((4,), lambda i: te.compute((i,), lambda j: A[j])[0]), "no size")


def test_externs_have_shapes_and_dtypes():
    one, two = te.extern([(4, n), (n,)], [A, A], lambda ins, outs: None, dtype=["int8", "float16"])
    assert (one.dtype, two.dtype, two.value_index) == ("int8", "float16", 1) and one.shape[0] == 4
    more = te.compute(one.shape, lambda i, j: one[i, j] + 1)
    refused("SM1111", lambda: te.create_prim_func([A, more, S]), "te.extern")
    refused("SM1103", lambda: te.extern((4,), [A, N], None), "dtype")
