"""The backend callable: options, graphs that go back to PyTorch, bugs that are raised, the entry point."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import smelt
from smelt import backend
from smelt.capture import Compiled, Program, by_pytorch
from smelt.config import Config
from smelt.contract import contract
from smelt.errors import SmeltError, ToolchainError, Unsupported
from smelt.reporting import LOG


@pytest.fixture(autouse=True)
def _no_log(fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SMELT_LOG", raising=False)


def by_aten(program: Program, config: Config) -> Compiled:
    """The reference compiler: the contract graph, operator by operator."""
    return by_pytorch(contract(program))


def compiled(
    function: Any, compile_program: Callable[[Program, Config], Compiled] = by_aten, **options: Any
) -> Any:
    def call(graph_module: Any, inputs: Any) -> Any:
        return backend.compile_graph(graph_module, inputs, Config(strict=True), compile_program)

    return torch.compile(function, backend=call, **options)


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.attend = nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm = nn.LayerNorm(8)
        self.out = nn.Linear(8, 3)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        y, _ = self.attend(x, x, x, need_weights=False)
        return self.out(self.norm(x + y).mean(1))


def test_a_training_step_gives_eagers_gradients() -> None:
    torch.manual_seed(0)
    model = Classifier()
    ids, labels = torch.randint(0, 20, (4, 6)), torch.tensor([0, 1, 2, 1])
    nn.functional.cross_entropy(model(ids), labels).backward()
    expected = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    model.zero_grad()
    nn.functional.cross_entropy(compiled(model)(ids), labels).backward()
    mine = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    torch.testing.assert_close(mine, expected)


def test_several_training_steps_with_an_optimizer() -> None:
    def train(wrap: Callable[[Any], Any]) -> list[float]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        run, losses = wrap(model), []
        x = torch.linspace(-1, 1, 24).view(6, 4)
        for step in range(4):
            torch.manual_seed(step)
            loss = (run(x) - x.sum(1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
        return losses

    assert train(compiled) == pytest.approx(train(lambda model: model), rel=1e-5)


def test_one_compile_for_all_marked_sizes() -> None:
    seen = []

    def count(program: Program, config: Config) -> Compiled:
        seen.append(program.name)
        return by_aten(program, config)

    run = compiled(lambda x: (x @ x.t()).softmax(-1), count, dynamic=True)
    for rows in (3, 8, 5, 2, 17):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(run(x), (x @ x.t()).softmax(-1))
    assert len(seen) == 1


# -- back to PyTorch -----------------------------------------------------------------------------------------


def no_compiler(program: Program, config: Config) -> Compiled:
    raise ToolchainError("SM0201", "no C++ compiler found", remedy="install g++")


def test_without_a_compiler_the_graph_runs_on_pytorch_and_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    run = compiled(lambda x: x.sin() + 1, no_compiler)
    other = compiled(lambda x: x.cos() + 2, no_compiler)
    x = torch.randn(3)
    with caplog.at_level(logging.WARNING, logger="smelt"):
        assert torch.equal(run(x), x.sin() + 1)
        assert torch.equal(other(x), x.cos() + 2)
    messages = [record.getMessage() for record in caplog.records if record.name == "smelt"]
    assert len(messages) == 1
    assert messages[0].startswith("smelt: SM0201: no C++ compiler found")
    assert "install g++" in messages[0]
    reports = LOG.all()
    assert [report.kind for report in reports] == ["eager", "eager"]
    (fallback,) = reports[0].fallbacks
    assert (fallback.op, fallback.reason) == ("graph", "SM0201: no C++ compiler found")
    assert "sin" in reports[0].text("fx")


def test_without_a_compiler_training_works_too() -> None:
    x = torch.randn(3, requires_grad=True)
    compiled(lambda x: x.sin().sum(), no_compiler)(x).backward()
    torch.testing.assert_close(x.grad, x.detach().cos())
    assert [report.kind for report in LOG.all()] == ["eager"]


def test_a_graph_that_smelt_cannot_compile_runs_on_pytorch_with_its_reason() -> None:
    def refuse(program: Program, config: Config) -> Compiled:
        raise Unsupported("a tensor on tpu: smelt compiles for the CPU")

    x = torch.randn(3)
    assert torch.equal(compiled(lambda x: x * 2, refuse)(x), x * 2)
    assert LOG.all()[0].fallbacks[0].reason.startswith("a tensor on tpu")


def test_branches_are_compiled() -> None:
    def branch(x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), [x])

    run = compiled(branch)
    for x in (torch.ones(3), -torch.ones(3)):
        torch.testing.assert_close(run(x), branch(x))
    assert all(not report.fallbacks for report in LOG.all())


def test_a_backward_alone_that_cannot_be_compiled() -> None:
    def forward_only(program: Program, config: Config) -> Compiled:
        if program.kind == "backward":
            raise Unsupported("not this one")
        return by_aten(program, config)

    x = torch.randn(3, requires_grad=True)
    compiled(lambda x: x.sin().sum(), forward_only)(x).backward()
    torch.testing.assert_close(x.grad, x.detach().cos())
    (report,) = LOG.all()
    assert (report.kind, report.graph_name.split()[-1]) == ("eager", "backward")


def test_the_report_that_the_pipeline_has_begun_is_used() -> None:
    from smelt.reporting import CompileReport

    def begun(program: Program, config: Config) -> Compiled:
        LOG.add(CompileReport(program.kind, program.name, kernels=[]))
        raise Unsupported("later")

    compiled(lambda x: x + 1, begun)(torch.ones(2))
    assert [(report.kind, len(report.fallbacks)) for report in LOG.all()] == [("eager", 1)]


# -- errors --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["inference", "forward"])
def test_a_bug_in_the_compiler_is_raised(kind: str) -> None:
    def broken(program: Program, config: Config) -> Compiled:
        assert program.kind == kind
        raise AssertionError("a bug of ours")

    x = torch.ones(3, requires_grad=kind == "forward")
    with pytest.raises(Exception, match="a bug of ours"):
        compiled(lambda x: x + 1, broken)(x)


def test_a_compiler_that_refuses_our_code_is_a_bug_too() -> None:
    def refused(program: Program, config: Config) -> Compiled:
        raise ToolchainError("SM0204", "the compiler refused our code")

    with pytest.raises(Exception, match="SM0204"):
        compiled(lambda x: x + 1, refused)(torch.ones(3))


def test_errors_of_the_user_are_raised_as_they_are() -> None:
    def f(x: Tensor) -> Tensor:
        if x.shape[0] == 3:
            raise KeyError("three")
        return x

    with pytest.raises(KeyError, match="three"):
        compiled(f)(torch.ones(3))


def test_index_errors_at_run_time() -> None:
    run = compiled(lambda x, i: x[i])
    x = torch.arange(4.0)
    assert run(x, torch.tensor([3, -1])).tolist() == [3.0, 3.0]
    with pytest.raises(IndexError):
        run(x, torch.tensor([4]))


# -- options -------------------------------------------------------------------------------------------------


def test_mode_and_options_reach_the_configuration() -> None:
    expected = Config(mode="max", fusion=False, freezing=True, strict=True)  # as all tests are
    assert backend.config_from("max", {"fusion": False}) == expected
    assert backend.config_from(None, {}).mode == "default"


def test_unknown_options_and_modes() -> None:
    graph = torch.fx.symbolic_trace(lambda x: x + 1)
    with pytest.raises(SmeltError, match="SM0101"):
        backend.smelt(graph, [torch.ones(2)], options={"fussion": True})
    with pytest.raises(SmeltError, match="SM0102"):
        backend.smelt(graph, [torch.ones(2)], mode="fastest")


# -- the entry point -----------------------------------------------------------------------------------------


def in_new_process(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)


@pytest.mark.long
def test_torch_finds_the_backend_without_importing_smelt() -> None:
    done = in_new_process(
        "import sys, torch\n"
        "assert 'smelt' in torch._dynamo.list_backends()\n"
        "assert 'smelt' not in sys.modules\n"
        "from torch._dynamo.backends.registry import lookup_backend\n"
        "print(lookup_backend('smelt').__module__)\n"
    )
    assert (done.returncode, done.stdout.strip()) == (0, "smelt.backend"), done.stderr


def test_importing_smelt_imports_no_torch() -> None:
    done = in_new_process("import sys, smelt\nprint('torch' in sys.modules, smelt.__version__)\n")
    assert done.stdout.split()[0] == "False", done.stderr


def test_no_module_of_ours_imports_inductor() -> None:
    source = Path(backend.__file__).parent
    for path in source.rglob("*.py"):
        for line in path.read_text().splitlines():
            assert not (line.lstrip().startswith(("import ", "from ")) and "_inductor" in line), (
                f"{path}: {line}"
            )


def test_a_graph_of_more_buffers_than_a_call_has_arguments() -> None:
    xs = [torch.randn(3) for _ in range(600)]
    compiled = torch.compile(lambda xs: [x * 2 for x in xs], backend="smelt", fullgraph=True)
    torch.testing.assert_close(compiled(xs), [x * 2 for x in xs])
    assert smelt.reports()[-1].native_calls == 1
