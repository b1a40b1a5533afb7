"""smelt.compile, smelt.reports, smelt.reset; the logger."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch

import smelt
from smelt import backend, logs
from smelt.capture import Compiled, Program, by_pytorch
from smelt.config import Config
from smelt.contract import contract
from smelt.errors import SmeltError
from smelt.reporting import CompileReport


@pytest.fixture(autouse=True)
def configs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Config]]:
    """Compile by ATen, and keep the configurations that arrive."""
    seen: list[Config] = []

    def by_aten(program: Program, config: Config, **more: object) -> Compiled:
        seen.append(config)
        smelt.reporting.LOG.add(CompileReport(program.kind, program.name))
        return by_pytorch(contract(program))

    monkeypatch.delenv("SMELT_LOG", raising=False)
    monkeypatch.setattr(backend, "compile_program", by_aten)
    smelt.reset()
    yield seen
    smelt.reset()


def test_a_model(configs: list[Config]) -> None:
    model = torch.nn.Linear(3, 2)
    run = smelt.compile(model, mode="max", fusion=False)
    x = torch.randn(4, 3)
    torch.testing.assert_close(run(x), model(x))
    assert configs[0] == Config(strict=True, mode="max", fusion=False, freezing=True)


def test_a_decorator_with_and_without_arguments(configs: list[Config]) -> None:
    @smelt.compile
    def plain(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    @smelt.compile(dynamic=True, fullgraph=True, parallel=False)
    def tuned(x: torch.Tensor) -> torch.Tensor:
        return x.sum() * x.shape[0]

    assert plain(torch.zeros(2)).tolist() == [1.0, 1.0]
    for size in (3, 5, 9):
        assert tuned(torch.ones(size)) == size * size
    assert configs == [Config(strict=True), Config(strict=True, parallel=False)]


def test_fullgraph_makes_a_break_an_error() -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return x

    with pytest.raises(Exception, match="graph_break"):
        smelt.compile(broken, fullgraph=True)(torch.ones(2))


@pytest.mark.parametrize(
    ("options", "code"),
    [({"fussion": True}, "SM0101"), ({"fusion": 1}, "SM0102"), ({"mode": "fast"}, "SM0102")],
)
def test_wrong_options_are_told_at_once(options: dict[str, object], code: str) -> None:
    with pytest.raises(SmeltError) as caught:
        smelt.compile(torch.nn.ReLU(), **options)  # type: ignore[arg-type]
    assert caught.value.code == code


def test_reports_since_reset() -> None:
    smelt.compile(lambda x: x + 1)(torch.ones(2))
    assert [report.kind for report in smelt.reports()] == ["inference"]
    smelt.reset()
    assert smelt.reports() == []


def test_compiling_the_same_function_twice_shares_the_code(configs: list[Config]) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x * 3

    smelt.compile(f)(torch.ones(2))
    smelt.compile(f)(torch.ones(2))
    assert len(configs) == 1


def test_wrong_log_level_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMELT_LOG", "loud")
    with pytest.raises(SmeltError, match="SM0103: SMELT_LOG='loud'"):
        smelt.compile(torch.nn.ReLU())


def test_log_level_is_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMELT_LOG", "DEBUG")
    before = logs.logger.level
    try:
        smelt.compile(torch.nn.ReLU())
        assert logs.logger.level == logging.DEBUG
    finally:
        logs.logger.setLevel(before)


def test_log_goes_to_stderr_where_the_program_has_no_handler() -> None:
    script = "from smelt import logs\nlogs.configure()\nlogs.logger.info('smelt: heard')\n"
    done = subprocess.run(
        [sys.executable, "-c", script], env={"SMELT_LOG": "info"}, capture_output=True, text=True, timeout=60
    )
    assert done.stderr.strip() == "smelt: heard"


def test_unknown_names_of_the_package() -> None:
    with pytest.raises(AttributeError, match="no attribute 'compil'"):
        _ = smelt.compil  # type: ignore[attr-defined]


def test_it_is_said_when_dynamo_hands_over_no_graph(caplog: pytest.LogCaptureFixture) -> None:
    smelt.reset()
    assert smelt.reports() == [] and "SM0125" not in caplog.text  # nothing was called yet
    torch.compile(lambda x: torch._dynamo.graph_break() or x, backend="smelt")(torch.ones(2))
    assert smelt.reports() == []
    assert "SM0125" in caplog.text and "module.forward = torch.compile" in caplog.text
