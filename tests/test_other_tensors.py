"""Sparse, nested, meta and quantized tensors in a program, and functions that Dynamo is told to leave alone:
the rest is compiled, numbers and gradients are eager's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import smelt
from tests.test_higher_order import TwiceAsSteep


@torch._dynamo.allow_in_graph
def left_alone(x: Tensor) -> Tensor:
    return torch.where(x > 0, x.sin() * 3, x.cos())


@torch._dynamo.allow_in_graph
def differentiated(x: Tensor) -> Tensor:
    return TwiceAsSteep.apply(x)


def hidden(x: Tensor, w: Tensor) -> Tensor:
    return (x.sin() @ w).tanh() * 2


def coo() -> Tensor:
    return torch.randn(8, 8).relu().to_sparse()


def csr() -> Tensor:
    return torch.randn(8, 8).relu().to_sparse_csr()


def meta() -> Tensor:
    return torch.empty(3, 4, device="meta")


def jagged() -> Tensor:
    return torch.nested.nested_tensor([torch.randn(3, 8), torch.randn(5, 8)], layout=torch.jagged)


def nested() -> Tensor:
    return torch.nested.nested_tensor([torch.randn(3, 8), torch.randn(5, 8)])


def quantized() -> Tensor:
    return torch.quantize_per_tensor(torch.randn(8, 8), 0.1, 0, torch.qint8)


def dense(x: Tensor) -> Tensor:
    return x.values() if x.is_nested and x.layout is torch.jagged else x.to_dense() if x.is_sparse else x


PROGRAMS: dict[str, tuple[Callable[..., Any], Callable[[], Tensor] | None]] = {
    "sparse product": (lambda x, w, s: torch.sparse.mm(s, hidden(x, w)).tanh().exp(), coo),
    "compressed product": (lambda x, w, s: (s @ hidden(x, w)).tanh().exp(), csr),
    "made sparse": (lambda x, w, _: hidden(x, w).to_sparse().to_dense().cos().exp(), coo),
    "sparse results": (lambda x, w, s: (hidden(x, w).cos(), (s * 2).to_dense()), coo),
    "meta in a corner": (lambda x, w, m: (hidden(x, w).cos(), (m * 2 + 1).sum(0)), meta),
    "made on meta": (lambda x, w, _: (hidden(x, w).cos(), torch.empty(5, device="meta") + 1), meta),
    "jagged in a corner": (lambda x, w, n: (hidden(x, w).cos(), ((n * 2).sin() + 1).values()), jagged),
    "nested in a corner": (lambda x, w, n: (hidden(x, w).cos(), *(n * 2).sin().unbind()), nested),
    "quantized in a corner": (lambda x, w, q: (hidden(x, w).cos(), q.dequantize() * 2), quantized),
    "a function left alone": (lambda x, w, _: left_alone(hidden(x, w)).exp() + 1, meta),
    "one with a derivative": (lambda x, w, _: differentiated(hidden(x, w)).exp() + 1, meta),
}


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_rest_is_compiled(name: str, training: bool) -> None:
    function, make = PROGRAMS[name]
    torch.manual_seed(5)
    x, w = torch.randn(8, 8), torch.randn(8, 8) / 3
    other = make() if make is not None else None
    compiled = torch.compile(function, backend="smelt")
    smelt.reset()

    def run(call: Callable[..., Any]) -> list[Tensor]:
        inputs = [each.clone().requires_grad_(training) for each in (x, w)]
        results = call(*inputs, other)
        results = list(results) if isinstance(results, tuple) else [results]
        if training:
            dense(results[0]).sum().backward()
            results += [each.grad for each in inputs]
        return results

    eager, mine = run(function), run(compiled)
    for left, right in zip(mine, eager, strict=True):
        if right.device.type == "meta":
            assert (left.shape, left.device) == (right.shape, right.device)
        else:
            torch.testing.assert_close(dense(left), dense(right), rtol=1e-5, atol=1e-5)
    kinds = {report.kind for report in smelt.reports()}
    assert {"forward", "backward"} <= kinds if training else "inference" in kinds
    assert "eager" not in kinds
    for report in smelt.reports():
        for fallback in report.fallbacks:
            assert "meta" in fallback.reason or "min_cluster" in fallback.reason, fallback
