"""What is scheduled for vectors of 16 bytes, compiled for ARM and run in an emulator, is what eager says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from smelt.config import Config
from smelt.packages.targets import LEVELS
from smelt.schedule import schedule
from tests.codegen.isas import compiled
from tests.lowering.harness import lowered
from tests.schedule.simulate import simulate
from tests.support.agreement import assert_close, draw

F = torch.nn.functional
Case = tuple[Callable[..., torch.Tensor], list[tuple[int, ...]]]
CASES: dict[str, Case] = {
    "product": (lambda x, w, b: F.gelu(F.linear(x, w, b)), [(67, 96), (70, 96), (70,)]),
    "deep product": (lambda x, y: x @ y, [(64, 700), (700, 64)]),
    "norm": (lambda x, w, b: F.layer_norm(x.softmax(-1), (33,), w, b), [(19, 33), (33,), (33,)]),
    "statistics": (lambda x: torch.cat([x.var(0), x.std(1), x.logsumexp(0)]), [(40, 70)]),
    "scan": (lambda x: x.cumsum(1).flip(1), [(9, 50)]),
    "convolution": (lambda x, w: F.conv2d(x, w, padding=1).relu(), [(1, 32, 9, 11), (40, 32, 3, 3)]),
    "depthwise": (lambda x, w: F.conv2d(x, w, padding=1, groups=32).mean(1), [(2, 32, 9, 8), (32, 1, 3, 3)]),
    "pooling": (lambda x: F.max_pool2d(x, 3, 2, 1) + F.avg_pool2d(x, 3, 2, 1), [(1, 5, 14, 17)]),
    "attention": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        [(1, 2, 70, 64), (1, 2, 70, 64), (1, 2, 70, 64)],
    ),
    "turned": (lambda x: (x * 2).permute(2, 0, 1).contiguous(), [(3, 37, 50)]),
    "few columns": (
        lambda x: F.pad(x, (1, 1)).contiguous(memory_format=torch.channels_last),
        [(1, 3, 9, 38)],
    ),
    "halves": (lambda x, y: (x.bfloat16() + y.half()).float(), [(7, 33), (7, 33)]),
}


@pytest.mark.parametrize("name", CASES)
def test_it_computes_what_eager_does(name: str, tmp_path: Path) -> None:
    function, shapes = CASES[name]
    inputs = [draw(*shape, seed=number) for number, shape in enumerate(shapes)]
    graph = lowered(function, *inputs)
    scheduled = schedule(graph, Config(), LEVELS["aarch64"].target)
    library = compiled(tmp_path, scheduled.runs, "neon")
    (got,) = simulate(graph, scheduled, inputs, library=library)
    eager = function(*inputs)
    if name == "halves":
        assert torch.equal(got, eager)
    else:
        assert_close(got, eager, function(*(x.double() for x in inputs)))
