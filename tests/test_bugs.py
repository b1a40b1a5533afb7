"""Bugs of smelt: reported, said once, kept as a file, and PyTorch goes on; raised with SMELT_STRICT=1."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import smelt
from smelt import pipeline, tuning
from smelt.capture import aot, bugs
from smelt.codegen.cpp import UnitPrinter
from smelt.errors import CacheError, InternalError, SmeltError
from smelt.lowering.registry import TABLE
from smelt.runtime import executor, library, plan_json, repros
from smelt.runtime.library import CompileJob

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def _not_strict(own_cache: None, fresh: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("SMELT_STRICT", "0")
    monkeypatch.setattr(tuning, "LEAST_WORK", 2**12)
    yield
    library.wait_for_all()


def raising(error: Exception, file: str = f"{Path(smelt.__file__).parent}/schedule/wrong.py") -> Any:
    """A function of smelt's that raises."""
    scope: dict[str, Any] = {"error": error}
    exec(compile("def wrong(*args, **kwargs): raise error", file, "exec"), scope)
    return scope["wrong"]


broken = raising(AttributeError("'int' object has no attribute 'shape'"))


def program(x: Tensor, y: Tensor) -> Tensor:
    doubled = x * 2
    return doubled.sin() @ y + 1


def arguments(**options: Any) -> tuple[Tensor, Tensor]:
    return torch.randn(64, 64, **options), torch.randn(64, 64)


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "smelt"]


# -- one operator -------------------------------------------------------------------------------------------


def test_a_bug_of_a_row_leaves_that_operator_to_aten(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(TABLE, aten.sin.default, broken)
    x, y = arguments()
    compiled = torch.compile(program, backend="smelt")
    with caplog.at_level(logging.WARNING, logger="smelt"):
        for _ in range(2):
            torch.testing.assert_close(compiled(x, y), program(x, y), rtol=1e-4, atol=1e-4)
        torch.compile(lambda x: x.cos().sin(), backend="smelt")(x)
    first, second = smelt.reports()
    assert (first.kind, second.kind) == ("inference", "inference")
    (fallback,) = first.fallbacks
    assert fallback.op == "aten.sin.default" and "test_bugs.py" in str(fallback.where)
    assert fallback.reason.startswith("SM0505: a bug of smelt in aten.sin.default: AttributeError: 'int'")
    (message,) = warnings_in(caplog)
    assert "at: test_bugs.py" in message and "do: smelt repro " in message
    assert len(repros.kept()) == 2 and "torch.ops.aten.sin.default(mul)" in repros.kept()[1].read_text()


def test_a_bug_of_a_row_is_raised_if_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TABLE, aten.sin.default, broken)
    with pytest.raises(Exception, match=r"SM0505: a bug of smelt in aten\.sin\.default") as raised:
        torch.compile(program, backend="smelt", options={"strict": True})(*arguments())
    assert isinstance(raised.value.__cause__ or raised.value, Exception)
    assert "test_bugs.py" in str(raised.value)


# -- a graph ------------------------------------------------------------------------------------------------

PASSES = [
    *((pipeline, name) for name in ("contracted", "graph_key", "lowered", "schedule", "replace")),
    *((UnitPrinter, name) for name in ("add", "finish")),
    *((executor, name) for name in ("build", "write_source")),
    *((plan_json, "to_json"), (library, "compile_unit")),
]


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("owner, name", PASSES, ids=[name for _, name in PASSES])
def test_a_bug_of_a_pass_leaves_the_graph_to_pytorch(
    owner: Any, name: str, training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, broken)
    x, y = arguments(requires_grad=training)
    compiled = torch.compile(program, backend="smelt", dynamic=True)
    for _ in range(2):
        torch.testing.assert_close(compiled(x, y), program(x, y))
    if training:
        got, expected = (torch.autograd.grad(each(x, y).sum(), x) for each in (compiled, program))
        torch.testing.assert_close(got, expected)
    assert {report.kind for report in smelt.reports()} == {"eager"}
    (fallback,) = smelt.reports()[0].fallbacks
    assert fallback.op == "graph" and fallback.reason.startswith("SM0505: a bug of smelt in ")
    assert repros.kept()
    smelt.reset()
    with pytest.raises(Exception, match="SM0505: a bug of smelt"):
        torch.compile(program, backend="smelt", options={"strict": True})(x, y)


def test_a_bug_in_the_backward_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    before = pipeline.schedule

    def of_backward(graph: Any, *args: Any, **kwargs: Any) -> Any:
        return (
            broken()
            if any("tangents" in str(name) for name in graph.inputs)
            else before(graph, *args, **kwargs)
        )

    monkeypatch.setattr(pipeline, "schedule", of_backward)
    x, y = arguments(requires_grad=True)
    got = torch.autograd.grad(torch.compile(program, backend="smelt")(x, y).sum(), x)
    torch.testing.assert_close(got, torch.autograd.grad(program(x, y).sum(), x), rtol=1e-4, atol=1e-4)
    assert [report.kind for report in smelt.reports()] == ["forward", "eager"]


def test_a_bug_around_the_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aot, "program_from_aot", broken)
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(20))).eval()
    x = torch.randn(2, 8)
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(model, backend="smelt")(x), model(x), rtol=1e-4, atol=1e-5)


# -- at run time --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["default", "max"])
@pytest.mark.parametrize(
    "error", [library.ToolchainError("SM0204", "refused"), KeyError("unit"), SmeltError("SM0410", "status 7")]
)
def test_a_bug_at_the_first_call(error: Exception, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CompileJob, "result", raising(error))
    x, y = arguments()
    compiled = torch.compile(program, backend="smelt", options={"mode": mode})
    for _ in range(2):
        torch.testing.assert_close(compiled(x, y), program(x, y))
    (report,) = smelt.reports()
    assert report.kind == "eager" and report.fallbacks[-1].reason.startswith("SM0506: a bug of smelt while")
    smelt.reset()
    with pytest.raises(InternalError, match="SM0506"):
        torch.compile(program, backend="smelt", options={"strict": True})(x, y)


def _of_run(monkeypatch: pytest.MonkeyPatch, fails: Callable[[list[Any]], bool]) -> None:
    """Have what runs a plan fail for some arguments."""
    before = executor.build

    def build(*args: Any, **kwargs: Any) -> Any:
        call = before(*args, **kwargs)

        def sometimes(args: list[Any]) -> Any:
            return broken() if fails(args) else call(args)

        return sometimes

    monkeypatch.setattr(executor, "build", build)


def test_a_bug_at_other_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    _of_run(monkeypatch, lambda args: any(isinstance(each, int) and each > 8 for each in args))
    compiled = torch.compile(lambda x: x.sin() + 1, backend="smelt", dynamic=True)
    for size in (4, 16, 4):
        x = torch.randn(size)
        torch.testing.assert_close(compiled(x), x.sin() + 1)
    assert [report.kind for report in smelt.reports()] == ["eager"]


def test_overwritten_inputs_are_overwritten_once(monkeypatch: pytest.MonkeyPatch) -> None:
    _of_run(monkeypatch, lambda args: True)
    compiled = torch.compile(lambda x: x.add_(1).sum(), backend="smelt")
    x = torch.zeros(4)
    assert compiled(x) == 4 and compiled(x) == 8 and x.tolist() == [2.0] * 4


# -- what is no bug -----------------------------------------------------------------------------------------


def test_eager_s_errors_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.arange(4.0)
    with pytest.raises(IndexError):
        torch.compile(lambda x, i: x[i] * 2, backend="smelt")(x, torch.tensor([4]))
    with pytest.raises(torch.linalg.LinAlgError):
        torch.compile(torch.linalg.inv, backend="smelt")(torch.zeros(3, 3))
    assert not repros.kept() and all(not report.fallbacks for report in smelt.reports()[:1])


def test_an_operator_s_own_error_is_raised() -> None:
    @torch.library.custom_op("smelt_tests::refuses", mutates_args=())
    def refuses(x: Tensor) -> Tensor:
        raise AttributeError("the user's")

    refuses.register_fake(torch.empty_like)
    with pytest.raises(AttributeError, match="the user's"):
        torch.compile(lambda x: refuses(x) + 1, backend="smelt")(torch.ones(3))
    assert not repros.kept()


def test_a_cache_that_cannot_be_used_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def foreign() -> Any:
        raise CacheError("SM0301", "the cache belongs to someone else")

    monkeypatch.setattr(pipeline.cache, "open_cache", foreign)
    with pytest.raises(Exception, match="SM0301"):
        torch.compile(program, backend="smelt")(*arguments())


def test_ctrl_c_is_nobody_s_bug() -> None:
    assert not bugs.is_bug(KeyboardInterrupt()) and not bugs.is_bug_of_run(KeyboardInterrupt())


def test_a_full_disk_takes_the_file_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "schedule", broken)
    monkeypatch.setattr(repros, "_write", lambda *_: (_ for _ in ()).throw(OSError(28, "no space")))
    x, y = arguments()
    assert torch.equal(torch.compile(program, backend="smelt")(x, y), program(x, y))
    assert "please report it" in smelt.reports()[-1].fallbacks[0].reason or not repros.kept()
