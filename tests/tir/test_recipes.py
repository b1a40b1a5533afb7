"""Recipes are steps that a person could have written: checked, printed, and as fast as smelt's own nests."""

from __future__ import annotations

import pytest
import torch

import smelt
from smelt import te
from smelt.nest.tree import stages
from smelt.schedule.loops import Target
from smelt.tir import PrimFunc, Schedule, ScheduleError, recipes
from tests.nest.staging import same
from tests.tir.compiling import compiled, cpp_of


def product(
    rows: int, columns: int, depth: int, form: str = "nn", batch: int = 0, relu: bool = True
) -> PrimFunc:
    """A product of matrices, of which "t" are transposed in memory, perhaps of batches, perhaps with relu."""
    b = (batch,) if batch else ()
    left, right = form
    x = te.placeholder((*b, depth, rows) if left == "t" else (*b, rows, depth), name="X")
    y = te.placeholder((*b, columns, depth) if right == "t" else (*b, depth, columns), name="Y")
    k = te.reduce_axis((0, depth), name="k")

    def element(*index: object) -> object:
        *at, i, j = index
        one = x[(*at, k, i)] if left == "t" else x[(*at, i, k)]
        return te.sum(one * (y[(*at, j, k)] if right == "t" else y[(*at, k, j)]), axis=k)

    z = te.compute((*b, rows, columns), element, name="matmul")
    if not relu:
        return te.create_prim_func([x, y, z])
    return te.create_prim_func([x, y, te.compute(z.shape, lambda *i: te.max(z(*i), 0.0), name="relu")])


TARGETS = {"AVX-512": Target(64, (), 2), "AVX2": Target(32), "NEON": Target(16)}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("sizes", "form", "batch", "relu"),
    [
        ((9, 20, 7), "nn", 0, True),
        ((8, 16, 5), "nt", 0, True),
        ((5, 3, 4), "tn", 2, False),
    ],
)
def test_it_keeps_what_is_computed(
    sizes: tuple[int, int, int], form: str, batch: int, relu: bool, target: str
) -> None:
    """The interpreter runs what the intrinsics say; on every machine."""
    func = product(*sizes, form, batch, relu)
    sch = Schedule(func)
    sch.apply(recipes.matmul, target=TARGETS[target])
    same(func.kernel, sch.func.kernel, exactly=False)


@pytest.mark.parametrize(
    ("sizes", "form", "batch", "relu"),
    [
        ((33, 83, 40), "nn", 0, True),
        ((64, 48, 50), "nt", 0, False),
        ((19, 40, 33), "tt", 2, True),
        ((64, 96, 1030), "tn", 0, True),
        ((67, 96, 2100), "nn", 0, True),
    ],
)
def test_it_sums_as_smelts_own_kernels_do(
    sizes: tuple[int, int, int], form: str, batch: int, relu: bool
) -> None:
    """Bit for bit: the same terms in the same order."""
    func = product(*sizes, form, batch, relu)
    sch = Schedule(func)
    sch.apply(recipes.matmul)
    for one, other in zip(compiled(sch), compiled(func)):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    assert "smelt_tile_" in cpp_of(sch.func.kernel)


def test_its_steps_are_printed_and_can_be_changed() -> None:
    func = product(16, 32, 8)
    sch = Schedule(func)
    sch.apply(recipes.matmul, target=TARGETS["AVX2"])
    text = str(sch.trace)
    assert "reindex_cache_read" in text and "tensor_intrin='smelt.tile_" in text
    again = Schedule(func)
    sch.trace.apply_to_schedule(again)
    assert again.mod.script() == sch.mod.script()


def test_a_tile_is_placed_by_hand() -> None:
    func = product(8, 32, 6, relu=False)
    sch = Schedule(func)
    block = sch.get_block("matmul")
    i, j, k = sch.get_loops(block)
    j_0, j_1 = sch.split(j, factors=[None, 32])
    i_0, i_1 = sch.split(i, factors=[None, 4])
    sch.reorder(j_0, i_0, i_1, j_1, k)
    with pytest.raises(ScheduleError, match=r"SM1038.*8 iterations|4 iterations"):
        sch.tensorize(i_1, "smelt.tile_8x32")
    sch.tensorize(i_1, "smelt.tile_4x32")
    sch.prefetch("matmul_o", "Y", lambda i, j, k: (k, 4 * i), 2)
    with pytest.raises(ScheduleError, match=r"SM1038.*prefetches already"):
        sch.prefetch("matmul_o", "Y", lambda i, j, k: (k, i), 2)
    same(func.kernel, sch.func.kernel, exactly=False)
    text = cpp_of(sch.func.kernel)
    assert "smelt_tile_4x32_ahead_" in text
    for one, other in zip(compiled(sch), compiled(func)):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_what_is_refused() -> None:
    def func(element: object, shape: tuple[int, ...] = (8, 8), depth: int = 8) -> PrimFunc:
        x, y = te.placeholder((8, 8), name="X"), te.placeholder((8, 8), name="Y")
        k = te.reduce_axis((0, depth), name="k")
        return te.create_prim_func([x, y, te.compute(shape, lambda *i: element(x, y, k, *i), name="C")])  # type: ignore[operator]

    sums = Schedule(func(lambda x, y, k, i, j: te.sum(x[i, k] + y[k, j], axis=k)))
    with pytest.raises(ScheduleError, match=r"SM1049: matmul of C: it is no sum of products"):
        sums.apply(recipes.matmul)
    turned = Schedule(func(lambda x, y, k, i, j: te.sum(x[j, k] * y[k, i], axis=k)))
    with pytest.raises(ScheduleError, match=r"SM1049.*not of X alone"):
        turned.apply(recipes.matmul)
    vector = Schedule(func(lambda x, y, k, i: te.sum(x[i, k] * y[k, 0], axis=k), (8,)))
    with pytest.raises(ScheduleError, match="SM1049"):
        vector.apply(recipes.matmul)
    none = Schedule(func(lambda x, y, k, i, j: x[i, j]))
    with pytest.raises(ScheduleError, match=r"SM1049: apply\(matmul\): 0 blocks sum"):
        none.apply(recipes.matmul)
    other = Schedule(product(8, 16, 4))
    with pytest.raises(ScheduleError, match=r"SM1038.*no register tile"):
        other.prefetch("matmul", "Y", lambda i, j, k: (k, j), 1)
    with pytest.raises(ScheduleError, match=r"SM1031.*no parameter Z"):
        other.prefetch("matmul", "Z", lambda i, j, k: (k, j), 1)
    assert not any(stage.text for stage in stages(other.func.kernel.body))


def test_rest_tiles_end_where_their_blocks_do() -> None:
    sch = Schedule(product(10, 20, 4))
    i, j = sch.get_loops("relu")
    i_0, i_1 = sch.split(i, factors=[None, 4])
    whole, rest = sch.loop_partition(i_0, factors=[2, None])
    for each in (whole, rest):
        sch.tighten(each)
    text = sch.mod.script()
    assert "T.where" not in text and "T.grid(2, 4, 20)" in text
    assert [int(sch.get(each).extent) for each in sch.get_loops(sch.get_child_blocks(rest)[0])] == [1, 2, 20]
    del i_1, j
    func = product(10, 20, 4)
    same(func.kernel, sch.func.kernel)
    smelt.build(sch)
