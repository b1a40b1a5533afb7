"""Operators that are taught from outside of the package: rows, decompositions, names, the cache."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import smelt
from smelt.contract import outside
from smelt.errors import SmeltError, Unsupported
from smelt.ops import ops


@torch.library.custom_op("smelt_outside::affine", mutates_args=())
def affine(x: Tensor, scale: float, shift: float) -> Tensor:
    return x * scale + shift


@affine.register_fake
def _(x: Tensor, scale: float, shift: float) -> Tensor:
    return torch.empty_like(x)


@pytest.fixture(autouse=True)
def _no_rows(fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ROWS", "DECOMPOSITIONS", "_DIGESTS"):
        monkeypatch.setattr(outside, name, {})


def program(x: Tensor) -> Tensor:
    return affine(x.sin(), 2.0, 1.0).relu() + x


def agrees(**options: Any) -> smelt.CompileReport:
    x = torch.randn(7, 9)
    torch.testing.assert_close(torch.compile(program, backend="smelt", **options)(x), program(x))
    return smelt.reports()[-1]


@pytest.mark.parametrize(
    "operator", [affine, "smelt_outside::affine", torch.ops.smelt_outside.affine, affine._opoverload]
)
def test_a_row_is_fused(operator: Any) -> None:
    @smelt.lowers(operator)
    def row(ctx: Any, x: Any, scale: float, shift: float) -> Any:
        def element(index: Any) -> Any:
            scaled = ops.mul(x.load(index), ops.constant(scale, x.dtype))
            return ops.add(scaled, ops.constant(shift, x.dtype))

        return ctx.pointwise(element, shape=x.shape, dtype=x.dtype)

    report = agrees(dynamic=True)
    assert (len(report.kernels), report.externs, report.fallbacks) == (1, {}, [])


def test_a_row_that_refuses_leaves_the_call_to_the_operator() -> None:
    @smelt.lowers(affine)
    def row(ctx: Any, x: Any, scale: float, shift: float) -> Any:
        raise Unsupported("not today")

    (fallback,) = agrees().fallbacks
    assert (fallback.op, fallback.reason) == ("smelt_outside.affine.default", "not today")


def test_a_decomposition() -> None:
    @smelt.decomposes(affine)
    def made_of(x: Tensor, scale: float, shift: float) -> Tensor:
        return torch.add(torch.mul(x, scale), shift)

    report = agrees()
    assert (len(report.kernels), report.externs, report.fallbacks) == (1, {}, [])


def test_a_row_for_one_of_atens_operators_comes_before_smelts() -> None:
    @smelt.lowers(torch.ops.aten.sin.default)
    def row(ctx: Any, x: Any) -> Any:
        return ctx.pointwise(lambda index: ops.constant(0.5, x.dtype), shape=x.shape, dtype=x.dtype)

    x = torch.randn(5)
    assert torch.equal(torch.compile(torch.sin, backend="smelt")(x), torch.full((5,), 0.5))


def test_what_is_no_operator() -> None:
    for wrong in ("smelt_outside::nothing", torch.sin, 3):
        with pytest.raises(SmeltError, match="SM0106"):
            smelt.lowers(wrong)(lambda ctx: None)
        with pytest.raises(SmeltError, match="SM0106"):
            smelt.decomposes(wrong)(lambda: None)


SCRIPT = """
import torch, smelt
from smelt.ops import ops
@torch.library.custom_op("outside_script::scaled", mutates_args=())
def scaled(x: torch.Tensor) -> torch.Tensor:
    return x * {factor}
@scaled.register_fake
def _(x): return torch.empty_like(x)
@smelt.lowers(scaled)
def row(ctx, x):
    def element(index):
        return ops.mul(x.load(index), ops.constant({factor}, x.dtype))
    return ctx.pointwise(element, shape=x.shape, dtype=x.dtype)
result = torch.compile(lambda x: scaled(x) + 1, backend="smelt")(torch.ones(3))
print(result.tolist(), smelt.reports()[-1].cache_hit)
"""


def test_the_cache_knows_the_rows_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path / "cache"))
    script, found = tmp_path / "script.py", []
    for factor in (2.0, 2.0, 3.0):
        script.write_text(SCRIPT.format(factor=factor))
        ran = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
        found.append(ran.stdout.strip())
    assert found == ["[3.0, 3.0, 3.0] False", "[3.0, 3.0, 3.0] True", "[4.0, 4.0, 4.0] False"]
