"""Another target than C++: the toy of ``examples`` behind ``torch.compile``, and what it does not have."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import smelt
from smelt.backend import backend_for
from smelt.codegen import NestText
from smelt.errors import Unsupported
from smelt.nest import ir
from smelt.ops import Handler
from tests.lowering.harness import compare

EXAMPLE = Path(__file__).parents[1] / "examples" / "scalar_c.py"
pytestmark = [
    pytest.mark.usefixtures("fresh"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler"),
]


def _backend() -> Callable[..., Any]:
    spec = importlib.util.spec_from_file_location("scalar_c", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return backend_for(module.ScalarC())


def _compiled(function: Callable[..., Any], *inputs: Tensor, **options: Any) -> Any:
    backend = torch.compile(function, backend=_backend(), **options)
    with torch.no_grad():
        return backend(*inputs)


def _block(x: Tensor, weight: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    return F.layer_norm(F.gelu(x @ weight), (24,), scale, shift)


GRAPHS = {
    "matmul_gelu": (lambda x, w: F.gelu(x @ w), [(13, 16), (16, 24)]),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (24,), w, b), [(7, 24), (24,), (24,)]),
    "softmax": (lambda x: F.softmax(x, -1), [(5, 33)]),
    "block": (_block, [(9, 16), (16, 24), (24,), (24,)]),
    "convolution": (lambda x, w: F.conv2d(x, w).relu().amax((2, 3)), [(1, 3, 12, 12), (8, 3, 3, 3)]),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_a_target_of_150_lines_runs_graphs(name: str) -> None:
    function, shapes = GRAPHS[name]
    torch.manual_seed(0)
    inputs = [torch.randn(shape) for shape in shapes]
    result = _compiled(function, *inputs)
    (report,) = smelt.reports()
    assert not report.fallbacks and not report.externs and report.kernels
    assert "int64_t run0(char* arena" in report.text("cpp")
    exact = function(*(x.double() for x in inputs))
    compare(result, function(*inputs), exact, slack=8.0, zeros=name != "matmul_gelu")


def test_one_compile_of_a_target_serves_all_sizes() -> None:
    run = torch.compile(lambda x: F.softmax(x * 2.0, -1), backend=_backend(), dynamic=True)
    for shape in ((3, 5), (8, 40)):
        x = torch.randn(shape)
        torch.testing.assert_close(run(x), F.softmax(x * 2.0, -1))
    assert len(smelt.reports()) == 1


def test_training_goes_through_a_target() -> None:
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1))
    x = torch.randn(4, 6)
    model(x).sum().backward()
    expected = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    torch.compile(model, backend=_backend())(x).sum().backward()
    torch.testing.assert_close([parameter.grad for parameter in model.parameters()], expected)
    assert [report.kind for report in smelt.reports()] == ["forward", "backward"]


@pytest.mark.parametrize(
    ("function", "inputs", "reason"),
    [
        (lambda x: torch.digamma(x), [torch.rand(3)], "digamma"),
        (lambda x: F.pad(x, (1, 1)), [torch.rand(3)], "logical_and"),
        (F.embedding, [torch.tensor([1, 0]), torch.rand(2, 3)], "Values does not know indirect_index"),
        (lambda x: x * 2, [torch.rand(3).half()], "torch.float16"),
    ],
)
def test_what_a_target_lacks_stays_with_pytorch_and_says_why(
    function: Callable[..., Any], inputs: list[Tensor], reason: str
) -> None:
    torch.testing.assert_close(_compiled(function, *inputs), function(*inputs))
    (report,) = smelt.reports()
    assert report.kind == "eager" and reason in report.fallbacks[0].reason


def test_a_printer_and_a_handler_say_what_they_lack() -> None:
    nest = NestText(ir.Kernel("empty", (), (), ir.Block()))
    with pytest.raises(Unsupported, match="NestText has no text for a SortRow statement"):
        nest.statement(ir.SortRow("x", (), 1, 1, False, None, None, ()))
    with pytest.raises(Unsupported, match="Handler does not know constant"):
        nest.perform(ir.Let("v0", torch.float32, "constant", (1.0,)), Handler())
    assert nest.text() == []
