"""A small call of every overload that PyTorch tags as core ATen: its arguments, by the operator's name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

GENERATOR = torch.Generator().manual_seed(0)


def normal(*sizes: int) -> torch.Tensor:
    return torch.randn(sizes, generator=GENERATOR)


def between(low: float, high: float, *sizes: int) -> torch.Tensor:
    return torch.rand(sizes, generator=GENERATOR) * (high - low) + low


def integers(low: int, high: int, *sizes: int) -> torch.Tensor:
    return torch.randint(low, high, sizes, generator=GENERATOR)


X, Y, Z = normal(4, 6), normal(4, 6), normal(6)
SMALL, POSITIVE, ABOVE = between(-0.9, 0.9, 4, 6), between(0.1, 3, 4, 6), between(1.1, 4, 4, 6)
N, M = integers(-9, 9, 4, 6), integers(1, 5, 4, 6)
TRUTHS, OTHERS = X > 0, Y > 0.5
ROWS, COLUMNS = torch.tensor([2, 0, 3, 2]), integers(0, 6, 4, 3)
IMAGE, VOLUME = normal(2, 4, 6, 5), normal(2, 2, 5, 4, 6)
KERNEL, CHANNELS, SPREAD = normal(3, 4, 3, 3), normal(4), between(0.5, 2, 4)
CONVOLVED = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
POOLED, PLACES = torch.ops.aten.max_pool2d_with_indices.default(IMAGE, [2, 2])
LAYER = torch.ops.aten.native_layer_norm.default(X, [6], Z, Z, 1e-5)
GROUP = torch.ops.aten.native_group_norm.default(IMAGE, CHANNELS, CHANNELS, 2, 4, 30, 2, 1e-5)

Call = tuple[tuple[Any, ...], dict[str, Any]]


def call(*args: Any, **kwargs: Any) -> Call:
    return args, kwargs


DOMAINS: dict[str, tuple[str, torch.Tensor]] = {
    "anywhere": (
        "abs atan asinh ceil cos cosh erf exp expm1 floor isinf isnan neg reciprocal relu round sigmoid sign "
        "sin sinh tan tanh trunc elu gelu hardtanh leaky_relu clone alias any logical_not",
        X,
    ),
    "from -1 to 1": ("acos asin atanh", SMALL),
    "above 0": ("log log10 log1p log2 rsqrt sqrt", POSITIVE),
    "above 1": ("acosh", ABOVE),
    "of integers": ("bitwise_not", N),
}
"""Operators of one tensor, by where they are defined."""

PAIRS: dict[str, tuple[str, torch.Tensor, Any, Any]] = {
    "numbers": ("add sub mul div eq ge gt le lt ne fmod remainder", X, POSITIVE, 1.5),
    "integers": ("bitwise_and bitwise_or bitwise_xor", N, M, 5),
}
"""Operators with a tensor and with a number on the right."""

CALLS: dict[str, list[Call]] = {
    "_adaptive_avg_pool2d": [call(IMAGE, [3, 2]), call(IMAGE, [4, 7])],
    "_adaptive_avg_pool2d_backward": [call(normal(2, 4, 4, 2), IMAGE)],
    "_adaptive_avg_pool3d": [call(VOLUME, [2, 3, 6])],
    "_cdist_forward": [call(X, Y, p, 0) for p in (0.0, 1.0, 2.0, 3.0, float("inf"))],
    "_embedding_bag": [
        call(X, torch.tensor([0, 3, 1, 1, 2]), torch.tensor([0, 2, 2]), False, mode) for mode in (0, 1, 2)
    ],
    "_fft_c2r": [call(torch.complex(normal(4, 4), normal(4, 4)), [1], 0, 6)],
    "_fft_r2c": [call(X, [1], 0, True)],
    "_local_scalar_dense": [call(torch.tensor(2.5))],
    "_log_softmax": [call(X, 1, False), call(X, 0, False)],
    "_softmax": [call(X, 1, False), call(X, 0, False)],
    "_native_batch_norm_legit": [call(IMAGE, CHANNELS, CHANNELS, CHANNELS, SPREAD, True, 0.1, 1e-5)],
    "_native_batch_norm_legit.no_stats": [call(IMAGE, CHANNELS, CHANNELS, True, 0.1, 1e-5)],
    "_native_batch_norm_legit_no_training": [call(IMAGE, CHANNELS, CHANNELS, CHANNELS, SPREAD, 0.1, 1e-5)],
    "_pdist_forward": [call(X, p) for p in (0.0, 1.0, 2.0, 3.0, float("inf"))],
    "_to_copy": [call(X, dtype=torch.bfloat16), call(N, dtype=torch.float64), call(X, dtype=torch.bool)],
    "adaptive_avg_pool1d": [call(VOLUME[0, 0], [3]), call(VOLUME[:, :, 0, 0], [4])],
    "addmm": [call(normal(4), X, normal(6, 4), beta=0.5, alpha=2)],
    "amax": [call(X, [1]), call(X, [0, 1], True)],
    "amin": [call(X, [1]), call(X, [0, 1], True)],
    "any.dim": [call(X, 1)],
    "any.dims": [call(X, [0, 1], True)],
    "arange.start_step": [call(2, 20, 3), call(0.5, 3.0, 0.25)],
    "argmax": [call(X, 1), call(X)],
    "argmin": [call(X, 1), call(X)],
    "as_strided": [call(X, [3, 4], [2, 3], 5)],
    "atan2": [call(X, Y)],
    "atan2.out": [call(X, Y, out=torch.empty(4, 6))],
    "avg_pool1d": [call(VOLUME[0, 0], [2], [1], [1], True, False)],
    "avg_pool2d": [call(IMAGE, [3, 2], [2, 1], [1, 1], True, False), call(IMAGE, [2, 2])],
    "avg_pool2d_backward": [call(normal(2, 4, 3, 2), IMAGE, [2, 2], [2, 2], [0, 0], False, True, None)],
    "avg_pool3d": [call(VOLUME, [2, 2, 3], [1, 2, 1], [1, 0, 1])],
    "bmm": [call(normal(2, 3, 4), normal(2, 4, 5))],
    "cat": [call([X, Y, X[:1]], 0), call([X, Y], -1)],
    "clamp": [call(X, -0.5, 0.5), call(X, None, 0.0)],
    "clamp.Tensor": [call(X, Y, None), call(X, Y - 1, Y)],
    "col2im": [call(normal(2, 12, 20), [6, 5], [2, 2], [1, 1], [0, 0], [1, 1])],
    "constant_pad_nd": [call(X, [1, 2, -1, 3], 0.5)],
    "convolution": [call(IMAGE, KERNEL, None, *CONVOLVED)],
    "convolution_backward": [
        call(normal(2, 3, 6, 5), IMAGE, KERNEL, [3], *CONVOLVED, [True, True, True]),
    ],
    "copy": [call(X, Y), call(X, N)],
    "cumsum": [call(X, 0), call(N, 1), call(TRUTHS, 1)],
    "diagonal": [call(IMAGE, 1, 2, 3)],
    "div.Tensor_mode": [call(X, POSITIVE, rounding_mode=mode) for mode in ("floor", "trunc", None)],
    "div.Scalar_mode": [call(X, 0.7, rounding_mode=mode) for mode in ("floor", "trunc", None)],
    "embedding": [call(X, ROWS), call(X, COLUMNS % 4, 2)],
    "embedding_dense_backward": [
        call(normal(4, 6), ROWS, 5, -1, False),
        call(normal(4, 6), ROWS, 5, 2, True),
    ],
    "empty.memory_format": [call([4, 6], dtype=torch.float32)],
    "empty_strided": [call([4, 6], [1, 4])],
    "expand": [call(Z, [3, 4, 6]), call(X[:, :1], [-1, 6])],
    "fill.Scalar": [call(X, 2.5), call(N, 3)],
    "flip": [call(IMAGE, [1, -1])],
    "full": [call([4, 6], 2.5), call([3], 7, dtype=torch.int32)],
    "full_like": [call(X.t(), 2.5), call(X, 1, dtype=torch.bool)],
    "gather": [call(X, 1, COLUMNS)],
    "grid_sampler_2d": [
        call(IMAGE, between(-1.2, 1.2, 2, 3, 4, 2), mode, 2 - mode, False) for mode in (0, 1, 2)
    ],
    "index.Tensor": [
        call(X, [ROWS]),
        call(X, [None, ROWS]),
        call(X, [ROWS, ROWS[:, None]]),
        call(X, [TRUTHS]),
    ],
    "index_put": [call(X, [ROWS[:3]], normal(3, 6)), call(X, [ROWS], normal(4, 6), True)],
    "index_select": [call(X, 1, ROWS)],
    "logical_and": [call(TRUTHS, OTHERS), call(X, N)],
    "logical_or": [call(TRUTHS, OTHERS), call(X, N)],
    "logical_xor": [call(TRUTHS, OTHERS), call(X, N)],
    "masked_scatter": [call(X, TRUTHS, normal(24))],
    "max.dim": [call(X, 1), call(N, 0, True)],
    "min.dim": [call(X, 1), call(N, 0, True)],
    "max_pool2d_with_indices": [call(IMAGE, [3, 2], [2, 1], [1, 1]), call(IMAGE, [2, 2], [2, 2], 0, 2, True)],
    "max_pool2d_with_indices_backward": [
        call(torch.ones_like(POOLED), IMAGE, [2, 2], [2, 2], [0, 0], [1, 1], False, PLACES)
    ],
    "max_pool3d_with_indices": [call(VOLUME, [2, 2, 3], [1, 2, 1], [1, 0, 1])],
    "maximum": [call(X, Y), call(N, M)],
    "minimum": [call(X, Y), call(N, M)],
    "mean": [call(X)],
    "mean.dim": [call(X, [1]), call(IMAGE, [-1, -2], True)],
    "mm": [call(X, normal(6, 3))],
    "native_dropout": [call(X, 0.5, True), call(X, 0.5, False)],
    "native_group_norm": [call(IMAGE, CHANNELS, CHANNELS, 2, 4, 30, 2, 1e-5)],
    "native_group_norm_backward": [
        call(normal(2, 4, 6, 5), IMAGE, GROUP[1], GROUP[2], CHANNELS, 2, 4, 30, 2, [True, True, True])
    ],
    "native_layer_norm": [call(X, [6], Z, Z, 1e-5), call(IMAGE, [6, 5], None, None, 1e-5)],
    "native_layer_norm_backward": [call(Y, X, [6], LAYER[1], LAYER[2], Z, Z, [True, True, True])],
    "nonzero": [call(TRUTHS), call(N)],
    "permute": [call(IMAGE, [2, 0, -1, 1])],
    "pow.Tensor_Tensor": [call(POSITIVE, Y), call(N, M)],
    "pow.Tensor_Scalar": [call(X, 3), call(POSITIVE, 0.3), call(N, 2)],
    "pow.Scalar": [call(2.5, X)],
    "prod": [call(X), call(M)],
    "prod.dim_int": [call(X, 1), call(N, 0, True)],
    "rand": [call([4, 6])],
    "randn": [call([4, 6])],
    "randperm": [call(9)],
    "reflection_pad1d": [call(X, [2, 3])],
    "reflection_pad2d": [call(IMAGE, [2, 3, 1, 0])],
    "reflection_pad3d": [call(VOLUME, [2, 3, 1, 0, 2, 1])],
    "replication_pad2d": [call(IMAGE, [2, 3, 1, 0])],
    "replication_pad3d": [call(VOLUME, [2, 3, 1, 0, 2, 1])],
    "repeat": [call(X, [2, 1, 3])],
    "scalar_tensor": [call(2.5), call(3, dtype=torch.int64)],
    "scatter.value": [call(X, 0, COLUMNS % 4, 2.5)],
    "scatter.src": [call(X, 1, torch.tensor([[0, 3, 5], [1, 2, 0]]), normal(2, 3))],
    "scatter_add": [call(X, 1, COLUMNS, normal(4, 3))],
    "scatter_reduce.two": [
        call(X, 1, COLUMNS, normal(4, 3), reduce, include_self=include)
        for reduce in ("sum", "prod", "mean", "amax", "amin")
        for include in (True, False)
    ],
    "select.int": [call(X, 1, -2)],
    "select_scatter": [call(X, Z, 0, 2)],
    "slice.Tensor": [call(X, 1, 1, -1, 2)],
    "slice_scatter": [call(X, normal(4, 2), 1, 1, 5, 2)],
    "sort": [call(X, 1), call(N, 0, True)],
    "split_with_sizes": [call(X, [1, 2, 3], 1)],
    "squeeze.dim": [call(X[:1], 0), call(X, 0)],
    "squeeze.dims": [call(X[:1, :1], [0, 1])],
    "sum.dim_IntList": [call(X, [1]), call(N, None), call(TRUTHS, [0], True)],
    "topk": [call(X, 2), call(X, 3, 0, False)],
    "unsqueeze": [call(X, -1)],
    "upsample_bilinear2d.vec": [call(IMAGE, [9, 4], True, None), call(IMAGE, None, False, [1.5, 2.0])],
    "upsample_nearest2d.vec": [call(IMAGE, [9, 4], None), call(IMAGE, None, [1.5, 2.0])],
    "var.dim": [call(X, [1]), call(X, [0], False, True)],
    "var.correction": [call(X, [1], correction=0), call(X)],
    "view": [call(X, [2, -1, 3])],
    "where.self": [call(TRUTHS, X, Y), call(TRUTHS, X, N)],
}


def calls(name: str) -> Iterator[Call]:
    """The sample calls of ``aten::<name>``; none where the table lacks it.

    >>> [len(args) for args, _ in calls("add.Tensor")]
    [2, 2, 2]
    """
    yield from CALLS.get(name, ())
    packet, _, overload = name.partition(".")
    if not overload:
        yield from (call(x) for names, x in DOMAINS.values() if name in names.split())
    for names, left, right, number in PAIRS.values():
        if packet not in names.split():
            continue
        if overload == "Tensor":
            yield call(left, right)
            yield call(left, right[0])
            yield call(M, right)
        elif overload == "Scalar":
            yield call(left, number)
