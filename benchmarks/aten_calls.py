"""The ATen calls of programs, by operator: by default, and with the option ``own`` (docs/package.md).

    python benchmarks/aten_calls.py models [NAMES…]
    python benchmarks/aten_calls.py operators [--samples 3] [--dtypes float32] [--only REGEX]

Nothing is compiled: programs are exported, lowered and scheduled. ``models``: those of the zoo, some layers,
and training steps; ``operators``: samples of PyTorch's database. Reads of a number by the host are no calls.
"""

from __future__ import annotations

import argparse
import itertools
import re
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

import zoo
from smelt.capture import Program, capture_export
from smelt.capture.step import Step
from smelt.config import Config, from_options
from smelt.contract import contracted, export_decompositions, unsupported
from smelt.errors import SmeltError
from smelt.loops.ir import Extern
from smelt.pipeline.passes import lowered
from smelt.schedule import Target, schedule

READS = ("aten._local_scalar_dense.default",)
MODES = (("default", {}), ("own", {"own": True}))


def aten_calls(program: Program, config: Config) -> Counter[str]:
    """Operators that ATen runs in a program, each with its reason: how often."""
    contracts = contracted(program, lambda node: False, None)
    found: Counter[str] = Counter()
    for node, reasons in unsupported(contracts).items():
        found[f"{node.target}: {reasons[0]}"] += 1
    if found:
        return found
    target = Target(64, multiply_adds=2)
    scheduled = schedule(lowered(contracts, config, target), config, target)
    for graph in scheduled.graph.with_bodies():
        for node in graph.nodes:
            body = node.body
            if isinstance(body, Extern) and body.target not in READS and node.origin.op != "seed":
                found[f"{body.target}: {body.reason}" if body.reason else body.target] += 1
    return found


# -- models --------------------------------------------------------------------------------------------------

Made = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]


class Lstm(nn.Module):
    """Two bidirectional layers over an embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, 32)
        self.lstm = nn.LSTM(32, 48, 2, batch_first=True, bidirectional=True)
        self.out = nn.Linear(96, 5)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.out(self.lstm(self.embedding(tokens))[0][:, -1])


class Bag(nn.Module):
    """An embedding bag and a layer, with the likeliest three results."""

    def __init__(self) -> None:
        super().__init__()
        self.bag, self.out = nn.EmbeddingBag(100, 32), nn.Linear(32, 10)

    def forward(self, tokens: torch.Tensor, offsets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return tuple(self.out(self.bag(tokens, offsets)).topk(3))


class Unet(nn.Module):
    """Strided, dilated, grouped and transposed convolutions in one, two and three dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.wide = nn.Conv2d(8, 8, 3, padding=2, dilation=2, groups=4)
        self.up = nn.ConvTranspose2d(8, 4, 4, stride=2, padding=1)
        self.line = nn.Conv1d(4, 6, 5, padding=2)
        self.body = nn.Conv3d(1, 2, 3, padding=1)
        self.back = nn.ConvTranspose1d(6, 3, 3, stride=2, groups=3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = self.up(torch.relu(self.wide(torch.relu(self.down(x)))))
        line = self.back(self.line(found.mean(2)))
        return nn.functional.interpolate(line, scale_factor=2.0), self.body(found[:, None])


def _layers() -> dict[str, Callable[[], Made]]:
    attention = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    decoder = nn.TransformerDecoderLayer(32, 4, 64, batch_first=True)
    tokens = torch.randint(0, 100, (3, 12))
    return {
        "lstm": lambda: (Lstm().eval(), (tokens,), {}),
        "gru": lambda: (nn.GRU(8, 16, batch_first=True).eval(), (torch.randn(2, 9, 8),), {}),
        "bag": lambda: (Bag().eval(), (tokens.flatten(), torch.tensor([0, 3, 10])), {}),
        "unet": lambda: (Unet().eval(), (torch.randn(2, 3, 33, 47),), {}),
        "encoder": lambda: (attention.train(), (torch.randn(2, 9, 32),), {}),
        "decoder_f64": lambda: (
            decoder.eval().double(),
            (torch.randn(2, 5, 32).double(), torch.randn(2, 7, 32).double()),
            {},
        ),
        "encoder_bf16": lambda: (attention.eval().bfloat16(), (torch.randn(2, 40, 32).bfloat16(),), {}),
    }


def step_of(
    model: nn.Module, loss: Callable[[Any], torch.Tensor], make: Callable[[Any], torch.optim.Optimizer]
) -> Callable[..., torch.Tensor]:
    """A training step of a model, after one that makes the optimizer's state."""
    optimizer = make(model.parameters())

    def step(*args: Any) -> torch.Tensor:
        optimizer.zero_grad()
        found = loss(model(*args))
        found.backward()
        optimizer.step()
        return found

    return step


def _steps() -> dict[str, Callable[[], Made]]:
    small = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.1),
        nn.Flatten(),
        nn.Linear(8 * 16, 10),
    )
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)

    def adam(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters)

    def momentum(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)

    def made(model: nn.Module, optimizer: Any, *args: torch.Tensor) -> Made:
        step = step_of(model, lambda found: found[0].square().mean(), optimizer)
        step(*args)
        return Step(step), args, {}

    return {
        "cnn_step": lambda: made(small, momentum, torch.randn(4, 3, 8, 8)),
        "encoder_step": lambda: made(layer, adam, torch.randn(2, 9, 32)),
        "lstm_step": lambda: made(nn.LSTM(8, 16, bidirectional=True), adam, torch.randn(7, 2, 8)),
    }


def _models() -> dict[str, Callable[[], Made]]:
    named = {name: getattr(zoo, name) for name in (*zoo.MODELS, *zoo.MICRO)}
    return {**named, **_layers(), **_steps()}


def program_of(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Program:
    exported = torch.export.export(model, args, kwargs, strict=False)
    return capture_export(exported, export_decompositions(), type(model).__name__)


def models(names: Sequence[str]) -> None:
    """Print a line for each model, and the calls that remain."""
    every = _models()
    for name in names or every:
        torch.manual_seed(0)
        try:
            program = program_of(*every[name]())
            found = {
                mode: aten_calls(program, from_options({"freezing": True, **given})) for mode, given in MODES
            }
        except SmeltError as error:
            print(f"{name}: {error}")
            continue
        print(f"{name}: {', '.join(f'{mode} {sum(calls.values())}' for mode, calls in found.items())}")
        for mode, calls in found.items():
            for call, count in calls.most_common(4 if mode == "default" else None):
                print(f"    {mode}: {count} {call}")


# -- operators -----------------------------------------------------------------------------------------------


def operators(only: str, samples: int, dtypes: Sequence[str]) -> None:
    """Print the operators of which samples keep ATen's calls, and the sums."""
    from torch.testing._internal.common_methods_invocations import op_db

    total: dict[str, Counter[str]] = {mode: Counter() for mode, _ in MODES}
    free, tried, failed = Counter[str](), 0, 0
    rest: dict[str, set[str]] = {}
    for op, dtype in itertools.product(op_db, dtypes):
        if not re.search(only, op.formatted_name) or getattr(torch, dtype) not in op.supported_dtypes("cpu"):
            continue
        for program in _samples(op, getattr(torch, dtype), samples):
            tried += 1
            for mode, given in MODES:
                try:
                    calls = aten_calls(program, from_options(given))
                except Exception as error:
                    failed += 1
                    print(f"{op.formatted_name} {dtype} {mode}: {type(error).__name__}: {str(error)[:200]}")
                    continue
                free[mode] += not calls
                for call in calls:
                    total[mode][call] += 1
                    if mode == "own":
                        rest.setdefault(call, set()).add(f"{op.formatted_name} {dtype}")
    for call, count in total["own"].most_common():
        print(f"{count} {call[:150]}   [{', '.join(sorted(rest[call]))[:200]}]")
    print(
        f"{tried} samples, {failed} failed; without ATen: " + ", ".join(f"{m} {n}" for m, n in free.items())
    )


class _Call(nn.Module):
    """An operator with arguments of which the tensors are given."""

    def __init__(self, op: Any, leaves: Sequence[Any], nesting: Any) -> None:
        super().__init__()
        self.op, self.leaves, self.nesting = op, leaves, nesting

    def forward(self, *tensors: torch.Tensor) -> Any:
        rest = iter(tensors)
        full = [next(rest) if isinstance(each, torch.Tensor) else each for each in self.leaves]
        given, args, kwargs = pytree.tree_unflatten(full, self.nesting)
        results = pytree.tree_leaves(self.op.get_op()(given, *args, **kwargs))
        return [each for each in results if isinstance(each, torch.Tensor)]


def _samples(op: Any, dtype: torch.dtype, count: int) -> list[Program]:
    """Programs of an operator's samples; those that cannot be exported (sizes that depend on data) are left
    out.
    """
    torch.manual_seed(0)
    found: list[Program] = []
    try:
        for sample in itertools.islice(op.sample_inputs("cpu", dtype), 2 * count):
            leaves, nesting = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
            tensors = tuple(each for each in leaves if isinstance(each, torch.Tensor))
            with suppress(Exception):
                found.append(program_of(_Call(op, leaves, nesting), tensors, {}))
            if len(found) == count:
                break
    except Exception:
        return found
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the calls of models or operators."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("models", "operators"))
    parser.add_argument("names", nargs="*")
    parser.add_argument("--samples", type=int, default=3)
    parser.add_argument("--dtypes", default="float32")
    parser.add_argument("--only", default="")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    if options.what == "models":
        models(options.names)
    else:
        operators(options.only, options.samples, options.dtypes.split(","))
    return 0


if __name__ == "__main__":
    sys.exit(main())
