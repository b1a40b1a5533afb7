"""Intrinsics are known by name, and compute what they say."""

from __future__ import annotations

import pytest

from smelt.errors import SmeltError
from smelt.script.module import PrimFunc
from smelt.tir.intrinsics import TensorIntrin
from tests.nest.test_blocks import dot, twice


def test_intrinsics_are_checked_when_they_are_registered() -> None:
    made = TensorIntrin.register("test.dot4", PrimFunc(dot(4)), PrimFunc(twice(4)))
    try:
        assert TensorIntrin.get("test.dot4") is made
        with pytest.raises(SmeltError, match=r"SM1039.*already"):
            TensorIntrin.register("test.dot4", PrimFunc(dot(4)), PrimFunc(twice(4)))
        with pytest.raises(SmeltError, match=r"SM1039.*parameters"):
            TensorIntrin.register("test.dot8", PrimFunc(dot(8)), PrimFunc(twice(4)))
        with pytest.raises(SmeltError, match=r"SM1039.*Z differs"):
            TensorIntrin.register("test.sum4", PrimFunc(dot(4)), PrimFunc(double(4)))
        with pytest.raises(SmeltError, match=r"SM1039.*'test\.dot'"):
            TensorIntrin.get("test.dot")
    finally:
        TensorIntrin.registry.pop("test.dot4", None)


def double(n: int):  # type: ignore[no-untyped-def]
    """Adds the product twice."""
    from smelt.nest.ir import Block
    from smelt.nest.tree import with_body
    from tests.nest.test_blocks import dot

    kernel = dot(n)
    return with_body(kernel, Block((*kernel.body.stmts, *dot(n).body.stmts)))
