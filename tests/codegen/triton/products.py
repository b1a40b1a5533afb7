"""Matrix products and convolutions as kernels: ``python -m tests.codegen.triton.products interpret``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import flex_attention

from smelt.schedule.tilings import Tiles
from tests.codegen.triton import programs


def _rows(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


def _training(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.autograd.grad(torch.tanh(x @ w).pow(2).sum(), (x, w))


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ k.transpose(-1, -2) / 4, -1) @ v


def _sdpa(**how: Any) -> Callable[..., torch.Tensor]:
    return lambda q, k, v, *mask: F.scaled_dot_product_attention(q, k, v, *mask, **how)


def _heads(queries: int, keys: int, width: int = 16) -> list[torch.Tensor]:
    return [_rows(2, 3, queries, width), _rows(2, 3, keys, width), _rows(2, 3, keys, width)]


def _flex(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
    def relative(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return torch.where(i >= j, score + 0.1 * (j - i), -float("inf"))

    return flex_attention(q, k, v, score_mod=relative)


PRODUCTS: dict[str, tuple[Callable[..., Any], Callable[[], list[Any]]]] = {
    "epilogue": (lambda a, b, c: F.gelu(a @ b + c), lambda: [_rows(70, 50), _rows(50, 90), _rows(90)]),
    "prologue": (lambda a, b: a.relu() @ b.exp(), lambda: [_rows(33, 40), _rows(40, 20)]),
    "linear": (F.linear, lambda: [_rows(5, 33), _rows(17, 33), _rows(17)]),
    "batches": (lambda a, b: a @ b, lambda: [_rows(3, 20, 35), _rows(3, 35, 18)]),
    "many_tiles": (lambda a, b: a @ b, lambda: [_rows(1024, 16), _rows(16, 65)]),
    "small": (lambda a, b: a @ b, lambda: [_rows(3, 5), _rows(5, 2)]),
    "bfloat16": (lambda a, b: (a @ b).relu(), lambda: [_rows(40, 70).bfloat16(), _rows(70, 30).bfloat16()]),
    "float16": (lambda a, b: a @ b + 1, lambda: [_rows(40, 70).half(), _rows(70, 30).half()]),
    "float64": (lambda a, b: a @ b, lambda: [_rows(20, 40).double(), _rows(40, 30).double()]),
    "convolution": (
        lambda x, w, b: F.conv2d(x, w, b, stride=2, padding=1).relu(),
        lambda: [_rows(2, 3, 11, 9), _rows(8, 3, 3, 3), _rows(8)],
    ),
    "groups": (
        lambda x, w: F.conv2d(x, w, padding=1, groups=2),
        lambda: [_rows(2, 8, 7, 7), _rows(6, 4, 3, 3)],
    ),
    "transposed_convolution": (
        lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1),
        lambda: [_rows(2, 4, 5, 6), _rows(4, 3, 3, 3)],
    ),
    "attention": (_attention, lambda: [_rows(2, 20, 16), _rows(2, 24, 16), _rows(2, 24, 16)]),
    "flash": (_sdpa(), lambda: _heads(70, 75)),
    "flash_causal": (_sdpa(is_causal=True), lambda: _heads(70, 70)),
    "flash_masked": (_sdpa(), lambda: [*_heads(20, 40, 24), torch.rand(20, 40) > 0.9]),
    "flash_wide": (_sdpa(), lambda: _heads(80, 64, 64)),
    "flex": (_flex, lambda: _heads(40, 40, 32)),
    "in_parts": (lambda a, b, c: (a @ b + c).relu(), lambda: [_rows(40, 2048), _rows(2048, 30), _rows(30)]),
    "convolution_in_parts": (
        lambda x, w: F.conv2d(x, w, padding=1),
        lambda: [_rows(2, 64, 6, 6), _rows(8, 64, 3, 3)],
    ),
    "by_descriptors": (lambda a, b: (a.relu() @ b.T).tanh(), lambda: [_rows(200, 36) / 9, _rows(88, 36)]),
    "narrow_by_descriptors": (
        lambda a, b: a @ b,
        lambda: [_rows(300, 104).bfloat16(), _rows(104, 200).bfloat16()],
    ),
    "training": (
        _training,
        lambda: [_rows(20, 30).requires_grad_(), _rows(30, 17).requires_grad_()],
    ),
}

TILES = {
    "by_descriptors": Tiles(16, 16, 16, descriptors=True),
    "narrow_by_descriptors": Tiles(32, 16, 32, warps=4, stages=4, descriptors=True),
}
"""Programs whose products have these tiles, in place of the rule's."""

if __name__ == "__main__":
    import sys

    programs.main(sys.argv[1], PRODUCTS, lambda name: TILES.get(name, True))
