"""Tensors without strided memory of their own: run by PyTorch, or written out first; never a crash."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

import smelt

pytestmark = pytest.mark.usefixtures("fresh")


def zeros(*shape: int) -> Tensor:
    return torch._efficientzerotensor(shape)


PROGRAMS: dict[str, Callable[[Tensor], Any]] = {
    "pointwise": lambda x: x * 2 + 1,
    "sum": lambda x: x.sum(),
    "view": lambda x: x.t()[1:] + 1,
    "itself": lambda x: (x, x.clone()),
    "added": lambda x: torch.ones(3, 4).add_(x),
    "product": lambda x: x @ torch.ones(4, 5),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_zeros_without_memory(name: str) -> None:
    compiled, function = torch.compile(PROGRAMS[name], backend="smelt"), PROGRAMS[name]
    for x in (zeros(3, 4), torch.randn(3, 4), zeros(3, 4)):
        torch.testing.assert_close(compiled(x), function(x))
    eager, native = smelt.reports()
    assert "ZeroTensor" in eager.fallbacks[0].reason and not native.fallbacks


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_a_gradient_that_autograd_has_not_written_out(dtype: torch.dtype) -> None:
    x = torch.randn(3, dtype=dtype, requires_grad=True)

    def gradient(function: Callable[[Tensor], Tensor]) -> Tensor:
        return torch.autograd.grad(function(x).sgn().abs().sum(), x)[0]

    compiled = torch.compile(lambda x: x * 3, backend="smelt")
    torch.testing.assert_close(gradient(compiled), gradient(lambda x: x * 3))


@pytest.mark.parametrize("made", ["zeros", "conjugate", "negative"])
def test_gradients_of_other_kinds(made: str) -> None:
    x = torch.randn(3, dtype=torch.complex64 if made == "conjugate" else torch.float32, requires_grad=True)
    base = torch.randn(3, dtype=torch.complex64)
    upstream = {"zeros": zeros(3), "conjugate": base.conj(), "negative": base.conj().imag}[made]
    compiled = torch.compile(lambda x: x * 3, backend="smelt")
    (got,) = torch.autograd.grad(compiled(x), x, upstream)
    (expected,) = torch.autograd.grad(x * 3, x, upstream)
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize(
    "x",
    [
        torch.eye(3).to_sparse(),
        torch.eye(3).to_sparse_csr(),
        torch.eye(3).to_mkldnn(),
        torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        torch.randn(3, dtype=torch.complex64).conj(),
        torch.randn(3, dtype=torch.complex64).conj().imag,
    ],
    ids=["coo", "csr", "mkldnn", "nested", "conjugate", "negative"],
)
def test_other_layouts(x: Tensor) -> None:
    def dense(value: Tensor) -> Any:
        if value.is_nested:
            return list(value.unbind())
        return value if value.layout is torch.strided else value.to_dense()

    function = torch.relu if x.is_mkldnn else lambda x: x * 2
    compiled = torch.compile(function, backend="smelt")
    for _ in range(2):
        torch.testing.assert_close(dense(compiled(x)), dense(function(x)))


def test_what_only_has_metadata() -> None:
    compiled = torch.compile(lambda x: x * 2, backend="smelt")
    assert compiled(torch.ones(3, device="meta")).device.type == "meta"
    fake = FakeTensorMode().from_tensor(torch.ones(3))
    assert isinstance(compiled(fake), type(fake))
    assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 2.0))
