"""One of two processes of `test_processes.py`: runs scenarios, prints a line of JSON about each."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import smelt
from smelt.backend import compile_graph
from smelt.capture import Program
from smelt.config import Config
from smelt.contract import clustered, contracted, graph_key, unsupported
from smelt.pipeline import compile_program

WIDTH, BATCH, STEPS = 16, 6, 3
Made = Callable[[], nn.Module]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.first = nn.Linear(WIDTH, 2 * WIDTH)
        self.second = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(nn.functional.gelu(self.first(self.norm(x))))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def trained(model: nn.Module, dtype: torch.dtype, batches: list[int] | None = None) -> list[Tensor]:
    """Gradients and parameters after three steps, whole."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    generator = torch.Generator().manual_seed(5 + dist.get_rank())
    for size in batches or [BATCH] * STEPS:
        x = torch.randn(size, WIDTH, generator=generator).to(dtype)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    found = [each for parameter in model.parameters() for each in (parameter.grad, parameter.detach())]
    return [each.full_tensor() if hasattr(each, "full_tensor") else each for each in found]


def compared(
    make: Callable[[torch.dtype], nn.Module], compiled: Made, batches: list[int] | None = None
) -> None:
    """Against float64 the error is at most four times eager's and a few ulp."""
    exact = trained(make(torch.float64), torch.float64, batches)
    eager = trained(make(torch.float32), torch.float32, batches)
    for mine, its, right in zip(trained(compiled(), torch.float32, batches), eager, exact, strict=True):
        allowed = 4 * (its - right).abs().max() + 8 * torch.finfo(torch.float32).eps * right.abs().max()
        error = (mine - right).abs().max()
        assert error <= allowed, f"error {error:.3g}, {allowed:.3g} allowed"


# -- scenarios ----------------------------------------------------------------------------------------------


def ddp() -> None:
    def make(dtype: torch.dtype) -> nn.Module:
        return DistributedDataParallel(Model().to(dtype), bucket_cap_mb=0.004)

    compared(make, lambda: torch.compile(make(torch.float32), backend="smelt"))


def fsdp_blocks() -> None:
    def make(dtype: torch.dtype) -> nn.Module:
        model = Model().to(dtype)
        for block in model.blocks:
            fully_shard(block)
        return fully_shard(model)

    def compiled() -> nn.Module:
        model = make(torch.float32)
        for block in model.blocks:  # type: ignore[union-attr]
            block.compile(backend="smelt")
        return model

    compared(make, compiled)


def fsdp_whole() -> None:
    def make(dtype: torch.dtype) -> nn.Module:
        model = Model().to(dtype)
        fully_shard(model.blocks[1])
        return fully_shard(model)

    def compiled() -> nn.Module:
        model = make(torch.float32)
        model.compile(backend="smelt")
        return model

    compared(make, compiled)


def fsdp_of_torch() -> None:
    """Dynamo traces no frame of torch.nn's own, and a hook that it cannot trace leaves nothing else."""

    def make(dtype: torch.dtype) -> nn.Module:
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)).to(dtype)
        return fully_shard(model)

    model = make(torch.float32)
    model.compile(backend="smelt")
    with torch.no_grad():
        model(torch.randn(BATCH, WIDTH))
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("smelt").addHandler(handler)
    assert not smelt.reports()
    assert "SM0125" in said[0] and "forward" in said[0], said

    def compiled() -> nn.Module:
        model = make(torch.float32)
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.forward = torch.compile(module.forward, backend="smelt")
        return model

    compared(make, compiled)


def tensor_parallel_model(dtype: torch.dtype) -> nn.Module:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    plan = {"first": ColwiseParallel(), "second": RowwiseParallel()}
    whole = {f"blocks.{number}.{name}": style for number in range(2) for name, style in plan.items()}
    return parallelize_module(Model().to(dtype), mesh, whole)


def tensor_parallel() -> None:
    options = {"min_cluster": 1}  # so that nothing but the collectives is left to PyTorch
    compared(
        tensor_parallel_model,
        lambda: torch.compile(tensor_parallel_model(torch.float32), backend="smelt", options=options),
    )


def late() -> None:
    """One rank is late by a second, in the middle of its steps."""

    class Late(nn.Module):
        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self.model = model
            self.calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            if dist.get_rank() == 1 and self.calls == 2:
                time.sleep(1)
            return self.model(x)

    def compiled() -> nn.Module:
        options = {"min_cluster": 1}
        return Late(torch.compile(tensor_parallel_model(torch.float32), backend="smelt", options=options))

    compared(tensor_parallel_model, compiled)


def sizes() -> None:
    """Each rank has batches of its own sizes, and makes its sizes dynamic at its own time."""

    def make(dtype: torch.dtype) -> nn.Module:
        return DistributedDataParallel(Model().to(dtype), bucket_cap_mb=0.004)

    batches = [6, 6, 6, 6] if dist.get_rank() == 0 else [4, 7, 4, 9]
    compared(make, lambda: torch.compile(make(torch.float32), backend="smelt"), batches)

    def gathered(x: Tensor) -> Tensor:
        sent = collectives.all_reduce(x.sin().sum(0), "sum", dist.group.WORLD)
        return (x.cos() * 2).sum(0) + sent.exp()

    compiled = torch.compile(gathered, backend="smelt")
    for size in batches:
        x = torch.randn(size, WIDTH)
        torch.testing.assert_close(compiled(x), gathered(x))


def functional() -> None:
    """Equal collectives, one after the other, one that nobody looks at, one that overlaps."""

    def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        group = dist.group.WORLD
        a = x.sin() * 2
        first = collectives.all_reduce(a, "sum", group)
        other = (y.cos() @ y).relu() + 1
        second = collectives.all_reduce(a, "sum", group)
        collectives.all_reduce(other, "max", group)
        gathered = collectives.all_gather_tensor(other[1:], 0, group)
        scattered = collectives.reduce_scatter_tensor(other * 2, "sum", 0, group)
        x.mul_(2)
        return first.exp() + second, gathered * 2, scattered.sin(), other.cos()

    compiled = torch.compile(function, backend="smelt", options={"min_cluster": 1})
    for _ in range(3):
        x, y = torch.randn(8, 8), torch.randn(8, 8)
        mine, its = x.clone(), x.clone()
        torch.testing.assert_close(compiled(mine, y), function(its, y))
        torch.testing.assert_close(mine, its)


def keys() -> None:
    """The ranks of one program have the same clusters."""
    found: list[str] = []

    def spy(program: Program, config: Config, **more: Any) -> Any:
        form = contracted(program)
        parts = clustered(form, unsupported(form), 1)
        found.extend(graph_key(each.program) for each in parts.clusters)
        return compile_program(program, config, **more)

    def backend(graph_module: Any, inputs: Any) -> Any:
        return compile_graph(graph_module, inputs, Config(min_cluster=1), spy)

    trained(torch.compile(tensor_parallel_model(torch.float32), backend=backend), torch.float32)
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, found)
    assert found
    assert everyone[0] == everyone[1]


def killed() -> None:
    """One rank is killed between two steps: the other gets an error."""
    model = torch.compile(tensor_parallel_model(torch.float32), backend="smelt")
    trained(model, torch.float32, [BATCH])
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        trained(model, torch.float32, [BATCH])
    except Exception as error:
        print(json.dumps({"raised": type(error).__name__, "text": str(error)[:200]}), flush=True)
        assert not any(report.kind == "eager" for report in smelt.reports())
        os._exit(0)  # a group with a dead process cannot be destroyed
    raise AssertionError("the dead process was not missed")


# -- running them -------------------------------------------------------------------------------------------


def summary(name: str, error: str | None) -> dict[str, Any]:
    """What happened to a scenario in this process."""
    reports = smelt.reports()
    return {
        "scenario": name,
        "error": error,
        "kinds": [report.kind for report in reports if not report.regions],
        "fallbacks": sorted({each.op for report in reports for each in report.fallbacks}),
    }


def main(rank: int, file: str, scenarios: list[str]) -> None:
    torch.set_num_threads(1)
    dist._DEFAULT_FIRST_BUCKET_BYTES = 1024  # otherwise a MiB, and small models had one bucket
    wait = timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2, timeout=wait)
    for name in scenarios:
        smelt.reset()
        torch.manual_seed(7 + rank)
        error = None
        try:
            globals()[name]()
        except Exception:
            error = traceback.format_exc()
        print(json.dumps(summary(name, error)), flush=True)
        if error is not None:
            os._exit(1)  # the other process may be anywhere
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
