"""bfloat16 products in matrix registers (AMX), where the machine has them: weights are read in place."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import smelt
from smelt.runtime import toolchain
from tests.quantized.planes import random_planes
from tests.support.agreement import assert_close

F = torch.nn.functional
needed = pytest.mark.skipif(not toolchain.find().matrix_tiles, reason="this machine has no matrix registers")


def _compiled(function: Any, *args: Any, verify: bool = True) -> Any:
    smelt.reset()
    with torch.no_grad():
        return torch.compile(function, backend="smelt", options={"verify": verify})(*args)


@needed
@pytest.mark.parametrize(
    ("rows", "columns", "terms"), [(5, 512, 64), (16, 128, 192), (33, 96, 576), (100, 64, 1056)]
)
def test_products_are_summed_in_matrix_registers(rows: int, columns: int, terms: int) -> None:
    x, w, b, y = (
        torch.randn(*size).bfloat16()
        for size in ((rows, terms), (columns, terms), (columns,), (rows, columns))
    )

    def function(x: Any, w: Any, b: Any, y: Any) -> Any:
        return F.silu(F.linear(x, w, b)) + y

    exact = function(x.double(), w.double(), b.double(), y.double())
    assert_close(_compiled(function, x, w, b, y), function(x, w, b, y), exact)
    report = smelt.reports()[-1]
    assert "matrix_tile" in report.text("nest") and not report.externs


@needed
@pytest.mark.parametrize("name", ["int8", "int4_g32", "q4_1", "q6_k"])
def test_a_prompt_of_any_length_computes_quantized_weights_once_for_all_rows(name: str) -> None:
    smelt.reset()
    planes = [p / 64 if p.is_floating_point() else p for p in random_planes(name, 96, 512)]

    def function(x: Any) -> Any:
        return F.linear(x, torch.ops.smelt.dequantize(planes, name, 512, torch.bfloat16))

    compiled = torch.compile(function, backend="smelt")
    weight = torch.ops.smelt.dequantize(planes, name, 512, torch.bfloat16).double()
    for rows in (40, 7, 65):
        x = torch.randn(rows, 512).bfloat16()
        torch._dynamo.mark_dynamic(x, 0)
        assert_close(compiled(x), function(x), x.double() @ weight.T)
    (report,) = smelt.reports()
    assert "matrix_tile" in report.text("nest") and not report.externs
    assert report.text("nest").count("scratch weight") == 1


@needed
def test_products_of_one_matrix_pack_it_once() -> None:
    x, *ws = (torch.randn(*size).bfloat16() for size in ((24, 128), (64, 128), (96, 128), (64, 128)))
    found = _compiled(lambda x, *ws: [F.linear(x, w) for w in ws], x, *ws)
    for got, w in zip(found, ws, strict=True):
        assert_close(got, F.linear(x, w), x.double() @ w.double().T)
    assert smelt.reports()[-1].text("nest").count("i32 = ") == 1


def test_without_permission_pytorch_multiplies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "may_use_matrix_tiles", lambda: False)
    toolchain._find.cache_clear()
    try:
        assert not toolchain.find().matrix_tiles and "matrix_tiles" not in toolchain.find().identity
        x, w = torch.randn(24, 128).bfloat16(), torch.randn(64, 128).bfloat16()
        assert_close(_compiled(F.linear, x, w), F.linear(x, w), x.double() @ w.double().T)
        assert "matrix_tile" not in smelt.reports()[-1].text("cpp")
    finally:
        toolchain._find.cache_clear()
