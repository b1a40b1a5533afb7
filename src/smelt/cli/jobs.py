"""Runs jobs in measuring processes (`smelt.cli.worker`) and raises their errors here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from smelt.errors import SmeltError, is_input


class WorkerError(RuntimeError):
    """The measuring process raised an error that is not about the input: ``str`` is its whole traceback."""


def run(job: dict[str, Any], variables: dict[str, str]) -> dict[str, Any]:
    """The result of ``job``, run in a fresh Python process with ``variables`` in its environment.

    Raises:
        SmeltError: the error of the process, if it is about the input.
        WorkerError: any other exception there, or the process died.
    """
    environment = {**os.environ, **variables}
    if job.get("threads"):
        environment["OMP_NUM_THREADS"] = str(job["threads"])
    with tempfile.TemporaryDirectory(prefix="smelt-bench-") as folder:
        job_file, result_file = Path(folder) / "job.json", Path(folder) / "result.json"
        job_file.write_text(json.dumps(job))
        command = [sys.executable, "-m", "smelt.cli.worker", str(job_file), str(result_file)]
        shown = None if os.environ.get("SMELT_LOG") else subprocess.PIPE
        done = subprocess.run(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=shown, text=True, check=False
        )
        if not result_file.is_file():
            cause = f"signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
            raise WorkerError(f"the measuring process ended with {cause}\n{(done.stderr or '').strip()}")
        answer: dict[str, Any] = json.loads(result_file.read_text())
    if "error" not in answer:
        result: dict[str, Any] = answer["result"]
        return result
    error = answer["error"]
    if error["code"] is not None:
        fields = {name: error[name] for name in ("where", "why", "remedy")}
        found = SmeltError(error["code"], error["what"], **fields)
        if is_input(found):
            raise found
    raise WorkerError(error["traceback"].rstrip())
