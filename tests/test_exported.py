"""``smelt.compile(ExportedProgram)``: any size it was exported for, and a clear no to others."""

from __future__ import annotations

import pytest
import torch
from torch.export import Dim, export

import smelt
from smelt import SmeltError, pipeline
from smelt.errors import ToolchainError
from smelt.lowering import TABLE


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 4)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> dict[str, torch.Tensor]:
        self.calls += 1
        return {"y": torch.softmax(self.linear(x) * scale, -1), "rows": x.sum(0)}


@pytest.fixture
def exported() -> torch.export.ExportedProgram:
    torch.manual_seed(0)
    batch = Dim("batch", min=2, max=64)
    return export(Model().eval(), (torch.randn(4, 8), torch.randn(4)), dynamic_shapes=({0: batch}, None))


def test_one_compile_serves_the_exported_sizes(exported: torch.export.ExportedProgram) -> None:
    smelt.reset()
    compiled, model = smelt.compile(exported), exported.module()
    for rows in (2, 3, 17, 64):
        x, scale = torch.randn(rows, 8), torch.randn(4)
        want, got = model(x, scale), compiled(x, scale)
        assert got.keys() == want.keys()
        for name in want:
            torch.testing.assert_close(got[name], want[name])
    assert len(smelt.reports()) == 1
    assert smelt.reports()[0].symbols


def test_buffers_are_updated(exported: torch.export.ExportedProgram) -> None:
    compiled = smelt.compile(exported)
    before = float(exported.state_dict["calls"])
    compiled(torch.randn(4, 8), torch.randn(4))
    assert float(exported.state_dict["calls"]) == before + 1


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ((torch.randn(65, 8), torch.randn(4)), "2 to 64"),
        ((torch.randn(4, 9), torch.randn(4)), "exported: 8"),
        ((torch.randn(4, 8).double(), torch.randn(4)), "float32"),
        ((torch.randn(8), torch.randn(4)), "rank 2"),
        ((torch.randn(8, 4).t(), torch.randn(4)), "strides"),
        ((torch.randn(4, 8),), "nested"),
        ((torch.randn(4, 8), 1.0), "a tensor was exported"),
    ],
)
def test_other_inputs_are_refused(
    exported: torch.export.ExportedProgram, arguments: tuple[object, ...], word: str
) -> None:
    compiled = smelt.compile(exported)
    with pytest.raises(SmeltError, match="SM0603") as caught:
        compiled(*arguments)
    assert word in str(caught.value)


def test_calling_does_not_fix_sizes_that_strides_hold():
    model = torch.nn.Tanh()
    shapes = ({0: torch.export.Dim("rows"), 1: torch.export.Dim("columns")},)
    exported = torch.export.export(model, (torch.randn(3, 4),), dynamic_shapes=shapes)
    compiled = smelt.compile(exported)
    for size in ((3, 4), (5, 6), (2, 9)):
        x = torch.randn(size)
        torch.testing.assert_close(compiled(x), model(x))
    with pytest.raises(SmeltError, match="strides"):
        compiled(torch.randn(6, 5).t())


def test_without_a_compiler_pytorch_runs_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    smelt.reset()
    monkeypatch.setattr(pipeline.toolchain, "find", no_compiler)
    model, x = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU()), torch.randn(2, 4)
    compiled = smelt.compile(torch.export.export(model, (x,)))
    torch.testing.assert_close(compiled(x), model(x).detach())
    (report,) = smelt.reports()
    assert report.kind == "eager" and report.fallbacks[0].reason.startswith("SM0201")


def no_compiler() -> None:
    raise ToolchainError("SM0201", "no C++ compiler found", remedy="install g++")


def test_a_call_that_breaks_the_lowering_is_atens(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object, **kwargs: object) -> None:
        raise AttributeError("nobody expected this")

    smelt.reset()
    monkeypatch.setitem(TABLE, torch.ops.aten.relu.default, broken)
    model, x = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU()), torch.randn(2, 4)
    compiled = smelt.compile(torch.export.export(model, (x,)), strict=False)
    torch.testing.assert_close(compiled(x), model(x).detach())
    (fallback,) = smelt.reports()[-1].fallbacks
    assert fallback.op == "aten.relu.default" and fallback.reason.startswith("SM0505")
