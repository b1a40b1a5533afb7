"""Ctrl-C while something is compiled, waited for or measured: the next call does it again."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import smelt
from smelt import backend, pipeline, tuning
from smelt.runtime import executor, library, probe, toolchain, trampoline
from smelt.runtime.cache import Cache
from smelt.runtime.library import CompileJob, compile_unit
from tests.runtime.test_library import ANSWER, slower


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 64), nn.Linear(64, 96)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.first(x)))


X = torch.randn(32, 64)


@pytest.fixture(autouse=True)
def _quick(own_cache: None, fresh: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(tuning, "SECONDS_EACH", 0.0)
    monkeypatch.setattr(tuning, "LEAST_WORK", 2**12)
    probe.native_library(), trampoline._maker()
    yield
    library.wait_for_all()


def interrupts(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, *, after: bool = False) -> list[int]:
    """Have the first call of a function end in Ctrl-C, before or after it has done its work."""
    before, calls = getattr(owner, name), []

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) > 1:
            return before(*args, **kwargs)
        if after:
            before(*args, **kwargs)
        raise KeyboardInterrupt

    monkeypatch.setattr(owner, name, interrupted)
    return calls


PLACES = [
    *((pipeline, name) for name in ("contracted", "lowered", "schedule", "precompiled")),
    *((executor, name) for name in ("build", "write_source", "native_function")),
    *((library, name) for name in ("compile_unit", "start_compiler")),
    *((tuning, name) for name in ("_race", "_both", "print_unit")),
    *((tuning.Tuning, name) for name in ("look_up", "_in_place", "_compiled", "remember", "measure")),
    *((CompileJob, name) for name in ("wait", "result")),
    (backend, "capture_aot"),
]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("owner, name", PLACES, ids=[name for _, name in PLACES])
def test_after_ctrl_c_the_next_call_compiles_and_measures_again(
    owner: Any, name: str, after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = Net().eval()
    model = smelt.compile(net, mode="max")
    if name in ("_both", "print_unit", "_compiled"):
        monkeypatch.setattr(tuning.Tuning, "_in_place", lambda *_: {})  # all race alone
    calls = interrupts(monkeypatch, owner, name, after=after)
    with torch.no_grad():
        with contextlib.suppress(KeyboardInterrupt):
            model(X)
        for _ in range(2):
            torch.testing.assert_close(model(X), net(X), rtol=1e-4, atol=1e-4)
    report = smelt.reports()[-1]
    assert calls and report.kind == "inference" and not report.fallbacks
    assert all(choice.why == "measured" for choice in report.choices)


def test_a_signal_while_the_compiler_is_waited_for(tmp_path: Path) -> None:
    go = tmp_path / "go"
    tools = slower(tmp_path, toolchain.find(), f"while ! test -e {go}; do sleep 0.05; done")
    job = compile_unit(ANSWER, tools, Cache(tmp_path / "own"), "answer")
    for _ in range(2):
        late = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
        late.start()
        with pytest.raises(KeyboardInterrupt):
            job.result()
        late.join()
        assert not job.done()
    go.touch()
    assert job.result().function("answer")(None, 21) == 42 and job.done()


def test_what_has_failed_is_compiled_again(tmp_path: Path) -> None:
    broken = slower(tmp_path, toolchain.find(), f"test -e {tmp_path}/mended || exit 1")
    job = compile_unit(ANSWER, broken, Cache(tmp_path / "own"), "answer")
    with pytest.raises(library.ToolchainError, match="SM0204"):
        job.result()
    (tmp_path / "mended").touch()
    assert job.result().function("answer")(None, 21) == 42


_TERMINAL = """
import os, signal, sys, threading, time
import torch, smelt
from smelt.runtime import probe, trampoline
probe.native_library(), trampoline._maker()
x = torch.randn(8)
compiled = torch.compile(lambda x: (x.sin() * 2 + 1).relu(), backend="smelt")

def all_of_us():
    while not any(each.name == "smelt-compile" for each in threading.enumerate()):
        time.sleep(0.01)
    time.sleep(0.3)
    os.killpg(0, signal.SIGINT)

threading.Thread(target=all_of_us).start()
try:
    compiled(x)
    sys.exit("nobody was interrupted")
except KeyboardInterrupt:
    pass
torch.testing.assert_close(compiled(x), (x.sin() * 2 + 1).relu())
assert not smelt.reports()[-1].fallbacks
"""


def test_ctrl_c_at_a_terminal_goes_to_python_and_leaves_the_compiler_alone(tmp_path: Path) -> None:
    """There all processes of the group are sent the signal."""
    tools = toolchain.find()
    warm = {**os.environ, "CXX": str(slower(tmp_path, tools, "sleep 3").command[0])}
    done = subprocess.run(
        [sys.executable, "-c", _TERMINAL], env=warm, capture_output=True, text=True, start_new_session=True
    )
    assert done.returncode == 0, done.stderr
