"""Makes a package to try elsewhere, and a folder with its inputs and what eager computes from them.

    python examples/package/make.py FOLDER [FILE:FACTORY] [--target NAME]…

The factory returns ``(model, args, kwargs)``; without one it is ``digits``, a small network for images, whose
batch has any size. ``training`` is a step of training. ``FOLDER/NAME.smelt`` is the package; ``FOLDER/data``
has ``in_K.bin``, ``in_K.shape``, ``expected_K.bin`` and ``expected_K.tolerance``, which `main.c`, `main.rs`
and `main.f90` read.
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export import Dim
from torch.utils import _pytree as pytree

from smelt import package
from smelt.cli import accuracy
from smelt.tracing.program import Program
from smelt.tracing.workload import Setup

UNPROVEN = 1e-4
"""The tolerance of results that no run in float64 can be compared with."""


def digits() -> Any:
    """A network for images of 28 x 28: what they show, out of ten."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.GELU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
        nn.Softmax(1),
    )
    return model.eval(), (torch.randn(4, 1, 28, 28),), {}


def training() -> Any:
    """A step of training of a small network: forward, backward and Adam in one program."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def step(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    arguments = torch.randn(16, 1, 8, 8), torch.randint(3, (16,))
    step(*arguments)  # Adam makes its state
    return step, arguments, {}


def factory(spec: str) -> Any:
    """The function that ``FILE:FACTORY`` names."""
    file, _, name = spec.rpartition(":")
    found = importlib.util.spec_from_file_location("given", file)
    if found is None or found.loader is None:
        raise SystemExit(f"{spec} is no FILE:FACTORY")
    sys.path.insert(0, str(Path(file).parent))
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return getattr(module, name)


def expected(model: Any, args: Any, kwargs: Any) -> tuple[list[torch.Tensor], list[float]]:
    """Eager's results and the tolerance of each: the largest difference over the largest number.

    smelt promises 4 times eager's own error against float64 and a few units in the last place. A function
    runs only once, for it may be a step of training: its results have the tolerance `UNPROVEN`.
    """
    if not isinstance(model, nn.Module):
        results = [
            each for each in pytree.tree_leaves(model(*args, **kwargs)) if isinstance(each, torch.Tensor)
        ]
        print(f"tolerance {UNPROVEN}: a function runs once, there is no run in float64")
        return results, [UNPROVEN] * len(results)
    program = Program(model, args, kwargs)
    eager = accuracy.run_eager(program, Setup())
    verdict = accuracy.compare(eager, eager, accuracy.reference(program, Setup()))
    results = list(eager.tensors.values())
    if not verdict.compared:
        print(f"tolerance {UNPROVEN}: {verdict.reason}")
        return results, [UNPROVEN] * len(results)
    return results, [each.limit for each in verdict.differences]


def save(tensor: torch.Tensor, path: Path) -> None:
    """Writes the bytes of a tensor in C order."""
    path.write_bytes(tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes())


def main(words: Sequence[str] | None = None) -> None:
    """Writes the package and the data that the words ask for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("factory", nargs="?", help=f"FILE:FACTORY, or one of {', '.join(HERE)}")
    parser.add_argument("--name", help="of the model in C (default: the factory's)")
    parser.add_argument("--target", action="append", help="may be given several times (default: native)")
    parser.add_argument("--level", action="append", help="an instruction set; may be given several times")
    options = parser.parse_args(words)
    make = HERE.get(options.factory or "digits") or factory(options.factory)
    name = options.name or make.__name__
    model, args, kwargs = make()
    sizes = {"input": {0: Dim("batch", max=1024)}} if make is digits else None
    path = options.folder / f"{name}.smelt"
    path.parent.mkdir(parents=True, exist_ok=True)
    package(
        model,
        args,
        path,
        kwargs=kwargs,
        name=name,
        dynamic_shapes=sizes,
        target=options.target or "native",
        levels=options.level,
    )
    data = options.folder / "data"
    shutil.rmtree(data, ignore_errors=True)
    data.mkdir()
    for number, tensor in enumerate(pytree.tree_leaves((args, kwargs))):
        save(tensor, data / f"in_{number}.bin")
        (data / f"in_{number}.shape").write_text(" ".join(map(str, tensor.shape)) + "\n")
    for number, (tensor, tolerance) in enumerate(zip(*expected(model, args, kwargs))):
        save(tensor.detach(), data / f"expected_{number}.bin")
        (data / f"expected_{number}.tolerance").write_text(f"{tolerance:.3e}\n")
    (options.folder / "name").write_text(name)


HERE = {"digits": digits, "training": training}

if __name__ == "__main__":
    main()
