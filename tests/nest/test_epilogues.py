"""Sums that start with what was added to them afterwards, and sums of padded operands."""

from __future__ import annotations

from typing import Any

import pytest
from sympy import Symbol

from smelt.nest.ir import Kernel
from smelt.nest.primitives.epilogues import fuse_reduction_epilogue, pad_einsum
from smelt.nest.tree import stages
from smelt.ops import ops
from tests.nest.staging import Program, extents_of, same
from tests.nest.test_places import load, number, product, refused


def biased(turned: bool = False, last: Any = None) -> Kernel:
    p = Program(A=(6, 4), B=(4, 5), C=(6, 5))
    p.reduce("T", (6, 5), (4,), lambda i, j, k: ops.mul(load("A", i, k), load("B", k, j)))
    if turned:
        p.compute("D", (5, 6), lambda i, j: ops.add(load("C", j, i), load("T", j, i)))
    else:
        p.compute("D", (6, 5), last or (lambda i, j: ops.add(load("T", i, j), load("C", i, j))))
    return p.kernel("D")


@pytest.mark.parametrize("turned", [False, True])
def test_a_sum_starts_with_its_bias(turned: bool) -> None:
    kernel = biased(turned)
    fused = fuse_reduction_epilogue(kernel, "T", "D")
    assert [each.name for each in stages(fused.body)] == ["T"]
    same(kernel, fused, exactly=False)


def test_what_changes_results_is_no_epilogue() -> None:
    refused("SM1029", lambda: fuse_reduction_epilogue(product(), "C", "D"), "more than add")
    scaled = biased(last=lambda i, j: ops.add(ops.mul(load("T", i, j), number(2.0)), load("C", i, j)))
    refused("SM1029", lambda: fuse_reduction_epilogue(scaled, "T", "D"), "more than add")
    twice = biased(last=lambda i, j: ops.add(load("T", i, j), load("T", i, j)))
    refused("SM1029", lambda: fuse_reduction_epilogue(twice, "T", "D"))
    refused("SM1029", lambda: fuse_reduction_epilogue(biased(), "D", "T"), "no reduction")


def test_operands_are_padded() -> None:
    kernel = product(7, 5, 3)
    padded = pad_einsum(kernel, "C", [4, 4, 4])
    assert extents_of(padded, "C") == [8, 8, 4]
    assert [each.name for each in stages(padded.body)] == ["A_pad", "B_pad", "C", "C_pad", "D"]
    same(kernel, padded, exactly=False)
    n = Symbol("n", integer=True, positive=True)
    kernel = product(n, 4, 4)  # type: ignore[arg-type]
    padded = pad_einsum(kernel, "C", [8, 4, 4])
    assert [each.name for each in stages(padded.body)] == ["A_pad", "C", "C_pad", "D"]
    same(kernel, padded, {n: 7}, exactly=False)
    assert pad_einsum(product(), "C", [8, 6, 4]) == product()


def test_what_is_no_product_is_not_padded() -> None:
    kernel = product()
    refused("SM1036", lambda: pad_einsum(kernel, "C", [4, 4]), "axes")
    refused("SM1036", lambda: pad_einsum(kernel, "D", [3, 3]), "sum of products")
    p = Program(A=(7,))
    p.reduce("S", (), (7,), lambda k: ops.add(load("A", k), number(1.0)))
    refused("SM1036", lambda: pad_einsum(p.kernel("S"), "S", [4]), "sum of products")
