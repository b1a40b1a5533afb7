"""Products of few rows by their recipe: steps that a person could have written."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from smelt import te
from smelt.schedule.loops import Target
from smelt.schedule.recipes.few_rows import columns_together, vectors_of
from smelt.tir import PrimFunc, Schedule, ScheduleError, recipes
from tests.nest.staging import same
from tests.tir.compiling import compiled, cpp_of

WEIGHTS = ("float32", "bfloat16", "int8")


def few(rows: int, columns: int, depth: int, weight: str = "float32", bias: bool = True) -> PrimFunc:
    """A product with a weight of a dtype, of which int8 has a scale for each column."""
    x = te.placeholder((rows, depth), name="x")
    w = te.placeholder((columns, depth), name="w", dtype=weight)
    scale, b = (te.placeholder((columns,), name=name) for name in ("scale", "b"))
    k = te.reduce_axis((0, depth), name="k")

    def element(j: Any, k: Any) -> Any:
        value = w[j, k] if weight == "float32" else w[j, k].astype("float32")
        return value * scale[j] if weight == "int8" else value

    y = te.compute((rows, columns), lambda i, j: te.sum(x[i, k] * element(j, k), axis=k), name="y")
    given = [x, w, *([scale] if weight == "int8" else [])]
    if not bias:
        return te.create_prim_func([*given, y])
    biased = te.compute(y.shape, lambda i, j: y[i, j] + b[j], name="biased")
    return te.create_prim_func(
        [*given, b, te.compute(y.shape, lambda i, j: te.max(biased[i, j], 0.0), name="z")]
    )


TARGETS = {"AVX-512": Target(64, (), 2), "AVX2": Target(32), "NEON": Target(16)}


@pytest.mark.parametrize("weight", WEIGHTS)
@pytest.mark.parametrize("target", TARGETS)
def test_it_keeps_what_is_computed(weight: str, target: str) -> None:
    func = few(2, 6, 64, weight)
    sch = Schedule(func)
    sch.apply(recipes.few_rows, target=TARGETS[target])
    same(func.kernel, sch.func.kernel, exactly=False)


@pytest.mark.parametrize("weight", WEIGHTS)
@pytest.mark.parametrize(("rows", "columns", "bias"), [(1, 40, True), (3, 35, False), (8, 24, True)])
def test_it_runs(rows: int, columns: int, bias: bool, weight: str) -> None:
    func = few(rows, columns, 256, weight, bias)
    sch = Schedule(func)
    sch.apply(recipes.few_rows)
    for one, other in zip(compiled(sch), compiled(func)):
        torch.testing.assert_close(one, other, rtol=2e-5, atol=2e-4 if weight != "int8" else 2e-2)


def test_scores_of_a_few_queries_are_a_batch() -> None:
    """As in text generation: some heads share keys; the largest score of a softmax has loops of its own."""
    q, key = te.placeholder((2, 3, 64), name="q"), te.placeholder((2, 40, 64), name="key")
    r, k = te.reduce_axis((0, 64), name="r"), te.reduce_axis((0, 40), name="k")
    s = te.compute((2, 3, 40), lambda h, i, j: te.sum(q[h, i, r] * key[h, j, r], axis=r), name="s")
    scaled = te.compute(s.shape, lambda h, i, j: s[h, i, j] * 0.125, name="scaled")
    largest = te.compute((2, 3), lambda h, i: te.max(scaled[h, i, k], axis=k), name="largest")
    func = te.create_prim_func([q, key, scaled, largest])
    sch = Schedule(func)
    sch.apply(recipes.few_rows, block="s", target=Target(32))
    assert [str(sch.get(loop).kind) for loop in sch.get_loops("s")[:2]] == ["parallel", "parallel"]
    same(func.kernel, sch.func.kernel, exactly=False)
    for one, other in zip(compiled(sch), compiled(func)):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_sums_stay_in_registers_and_the_weight_is_read_once() -> None:
    func = few(2, 16, 128)
    sch = Schedule(func)
    sch.apply(recipes.few_rows, target=Target(32))
    text = str(sch.trace)
    assert "rfactor(" in text and "sch.vectorize(" in text and "sch.parallel(" in text
    again = Schedule(func)
    sch.trace.apply_to_schedule(again)
    assert again.mod.script() == sch.mod.script()
    assert cpp_of(sch.func.kernel).count("SMELT_OFTEN(") == 1  # a loop over terms, its sums not in memory


def test_matmul_takes_it_for_few_rows() -> None:
    def texts(func: PrimFunc, recipe: Any) -> str:
        sch = Schedule(func)
        sch.apply(recipe, target=Target(32))
        return sch.mod.script()

    func = few(4, 16, 64)
    assert texts(func, recipes.matmul) == texts(func, recipes.few_rows)
    quantized = few(4, 16, 64, "int8")
    assert texts(quantized, recipes.matmul) == texts(quantized, recipes.few_rows)
    many = few(12, 16, 64)
    assert texts(many, recipes.matmul) != texts(many, recipes.few_rows)


def test_what_is_refused() -> None:
    x, w = te.placeholder((2, 64), name="x"), te.placeholder((64, 64), name="w")
    k = te.reduce_axis((0, 64), name="k")

    def apply(func: PrimFunc) -> None:
        Schedule(func).apply(recipes.few_rows, target=Target(32))

    def of(element: Any) -> PrimFunc:
        y = te.compute((2, 64), lambda i, j: te.sum(element(i, j), axis=k), name="y")
        return te.create_prim_func([x, w, y])

    with pytest.raises(ScheduleError, match=r"SM1049: few_rows of y: v_k is not contiguous"):
        apply(of(lambda i, j: x[i, k] * w[k, j]))
    with pytest.raises(ScheduleError, match=r"SM1049: few_rows of y: it is no sum of products"):
        apply(of(lambda i, j: x[i, k] + w[j, k]))
    with pytest.raises(ScheduleError, match=r"SM1049.*20 rows"):
        apply(few(20, 8, 64))
    with pytest.raises(ScheduleError, match=r"SM1049.*40 terms are no whole lines"):
        apply(few(2, 8, 40))


def test_numbers_of_columns_and_terms() -> None:
    assert [columns_together(24, rows) for rows in (None, 1, 4, 8, 16)] == [8, 8, 4, 2, 1]
    assert columns_together(7, 2) == 7 and columns_together(11, 2) == 1
    assert vectors_of(4096, [64], 16) == [4, 16] and vectors_of(4096, [8], 16) == [8]
    assert vectors_of(40, [16], 8) is None
