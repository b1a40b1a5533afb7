"""A transformer with an operator per layer that smelt does not compile: clusters, and PyTorch between them.

``python benchmarks/partial.py [--layers N] [--width W] [--length L] [--seconds S]`` prints the number of
clusters, and the time of a call (median, warm) in eager, by smelt, by Inductor, and of the model without the
operator by smelt, as ratios to eager's.

The operator is a sum over all processes, as each layer of a tensor-parallel model has it; there is one
process, so that it costs a call of the communication library.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import Tensor, nn

import smelt


def summed(x: Tensor) -> Tensor:
    """The sum over all processes."""
    return funcol.all_reduce(x, "sum", "0")


class Layer(nn.Module):
    """Attention, of whose result something becomes, and an MLP."""

    def __init__(self, width: int, heads: int, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.heads, self.between = heads, between
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        shape = (batch, length, 3, self.heads, width // self.heads)
        q, k, v = self.qkv(self.first(x)).view(shape).permute(2, 0, 3, 1, 4).unbind(0)
        attended = nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.between(self.out(attended.transpose(1, 2).reshape(batch, length, width)))
        return x + self.mlp(self.second(x))


def model(layers: int, width: int, between: Callable[[Tensor], Tensor]) -> nn.Module:
    """``layers`` layers of this width, four heads each, with the same weights at every call."""
    torch.manual_seed(0)
    return nn.Sequential(*(Layer(width, 4, between) for _ in range(layers))).eval()


def median(call: Callable[[], object], seconds: float) -> float:
    """The median time of a call, in seconds."""
    for _ in range(5):
        call()
    times, begin = [], time.perf_counter()
    while time.perf_counter() - begin < seconds or len(times) < 10:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=3.0)
    options = parser.parse_args()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    partial = model(options.layers, options.width, summed)
    whole = model(options.layers, options.width, nn.Identity())
    x = torch.randn(1, options.length, options.width)
    contenders: dict[str, Callable[[Tensor], Tensor]] = {
        "eager": partial,
        "smelt": torch.compile(partial, backend="smelt"),
        "inductor": torch.compile(partial),
        "smelt, without the operator": torch.compile(whole, backend="smelt"),
    }
    with torch.no_grad():
        expected = partial(x)
        torch.testing.assert_close(contenders["smelt"](x), expected, rtol=1e-4, atol=1e-4)
        (report,) = (report for report in smelt.reports() if report.regions)
        clusters = sum(region.is_native for region in report.regions)
        compiled = sum(each.is_cluster and not each.cache_hit for each in smelt.reports())
        print(f"{clusters} clusters, {compiled} of them compiled, the others their equals")
        base = 0.0
        for name, call in contenders.items():
            taken = median(lambda call=call: call(x), options.seconds)  # type: ignore[misc]
            base = base or taken
            print(f"{name:28} {taken * 1e3:8.3f} ms  {base / taken:5.2f}x")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
