"""`smelt.build`: functions of loops, called with the buffers that they fill."""

from __future__ import annotations

import numpy as np
import pytest
import sympy
import torch

import smelt
from smelt import te
from smelt.errors import SmeltError
from smelt.nest.interpreter import run_kernel
from smelt.nest.ir import Axis, Block, For, Kernel, Let, LoopKind, Param, Stage, Store
from smelt.nest.tree import replace_loop, with_body
from smelt.ops import ops
from smelt.records import replace
from smelt.script import from_source, structural_equal
from smelt.script.module import IRModule, PrimFunc
from smelt.symbolic import loop_var
from tests.nest.by_hand import cut, reorder, run_as
from tests.nest.staging import F32, Program, loops_of

N = loop_var("n")


def affine() -> Kernel:
    program = Program(A=(N,))

    def value(i: sympy.Expr) -> object:
        twice = ops.mul(ops.load("A", [i]), ops.constant(2.0, F32))
        return ops.add(twice, ops.constant(1.0, F32))

    program.compute("B", (N,), value, "i")
    return program.kernel("B")


def product() -> Kernel:
    program = Program(A=(24, 20), B=(20, 40))
    program.reduce(
        "C", (24, 40), (20,), lambda i, j, k: ops.mul(ops.load("A", [i, k]), ops.load("B", [k, j]))
    )
    program.compute("D", (24, 40), lambda i, j: ops.maximum(ops.load("C", [i, j]), ops.constant(0.0, F32)))
    return program.kernel("D")


def accumulating() -> Kernel:
    """B += A."""
    i, v = loop_var("i"), loop_var("v")
    steps = (
        Let("x", F32, "load", ("A", (v,))),
        Let("y", F32, "load", ("B", (v,))),
        Let("z", F32, "add", ("x", "y")),
        Store("B", (v,), "z"),
    )
    nest = For(i, sympy.Integer(0), N, Block((Stage("B", (Axis(v, N, i),), Block(steps)),)))
    one = (sympy.Integer(1),)
    params = (Param("A", F32, (N,), one), Param("B", F32, (N,), one, True))
    return Kernel("accumulate", params, (N,), Block((nest,)))


@pytest.mark.parametrize("kinds", [(), (LoopKind.PARALLEL, LoopKind.VECTOR)])
def test_every_size(kinds: tuple[LoopKind, ...]) -> None:
    kernel = affine()
    if kinds:
        kernel, *pieces = cut(kernel, loops_of(kernel, "B")[0], 16)
        for var, kind in zip(pieces, kinds):
            kernel = run_as(kernel, var, kind)
    run = smelt.build(PrimFunc(kernel))
    for size in (0, 1, 15, 16, 17, 100):
        for _ in range(2):  # the second time it is known how they lie
            a, b = torch.randn(size), torch.full((size,), float("nan"))
            run(a, b)
            assert torch.equal(b, a * 2 + 1)
    report = smelt.reports()[-1]
    assert len(report.kernels) == 1 and report.arena_bytes == 0  # nothing is copied


def test_products_have_smelts_own_kernel_and_epilogue() -> None:
    a, b, d = torch.randn(24, 20), torch.randn(20, 40), torch.empty(24, 40)
    smelt.build(PrimFunc(product()))(a, b, d)
    torch.testing.assert_close(d, torch.relu(a @ b))
    report = smelt.reports()[-1]
    assert len(report.kernels) == 1 and report.kernels[0].endswith("_tiled") and not report.externs


def test_a_tile_by_hand() -> None:
    kernel = product()
    i, j, k = loops_of(kernel, "C")
    kernel, i0, i1 = cut(kernel, i, 8)
    kernel, j0, j1 = cut(kernel, j, 16)
    kernel, k0, k1 = cut(kernel, k, 4)
    kernel = reorder(kernel, [i0, j0, k0, i1, k1, j1])
    for var, kind in ((i0, LoopKind.PARALLEL), (j1, LoopKind.VECTOR), (k1, LoopKind.UNROLL)):
        kernel = run_as(kernel, var, kind)
    a, b, d = torch.randn(24, 20), torch.randn(20, 40), torch.empty(24, 40)
    smelt.build(kernel)(a, b, d)
    torch.testing.assert_close(d, torch.relu(a @ b))
    assert "fma(" in smelt.reports()[-1].text("cpp").split("static void kernel_")[-1]


def test_what_is_read_and_written() -> None:
    run = smelt.build(accumulating())
    for size in (0, 1, 9):
        a, b = torch.randn(size), torch.randn(size)
        wanted = a + b
        run(a, b)
        assert torch.equal(b, wanted)


def test_arrays_and_strided_tensors() -> None:
    run = smelt.build(affine())
    found = np.zeros(5, np.float32)
    run(np.arange(5, dtype=np.float32), found)
    assert found.tolist() == [1, 3, 5, 7, 9]
    into = torch.zeros(10)
    run(torch.ones(10)[::2], into[::2])
    assert into.tolist() == [3, 0] * 5


def test_what_is_wrong_with_a_call() -> None:
    run = smelt.build(affine())
    a, b = torch.ones(4), torch.ones(4)
    wrong = [
        ((a,), r"takes 2 buffers \(A, B\), not 1"),
        ((a, b[:3]), "dimension 0 of B is 4, given is 3"),
        ((a.double(), b), "A is torch.float32, given is torch.float64"),
        ((a, b[None]), "B has 1 dimensions, given are 2"),
        ((a, 3), "B wants a tensor or an array, not int"),
        ((a.to("meta"), b), "A is torch.strided on meta"),
    ]
    for args, message in wrong:
        with pytest.raises(smelt.SmeltError, match=f"SM1044: .*{message}"):
            run(*args)


def test_modules() -> None:
    both = IRModule({"main": PrimFunc(affine()), "accumulate": PrimFunc(accumulating())})
    library = smelt.build(both)
    a, b = torch.ones(3), torch.ones(3)
    library["main"](a, b)
    library["accumulate"](a, b)
    assert b.tolist() == [4, 4, 4]
    with pytest.raises(smelt.SmeltError, match="SM1043: which of main, accumulate"):
        library(a, b)
    with pytest.raises(smelt.SmeltError, match="SM1043: there is no function 'other'"):
        library["other"]
    with pytest.raises(smelt.SmeltError, match="SM1043: str is no function of loops"):
        smelt.build("main")


def test_no_gpu() -> None:
    kernel = affine()
    (i,) = loops_of(kernel, "B")
    bound = with_body(
        kernel, replace_loop(kernel.body, i, lambda loop: (replace(loop, thread="blockIdx.x"),))
    )
    with pytest.raises(smelt.SmeltError, match=r"SM1045: i of main is bound to blockIdx.x"):
        smelt.build(bound)
    with pytest.raises(smelt.SmeltError, match="SM1046: no target 'cuda'"):
        smelt.build(kernel, target="cuda")


def test_a_number_among_the_parameters() -> None:
    n, first = te.var("n"), te.var("first", "int64")
    A = te.placeholder((n,), name="A")
    B = te.compute((n,), lambda i: te.if_then_else(i >= first, A[i - first], 0.0) + first, name="B")
    func = te.create_prim_func([A, first, B])
    assert func.script().splitlines()[4] == "def main(var_A: T.handle, first: T.int64, var_B: T.handle):"
    assert structural_equal(from_source(func.script()), func)
    assert from_source(func.script()).kernel.scalars[0][0] == 1
    lib, a, b = smelt.build(func), torch.arange(6.0), torch.empty(6)
    for number in (0, 1, 2, 5):
        want = torch.cat([torch.zeros(number), a])[:6] + number
        lib(a, number, b)
        assert torch.equal(b, want)
        assert torch.equal(te.as_torch(func)(a, number), want)
        memory = {"A": a.clone(), "B": torch.empty(6)}
        run_kernel(
            func.kernel, memory, {size: {"n": 6, "first": number}[size.name] for size in func.kernel.sizes}
        )
        assert torch.equal(memory["B"], want)
    with pytest.raises(SmeltError, match=r"takes 3 buffers \(A, first, B\), not 2"):
        lib(a, b)
    with pytest.raises(SmeltError, match="first is -1"):
        lib(a, -1, b)
    with pytest.raises(SmeltError, match="first wants an integer, not str"):
        lib(a, "1", b)
    with pytest.raises(SmeltError, match="SM1106"):
        te.create_prim_func([A, first, first, B])


def test_shapes_that_typical_sizes_leave_empty() -> None:
    """An image and a kernel of open sizes: by typical ones the kernel may be the larger."""
    n, h, k = (te.var(name) for name in "nhk")
    image, weight = te.placeholder((n, h), name="image"), te.placeholder((k, 2 * k), name="weight")
    axis = te.reduce_axis((0, 2 * k))
    out = te.compute(
        (n, h - 2 * k + 1, k), lambda a, i, o: te.sum(image[a, i + axis] * weight[o, axis], axis=axis)
    )
    lib = smelt.build(te.create_prim_func([image, weight, out]))
    for sizes in ((2, 9, 3), (3, 40, 2)):
        x, w = torch.randn(sizes[:2]), torch.randn(sizes[2], 2 * sizes[2])
        found = torch.empty(sizes[0], sizes[1] - 2 * sizes[2] + 1, sizes[2])
        lib(x, w, found)
        wanted = torch.nn.functional.conv1d(x[:, None].double(), w[:, None].double()).transpose(1, 2)
        torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5)
