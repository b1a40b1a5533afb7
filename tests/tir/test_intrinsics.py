"""Intrinsics are known by name, compute what they say, and are other statements or a target's own text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from smelt import te
from smelt.errors import SmeltError
from smelt.nest.ir import Block, Kernel
from smelt.nest.tree import stages, with_body
from smelt.script import from_source
from smelt.tir import CppText, PrimFunc, Schedule, ScheduleError, TensorIntrin
from tests.nest.staging import same
from tests.nest.test_blocks import dot, twice
from tests.tir.compiling import compiled, cpp_of, given_for


@pytest.fixture(autouse=True)
def registry() -> Iterator[None]:
    before = dict(TensorIntrin.registry)
    yield
    TensorIntrin.registry.clear()
    TensorIntrin.registry.update(before)


def test_intrinsics_are_checked_when_they_are_registered() -> None:
    made = TensorIntrin.register("test.dot4", PrimFunc(dot(4)), PrimFunc(twice(4)))
    assert TensorIntrin.get("test.dot4") is made
    with pytest.raises(SmeltError, match=r"SM1039.*already"):
        TensorIntrin.register("test.dot4", PrimFunc(dot(4)), PrimFunc(twice(4)))
    with pytest.raises(SmeltError, match=r"SM1039.*parameters"):
        TensorIntrin.register("test.dot8", PrimFunc(dot(8)), PrimFunc(twice(4)))
    with pytest.raises(SmeltError, match=r"SM1039.*Z differs"):
        TensorIntrin.register("test.sum4", PrimFunc(dot(4)), PrimFunc(double(4)))
    with pytest.raises(SmeltError, match=r"SM1039.*'test\.dot'"):
        TensorIntrin.get("test.dot")


def double(n: int) -> Kernel:
    """Adds the product twice."""
    kernel = dot(n)
    return with_body(kernel, Block((*kernel.body.stmts, *dot(n).body.stmts)))


# -- with the text of a target -------------------------------------------------------------------------------

HEAD = "from smelt.script import tir as T\n@T.prim_func\n"
TILE = from_source(
    HEAD
    + """
def tile(A: T.Buffer((4, 4)), B: T.Buffer((4, 4)), C: T.Buffer((4, 4))):
    for i, j, k in T.grid(4, 4, 4):
        with T.sblock("tile"):
            v_i, v_j, v_k = T.axis.remap("SSR", [i, j, k])
            C[v_i, v_j] = C[v_i, v_j] + A[v_i, v_k] * B[v_k, v_j]
"""
)
ROWS = """
typedef float four __attribute__((vector_size(16), aligned(4), may_alias));
for (int i = 0; i < 4; ++i) {
  four sum = *(const four*)(C + i*C_0);
  for (int k = 0; k < 4; ++k) sum += A[i*A_0 + k*A_1] * *(const four*)(B + k*B_0);
  *(four*)(C + i*C_0) = sum;
}
"""
BESIDE = {"B": (None, 1), "C": (None, 1)}

DOT8 = from_source(
    HEAD
    + """
def dot8(A: T.Buffer((4,), "uint8"), B: T.Buffer((16, 4), "int8"), C: T.Buffer((16,), "int32")):
    for j, k in T.grid(16, 4):
        with T.sblock("dot8"):
            v_j, v_k = T.axis.remap("SR", [j, k])
            C[v_j] = C[v_j] + T.Cast("int32", A[v_k]) * T.Cast("int32", B[v_j, v_k])
"""
)
FOURS = """
for (int j = 0; j < 16; ++j) {
  i32 sum = C[j];
  for (int k = 0; k < 4; ++k) sum += i32(A[k]) * i32(B[4*j + k]);
  C[j] = sum;
}
"""


def product(n: int = 8) -> PrimFunc:
    a, b = te.placeholder((n, n), name="A"), te.placeholder((n, n), name="B")
    k = te.reduce_axis((0, n), "k")
    c = te.compute((n, n), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="matmul")
    return te.create_prim_func([a, b, c])


def tiled(func: PrimFunc, block: str, *factors: int) -> tuple[Schedule, Any]:
    """A schedule with tiles inside, begun before them, and the tiles' outermost loop."""
    sch = Schedule(func)
    loops = sch.get_loops(sch.get_block(block))
    parts = [sch.split(loop, [None, factor]) for loop, factor in zip(loops[-len(factors) :], factors)]
    outer = [*loops[: -len(factors)], *(part[0] for part in parts)]
    sch.reorder(*outer, *(part[1] for part in parts))
    sch.decompose_reduction(sch.get_block(block), outer[-1])
    return sch, parts[0][1]


def test_a_tile_by_a_text() -> None:
    TensorIntrin.register("test.tile", TILE, CppText(ROWS, BESIDE))
    func = product()
    sch, loop = tiled(func, "matmul", 4, 4, 4)
    sch.tensorize(loop, "test.tile")
    same(func.kernel, sch.func.kernel, exactly=False)  # the interpreter runs the description
    text = cpp_of(sch.func.kernel)
    assert "test_tile_" in text and "in0 + (" in text, text
    for one, other in zip(compiled(sch), compiled(func)):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    sch.parallel(sch.get_loops(sch.get_block("matmul_update_o"))[0])
    for one, other in zip(compiled(sch), compiled(func)):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_a_dot_product_of_bytes() -> None:
    TensorIntrin.register("test.dot8", DOT8, CppText(FOURS, {"A": (1,), "B": (4, 1), "C": (1,)}))
    a, b = te.placeholder((3, 8), "uint8", name="A"), te.placeholder((2, 2, 16, 4), "int8", name="B")
    k = te.reduce_axis((0, 8), "k")
    c = te.compute(
        (3, 32),
        lambda i, j: te.sum(
            a[i, k].astype("int32") * b[j // 16, k // 4, j % 16, k % 4].astype("int32"), axis=k
        ),
        name="C",
    )
    func = te.create_prim_func([a, b, c])
    sch, loop = tiled(func, "C", 16, 4)
    sch.tensorize(loop, "test.dot8")
    same(func.kernel, sch.func.kernel)
    assert "test_dot8_" in cpp_of(sch.func.kernel)
    given = given_for(func.kernel.params)
    given[0] = given[0].abs().to(torch.uint8)
    assert all(map(torch.equal, compiled(sch, *given), compiled(func, *given)))


@pytest.mark.parametrize(("macro", "used"), [("__GNUC__", True), ("SMELT_NO_SUCH_MACHINE", False)])
def test_a_text_for_some_machines(macro: str, used: bool) -> None:
    """Where the compiler does not define what a text asks for, the description is compiled."""
    wrong = ROWS.replace("sum +=", "sum -=")
    if used:
        with pytest.raises(SmeltError, match=r"SM1039.*C differs"):
            TensorIntrin.register("test.tile", TILE, CppText(wrong, BESIDE, (macro,)))
        return
    TensorIntrin.register("test.tile", TILE, CppText(wrong, BESIDE, (macro,)))
    func = product()
    sch, loop = tiled(func, "matmul", 4, 4, 4)
    sch.tensorize(loop, "test.tile")
    for one, other in zip(compiled(sch), compiled(func)):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_operands_lie_as_a_text_wants_them() -> None:
    TensorIntrin.register("test.tile", TILE, CppText(ROWS, BESIDE))
    a, b = te.placeholder((8, 8), name="A"), te.placeholder((8, 8), name="B")
    k = te.reduce_axis((0, 8), "k")
    c = te.compute((8, 8), lambda i, j: te.sum(a[i, k] * b[j, k], axis=k), name="matmul")
    turned, loop = tiled(te.create_prim_func([a, b, c]), "matmul", 4, 4, 4)
    with pytest.raises(ScheduleError, match="SM1038"):
        turned.tensorize(loop, "test.tile")
    later, loop = tiled(with_relu(), "matmul", 4, 4, 4)
    later.storage_align("matmul_update", 0, axis=1, factor=2, offset=0)
    with pytest.raises(ScheduleError, match=r"SM1038.*stride of dimension 1 of C is 1, matmul has 2"):
        later.tensorize(loop, "test.tile")
    later, loop = tiled(with_relu(), "matmul", 4, 4, 4)
    later.tensorize(loop, "test.tile")
    later.storage_align("matmul_init", 0, axis=1, factor=2, offset=0)
    with pytest.raises(SmeltError, match=r"SM0809.*stride 1 in dimension 1 of C"):
        cpp_of(later.func.kernel)


def with_relu() -> PrimFunc:
    a, b = te.placeholder((8, 8), name="A"), te.placeholder((8, 8), name="B")
    k = te.reduce_axis((0, 8), "k")
    c = te.compute((8, 8), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="matmul")
    return te.create_prim_func([a, b, te.compute((8, 8), lambda i, j: te.max(c[i, j], 0.0), name="relu")])


def test_lanes_do_not_hold_texts() -> None:
    TensorIntrin.register("test.tile", TILE, CppText(ROWS, BESIDE))
    sch, loop = tiled(product(), "matmul", 4, 4, 4)
    sch.tensorize(loop, "test.tile")
    with pytest.raises(ScheduleError, match=r"SM1005.*the intrinsic test_tile"):
        sch.vectorize(sch.get_loops(sch.get_block("matmul_update_o"))[0])


def test_descriptions_that_pointers_cannot_say() -> None:
    shifted = PrimFunc(dot(4)).script().replace("X[v_k]", "X[3 - v_k]")
    with pytest.raises(SmeltError, match=r"SM1039.*first use of X"):
        TensorIntrin.register("test.back", from_source(shifted), CppText("Z[0] = 0;"))
    with pytest.raises(SmeltError, match=r"SM1039.*1 dimensions, 2 strides"):
        TensorIntrin.register("test.more", PrimFunc(dot(4)), CppText("Z[0] = 0;", {"X": (1, 1)}))
    assert not any(stage.text for stage in stages(TILE.kernel.body))
