"""Compiled functions and models against eager and float64, as the promise says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import smelt
from smelt.reporting import CompileReport
from tests.support import target


def draw(*shape: int, seed: int = 0) -> Tensor:
    """Normal numbers, others for each rank."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + len(shape)))


def sample(dtype: torch.dtype, *shape: int, seed: int = 0) -> Tensor:
    """Numbers of a dtype: normal ones, small integers, or both truths."""
    generator = torch.Generator().manual_seed(seed)
    if dtype is torch.bool:
        return torch.rand(shape, generator=generator) > 0.5
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
    return torch.randint(0 if dtype is torch.uint8 else -9, 10, shape, generator=generator).to(dtype)


def wide(x: Any) -> Any:
    """Floating tensors in float64, all else as it is."""
    return x.double() if isinstance(x, Tensor) and x.dtype.is_floating_point else x


def assert_close(got: Tensor, eager: Tensor, exact: Tensor, ulps: float = 8) -> None:
    """At most 4 times eager's error and some units in the last place; NaN in the same places."""
    ulp = torch.finfo(got.dtype).eps * float(exact.detach().nan_to_num().abs().max())
    error, ours = (float((x - exact).detach().nan_to_num().abs().max()) for x in (eager, got))
    assert torch.equal(got.isnan(), eager.isnan())
    assert ours <= 4 * error + ulps * ulp


def compiled(
    function: Callable[..., Any], *inputs: Any, dynamic: bool = False, ulps: float = 8, **options: Any
) -> tuple[Callable[..., Any], CompileReport]:
    """Compile and compare with float64 as the promise says; the compiled function and its report."""
    smelt.reset()
    options = {"verify": True, **options}
    fast = torch.compile(function, backend=target.backend(), dynamic=dynamic, fullgraph=True, options=options)
    got, eager = fast(*inputs), function(*inputs)
    assert got.dtype == eager.dtype and got.stride() == eager.stride()
    assert_close(got, eager, function(*(wide(x) for x in inputs)), ulps)
    return fast, smelt.reports()[-1]


def assert_gradients(model: torch.nn.Module, x: Tensor) -> None:
    """The compiled model's gradients are eager's."""
    model(x).square().sum().backward()
    wanted = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    torch._dynamo.reset()
    torch.compile(model, backend="smelt")(x).square().sum().backward()
    for p, grad in zip(model.parameters(), wanted, strict=True):
        torch.testing.assert_close(p.grad, grad, rtol=1e-4, atol=1e-3)
