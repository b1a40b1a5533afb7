"""Programs to give to the command line, and a cache of the tests' own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

PROGRAMS = """
import torch

class Small(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)
        self.norm = torch.nn.LayerNorm(8)

    def forward(self, x):
        return torch.relu(self.norm(self.linear(x))) + x

class Broken(Small):
    def forward(self, x):
        y = self.linear(x)
        torch._dynamo.graph_break()
        return torch.relu(y)

def good():
    torch.manual_seed(0)
    return Small(), (torch.randn(4, 8),), {}

def keywords():
    return (lambda x, scale: {"y": x * scale, "n": x.argmax()}), (), {"x": torch.randn(8), "scale": 2.0}

def two_graphs():
    torch.manual_seed(0)
    return Broken(), (torch.randn(4, 8),), {}

def raises_in_eager():
    return Small(), (torch.randn(4, 7),), {}

def raises():
    raise RuntimeError("no weights today")

def dropout():
    return torch.nn.Dropout(0.5).train(), (torch.randn(8, 8),), {}

def returns_none(): return None
def returns_pair(): return Small(), ()
def returns_number(): return 3, (), {}
def returns_tensor_args(): return Small(), torch.ones(4, 8), {}
def returns_bad_kwargs(): return Small(), (), [1]
number = 3
"""


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with factories, good and bad."""
    path = tmp_path_factory.mktemp("programs") / "programs_for_tests.py"
    path.write_text(PROGRAMS)
    return path


@pytest.fixture(autouse=True)
def cache_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test reads or clears the user's cache."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("SMELT_CACHE_DIR", str(folder))
    return folder


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def smelt_command(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command line in this process: exit code, standard output, standard error."""
    from smelt.cli import main

    def run(*words: str) -> tuple[int, str, str]:
        code = main(list(words))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run
