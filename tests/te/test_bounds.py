"""An index that sizes decide to be inside of its tensor is checked at each call, however that runs."""

import pytest
import torch

import smelt
from smelt import script, te
from smelt.nest.inside import open_bounds
from smelt.nest.interpreter import run_kernel
from smelt.tir import Schedule


def shifted():
    A, offset = te.placeholder((10,), name="A"), te.var("offset", "int64")
    return te.create_prim_func([A, offset, te.compute((4,), lambda i: A[i + offset], name="B")])


def smaller():
    n, m = te.var("n"), te.var("m")
    A = te.placeholder((n, 3), name="A")
    return te.create_prim_func([A, te.compute((m, 3), lambda i, j: A[i, j] + 1, name="B")])


def interpreted(func, memory, **sizes):
    run_kernel(func.kernel, memory, {size: sizes[size.name] for size in func.kernel.sizes})


def test_a_number_of_the_call_is_checked():
    func, a, b = shifted(), torch.arange(10.0), torch.zeros(4)
    for run in (
        lambda offset: smelt.build(func)(a, offset, b),
        lambda offset: interpreted(func, {"A": a, "B": b}, offset=offset),
        lambda offset: b.copy_(te.as_torch(func)(a, offset)),
    ):
        for offset in (6, 0, 1, 5):
            run(offset)
            assert torch.equal(b, a[offset : offset + 4])
        with pytest.raises(smelt.SmeltError, match="SM1048") as caught:
            run(7)
        for word in ("A[offset + v_i]", "reaches 10", "A has 10", "offset = 7"):
            assert word in str(caught.value)


def test_sizes_of_two_tensors_are_checked():
    func, a = smaller(), torch.randn(6, 3)
    for m in (6, 1, 5, 0):
        b = torch.empty(m, 3)
        smelt.build(func)(a, b)
        assert torch.equal(b, a[:m] + 1)
    with pytest.raises(smelt.SmeltError, match=r"SM1048: main: A\[v_i, v_j\]: index reaches 6, A has 6"):
        smelt.build(func)(a, torch.empty(7, 3))
    with pytest.raises(smelt.SmeltError, match="SM1048"):
        interpreted(func, {"A": a.view(-1), "B": torch.empty(21)}, n=6, m=7)


def test_a_schedule_is_checked_as_its_function_is():
    sch = Schedule(shifted(), check=True)
    _, inner = sch.split(sch.get_loops("B")[0], [None, 3])
    sch.vectorize(inner)
    a, b = torch.arange(10.0), torch.empty(4)
    smelt.build(sch)(a, 6, b)
    assert torch.equal(b, a[6:])
    with pytest.raises(smelt.SmeltError, match="SM1048"):
        smelt.build(sch)(a, 7, b)
    read = script.from_source(sch.func.script())
    assert [bound.high for bound in open_bounds(read.kernel)]
    with pytest.raises(smelt.SmeltError, match="SM1048"):
        smelt.build(read)(a, 7, b)


def test_a_script_is_checked():
    head = "@T.prim_func\ndef main(A: T.Buffer((10,)), B: T.Buffer((4,))):\n    for i in range(4):\n"
    head = f"from smelt.script import tir as T\n{head}"
    below = script.from_source(f"{head}        B[i] = A[i - 1]\n")
    with pytest.raises(smelt.SmeltError, match="index begins at -1, A at 0"):
        smelt.build(below)(torch.ones(10), torch.empty(4))
    guarded = script.from_source(f"{head}        if i > 0:\n            B[i] = A[i - 1]\n")
    b = torch.zeros(4)
    smelt.build(guarded)(torch.arange(10.0), b)
    assert torch.equal(b, torch.tensor([0.0, 0.0, 1.0, 2.0]))


def test_an_operator_in_a_model_is_checked():
    op = te.as_torch(shifted())
    compiled = smelt.compile(lambda a, offset: op(a * 2, offset) + 1, dynamic=True)
    a = torch.arange(10.0)
    for offset in (6, 3, 0):
        assert torch.equal(compiled(a, offset), a[offset : offset + 4] * 2 + 1)
    with pytest.raises(Exception, match="SM1048"):
        compiled(a, 7)


def test_a_checked_index_does_not_move_under_a_condition():
    """There the check at the call would be lost, and memory outside of A would be read."""
    A, offset = te.placeholder((10,), name="A"), te.var("offset", "int64")
    B = te.compute((4,), lambda i: A[i + offset], name="B")
    C = te.compute((8,), lambda i: te.if_then_else(i < 4, B[i], 0.0), name="C")
    sch = Schedule(te.create_prim_func([A, offset, C]))
    with pytest.raises(smelt.SmeltError, match=r"A\[offset \+ v_i\] is in bounds for some sizes only"):
        sch.compute_inline("B")
