"""Two processes on this machine: what smelt compiles has eager's gradients and parameters after three steps.

Both use one cache folder, which is empty when they begin.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

pytestmark = [
    pytest.mark.skipif(
        not (dist.is_available() and dist.is_gloo_available()), reason="this torch has no gloo"
    ),
    pytest.mark.long,
]

SECONDS = 300
"""After which processes are ended: much longer than they take, on any machine."""
SCENARIOS = (
    *("ddp", "fsdp_blocks", "fsdp_whole", "fsdp_of_torch", "tensor_parallel"),
    *("late", "sizes", "functional", "keys"),
)


def run(folder: Path, *scenarios: str) -> list[tuple[int, list[dict[str, Any]], str]]:
    """For each of the two processes: how it ended, what it says of each scenario, its errors."""
    worker = str(Path(__file__).with_name("worker.py"))
    environment = {
        **os.environ,
        "SMELT_CACHE_DIR": str(folder / "cache"),
        "SMELT_STRICT": "1",
        "GLOO_SOCKET_IFNAME": "lo" if sys.platform == "linux" else "lo0",
    }
    errors = [(folder / f"errors{rank}").open("w+") for rank in (0, 1)]
    processes = [
        subprocess.Popen(
            [sys.executable, worker, str(rank), str(folder / "meeting"), *scenarios],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=errors[rank],
            text=True,
        )
        for rank in (0, 1)
    ]
    found = []
    try:
        for process, error in zip(processes, errors):
            text, _ = process.communicate(timeout=SECONDS)
            error.seek(0)
            lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
            found.append((process.returncode, lines, error.read()[-3000:]))
    finally:
        for process, error in zip(processes, errors):
            process.kill()
            process.wait()
            error.close()
    return found


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[int, list[dict[str, Any]], str]]:
    return run(tmp_path_factory.mktemp("processes"), *SCENARIOS)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_two_processes_are_as_good_as_eager(together: Any, scenario: str) -> None:
    for code, lines, errors in together:
        mine = next((line for line in lines if line["scenario"] == scenario), None)
        assert mine is not None, f"ended with {code}: {errors}"
        assert mine["error"] is None, mine["error"]
        assert mine["kinds"] and "eager" not in mine["kinds"]
        if scenario not in ("functional", "keys"):
            assert {"forward", "backward"} <= set(mine["kinds"])
        assert all(each.startswith("_c10d_functional.") for each in mine["fallbacks"]), mine["fallbacks"]
        if scenario in ("tensor_parallel", "late", "functional"):
            assert mine["fallbacks"]


def test_ddp_compiles_a_graph_for_each_bucket(together: Any) -> None:
    for _, lines, _ in together:
        kinds = next(line["kinds"] for line in lines if line["scenario"] == "ddp")
        assert kinds.count("forward") >= 2 and kinds.count("backward") >= 2


def test_a_process_whose_peer_is_killed_gets_an_error(tmp_path: Path) -> None:
    (code, lines, errors), (killed, _, _) = run(tmp_path, "killed")
    assert killed == -9
    assert code == 0, errors
    assert lines[0]["raised"] in ("RuntimeError", "DistBackendError", "DistNetworkError"), lines
