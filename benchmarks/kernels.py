"""The products and convolutions of the roofline table: the arithmetic and the bytes each needs at least."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from zoo import Program

FLOAT = 4


@dataclass(frozen=True, slots=True)
class Kernel:
    """``flops``: a multiplication and an addition are two. ``moved``: bytes of inputs, weights and output."""

    name: str
    flops: int
    moved: int
    program: Callable[[], Program]


class Product(nn.Module):
    """``a @ b``, both given."""

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a @ b


def product(name: str, m: int, n: int, k: int) -> Kernel:
    """Two given matrices: (m, k) by (k, n).

    >>> product("x", 2, 3, 4).flops, product("x", 2, 3, 4).moved
    (48, 104)
    """

    def program() -> Program:
        torch.manual_seed(0)
        return Product(), (torch.randn(m, k), torch.randn(k, n)), {}

    return Kernel(name, 2 * m * n * k, FLOAT * (m * k + k * n + m * n), program)


def linear(name: str, rows: int, inner: int, outer: int) -> Kernel:
    """A layer with weights and bias: (rows, inner) to (rows, outer).

    >>> linear("x", 2, 4, 3).moved == 4 * (2 * 4 + 4 * 3 + 3 + 2 * 3)
    True
    """

    def program() -> Program:
        torch.manual_seed(0)
        return nn.Linear(inner, outer).eval(), (torch.randn(rows, inner),), {}

    moved = FLOAT * (rows * inner + inner * outer + outer + rows * outer)
    return Kernel(name, 2 * rows * inner * outer, moved, program)


def convolution(
    name: str, size: int, channels: int, filters: int, window: int, stride: int = 1, groups: int = 1
) -> Kernel:
    """One square image, padded so that only the stride makes it smaller; no bias. Its channels lie side by
    side, as they do between the layers of a compiled model.

    >>> convolution("x", 4, 2, 3, 3, stride=2).flops == 2 * (2 * 2) * 3 * 2 * 9
    True
    """

    def program() -> Program:
        torch.manual_seed(0)
        layer = nn.Conv2d(channels, filters, window, stride, window // 2, groups=groups, bias=False)
        image = torch.randn(1, channels, size, size).to(memory_format=torch.channels_last)
        return layer.eval().to(memory_format=torch.channels_last), (image,), {}

    out = (size + 2 * (window // 2) - window) // stride + 1
    weights = filters * (channels // groups) * window * window
    moved = FLOAT * (channels * size * size + weights + filters * out * out)
    return Kernel(name, 2 * out * out * weights, moved, program)


_KERNELS = (
    product("matmul_512", 512, 512, 512),
    product("matmul_1024", 1024, 1024, 1024),
    product("matmul_2048", 2048, 2048, 2048),
    linear("bert_projection", 128, 768, 768),
    linear("bert_up", 128, 768, 3072),
    linear("bert_down", 128, 3072, 768),
    convolution("resnet_stem_7x7", 224, 3, 64, 7, stride=2),
    convolution("resnet_3x3_56", 56, 64, 64, 3),
    convolution("resnet_3x3_14", 14, 256, 256, 3),
    convolution("resnet_1x1_56", 56, 64, 256, 1),
    convolution("resnet_1x1_14", 14, 1024, 256, 1),
    convolution("mobilenet_depthwise_56", 56, 144, 144, 3, groups=144),
)
KERNELS = {kernel.name: kernel for kernel in _KERNELS}
