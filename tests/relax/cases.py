"""Every operator of relax on random inputs, and what it should be, written without the table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.nn import functional as F

from smelt import relax

op = relax.op
const = relax.const


class Case(NamedTuple):
    """``call(*variables)`` should be ``want(*tensors)``."""

    name: str
    tensors: tuple[torch.Tensor, ...]
    call: Callable[..., Any]
    want: Callable[..., Any]


def floats(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def whole(*shape: int, low: int = -9, high: int = 9, seed: int = 0) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed + 3))


def _named(name: str) -> Any:
    found: Any = op
    for part in name.split("."):
        found = getattr(found, part)
    return found


X, Y = floats(3, 4), floats(3, 4, seed=1)
P = floats(3, 4).abs() + 0.1
S = torch.tanh(X) * 0.9
N, M, K = whole(3, 4), whole(3, 4, low=1, seed=2), whole(3, 4, low=0, high=4)
B, C = whole(3, 4, seed=1) > 0, whole(3, 4, seed=5) > 0
ODD = X / torch.zeros(3, 4).index_fill(0, torch.tensor(0), 1)
HOLES = X.masked_fill(C, float("nan"))
IMAGE = floats(2, 4, 6, 6)
CUBE = floats(1, 2, 4, 4, 4)


def unary(name: str, want: Callable[..., Any], x: torch.Tensor = X) -> Case:
    return Case(name, (x,), _named(name), want)


def binary(name: str, want: Callable[..., Any], x: torch.Tensor = X, y: torch.Tensor = Y) -> Case:
    return Case(name, (x, y), _named(name), want)


ELEMENTWISE = [
    binary("add", lambda x, y: x + y),
    binary("subtract", lambda x, y: x - y),
    binary("multiply", lambda x, y: x * y),
    binary("divide", lambda x, y: x / y),
    binary("divide", lambda x, y: torch.trunc(x.double() / y).long(), N, M),
    binary("floor_divide", lambda x, y: torch.floor(x / y)),
    binary("power", lambda x, y: x**y, P, Y),
    binary("atan2", torch.atan2),
    binary("mod", torch.fmod),
    binary("floor_mod", lambda x, y: x - torch.floor(x / y).long() * y, N, M),
    binary("log_add_exp", lambda x, y: torch.log(torch.exp(x) + torch.exp(y))),
    binary("equal", lambda x, y: x == y, N, N.clamp(0)),
    binary("not_equal", lambda x, y: x != y, N, N.clamp(0)),
    binary("greater", lambda x, y: x > y),
    binary("greater_equal", lambda x, y: x >= y, N, N.clamp(0)),
    binary("less", lambda x, y: x < y),
    binary("less_equal", lambda x, y: x <= y, N, N.clamp(0)),
    binary("maximum", torch.maximum),
    binary("minimum", torch.minimum),
    binary("logical_and", lambda x, y: x & y, B, C),
    binary("logical_or", lambda x, y: x | y, B, C),
    binary("logical_xor", lambda x, y: x ^ y, B, C),
    binary("bitwise_and", lambda x, y: x & y, N, M),
    binary("bitwise_or", lambda x, y: x | y, N, M),
    binary("bitwise_xor", lambda x, y: x ^ y, N, M),
    binary("left_shift", lambda x, y: x * 2**y, M, K),
    binary("right_shift", lambda x, y: x // 2**y, M, K),
    unary("abs", torch.abs),
    unary("acos", torch.acos, S),
    unary("acosh", torch.acosh, P + 1),
    unary("asin", torch.asin, S),
    unary("asinh", torch.asinh),
    unary("atan", torch.atan),
    unary("atanh", torch.atanh, S),
    unary("bitwise_not", torch.bitwise_not, N),
    unary("ceil", torch.ceil),
    unary("cos", torch.cos),
    unary("cosh", torch.cosh),
    unary("exp", torch.exp),
    unary("floor", torch.floor),
    unary("log", torch.log, P),
    unary("logical_not", lambda x: ~x, B),
    unary("negative", lambda x: -x),
    unary("round", torch.round),
    unary("rsqrt", lambda x: 1 / torch.sqrt(x), P),
    unary("sigmoid", lambda x: 1 / (1 + torch.exp(-x))),
    unary("sign", torch.sign),
    unary("sin", torch.sin),
    unary("sinh", torch.sinh),
    unary("square", lambda x: x * x),
    unary("sqrt", torch.sqrt, P),
    unary("tan", torch.tan),
    unary("tanh", torch.tanh),
    unary("trunc", torch.trunc),
    unary("erf", torch.erf),
    unary("isfinite", torch.isfinite, ODD),
    unary("isinf", torch.isinf, ODD),
    unary("isnan", torch.isnan, torch.log(X)),
    Case("clip", (X,), lambda x: op.clip(x, -0.5, 0.5), lambda x: x.clamp(-0.5, 0.5)),
    Case("ewise_fma", (X, Y, P), op.ewise_fma, lambda x, y, z: x * y + z),
    Case("astype", (X,), lambda x: op.astype(x, "int32"), lambda x: x.int()),
    Case("where", (B, X, Y), op.where, torch.where),
    Case("masked_fill", (X, B), lambda x, m: op.masked_fill(x, m, 2.5), lambda x, m: x.masked_fill(m, 2.5)),
    unary("nn.relu", torch.relu),
    unary("nn.relu6", F.relu6, X * 5),
    unary("nn.silu", F.silu),
    unary("nn.selu", F.selu),
    unary("nn.gelu", F.gelu),
    unary("nn.gelu_tanh", lambda x: F.gelu(x, approximate="tanh")),
    Case("nn.leakyrelu", (X,), lambda x: op.nn.leakyrelu(x, 0.2), lambda x: F.leaky_relu(x, 0.2)),
    Case("nn.prelu", (X, P[0]), op.nn.prelu, lambda x, a: torch.where(x > 0, x, x * a)),
    Case("nn.softplus", (X,), lambda x: op.nn.softplus(x, 2.0, 3.0), lambda x: F.softplus(x, 2.0, 3.0)),
    Case("nn.dropout", (X,), op.nn.dropout, lambda x: (x, torch.ones_like(x))),
    Case("quantize", (X,), lambda x: op.quantize(x, const(0.1), const(3)), lambda x: _quantized(x)),
    Case(
        "dequantize",
        (N.to(torch.int8),),
        lambda x: op.dequantize(x, const(0.1), const(3)),
        lambda x: (x.float() - 3) * 0.1,
    ),
]


def _quantized(x: torch.Tensor) -> torch.Tensor:
    return torch.clamp(torch.round(x / 0.1) + 3, -128, 127).to(torch.int8)


I = torch.tensor([2, 0, 1, -1])  # noqa: E741

SHAPES = [
    Case(
        "permute_dims", (IMAGE,), lambda x: op.permute_dims(x, [0, 2, 3, 1]), lambda x: x.permute(0, 2, 3, 1)
    ),
    unary("permute_dims", lambda x: x.t()),
    Case("reshape", (X,), lambda x: op.reshape(x, (2, -1)), lambda x: x.reshape(2, 6)),
    unary("flatten", lambda x: x.reshape(-1), IMAGE),
    unary("nn.batch_flatten", lambda x: x.reshape(2, -1), IMAGE),
    Case("broadcast_to", (X,), lambda x: op.broadcast_to(x, (2, 3, 4)), lambda x: x.expand(2, 3, 4)),
    Case("expand_dims", (X,), lambda x: op.expand_dims(x, [0, -1]), lambda x: x[None, :, :, None]),
    Case("squeeze", (floats(1, 3, 1),), lambda x: op.squeeze(x, [0]), lambda x: x[0]),
    unary("squeeze", lambda x: x[0, :, 0], floats(1, 3, 1)),
    Case("concat", (X, Y), lambda x, y: op.concat([x, y], axis=1), lambda x, y: torch.cat([x, y], 1)),
    Case("stack", (X, Y), lambda x, y: op.stack([x, y], axis=1), lambda x, y: torch.stack([x, y], 1)),
    Case("split", (X,), lambda x: op.split(x, 2, axis=1), lambda x: (x[:, :2], x[:, 2:])),
    Case("split", (X,), lambda x: op.split(x, [1, 3], axis=1), lambda x: (x[:, :1], x[:, 1:3], x[:, 3:])),
    Case("repeat", (X,), lambda x: op.repeat(x, 2, axis=0), lambda x: x.repeat_interleave(2, 0)),
    Case("tile", (X,), lambda x: op.tile(x, (2, 1, 3)), lambda x: x.tile(2, 1, 3)),
    Case("flip", (X,), lambda x: op.flip(x, 1), lambda x: x.flip(1)),
    Case("reverse_sequence", (X, torch.tensor([2, 4, 1])), op.reverse_sequence, lambda x, n: _reversed(x, n)),
    Case("gather_elements", (X, N % 6 - 3), op.gather_elements, lambda x, i: x.gather(0, i % 3)),
    Case("gather_nd", (X, N[:, :2] % 6 - 3), op.gather_nd, lambda x, i: x[i[:, 0], i[:, 1]]),
    Case("index_tensor", (X, I[:3]), lambda x, i: op.index_tensor(x, [i]), lambda x, i: x[i]),
    Case(
        "index_put",
        (X, I[:2], floats(2, 4)),
        lambda x, i, v: op.index_put(x, [i], v, accumulate=True),
        lambda x, i, v: x.index_put((i,), v, True),
    ),
    Case(
        "meshgrid",
        (X[0].clone(), X[:, 0].clone()),
        lambda x, y: op.meshgrid([x, y]),
        lambda x, y: (x[:, None].expand(4, 3), y[None].expand(4, 3)),
    ),
    Case(
        "scatter_elements",
        (X, torch.tensor([[2, 0, 1, 2]]), floats(1, 4)),
        lambda x, i, u: op.scatter_elements(x, i, u, axis=0, reduction="add"),
        lambda x, i, u: x.scatter_add(0, i, u),
    ),
    Case(
        "scatter_nd",
        (X, torch.tensor([[2], [0]]), floats(2, 4)),
        op.scatter_nd,
        lambda x, i, u: torch.stack([u[1], x[1], u[0]]),
    ),
    Case(
        "slice_scatter",
        (X, floats(3, 2)),
        lambda x, s: op.slice_scatter(x, s, start=0, end=4, step=2, axis=1),
        lambda x, s: torch.stack([s[:, 0], x[:, 1], s[:, 1], x[:, 3]], 1),
    ),
    Case(
        "one_hot",
        (torch.tensor([2, 0]),),
        lambda i: op.one_hot(i, 1.0, 0.0, depth=3),
        lambda i: F.one_hot(i, 3).float(),
    ),
    Case("take", (X, I), lambda x, i: op.take(x, i, axis=0), lambda x, i: x[i]),
    Case("take", (X, I * 5), lambda x, i: op.take(x, i, 1, "clip"), lambda x, i: x[:, i.clamp(0, 3)]),
    Case("take", (X, I * 5), lambda x, i: op.take(x, i, 1, "wrap"), lambda x, i: x[:, i % 4]),
    Case(
        "strided_slice",
        (X,),
        lambda x: op.strided_slice(x, [0, 1], [0, 3], [3, -5], [2, -1]),
        lambda x: x[0:3:2].flip(1),
    ),
    Case("full", (), lambda: op.full((2, 3), const(1.5)), lambda: torch.full((2, 3), 1.5)),
    Case("full_like", (X,), lambda x: op.full_like(x, const(2, "int32")), lambda x: torch.full((3, 4), 2.0)),
    Case("ones", (), lambda: op.ones((2,), "int32"), lambda: torch.ones(2, dtype=torch.int32)),
    unary("ones_like", torch.ones_like),
    Case("zeros", (), lambda: op.zeros((2,), "float32"), lambda: torch.zeros(2)),
    unary("zeros_like", torch.zeros_like),
    Case("eye", (), lambda: op.eye(3, 4, 1), lambda: torch.ones(3, 4).triu(1) - torch.ones(3, 4).triu(2)),
    unary("eye_like", lambda x: torch.eye(3, 4)),
    Case("arange", (), lambda: op.arange(2, 10, 3), lambda: torch.tensor([2, 5, 8])),
    Case("hamming_window", (), lambda: op.hamming_window(5, True, 0.54, 0.46), lambda: _hamming()),
    Case("tril", (X,), lambda x: op.tril(x, -1), lambda x: x.tril(-1)),
    Case("triu", (X,), lambda x: op.triu(x, 1), lambda x: x.triu(1)),
    binary("collapse_sum_like", lambda x, y: x.sum(0), floats(2, 3, 4), X),
    Case("collapse_sum_to", (X,), lambda x: op.collapse_sum_to(x, (1, 4)), lambda x: x.sum(0, True)),
    Case(
        "shape_to_tensor",
        (),
        lambda: op.shape_to_tensor(relax.ShapeExpr([2, 3])),
        lambda: torch.tensor([2, 3]),
    ),
    Case(
        "nn.pad",
        (X,),
        lambda x: op.nn.pad(x, [1, 0, 2, 1], "constant", 3.0),
        lambda x: F.pad(x, (2, 1, 1, 0), value=3.0),
    ),
    Case("nn.pixel_shuffle", (IMAGE,), lambda x: op.nn.pixel_shuffle(x, 2), lambda x: F.pixel_shuffle(x, 2)),
]


def _reversed(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    return torch.stack([torch.cat([row[:k].flip(0), row[k:]]) for row, k in zip(x, lengths.tolist())])


def _hamming() -> torch.Tensor:
    return 0.54 - 0.46 * torch.cos(2 * torch.pi * torch.arange(5) / 5)


REDUCTIONS = [
    Case("sum", (IMAGE,), lambda x: op.sum(x, axis=[1, -1]), lambda x: x.sum((1, 3))),
    unary("sum", lambda x: x.sum(), N),
    Case("prod", (X,), lambda x: op.prod(x, axis=1, keepdims=True), lambda x: x.prod(1, True)),
    Case("max", (X,), lambda x: op.max(x, axis=0), lambda x: x.max(0)[0]),
    unary("min", lambda x: x.min()),
    Case("mean", (IMAGE,), lambda x: op.mean(x, [2, 3], True), lambda x: x.mean((2, 3), True)),
    Case("variance", (X,), lambda x: op.variance(x, 1), lambda x: x.var(1, correction=0)),
    Case("std", (X,), lambda x: op.std(x, 1), lambda x: x.std(1, correction=0)),
    Case("prod", (B,), lambda x: op.prod(x, axis=[0, 1]), torch.all),
    Case(
        "layout_transform",
        (floats(2, 5, 3),),
        lambda x: op.layout_transform(x, lambda i, j, k: (i, k, j // 3, j % 3), 2.0),
        lambda x: F.pad(x, (0, 0, 0, 1), value=2.0).reshape(2, 2, 3, 3).permute(0, 3, 1, 2),
    ),
    Case("argmax", (X,), lambda x: op.argmax(x, axis=1), lambda x: x.argmax(1)),
    Case("argmax", (N,), lambda x: op.argmax(x, keepdims=True), lambda x: x.argmax().reshape(1, 1)),
    Case("argmax", (HOLES,), lambda x: op.argmax(x, axis=-1), lambda x: x.argmax(-1)),
    Case("argmin", (HOLES,), op.argmin, lambda x: x.argmin()),
    Case("argmin", (X,), lambda x: op.argmin(x, axis=0, keepdims=True), lambda x: x.argmin(0, True)),
    Case("cumsum", (X,), lambda x: op.cumsum(x, axis=1), lambda x: x.cumsum(1)),
    Case("cumsum", (X,), lambda x: op.cumsum(x, 1, exclusive=True), lambda x: x.cumsum(1) - x),
    Case("cumprod", (X,), lambda x: op.cumprod(x, axis=0), lambda x: x.cumprod(0)),
    Case("sort", (X,), lambda x: op.sort(x, axis=0, descending=True), lambda x: x.sort(0, True)[0]),
    unary("argsort", lambda x: x.argsort(-1).int()),
    Case("topk", (X,), lambda x: op.topk(x, 2), lambda x: (x.topk(2)[0], x.topk(2)[1].int())),
    Case("median", (floats(3, 5),), lambda x: op.median(x, axis=1), lambda x: tuple(x.median(1))),
    binary("bucketize", lambda x, b: (x[..., None] > b).sum(-1), X, torch.tensor([-1.0, 0.0, 1.0])),
    binary("matmul", lambda x, y: x @ y, X, floats(4, 5)),
    binary("matmul", lambda x, y: x @ y, IMAGE, floats(6, 3)),
    Case("linear", (X, floats(5, 4), floats(5)), op.linear, lambda x, w, b: x @ w.T + b),
    Case("einsum", (X, Y), lambda x, y: op.einsum([x, y], "ij,kj->ik"), lambda x, y: x @ y.T),
    binary("outer", lambda x, y: x[:, None] * y, X[0].clone(), Y[:, 0].clone()),
]

G, H = floats(4), floats(4, seed=7)


def _nearest(x: Any, size: tuple[int, int], rounding: str) -> Any:
    coordinates = {"coordinate_transformation_mode": "asymmetric", "rounding_method": rounding}
    return op.image.resize2d(x, size, method="nearest_neighbor", **coordinates)


NETWORKS = [
    Case(
        "nn.conv1d",
        (floats(2, 3, 8), floats(4, 3, 3)),
        lambda x, w: op.nn.conv1d(x, w, strides=2, padding=1),
        lambda x, w: F.conv1d(x, w, stride=2, padding=1),
    ),
    Case(
        "nn.conv2d",
        (IMAGE, floats(6, 2, 3, 3)),
        lambda x, w: op.nn.conv2d(x, w, padding=[1, 1, 0, 0], dilation=2, groups=2),
        lambda x, w: F.conv2d(F.pad(x, (1, 0, 1, 0)), w, dilation=2, groups=2),
    ),
    Case(
        "nn.conv2d",
        (IMAGE.permute(0, 2, 3, 1).contiguous(), floats(3, 3, 4, 5)),
        lambda x, w: op.nn.conv2d(x, w, data_layout="NHWC", kernel_layout="HWIO"),
        lambda x, w: F.conv2d(x.permute(0, 3, 1, 2), w.permute(3, 2, 0, 1)).permute(0, 2, 3, 1),
    ),
    binary("nn.conv3d", F.conv3d, CUBE, floats(3, 2, 2, 2, 2)),
    Case(
        "nn.conv1d_transpose",
        (floats(2, 3, 5), floats(3, 4, 3)),
        lambda x, w: op.nn.conv1d_transpose(x, w, strides=2, output_padding=1),
        lambda x, w: F.conv_transpose1d(x, w, stride=2, output_padding=1),
    ),
    Case(
        "nn.conv2d_transpose",
        (floats(1, 3, 4, 4), floats(3, 2, 3, 3)),
        lambda x, w: op.nn.conv2d_transpose(x, w, padding=1),
        lambda x, w: F.conv_transpose2d(x, w, padding=1),
    ),
    binary("nn.conv3d_transpose", F.conv_transpose3d, floats(1, 2, 3, 3, 3), floats(2, 1, 2, 2, 2)),
    Case(
        "nn.max_pool1d", (floats(2, 3, 8),), lambda x: op.nn.max_pool1d(x, 2, 2), lambda x: F.max_pool1d(x, 2)
    ),
    Case(
        "nn.max_pool2d",
        (IMAGE,),
        lambda x: op.nn.max_pool2d(x, (3, 3), (2, 2), (1, 1)),
        lambda x: F.max_pool2d(x, 3, 2, 1),
    ),
    Case("nn.max_pool3d", (CUBE,), lambda x: op.nn.max_pool3d(x, 2, 2), lambda x: F.max_pool3d(x, 2)),
    Case(
        "nn.avg_pool1d", (floats(2, 3, 8),), lambda x: op.nn.avg_pool1d(x, 2, 2), lambda x: F.avg_pool1d(x, 2)
    ),
    Case(
        "nn.avg_pool2d",
        (IMAGE,),
        lambda x: op.nn.avg_pool2d(x, 3, 1, 1),
        lambda x: F.avg_pool2d(x, 3, 1, 1, count_include_pad=False),
    ),
    Case("nn.avg_pool3d", (CUBE,), lambda x: op.nn.avg_pool3d(x, 2, 2), lambda x: F.avg_pool3d(x, 2)),
    Case(
        "nn.adaptive_avg_pool1d",
        (floats(2, 3, 8),),
        lambda x: op.nn.adaptive_avg_pool1d(x, 3),
        lambda x: F.adaptive_avg_pool1d(x, 3),
    ),
    Case(
        "nn.adaptive_avg_pool2d",
        (IMAGE,),
        lambda x: op.nn.adaptive_avg_pool2d(x, (2, 3)),
        lambda x: F.adaptive_avg_pool2d(x, (2, 3)),
    ),
    Case(
        "nn.adaptive_avg_pool3d",
        (CUBE,),
        lambda x: op.nn.adaptive_avg_pool3d(x, 2),
        lambda x: F.adaptive_avg_pool3d(x, 2),
    ),
    Case("nn.softmax", (X,), lambda x: op.nn.softmax(x, 0), lambda x: torch.exp(x) / torch.exp(x).sum(0)),
    unary("nn.log_softmax", lambda x: x - torch.logsumexp(x, 1, True)),
    Case(
        "nn.batch_norm",
        (IMAGE, G, H, G, H.abs()),
        lambda *args: op.nn.batch_norm(*args, axis=1, training=False),
        lambda x, g, b, m, v: (F.batch_norm(x, m, v, g, b), m, v),
    ),
    Case(
        "nn.batch_norm",
        (IMAGE, G, H, G, H.abs()),
        lambda *args: op.nn.batch_norm(*args, axis=1),
        lambda x, g, b, m, v: (
            F.batch_norm(x, None, None, g, b, True),
            0.9 * m + 0.1 * x.mean((0, 2, 3)),
            0.9 * v + 0.1 * x.var((0, 2, 3), correction=0),
        ),
    ),
    Case("nn.layer_norm", (X, G, H), op.nn.layer_norm, lambda x, g, b: F.layer_norm(x, (4,), g, b)),
    Case(
        "nn.group_norm",
        (IMAGE, G, H),
        lambda x, g, b: op.nn.group_norm(x, g, b, num_groups=2, channel_axis=1, axes=[2, 3]),
        lambda x, g, b: F.group_norm(x, 2, g, b),
    ),
    Case(
        "nn.instance_norm",
        (IMAGE, G, H),
        lambda x, g, b: op.nn.instance_norm(x, g, b, channel_axis=1, axes=[2, 3]),
        lambda x, g, b: F.instance_norm(x, None, None, g, b),
    ),
    binary("nn.rms_norm", lambda x, w: x / (x.square().mean(1, True) + 1e-5).sqrt() * w, X, G),
    binary("nn.cross_entropy_with_logits", lambda x, y: -(x * y).sum() / 3),
    Case("nn.nll_loss", (X, torch.tensor([1, 3, 0])), op.nn.nll_loss, F.nll_loss),
    Case(
        "nn.attention",
        (floats(2, 5, 3, 8), floats(2, 7, 3, 8), floats(2, 7, 3, 8, seed=2)),
        lambda q, k, v: op.nn.attention(q, k, v, causal_mask="BottomRight"),
        lambda q, k, v: F.scaled_dot_product_attention(
            *(each.transpose(1, 2) for each in (q, k, v)), torch.ones(5, 7).tril(2).bool()
        ).transpose(1, 2),
    ),
    Case(
        "image.resize2d",
        (IMAGE,),
        lambda x: op.image.resize2d(x, (9, 4)),
        lambda x: F.interpolate(x, (9, 4), mode="bilinear"),
    ),
    Case(
        "image.resize2d",
        (IMAGE,),
        lambda x: _nearest(x, (9, 4), "floor"),
        lambda x: F.interpolate(x, (9, 4), mode="nearest"),
    ),
    Case(
        "image.resize2d",
        (IMAGE,),
        lambda x: _nearest(x, (12, 6), "round"),
        lambda x: x[:, :, [min(round(place / 2), 5) for place in range(12)]],
    ),
    Case(
        "image.resize3d",
        (floats(2, 3, 4, 6, 5),),
        lambda x: op.image.resize3d(x, (3, 6, 7), coordinate_transformation_mode="align_corners"),
        lambda x: F.interpolate(x, (3, 6, 7), mode="trilinear", align_corners=True),
    ),
    Case(
        "image.resize3d",
        (floats(2, 4, 6, 5, 3),),
        lambda x: op.image.resize3d(
            x,
            (2, 9, 5),
            layout="NDHWC",
            method="nearest_neighbor",
            coordinate_transformation_mode="asymmetric",
            rounding_method="floor",
        ),
        lambda x: F.interpolate(x.movedim(-1, 1), (2, 9, 5), mode="nearest").movedim(1, -1),
    ),
    Case(
        "nn.max_pool2d",
        (floats(2, 3, 6, 6, 4),),
        lambda x: op.nn.max_pool2d(x, 2, 2, layout="NCHW4c"),
        lambda x: (
            F.max_pool2d(x.permute(0, 1, 4, 2, 3).reshape(2, 12, 6, 6), 2)
            .reshape(2, 3, 4, 3, 3)
            .permute(0, 1, 3, 4, 2)
        ),
    ),
    Case(
        "image.affine_grid",
        (floats(2, 2, 3),),
        lambda x: op.image.affine_grid(x, (4, 5), align_corners=False),
        lambda x: F.affine_grid(x, [2, 1, 4, 5], False).permute(0, 3, 1, 2),
    ),
    Case(
        "image.grid_sample",
        (IMAGE, torch.tanh(floats(2, 2, 3, 5))),
        op.image.grid_sample,
        lambda x, g: F.grid_sample(x, g.permute(0, 2, 3, 1), align_corners=False),
    ),
]

GRADIENTS = [
    unary("grad.no_grad", lambda x: x),
    unary("grad.start_checkpoint", lambda x: x),
    unary("grad.end_checkpoint", lambda x: x),
    Case(
        "grad.nll_loss_backward",
        (torch.tensor(2.0), X, torch.tensor([1, 3, 0]), P[0].clone()),
        op.grad.nll_loss_backward,
        lambda g, x, t, w: _gradient(lambda x: F.nll_loss(x, t, w), x, g),
    ),
    Case(
        "grad.max_pool2d_backward",
        (floats(2, 4, 3, 3), IMAGE),
        lambda g, x: op.grad.max_pool2d_backward(g, x, (3, 3), (2, 2), (1, 1, 1, 1)),
        lambda g, x: _gradient(lambda x: F.max_pool2d(x, 3, 2, 1), x, g),
    ),
    Case(
        "grad.avg_pool2d_backward",
        (floats(2, 4, 3, 3), IMAGE),
        lambda g, x: op.grad.avg_pool2d_backward(g, x, (2, 2), (2, 2)),
        lambda g, x: _gradient(lambda x: F.avg_pool2d(x, 2), x, g),
    ),
    Case(
        "grad.take_backward",
        (floats(3, 2), X, torch.tensor([2, 2])),
        lambda g, x, i: op.grad.take_backward(g, x, i, axis=1),
        lambda g, x, i: _gradient(lambda x: x[:, i], x, g),
    ),
]


def _gradient(function: Callable[..., torch.Tensor], x: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
    with torch.enable_grad():
        x = x.clone().requires_grad_()
        (found,) = torch.autograd.grad(function(x), x, grad)
    return found


CASES = {
    "elementwise": ELEMENTWISE,
    "shapes": SHAPES,
    "reductions": REDUCTIONS,
    "networks": NETWORKS,
    "gradients": GRADIENTS,
}
