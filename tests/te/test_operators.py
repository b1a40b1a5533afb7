"""Functions of loops as operators of PyTorch."""

from __future__ import annotations

from functools import partial

import pytest
import torch

import smelt
from smelt import te
from smelt.nest.ir import Kernel, LoopKind
from smelt.ops import ops
from smelt.script import from_source
from smelt.script.module import PrimFunc
from smelt.te.operators import as_torch, operator, signature
from smelt.tir import Schedule
from tests.nest.by_hand import run_as
from tests.nest.staging import Program, loops_of
from tests.te.test_building import N, accumulating, affine, product


def two_results() -> Kernel:
    program = Program(A=(N, 3))
    program.reduce("S", (N,), (3,), lambda i, k: ops.load("A", [i, k]))
    program.compute("B", (N, 3), lambda i, j: ops.sub(ops.load("A", [i, j]), ops.load("S", [i])))
    return program.kernel("S", "B")


def scheduled(kernel: Kernel, stage: str) -> PrimFunc:
    return PrimFunc(run_as(kernel, loops_of(kernel, stage)[0], LoopKind.PARALLEL))


def test_an_operator() -> None:
    x = torch.randn(7)
    op = operator("smelt_tests::affine", PrimFunc(affine()))
    assert torch.equal(op(x), x * 2 + 1) and torch.equal(torch.ops.smelt_tests.affine(x), x * 2 + 1)
    torch.library.opcheck(torch.ops.smelt_tests.affine.default, (x,))
    for size in (0, 1, 5):
        assert torch.equal(op(x[:size]), x[:size] * 2 + 1)


def test_it_fuses_and_with_a_schedule_it_does_not() -> None:
    op = operator("smelt_tests::fused", PrimFunc(affine()))
    x = torch.randn(40)

    def model(x: torch.Tensor) -> torch.Tensor:
        return op(x * 2) + 1

    found = []
    for schedule in (None, scheduled(affine(), "B"), None):
        op.schedule = schedule
        smelt.reset()
        assert torch.equal(smelt.compile(model)(x), x * 2 * 2 + 1 + 1)
        report = smelt.reports()[-1]
        assert not report.fallbacks
        found.append((len(report.kernels), "main" in report.kernels))
    assert found[0] == found[2] == (1, False)
    assert found[1] == (found[1][0], True) and found[1][0] > 1


def test_sizes_while_compiled() -> None:
    x = torch.randn(40)
    for op in (as_torch(affine()), as_torch(scheduled(affine(), "B"))):
        smelt.reset()
        compiled = smelt.compile(partial(lambda op, x: op(x[1:]) + 1, op), dynamic=True)
        for size in (40, 17, 3, 2, 1):
            assert torch.equal(compiled(x[:size]), x[1:size] * 2 + 1 + 1)


def test_views_as_operands() -> None:
    a, b = torch.randn(20, 24), torch.randn(40, 20)
    for op in (as_torch(product()), as_torch(scheduled(product(), "C"))):
        smelt.reset()
        found = smelt.compile(partial(lambda op, a, b: op(a.t(), b.t()).t() * 2, op))(a, b)
        torch.testing.assert_close(found, torch.relu(a.t() @ b.t()).t() * 2)
        assert not smelt.reports()[-1].fallbacks


def test_a_product_has_smelts_kernel() -> None:
    op = as_torch(product())
    a, b = torch.randn(24, 20), torch.randn(20, 40)
    smelt.reset()
    torch.testing.assert_close(smelt.compile(lambda a, b: op(a, b) * 2)(a, b), torch.relu(a @ b) * 2)
    report = smelt.reports()[-1]
    assert len(report.kernels) == 1 and not report.externs  # with its epilogue
    assert report.kernels[0].endswith("_tiled")


def test_results() -> None:
    op = operator("smelt_tests::two", PrimFunc(two_results()))
    x = torch.randn(4, 3)
    assert signature(op.prim_func).results == (1, 2)
    for call in (op, smelt.compile(lambda x: op(x))):
        total, rest = call(x)
        torch.testing.assert_close(total, x.sum(1))
        torch.testing.assert_close(rest, x - x.sum(1, keepdim=True))
    torch.library.opcheck(torch.ops.smelt_tests.two.default, (x,))


def test_what_is_read_and_written_is_an_argument_and_a_result() -> None:
    """The operator changes nothing that it is given."""
    op = operator("smelt_tests::accumulate", PrimFunc(accumulating()))
    x, y = torch.randn(5), torch.randn(5)
    before = y.clone()
    assert torch.equal(op(x, y), x + y) and torch.equal(y, before)
    torch.library.opcheck(torch.ops.smelt_tests.accumulate.default, (x, y))
    found = smelt.compile(lambda x, y: op(x, y * 1) + y)(x, y)
    torch.testing.assert_close(found, x + 2 * y)


def test_a_schedule_fills_what_its_function_fills() -> None:
    """Also where its own indices do not show that: nothing is copied before it runs."""
    x = te.placeholder((6, 4), name="X")
    sch = Schedule(te.create_prim_func([x, te.compute((6, 4), lambda i, j: x[i, j] + 1.0, name="Y")]))
    sch.transform_block_layout("Y", lambda i, j: (4 * i + j,))
    assert as_torch(sch).signature.both == as_torch(sch.func).signature.both == ()
    again = from_source(sch.mod.script())
    assert as_torch(again).signature.both == (1,), "a text shows what it shows"
    assert as_torch(PrimFunc(sch.func.kernel)).signature.both == (1,), "whoever came first"
    a = torch.randn(6, 4)
    for thing in (sch, again):
        b = torch.zeros(6, 4)
        smelt.build(thing)(a, b)
        assert torch.equal(b, a + 1)
    assert torch.equal(as_torch(sch)(a), a + 1)


def test_equal_functions_are_one_operator() -> None:
    assert as_torch(affine()) is as_torch(PrimFunc(affine()))
    assert as_torch(affine()) is not as_torch(accumulating())


def test_refusals() -> None:
    op = operator("smelt_tests::refusing", PrimFunc(affine()))
    with pytest.raises(smelt.SmeltError, match="SM1042: there is an operator smelt_tests::refusing already"):
        operator("smelt_tests::refusing", PrimFunc(affine()))
    with pytest.raises(smelt.SmeltError, match="SM1042: 'refusing' is no name of an operator"):
        operator("refusing", PrimFunc(affine()))
    with pytest.raises(smelt.SmeltError, match="SM1041: the schedule is not one of main"):
        op.schedule = PrimFunc(product())
    assert op.schedule is None and torch.equal(op(torch.ones(2)), torch.tensor([3.0, 3.0]))
    with pytest.raises(smelt.SmeltError, match=r"SM1041: .* is the operator of all who have this function"):
        as_torch(affine()).schedule = scheduled(affine(), "B")
    with pytest.raises(smelt.SmeltError, match="SM1044: A has 1 dimensions, given are 2"):
        op(torch.ones(2, 2))


def test_a_buffer_that_is_filled_under_a_condition_is_an_argument_too() -> None:
    func = from_source(
        """
@T.prim_func
def main(A: T.Buffer((8,)), B: T.Buffer((8,))):
    for i in range(8):
        with T.sblock("B"):
            v = T.axis.spatial(8, i)
            if v < 5:
                B[v] = A[v]
"""
    )
    a, b = torch.arange(8.0), torch.full((8,), 7.0)
    found = te.as_torch(func)(a, b)
    assert torch.equal(found, torch.tensor([0.0, 1, 2, 3, 4, 7, 7, 7])) and (b == 7).all()


def test_a_size_that_follows_from_two_tensors() -> None:
    n, m = te.var("n"), te.var("m")
    A, B = te.placeholder((n,), name="A"), te.placeholder((n + m,), name="B")
    sch = Schedule(te.create_prim_func([A, B, te.compute((m,), lambda i: B[i] * 2, name="C")]))
    sch.parallel(sch.get_loops("C")[0])
    op, a, b = te.as_torch(sch), torch.randn(3), torch.randn(10)
    for run in (op, smelt.compile(lambda a, b: op(a * 1, b), dynamic=True)):
        assert torch.equal(run(a, b), b[:7] * 2)
