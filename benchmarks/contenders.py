"""Who takes part: eager, smelt, Inductor in its modes; where installed, OpenVINO, ONNX Runtime and TVM."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from smelt.cli.spec import Program
from smelt.tracing import workload
from smelt.tracing.workload import Call, Setup

Build = Callable[[Program, Setup], Call]


@dataclass(frozen=True, slots=True)
class Contender:
    """How a program becomes something to call, and what the process around it needs."""

    name: str
    build: Build
    needs: tuple[str, ...] = ()
    """Modules that have to be installed; importing them counts for no compile time."""
    why_not_train: str | None = None
    options: tuple[tuple[str, object], ...] = ()
    """What smelt is told; of others nothing."""
    dynamic: bool | None = None
    """Compiled for all sizes, whatever the others do."""
    environment: dict[str, str] = field(default_factory=dict)

    def setup(self, train: bool, dynamic: bool | None) -> Setup:
        """How it compiles in a run that asks for ``dynamic``."""
        return Setup(train, self.dynamic or dynamic, self.options)

    def reason_to_sit_out(self, train: bool) -> str | None:
        """Why it cannot take part here, for the results; None when it can."""
        if train and self.why_not_train:
            return self.why_not_train
        missing = [module for module in self.needs if importlib.util.find_spec(module) is None]
        if missing:
            return f"not installed: {', '.join(missing)} (pip install 'torch-smelt[bench]')"
        return None


def _by_name(backend: str) -> Build:
    return lambda program, setup: workload.compiled(backend, program.call, setup)


def _openvino(program: Program, setup: Setup) -> Call:
    import peers

    return peers.openvino(program, torch.get_num_threads())


def _onnxruntime(program: Program, setup: Setup) -> Call:
    import peers

    return peers.onnxruntime(program, torch.get_num_threads())


def _tvm(program: Program, setup: Setup) -> Call:
    import peers

    return peers.tvm(program, torch.get_num_threads())


BEFORE = "before"
"""smelt of another checkout (`run.py --against`): its own worker runs it."""
_FREEZING = {"TORCHINDUCTOR_FREEZING": "1"}  # Dynamo reads it too: an option of torch.compile would not do
_CONTENDERS = (
    Contender("eager", _by_name("eager")),
    Contender("smelt", _by_name("smelt")),
    Contender("smelt-max", _by_name("smelt"), options=(("mode", "max"),)),
    Contender("inductor", _by_name("inductor")),
    Contender(
        "inductor-freezing",
        _by_name("inductor"),
        environment=_FREEZING,
        why_not_train="freezing is for inference",
    ),
    Contender(
        "inductor-max",
        _by_name("inductor"),
        environment={**_FREEZING, "TORCHINDUCTOR_MAX_AUTOTUNE": "1"},
    ),
    Contender("openvino", _openvino, ("openvino",), "inference only"),
    Contender("onnxruntime", _onnxruntime, ("onnxruntime", "onnx", "onnxscript"), "inference only"),
    Contender("tvm", _tvm, ("tvm",), "inference only"),
    Contender("smelt-dynamic", _by_name("smelt"), dynamic=True),
    Contender("smelt-max-dynamic", _by_name("smelt"), options=(("mode", "max"),), dynamic=True),
    Contender(BEFORE, _by_name("smelt")),
)
CONTENDERS = {contender.name: contender for contender in _CONTENDERS}
USUAL = tuple(name for name in CONTENDERS if name not in ("tvm", BEFORE) and not name.endswith("-dynamic"))
"""Who takes part unless contenders are named. TVM, not tuned, takes seconds a call: only when asked for."""
OURS = tuple(name for name in CONTENDERS if name.startswith("smelt"))
PEERS = tuple(name for name in CONTENDERS if name not in ("eager", *OURS))


def error_for_ours(document: dict[str, Any]) -> str | None:
    """Why a program counts as failed: smelt took part and failed, or is outside its promise."""
    for name in OURS:
        result = document["contenders"].get(name)
        if result is None:
            continue
        if result["failed"]:
            return f"{name} failed: {result['failed']}"
        if not result["accuracy"]["within_promise"]:
            return f"{name}: numbers outside the promise"
    return None
