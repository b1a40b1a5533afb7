"""What one call costs besides the computation: a function of one kernel, and MiniLM's layers, very thin.

`python benchmarks/calls.py [--seconds S] [--json FILE]`. A thin MiniLM has as many layers, parameters and
guards as the real one and little to compute: what is left is the way to the kernels (Dynamo's guards and its
bytecode, AOTAutograd's wrapper, smelt's plan). The contenders take turns in one run; what is counted is the
thread's own time on the processor, which other programs hardly change. Contenders named after
`torch.compiler` are its public, unsafe ways to ask less before a call.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from statistics import median
from time import perf_counter, thread_time_ns
from types import FunctionType
from typing import Any

import torch
from rich.table import Table
from torch import Tensor, nn

import smelt
from smelt.cli.console import out

WIDTH, TOKENS, LAYERS, CALLS = 16, 8, 6, 20
FILTERS = (
    "skip_guard_on_inbuilt_nn_modules_unsafe",
    "skip_guard_on_globals_unsafe",
    "skip_all_guards_unsafe",
)


class Layer(nn.Module):
    """One layer of MiniLM: attention and a small network, each with its normalization."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.output = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.dropout, self.gelu = nn.Dropout(0.1), nn.GELU()

    def forward(self, x: Tensor) -> Tensor:
        """``x``: tokens by width."""
        weights = torch.softmax(self.query(x) @ self.key(x).mT / WIDTH**0.5, -1)
        x = self.first(x + self.dropout(self.output(weights @ self.value(x))))
        return self.second(x + self.dropout(self.narrow(self.gelu(self.wide(x)))))


class Thin(nn.Module):
    """MiniLM's layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """``x``: tokens by width."""
        for layer in self.layers:
            x = layer(x)
        return x


def small(x: Tensor) -> Tensor:
    """One kernel."""
    return torch.relu(x) + 1


def own_code(function: Any) -> FunctionType:
    """The function with a code object of its own: Dynamo keeps what it has compiled with the code."""
    return FunctionType(function.__code__.replace(), function.__globals__, function.__name__)


def a_small_function() -> Callable[..., Any]:
    """`small`, not compiled yet."""
    return own_code(small)


def a_thin_model() -> Callable[..., Any]:
    """`Thin`, not compiled yet."""
    return type("Thin", (Thin,), {"forward": own_code(Thin.forward)})()


def contenders(make: Callable[[], Callable[..., Any]], x: Tensor) -> dict[str, Callable[[], Any]]:
    """Each makes `CALLS` calls of a program of its own."""
    found: dict[str, Callable[[], Any]] = {"eager": repeated(make(), x)}
    found["torch.compile"] = repeated(torch.compile(make(), backend="smelt"), x)
    found["smelt.compile"] = repeated(smelt.compile(make()), x)
    found["smelt.compile, freezing"] = repeated(smelt.compile(make(), freezing=True), x)
    for name in FILTERS:
        options = {"guard_filter_fn": getattr(torch.compiler, name)}
        found[name] = repeated(torch.compile(make(), backend="smelt", options=options), x)
    unasked = {"skip_guard_eval_unsafe": True}
    found["skip_guard_eval_unsafe"] = repeated(torch.compile(make(), backend="smelt"), x, unasked)
    return found


def repeated(
    program: Callable[..., Any], x: Tensor, stance: dict[str, Any] | None = None
) -> Callable[[], Any]:
    """`CALLS` calls, after so many that what learns from calls has learnt."""
    for _ in range(100):
        program(x)

    def run() -> None:
        with torch.compiler.set_stance("default", **stance) if stance else nullcontext():
            for _ in range(CALLS):
                program(x)

    return run


def main() -> int:
    """Measure, print a table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=10.0, help="per program")
    parser.add_argument("--json", default=None)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    table = Table(
        title=f"µs per call, Python {platform.python_version()}, torch {torch.__version__}", box=None
    )
    for heading in ("program", "contender", "least", "median"):
        table.add_column(heading, justify="left" if heading in ("program", "contender") else "right")
    document: dict[str, Any] = {"python": platform.python_version(), "torch": torch.__version__}
    for make, x in ((a_small_function, torch.randn(16)), (a_thin_model, torch.randn(TOKENS, WIDTH))):
        with torch.no_grad():
            times = in_turns(contenders(make, x), options.seconds)
        name = make.__name__.replace("_", " ")
        document[name] = {each: (min(taken), median(taken)) for each, taken in times.items()}
        for contender, (least, middle) in document[name].items():
            table.add_row(name, contender, f"{least:.1f}", f"{middle:.1f}")
    out().print(table)
    if options.json:
        Path(options.json).write_text(json.dumps(document, indent=1) + "\n")
    return 0


def in_turns(runs: dict[str, Callable[[], Any]], seconds: float) -> dict[str, list[float]]:
    """Microseconds of this thread for one call, turn by turn."""
    taken: dict[str, list[float]] = {name: [] for name in runs}
    end = perf_counter() + seconds
    while perf_counter() < end:
        for name, run in runs.items():
            begin = thread_time_ns()
            run()
            taken[name].append((thread_time_ns() - begin) / CALLS / 1e3)
    return taken


if __name__ == "__main__":
    sys.exit(main())
