"""The methods of a schedule that move stages and data: arguments, results, and what is recorded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from sympy import Symbol

from smelt.nest.ir import Kernel
from smelt.nest.primitives import ScheduleError
from smelt.nest.tree import stages
from smelt.script.module import PrimFunc
from smelt.tir.intrinsics import TensorIntrin
from smelt.tir.places import PlaceMoves
from tests.nest.staging import loops_of, same
from tests.nest.test_blocks import dot, tiled, twice
from tests.nest.test_epilogues import biased
from tests.nest.test_places import chain, product, split


class Steps(PlaceMoves):
    """The least that the methods need: names for references, and a list of what was done."""

    def __init__(self, kernel: Kernel) -> None:
        self.first = self._kernel = kernel
        self.done: list[tuple[str, dict[str, Any]]] = []

    def _stage_name(self, block: Any) -> str:  # type: ignore[override]
        return str(block)

    def _loop_var(self, loop: Any) -> Symbol:  # type: ignore[override]
        assert isinstance(loop, Symbol)
        return loop

    def _step(self, kernel: Kernel, method: str, given: dict[str, Any], made: Sequence[str]) -> list[Any]:  # type: ignore[override]
        self._kernel = kernel
        self.done.append((method, given))
        return list(made)

    def loops(self, name: str) -> list[Symbol]:
        return loops_of(self._kernel, name)

    def order(self) -> list[str]:
        return [each.name for each in stages(self._kernel.body)]


def test_a_product_with_copies_of_its_operands() -> None:
    s = Steps(product())
    b = s.cache_read("C", 1, "local")
    c = s.cache_write("C", 0, "local")
    j = s.loops("C")[1]
    s.compute_at(b, j)
    s.reverse_compute_at(c, j, index=-1)
    s.storage_align(b, 0, axis=-2, factor=32, offset=8)
    s.set_scope(b, 0, "shared")
    assert [name for name, _ in s.done] == [
        *("cache_read", "cache_write", "compute_at", "reverse_compute_at", "storage_align", "set_scope")
    ]
    assert s.done[0][1] == {"block": "C", "read_buffer_index": 1, "storage_scope": "local"}
    same(s.first, s._kernel, exactly=False)


def test_inlining_and_epilogues() -> None:
    s = Steps(chain())
    s.compute_inline("B")
    assert s.order() == ["C", "D"]
    same(s.first, s._kernel)
    s = Steps(chain())
    s.reverse_compute_inline("C")
    assert s.order() == ["B", "D"]
    same(s.first, s._kernel)
    s = Steps(biased())
    s.fuse_reduction_epilogue("T", "D")
    assert s.order() == ["T"]
    same(s.first, s._kernel, exactly=False)


@pytest.mark.parametrize("buffer", ["B", ("write", 0)])
def test_layouts_are_recorded_as_text(buffer: Any) -> None:
    s = Steps(chain())
    s.transform_layout("B", buffer, lambda i, j: [i // 4, j, i % 4])
    assert repr(s.done[0][1]["index_map"]) == "lambda i0, i1: (i0//4, i1, i0%4)"
    again = Steps(s.first)
    given = dict(s.done[0][1])
    given["index_map"] = eval(repr(given["index_map"]))
    again.transform_layout(**given)
    assert again._kernel == s._kernel
    s.transform_block_layout("B", lambda i, j: i * 8 + j)
    assert repr(s.done[1][1]["index_map"]) == "lambda i0, i1: (8*i0 + i1,)"
    s.reorder_block_iter_var("C", [1, 0])
    same(s.first, s._kernel)
    with pytest.raises(ScheduleError, match="SM1031"):
        s.transform_layout("B", ("read", 3), lambda i, j: (j, i))


def test_blocks_and_intrinsics() -> None:
    s = Steps(tiled(chain(), "C", 4, 4))
    outer = s.blockize(s.loops("C")[2])
    read = s.reindex("D", ("write", 0))
    assert outer == "C_o" and read == "D_reindex"
    same(chain(), s._kernel)
    s = Steps(split(product(7, 5, 3), "D", 0, 2))
    s.pad_einsum("C", [2, 2, 2])
    same(product(7, 5, 3), s._kernel, exactly=False)
    TensorIntrin.register("test.places.dot4", PrimFunc(dot(4)), PrimFunc(twice(4)))
    try:
        with pytest.raises(ScheduleError, match="SM1038"):
            s.tensorize(s.loops("C")[2], "test.places.dot4")
    finally:
        TensorIntrin.registry.pop("test.places.dot4", None)
