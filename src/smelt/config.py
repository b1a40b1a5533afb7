"""Configuration: one frozen dataclass, environment variables read once."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from pathlib import Path

from smelt.errors import SmeltError

MODES = ("default", "max")
NUMERICS = ("near", "strict")

_NAMES = {"deny": ("SMELT_DENY_OPS",), "allow": ("SMELT_ALLOW_OPS", "TORCH_MHLO_OP_WHITE_LIST")}
"""Environment variables whose operators are added to those of an option."""


@dataclass(frozen=True, slots=True)
class Config:
    """Options of a compilation. Every field is part of the cache key unless its comment says why not."""

    mode: str = "default"
    """``default`` decides by rules; ``max`` measures whether smelt's kernel or ATen computes a contraction
    faster, and caches the result (`smelt.tuning`).
    """

    numerics: str = "near"
    """``near`` is as exact as eager; ``strict`` also gives the same bits for any number of rows and threads,
    or refuses with SM0126 (docs/language-models.md).
    """

    fusion: bool = True
    """Whether nodes share loop nests (off: one nest per node, for finding errors)."""

    contractions: bool = True
    """Whether matrix products run in kernels of our own if that pays (off: ATen computes them all)."""

    own: bool = False
    """Whether every operator runs in kernels of our own, also where ATen's would be faster: packages have no
    ATen (`smelt.package`).
    """

    winograd: bool = True
    """Whether 3x3 convolutions with frozen weights use Winograd's algorithm if that pays
    (`smelt.schedule.graph.winograd`). If a result is not finite, the graph is recompiled without it.
    """

    vectorize: bool = True
    parallel: bool = True

    parallel_grain: int = 16384
    """The fewest elementary operations for which a loop is run by a thread team."""

    freezing: bool = False
    """Whether inference graphs precompute values that depend on parameters and buffers alone. On by default
    in mode ``max`` and for exported programs. A changed parameter is noticed, within limits: see
    docs/freezing.md.
    """

    fallback_random: bool = False
    """Whether ATen draws random numbers, one call for each operator, which gives eager's numbers for the same
    seed. If not, smelt draws them in its own kernels: reproducible too, but other numbers.
    """

    deterministic: bool = False
    """Whether scatters on GPUs combine elements in one order, so that equal runs give equal numbers; on by
    ``torch.use_deterministic_algorithms(True)`` too. On CPUs they always do.
    """

    deny: str = ""
    """Operators that PyTorch runs, ``;`` between them: ``aten.softmax; aten::add.Tensor; aten.*norm*``. Those
    in ``SMELT_DENY_OPS`` are added.
    """

    allow: str = ""
    """Exceptions from `deny`, written the same way; those in ``SMELT_ALLOW_OPS`` and TorchBlade's
    ``TORCH_MHLO_OP_WHITE_LIST`` are added.
    """

    min_cluster: int = 2
    """The fewest operators of a cluster, without views: fewer are not worth a call. It applies only if
    PyTorch runs a part of the program.
    """

    clocks: bool = False
    """Whether kernels and ATen calls count their time (``smelt bench --profile``); off, nothing is read."""

    compiler_seconds: int = 300  # not in the key: changes no result
    """Time limit of the C++ compiler for one file; then PyTorch runs the graph, and others that are not
    compiled yet.
    """

    verify: bool = False  # not in the key: verifiers change nothing
    """Run the verifiers after every pass (``SMELT_VERIFY=1``)."""

    strict: bool = False
    """Whether a bug of smelt is raised (``SMELT_STRICT=1``), instead of leaving the graph to PyTorch."""

    keep_text: bool = True  # not in the key: reports only
    """Whether the report keeps the data to print the stages later."""

    print_passes: str = ""  # not in the key: reports only
    """Passes whose IR the report keeps as text, before and after, ``;`` between their names."""

    @property
    def ordered(self) -> bool:
        """Whether the order of a sum's terms depends on nothing but their number (numerics ``strict``)."""
        return self.numerics == "strict"

    def key(self) -> str:
        """This configuration's part of the cache key."""
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
    if values.get("numerics") == "strict":
        values["strict"] = True  # PyTorch's own run has another order of terms
    config = Config(**values)  # type: ignore[arg-type]
    if config.mode not in MODES:
        raise SmeltError("SM0102", f"mode {config.mode!r}", remedy="modes: " + ", ".join(MODES))
    if config.numerics not in NUMERICS:
        raise SmeltError("SM0102", f"numerics {config.numerics!r}", remedy="numerics: " + ", ".join(NUMERICS))
    if config.numerics == "strict" and (config.mode == "max" or not config.contractions):
        why = "ATen's kernels have another order of terms for each size"
        raise SmeltError("SM0102", "numerics 'strict' with mode 'max' or without contractions", why=why)
    if config.own and (config.mode == "max" or not config.contractions or config.fallback_random):
        what = "option 'own' with mode 'max', fallback_random or without contractions"
        raise SmeltError("SM0102", what, why="these call ATen, which 'own' does without")
    if config.min_cluster <= 0:
        raise SmeltError("SM0102", f"option 'min_cluster' is at least 1, not {config.min_cluster}")
    if config.compiler_seconds <= 0:
        raise SmeltError("SM0102", f"option 'compiler_seconds' is a time, not {config.compiler_seconds}")
    return config


def cache_dir() -> Path:
    """The directory of compiled programs: ``$SMELT_CACHE_DIR`` or the user's cache directory."""
    import platformdirs

    chosen = os.environ.get("SMELT_CACHE_DIR")
    return Path(os.path.abspath(chosen or platformdirs.user_cache_dir("smelt", appauthor=False)))
