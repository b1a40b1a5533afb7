"""Configuration: one frozen dataclass, environment variables read once."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from pathlib import Path

from smelt.errors import SmeltError

MODES = ("default", "max")

_NAMES = {"deny": ("SMELT_DENY_OPS",), "allow": ("SMELT_ALLOW_OPS", "TORCH_MHLO_OP_WHITE_LIST")}
"""Environment variables whose operators come to those of an option."""


@dataclass(frozen=True, slots=True)
class Config:
    """How a graph is compiled. Every field is part of the cache key unless its comment says why not."""

    mode: str = "default"
    """``default`` decides by rules; ``max`` measures who computes a contraction faster, smelt's kernel or
    ATen, and remembers it (`smelt.tuning`)."""

    fusion: bool = True
    """Whether nodes share loop nests at all (off: one nest per node, for finding errors)."""

    contractions: bool = True
    """Whether matrix products run in kernels of our own where that pays (off: ATen computes them all)."""

    winograd: bool = True
    """Whether 3x3 convolutions with frozen weights take fewer multiplications where that pays
    (`smelt.schedule.graph.winograd`). A result that is not finite has the graph compiled without."""

    vectorize: bool = True
    parallel: bool = True

    parallel_grain: int = 16384
    """Least number of elementary operations for which a loop is worth a thread team."""

    freezing: bool = False
    """Whether inference graphs compute once what depends on parameters and buffers alone. On by default in
    mode ``max`` and for exported programs. A parameter that changes is noticed, within limits: see
    docs/freezing.md."""

    fallback_random: bool = False
    """Whether ATen draws random numbers, one call for each operator: then they are eager's for the same seed.
    Deoptimize smelt draws them in its own kernels: reproducible too, but other numbers."""

    deny: str = ""
    """Operators that PyTorch is to run, ``;`` between them: ``aten.softmax; aten::add.Tensor; aten.*norm*``.
    Those that ``SMELT_DENY_OPS`` names come to them."""

    allow: str = ""
    """Exceptions from `deny`, written the same way; ``SMELT_ALLOW_OPS`` and TorchBlade's
    ``TORCH_MHLO_OP_WHITE_LIST`` come to them."""

    min_cluster: int = 2
    """How many operators, views apart, a cluster has at least: fewer are not worth a call. Counts only where
    PyTorch runs a part of the program."""

    clocks: bool = False
    """Whether kernels and ATen calls count their time (``smelt bench --profile``); off, nothing is read."""

    compiler_seconds: int = 300  # not in the key: changes no result
    """How long the C++ compiler may take for one file; then PyTorch runs the graph, and others that are not
    compiled yet."""

    verify: bool = False  # not in the key: verifiers change nothing
    """Run the verifiers after every pass (``SMELT_VERIFY=1``)."""

    strict: bool = False
    """Whether a bug of smelt is raised (``SMELT_STRICT=1``), instead of leaving the graph to PyTorch."""

    keep_text: bool = True  # not in the key: reports only
    """Keep what the report needs to print the stages later."""

    print_passes: str = ""  # not in the key: reports only
    """Passes whose IR the report keeps as text, before and after, ``;`` between their names."""

    def key(self) -> str:
        """The part of the cache key that this configuration is."""
        skipped = {"compiler_seconds", "verify", "keep_text", "print_passes"}
        return ",".join(
            f"{f.name}={getattr(self, f.name)}" for f in dataclasses.fields(self) if f.name not in skipped
        )


def from_options(options: dict[str, object]) -> Config:
    """A Config from user options; environment defaults first.

    Raises:
        SmeltError: SM0101 unknown option, SM0102 a value of the wrong type or out of range.
    """
    fields = {f.name: f for f in dataclasses.fields(Config)}
    variables = {"verify": "SMELT_VERIFY", "strict": "SMELT_STRICT"}
    values: dict[str, object] = {
        name: os.environ.get(variable, "0") not in ("", "0") for name, variable in variables.items()
    }
    for name, value in options.items():
        if name not in fields:
            raise SmeltError(
                "SM0101", f"unknown option {name!r}", remedy="known options: " + ", ".join(sorted(fields))
            )
        expected = type(fields[name].default)
        if type(value) is not expected:
            raise SmeltError("SM0102", f"option {name!r} takes {expected.__name__}, not {value!r}")
        values[name] = value
    for name, sources in _NAMES.items():
        texts = [str(values.get(name, "")), *(os.environ.get(variable, "") for variable in sources)]
        values[name] = ";".join(filter(None, texts))
    values.setdefault("freezing", values.get("mode") == "max")
    config = Config(**values)  # type: ignore[arg-type]
    if config.mode not in MODES:
        raise SmeltError("SM0102", f"mode {config.mode!r}", remedy="modes: " + ", ".join(MODES))
    if config.min_cluster <= 0:
        raise SmeltError("SM0102", f"option 'min_cluster' is at least 1, not {config.min_cluster}")
    if config.compiler_seconds <= 0:
        raise SmeltError("SM0102", f"option 'compiler_seconds' is a time, not {config.compiler_seconds}")
    return config


def cache_dir() -> Path:
    """Where compiled programs are kept: ``$SMELT_CACHE_DIR`` or the user's cache directory."""
    import platformdirs

    chosen = os.environ.get("SMELT_CACHE_DIR")
    return Path(os.path.abspath(chosen or platformdirs.user_cache_dir("smelt", appauthor=False)))
