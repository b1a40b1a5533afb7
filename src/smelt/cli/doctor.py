"""``smelt doctor``: smelt's requirements on this machine, and remedies."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, entry_points, version

from rich.console import Console
from rich.table import Table
from rich.text import Text

from smelt import __version__
from smelt.cli.cache import size
from smelt.cli.console import progress
from smelt.cli.fresh_cache import cache_in, temporary_folder
from smelt.cli.spec import describe
from smelt.errors import SmeltError

DISTRIBUTION = "torch-smelt"
"""The project's name on PyPI, where smelt is another project."""
_MARKS = {"ok": ("ok", "green"), "warn": ("note", "yellow"), "bad": ("missing", "bold red")}


@dataclass(frozen=True, slots=True)
class Finding:
    """A line of the report. ``state``: ``ok``, ``warn`` (works, could be better) or ``bad`` (needed)."""

    name: str
    state: str
    text: str
    remedy: str = ""


def doctor(console: Console) -> int:
    """Prints every finding; returns 1 if a requirement is not met, else 0."""
    with progress("looking at the machine, compiling a kernel"):
        findings = [finding for check in CHECKS for finding in _safely(check)]
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for finding in findings:
        mark, style = _MARKS[finding.state]
        table.add_row(Text(mark, style=style), finding.name, Text(finding.text, overflow="fold"))
        if finding.remedy:
            table.add_row("", "", Text(f"→ {finding.remedy}", style=style, overflow="fold"))
    console.print(table)
    bad = [finding.name for finding in findings if finding.state == "bad"]
    console.print(f"[bold red]not ready: {', '.join(bad)}[/]" if bad else "[green]ready[/]")
    return 1 if bad else 0


def _safely(check: Callable[[], list[Finding]]) -> list[Finding]:
    """Runs a check; an exception of the check is a finding."""
    name = check.__name__.strip("_").replace("_", " ")
    try:
        return check()
    except SmeltError as error:
        return [
            Finding(
                name, "bad", f"{error.code}: {error.what}", "; ".join(filter(None, (error.why, error.remedy)))
            )
        ]
    except Exception as error:
        return [Finding(name, "bad", describe(error), "this looks like a bug: please report it")]


def _python() -> list[Finding]:
    good = sys.version_info[:2] >= (3, 10)
    remedy = "" if good else "use Python 3.10 or newer"
    return [
        Finding("python", "ok" if good else "bad", f"{platform.python_version()} ({sys.executable})", remedy)
    ]


def _torch() -> list[Finding]:
    import torch

    numbers = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    good = numbers >= (2, 11)
    remedy = "" if good else "pip install 'torch>=2.11'"
    return [Finding("torch", "ok" if good else "bad", torch.__version__, remedy)]


def _smelt() -> list[Finding]:
    found = [point for point in entry_points(group="torch_dynamo_backends") if point.name == "smelt"]
    if not found:
        text = f"{__version__}, not registered with torch.compile"
        remedy = f"install the package again: pip install -e . (or pip install {DISTRIBUTION})"
        return [Finding("smelt", "bad", text, remedy)]
    found[0].load()
    text = f'{__version__}, torch.compile(model, backend="smelt") → {found[0].value}'
    return [Finding("smelt", "ok", text), *_namesake()]


def _namesake() -> list[Finding]:
    """The distribution smelt is another project's with the same import name: one overwrites the other."""
    try:
        found = version("smelt")
    except PackageNotFoundError:
        return []
    remedy = f"pip uninstall smelt; pip install --force-reinstall --no-deps {DISTRIBUTION}"
    return [
        Finding(
            "smelt",
            "warn",
            f"also installed: the distribution smelt {found}, which is another project",
            remedy,
        )
    ]


def _compiler() -> list[Finding]:
    from smelt.runtime import toolchain

    found = toolchain.find()
    openmp = Finding("openmp", "ok", found.openmp_runtime or "the compiler's own")
    if not found.openmp:
        remedy = "use g++, whose OpenMP calls every runtime has; clang++ needs a torch built with libomp"
        openmp = Finding(
            "openmp", "warn", "none that this compiler can use: kernels run on one thread", remedy
        )
    state = "ok" if found.isa in ("avx2", "avx512", "neon") else "warn"
    remedy = "" if state == "ok" else "kernels are fast from AVX2 or NEON on"
    return [
        Finding("compiler", "ok", f"{' '.join(found.command)} ({found.family} {found.version})"),
        Finding("vectors", state, f"{found.isa}, {found.vector_bytes} bytes ({platform.machine()})", remedy),
        openmp,
    ]


def _threads() -> list[Finding]:
    import torch

    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    used = torch.get_num_threads()
    if used > usable:
        remedy = f"torch.set_num_threads({usable}) or OMP_NUM_THREADS={usable}"
        return [Finding("threads", "warn", f"torch uses {used} threads on {usable} processors", remedy)]
    return [Finding("threads", "ok", f"torch uses {used} of {usable} processors")]


def _cache() -> list[Finding]:
    from smelt.runtime.cache import open_cache

    cache = open_cache()
    text = f"{cache.root} ({sum(1 for _ in cache.entries())} entries, {size(cache.size())})"
    if cache.degraded:
        return [
            Finding(
                "cache", "warn", f"{text} cannot be written", "set SMELT_CACHE_DIR to a directory of yours"
            )
        ]
    return [Finding("cache", "ok", text)]


def _environment() -> list[Finding]:
    names = ("CXX", "OMP_NUM_THREADS", "SMELT_CACHE_DIR", "SMELT_LOG", "SMELT_STRICT", "SMELT_VERIFY")
    found = [f"{name}={os.environ[name]}" for name in names if name in os.environ]
    return [Finding("environment", "ok", ", ".join(found) or "nothing set that matters")]


def _trial() -> list[Finding]:
    """Compiles a kernel in an empty cache, runs it, and checks its results."""
    import torch

    import smelt

    x = torch.linspace(-2.0, 2.0, 64)
    start = time.perf_counter()
    with temporary_folder("doctor") as folder, cache_in(folder):
        smelt.reset()
        result = smelt.compile(_chain)(x)
        reports = smelt.reports()
    taken = time.perf_counter() - start
    if not torch.allclose(result, _chain(x), rtol=1e-6, atol=1e-6):
        return [Finding("trial", "bad", "a compiled kernel gave wrong numbers", "please report it")]
    if not any(report.native_calls for report in reports):
        return [Finding("trial", "bad", "nothing was compiled: eager PyTorch ran", "see the findings above")]
    return [Finding("trial", "ok", f"compiled and ran a kernel in {taken:.1f} s, its numbers are right")]


def _chain(x):  # type: ignore[no-untyped-def]
    return (x * 2.0 + 1.0).relu().tanh()


def _gpus() -> list[Finding]:
    """The GPUs that PyTorch sees, and Triton, which their kernels need. A machine may do without both."""
    import torch

    found = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    if not found:
        return [Finding("gpu", "ok", "none that PyTorch sees; smelt explain --gpu sm90 compiles for one")]
    try:
        return [Finding("gpu", "ok", f"{', '.join(found)}, Triton {version('triton')}")]
    except PackageNotFoundError:
        text = f"{', '.join(found)}: PyTorch runs programs on it"
        return [Finding("gpu", "warn", text, "pip install triton, and smelt compiles kernels")]


CHECKS = (_python, _torch, _smelt, _compiler, _threads, _gpus, _cache, _environment, _trial)
