"""The programs of this folder on a GPU: ``make test-gpu``, or ``python -m tests.codegen.triton.on_gpu``.

Each program is compared with eager, and timed under both. A table is at the end; the exit code is 1 where
something is wrong, 2 where there is no GPU.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch.utils._pytree import tree_map_only

import smelt
from tests.codegen.triton.attention import ATTENTION
from tests.codegen.triton.launched import difference
from tests.codegen.triton.products import PRODUCTS
from tests.codegen.triton.programs import PROGRAMS

LARGE: dict[str, tuple[Callable[..., Any], Callable[[], list[Any]]]] = {
    "large pointwise": (lambda x, y: (x * 2 + y).relu(), lambda: [torch.randn(2**26), torch.randn(2**26)]),
    "large softmax": (lambda x: torch.softmax(x, -1), lambda: [torch.randn(16384, 4096)]),
    "large layer_norm": (
        lambda x: torch.nn.functional.layer_norm(x, (4096,)),
        lambda: [torch.randn(16384, 4096)],
    ),
    "large sum": (lambda x: x.sum(0), lambda: [torch.randn(16384, 4096)]),
    "large product": (lambda a, b: a @ b, lambda: [torch.randn(4096, 4096).bfloat16() for _ in range(2)]),
}
"""Programs that keep a GPU busy: what their time says of its memory and multipliers."""
SECONDS = 0.2


def main(arguments: list[str] | None = None) -> int:
    """Runs the programs that the command line names, or all."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("programs", nargs="*", help="default: all")
    parser.add_argument("--device", default="cuda", help="default: cuda")
    options = parser.parse_args(arguments)
    device = torch.device(options.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        sys.stderr.write("PyTorch sees no GPU here\n")
        return 2
    trained = {name: each for name, each in ATTENTION.items() if "flex" not in name}  # those hold CPU tensors
    known = {**PROGRAMS, **PRODUCTS, **trained, **(LARGE if device.type == "cuda" else {})}
    unknown = sorted(set(options.programs) - set(known))
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)} (known: {', '.join(known)})")
    table = Table("program", "kernels", "eager", "smelt", "times", "bytes/s", "wrong or left to PyTorch")
    failed = 0
    for name in options.programs or known:
        row, wrong = measured(*known[name], device)
        table.add_row(name, *row, wrong)
        failed += wrong.startswith("wrong")
    Console(width=160).print(table)
    sys.stdout.write(f"{failed} wrong\n")
    return 1 if failed else 0


def measured(
    function: Callable[..., Any], make: Callable[[], list[Any]], device: torch.device
) -> tuple[list[str], str]:
    """The cells of a program's row, and what is wrong with it or left to PyTorch."""
    torch.manual_seed(0)
    args = tree_map_only(
        torch.Tensor, lambda x: x.detach().to(device).requires_grad_(x.requires_grad), make()
    )
    torch._dynamo.reset()
    smelt.reset()
    try:
        compiled = torch.compile(function, backend="smelt")
        wrong = difference(compiled(*args), function(*args))
        times = [timed(call, args, device) for call in (function, compiled)]
    except Exception as error:
        return ["–"] * 5, f"wrong: {type(error).__name__}: {str(error)[:200]}"
    reports = smelt.reports()
    left = "; ".join(f"{each.op}: {each.reason}" for report in reports for each in report.fallbacks)
    moved = sum(x.numel() * x.element_size() for x in args if isinstance(x, torch.Tensor))
    row = [str(sum(len(report.kernels) for report in reports)), *(f"{1e6 * each:.1f} µs" for each in times)]
    row += [f"{times[0] / times[1]:.2f}", f"{moved / times[1] / 1e9:.0f} GB"]
    return row, f"wrong: {wrong.splitlines()[0]}" if wrong else left


def timed(call: Callable[..., Any], args: list[Any], device: torch.device) -> float:
    """Seconds a call, the GPU's part included: the least of several rounds."""
    least, end = float("inf"), time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        begin = time.perf_counter()
        for _ in range(10):
            call(*args)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        least = min(least, (time.perf_counter() - begin) / 10)
    return least


if __name__ == "__main__":
    sys.exit(main())
