"""Units compiled for each instruction set that kernels are printed for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from smelt.nest.ir import Run
from tests.codegen.arm import ArmLibrary
from tests.codegen.support import NATIVE, Library

FLAGS = {"native": NATIVE, "avx2": ["-mavx2", "-mfma", "-mf16c"], "baseline": []}
"""For this machine, for 32-byte vectors, and for any machine of its kind (no fused multiply-add)."""
ISAS = (*FLAGS, "neon")


def compiled(folder: Path, runs: Sequence[Run], isa: str) -> Library:
    """The unit of the runs for one of ISAS, ARM emulated; skips the test where such code cannot run."""
    if isa == "neon":
        return ArmLibrary(folder, runs)
    if isa == "avx2":
        cpuinfo = Path("/proc/cpuinfo")
        if not cpuinfo.exists() or " avx2 " not in cpuinfo.read_text():
            pytest.skip("no AVX2 here")
    return Library(folder, runs, FLAGS[isa])
