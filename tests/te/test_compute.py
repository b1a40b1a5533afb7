"""Tensors of te against torch, by the interpreter."""

import pytest
import torch

from smelt import SmeltError, te
from smelt.nest.ir import Alloc, Block
from smelt.nest.stages import raised
from smelt.nest.tree import loops, stages
from tests.te.support import run

torch.manual_seed(0)


def given(*shape, dtype="float32"):
    return te.placeholder(shape, name="ABCDEFG"[len(shape)], dtype=dtype)


def test_matmul_and_relu():
    A, B = te.placeholder((4, 5), name="A"), te.placeholder((5, 3), name="B")
    k = te.reduce_axis((0, A.shape[1]), name="k")
    C = te.compute((4, 3), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k), name="matmul")
    D = te.compute(C.shape, lambda *i: te.max(C(*i), 0), name="relu")
    a, b = torch.randn(4, 5), torch.randn(5, 3)
    torch.testing.assert_close(run([A, B, D], a, b), torch.relu(a @ b))
    product, whole = run([A, B, C, D], a, b)
    torch.testing.assert_close((product, whole), (a @ b, torch.relu(a @ b)))
    kernel = te.create_prim_func([A, B, D]).kernel
    assert [loop.label for loop in loops(kernel.body)] == ["i", "j", "k", "i0", "i1"]
    assert [stage.name for stage in stages(kernel.body)] == ["matmul", "relu"]
    assert [axis.label for axis in next(iter(stages(kernel.body))).axes] == ["v_i", "v_j", "v_k"]
    assert not isinstance(raised(kernel), str), "unscheduled, it is loop functions"


def test_what_a_tensor_says_of_itself():
    n = te.var("n")
    A = te.placeholder((n, 3), name="A", dtype="float16")
    B = te.compute((3, n), lambda i, j: A[j, i] * 2, name="B", tag="injective", attrs={"key": 1})
    assert tuple(B.shape) == (3, n) and B.ndim == 2 and B.dtype == "float16"
    assert (B.op.name, B.op.tag, B.op.attrs["key"], B.op.input_tensors) == ("B", "injective", 1, (A,))
    assert [axis.name for axis in B.op.axis] == ["i", "j"] and B.op.output(0) is B
    assert B.op.axis[0].dom.extent == 3 and str(B.op.axis[1].dom) == "Range(0, n)"
    assert str(B.op.body[0]) == "A[j, i]*2.0" and str(B) == "Tensor(shape=[3, n], op.name=B)"
    assert isinstance(A.op, te.PlaceholderOp) and A.shape[0] == B.shape[1] and A.shape[0] != te.var("n")


def test_names_of_loops_and_buffers():
    A = te.placeholder((4, 3, 2), name="A")
    B = te.compute((4, 3, 2), lambda x, *rest: A(x, *rest) + 1, name="main")
    C = te.compute((4, 3, 2), lambda *i: B(*i) * 2, name="main", varargs_names=["p", "q", "r"])
    kernel = te.create_prim_func([A, C]).kernel
    assert [loop.label for loop in loops(kernel.body)] == ["x", "i0", "i1", "p", "q", "r"]
    assert [stage.name for stage in stages(kernel.body)] == ["main_1", "main"]
    a = torch.randn(4, 3, 2)
    assert torch.equal(run([A, C], a), (a + 1) * 2)


def test_a_function_is_called_once():
    calls = []
    A = te.placeholder((4,), name="A")
    B = te.compute((4,), lambda i: calls.append(i) or A[i] + 1)
    run([A, B], torch.randn(4))
    assert len(calls) == 1


def test_shared_parts_are_computed_once():
    A = te.placeholder((2,), name="A")

    def doubled(i):
        value = A[i]
        for _ in range(40):
            value = value + value
        return value

    a = torch.randn(2)
    assert torch.equal(run([A, te.compute((2,), doubled)], a), a * 2.0**40)


@pytest.mark.parametrize("size", [0, 1, 5])
def test_sizes_that_calls_decide(size):
    n = te.var("n")
    A = te.placeholder((n,), name="A")
    B = te.compute((n + 2,), lambda i: te.if_then_else(te.all(i >= 1, i < n + 1), A[i - 1], 0.0), name="B")
    C = te.compute((n,), lambda i: B[i] + B[i + 1] + B[i + 2], name="C")
    a = torch.randn(size)
    padded = torch.nn.functional.pad(a, (1, 1))
    want = padded[:size] + padded[1 : size + 1] + padded[2:]
    assert torch.equal(run([A, C], a, sizes={"n": size}), want)


def test_two_sizes_of_one_name_are_two():
    A, B = te.placeholder((te.var("n"),), name="A"), te.placeholder((te.var("n"),), name="B")
    C = te.compute((*A.shape, *B.shape), lambda i, j: A[i] * B[j], name="C")
    a, b = torch.randn(2), torch.randn(3)
    assert torch.equal(run([A, B, C], a, b, sizes={"n": 2, "n_1": 3}), a[:, None] * b)


def test_indices():
    A = te.placeholder((6, 4), name="A")
    a = torch.randn(6, 4)
    assert torch.equal(run([A, te.compute((24,), lambda i: A[i // 4, i % 4])], a), a.view(24))
    assert torch.equal(run([A, te.compute((6, 4), lambda i, j: A[5 - i, 3 - j])], a), a.flip(0, 1))
    assert torch.equal(run([A, te.compute((3, 4), lambda i, j: A[2 * i + 1][j])], a), a[1::2])
    assert torch.equal(run([A, te.compute((8, 4), lambda i, j: A[te.min(i, 5), j])], a), a[[*range(6), 5, 5]])
    I = te.compute((6, 4), lambda i, j: i * 10 + j)  # noqa: E741
    assert I.dtype == "int32"
    assert torch.equal(run([I]), (torch.arange(6)[:, None] * 10 + torch.arange(4)).int())
    assert torch.equal(
        run([A, te.compute((6, 4), lambda i, j: A[i, j] * i)], a), a * torch.arange(6.0)[:, None]
    )


def test_indices_that_are_looked_up():
    A, at = te.placeholder((6,), name="A"), te.placeholder((3,), name="at", dtype="int64")
    B = te.compute((3,), lambda i: A[at[i]] + A[5 - at[i]])
    a = torch.randn(6)
    assert torch.equal(run([A, at, B], a, torch.tensor([0, 5, 2])), a[[0, 5, 2]] + a[[5, 0, 3]])
    with pytest.raises(IndexError):
        run([A, at, B], a, torch.tensor([0, 6, 2]))


def test_what_is_not_taken_is_not_evaluated():
    A, N = te.placeholder((4,), name="A"), te.placeholder((4,), name="N", dtype="int32")
    a, n = torch.randn(4), torch.tensor([0, 2, 0, -3], dtype=torch.int32)
    both = te.compute((8,), lambda i: te.if_then_else(i < 4, A[i], -A[i - 4]))
    assert torch.equal(run([A, both], a), torch.cat([a, -a]))
    safe = te.compute((4,), lambda i: te.if_then_else(N[i] == 0, 7, 12 // N[i]))
    assert run([N, safe], n).tolist() == [7, 6, 7, -4]
    nested = te.compute(
        (6,), lambda i: te.if_then_else(te.any(i < 1, i > 4), 0.0, te.if_then_else(i < 3, A[i - 1], A[i - 2]))
    )
    assert torch.equal(run([A, nested], a), torch.stack([a[0] * 0, a[0], a[1], a[1], a[2], a[0] * 0]))


def test_several_outputs():
    A, B = te.placeholder((4, 3), name="A"), te.placeholder((4, 3), name="B", dtype="int32")
    X, Y = te.compute((4, 3), lambda i, j: (A[i, j] + 2, B[i, j] * 3), name="X")
    Z = te.compute((4, 3), lambda i, j: X[i, j] + Y[i, j], name="Z")
    a, b = torch.randn(4, 3), torch.randint(-9, 9, (4, 3), dtype=torch.int32)
    x, y, z = run([A, B, X, Y, Z], a, b)
    assert torch.equal(x, a + 2) and torch.equal(y, b * 3) and torch.equal(z, x + y)
    assert X.op is Y.op and (X.value_index, Y.value_index) == (0, 1)
    assert torch.equal(run([A, B, Y], a, b), b * 3)


def test_tensors_without_dimensions():
    A, s = te.placeholder((4,), name="A"), te.placeholder((), name="s")
    k = te.reduce_axis((0, 4), "k")
    T = te.compute((), lambda: te.sum(A[k] * s(), axis=k))
    U = te.compute((4,), lambda i: A[i] / T)
    a = torch.rand(4)
    torch.testing.assert_close(run([A, s, U], a, torch.tensor(2.0)), a / (a * 2).sum())
    two = te.compute((), lambda: 2)
    assert torch.equal(run([A, te.compute((4,), lambda i: A[i] + two())], a), a + 2)


def test_tags():
    A = te.placeholder((4,), name="A")
    with te.tag_scope("conv"):
        B = te.compute((4,), lambda i: A[i] + 1)

    @te.tag_scope("dense")
    def other():
        return te.compute((4,), lambda i: A[i] + 1)

    assert (B.op.tag, other().op.tag, te.compute((4,), lambda i: A[i]).op.tag) == ("conv", "dense", "")
    with pytest.raises(SmeltError, match="SM1112"), te.tag_scope("conv"):
        other()


def test_outputs_of_one_operation_share_a_nest_with_its_notes():
    A0, A1 = te.placeholder((4, 5), name="A0"), te.placeholder((4, 5), name="A1")
    B0, B1 = te.compute((4, 5), lambda i, j: (A0[i, j] + 2, A1[i, j] * 3), name="B")
    notes = {"layout_free_placeholders": [B0, A0], "rule": "x"}
    C = te.compute((4, 5), lambda i, j: B0[i, j] * B1[j % 4, j], name="C", attrs=notes)
    kernel = te.create_prim_func([A0, A1, B1, C]).kernel
    both, last = (stages(Block((nest,))) for nest in kernel.body.stmts if not isinstance(nest, Alloc))
    assert [stage.name for stage in both] == ["B_v0", "B_v1"]
    (free, rule) = last[0].notes
    assert (free[0], str(free[1]), rule) == ("layout_free_placeholders", "(B_v0,)", ("rule", "x"))
    assert len(raised(kernel).nodes) == 3
    a, b = torch.rand(4, 5), torch.rand(4, 5)
    _, made = run([A0, A1, B1, C], a, b)
    columns = torch.arange(5)
    torch.testing.assert_close(made, (a + 2) * (b * 3)[columns % 4, columns])
