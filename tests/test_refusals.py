"""What eager refuses is refused with eager's words; odd cases that eager takes are taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad, vmap

import smelt

pytestmark = pytest.mark.usefixtures("fresh")

REFUSED: dict[str, tuple[Callable[..., Any], Tensor]] = {
    "integers to a negative power": (lambda x: x**-1, torch.tensor([1, 2])),
    "no integers to a negative power": (lambda x: x**-1, torch.ones(0, dtype=torch.int64)),
    "the largest of nothing": (lambda x: x.max(), torch.ones(0)),
    "the smallest of nothing": (lambda x: x.min(), torch.ones(0)),
    "integers rounded to digits": (lambda x: torch.round(x, decimals=0), torch.arange(3)),
}

TAKEN: dict[str, tuple[Callable[..., Any], Tensor]] = {
    "average1d": (lambda x: F.adaptive_avg_pool1d(x, 0), torch.randn(2, 3, 4)),
    "average2d": (lambda x: F.adaptive_avg_pool2d(x, 0), torch.randn(2, 3, 4, 5)),
    "average2d one": (lambda x: F.adaptive_avg_pool2d(x, (0, 2)), torch.randn(2, 3, 4, 5)),
    "average3d": (lambda x: F.adaptive_avg_pool3d(x, (2, 0, 1)), torch.randn(2, 3, 4, 4, 4)),
    "max1d": (lambda x: F.adaptive_max_pool1d(x, 0), torch.randn(2, 3, 4)),
    "max2d": (lambda x: F.adaptive_max_pool2d(x, (2, 0), return_indices=True), torch.randn(2, 3, 4, 5)),
    "max3d": (lambda x: F.adaptive_max_pool3d(x, 0), torch.randn(2, 3, 4, 4, 4)),
    "digits": (lambda x: (torch.round(x, decimals=2), torch.round(100 * x, decimals=-2)), torch.randn(9)),
    "digits of a size": (lambda x: x + round(x.shape[0] * 1.23456, 2), torch.randn(9)),
    "number": (lambda x: vmap(lambda v: v + 1)(x), torch.randn(3)),
    "numbers": (lambda x: vmap(lambda v: torch.clamp(v, min=0.5) * 2 - v / 3 + 0.25)(x), torch.randn(3)),
    "integer and a float": (lambda x: vmap(lambda v: v * 2.5 - True)(x), torch.arange(3)),
    "gradient": (lambda x: vmap(grad(lambda v: (v**2).sum() / 2))(x), torch.randn(3)),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", REFUSED)
def test_eager_s_error(name: str, dynamic: bool) -> None:
    function, x = REFUSED[name]
    with pytest.raises((RuntimeError, IndexError)) as expected:
        function(x)
    compiled = torch.compile(function, backend="smelt", dynamic=dynamic)
    for _ in range(2):
        with pytest.raises(type(expected.value)) as got:
            compiled(x)
        assert str(got.value) == str(expected.value)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", TAKEN)
def test_eager_s_result(name: str, dynamic: bool) -> None:
    function, x = TAKEN[name]
    compiled = torch.compile(function, backend="smelt", dynamic=dynamic, fullgraph=True)
    torch.testing.assert_close(compiled(x), function(x))
    fallbacks = [str(each) for report in smelt.reports() for each in report.fallbacks]
    assert name == "digits of a size" or not fallbacks


REFINED: dict[str, Callable[[Tensor], Any]] = {
    "checked": lambda x: _four(x.nonzero()) + 3,
    "an operand's size": lambda x: x.nonzero()[:, 0] + torch.ones(4),
    "a mask": lambda x: _four(x[x > 0]) * 2,
    "of an operator that ATen runs": lambda x: _four((x * 1j).nonzero()) + 1,
    "a number": lambda x: _at_least_four(int(x.sum().item())) * torch.ones(4),
    "a rest": lambda x: torch.zeros(_divisible(int(x.sum().item()))).view(-1, 4) + 1,
}


def _four(x: Tensor) -> Tensor:
    torch._check(x.size(0) == 4)
    return x


def _at_least_four(number: int) -> int:
    torch._check(number >= 4)
    torch._check(number < 5)
    return number


def _divisible(number: int) -> int:
    torch._check(number % 4 == 0)
    return number


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", REFINED)
@torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True)
def test_what_is_known_of_sizes_that_depend_on_data_is_checked(name: str, dynamic: bool | None) -> None:
    compiled = torch.compile(REFINED[name], backend="smelt", dynamic=dynamic)
    good = torch.tensor([0, 1, 1, 0, 1, 1])
    torch.testing.assert_close(compiled(good), REFINED[name](good))
    for bad in ([0, 1, 1, 0, 0, 1], [1, 1, 1, 0, 1, 1], [1, 1, 1, 1, 1, 1]):
        with pytest.raises(RuntimeError):
            REFINED[name](torch.tensor(bad))
        with pytest.raises(RuntimeError) as got:
            compiled(torch.tensor(bad))
        assert not isinstance(got.value, smelt.errors.SmeltError)
