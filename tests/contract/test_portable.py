"""What only exporting takes apart computes what eager does."""

from __future__ import annotations

import pytest
import torch

from smelt.contract.portable import PORTABLE

aten = torch.ops.aten
X = torch.linspace(-3, 3, 24).reshape(2, 3, 4)


@pytest.mark.parametrize("name", ["var", "var_mean", "std", "std_mean"])
def test_moments(name: str) -> None:
    packet = getattr(aten, name)
    for args in ((True,), (False,)):
        torch.testing.assert_close(PORTABLE[packet.default](X, *args), packet.default(X, *args))
    torch.testing.assert_close(
        PORTABLE[packet.dim](X, [0, 2], False, True), packet.dim(X, [0, 2], False, True)
    )


def test_convolution_with_kernel_choices() -> None:
    args = (X, torch.ones(2, 3, 2), None, [1], [1], [1], False, [0], 1, False, False, True, True)
    torch.testing.assert_close(PORTABLE[aten._convolution.default](*args), aten._convolution.default(*args))


def test_collapse() -> None:
    collapse = torch.ops.prims.collapse.default
    assert torch.equal(PORTABLE[collapse](X, 1, 2), collapse(X, 1, 2))


def test_index_put_impl() -> None:
    args = ([torch.tensor([1, 1])], torch.ones(2, 3, 4), True, False)
    found = PORTABLE[aten._index_put_impl.default](X, *args)
    assert torch.equal(found, aten._index_put_impl.default(X, *args))


def test_gradients_of_pooling_go_where_indices_say() -> None:
    grad, x = torch.rand(4, 7, 6), torch.rand(4, 6, 5)
    indices = torch.randint(16, (4, 7, 6), generator=torch.Generator().manual_seed(0))
    args = (grad, x, [2, 2], [1, 1], [1, 1], [1, 1], False, indices)
    operator = aten.max_pool2d_with_indices_backward.default
    torch.testing.assert_close(PORTABLE[operator](*args), operator(*args))
