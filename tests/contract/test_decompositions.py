"""The table: what stays whole, and that what is taken apart gives eager's numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from smelt.capture import Program, capture_aot
from smelt.contract import contract, decompositions
from smelt.contract.decompositions import whole

aten = torch.ops.aten


def programs_of(function: Callable[..., Any], args: list[Tensor]) -> tuple[list[Program], list[Tensor]]:
    """Contract programs of one call (and its backward), and results with gradients."""
    programs: list[Program] = []

    def keep(program: Program) -> Any:
        programs.append(contract(program))
        return lambda inputs, module=programs[-1].graph_module: module(*inputs)

    torch._dynamo.reset()
    compiled = torch.compile(function, backend=lambda g, x: capture_aot(g, x, keep, decompositions()))
    return programs, results(compiled, args)


def results(function: Callable[..., Any], args: list[Tensor]) -> list[Tensor]:
    inputs = [arg.detach().clone().requires_grad_(arg.requires_grad) for arg in args]
    torch.manual_seed(0)
    result = function(*inputs)
    wanted = [each for each in inputs if each.requires_grad]
    if not wanted:
        return [result]
    weights = torch.linspace(-1, 2, result.numel(), dtype=torch.float64).view(result.shape).to(result.dtype)
    return [result.detach(), *torch.autograd.grad(result, wanted, weights)]


def targets(programs: list[Program]) -> set[str]:
    nodes = [node for program in programs for node in program.graph_module.graph.nodes]
    return {str(node.target) for node in nodes if node.op == "call_function"}


@pytest.mark.parametrize(
    ("function", "shapes", "expected"),
    [
        (F.linear, [(3, 4), (5, 4), (5,)], "aten.addmm.default"),
        (lambda x, w: F.conv2d(x, w), [(1, 2, 5, 5), (3, 2, 3, 3)], "aten.convolution.default"),
        (lambda x: F.softmax(x, -1), [(3, 4)], "aten._softmax.default"),
        (lambda x: F.layer_norm(x, (4,)), [(3, 4)], "aten.native_layer_norm.default"),
        (lambda x: F.gelu(x), [(3, 4)], "aten.gelu.default"),
        (lambda x: x.var(), [(3, 4)], "aten.var.correction"),
        (lambda q, k, v: F.scaled_dot_product_attention(q, k, v), [(1, 2, 4, 8)] * 3,
         "aten._scaled_dot_product_flash_attention_for_cpu.default"),
        (lambda x: F.dropout(x, 0.5), [(8,)], "aten.native_dropout.default"),
        (lambda x: torch.bernoulli(x.sigmoid()), [(8,)], "aten.bernoulli.default"),
    ],
)  # fmt: skip
def test_these_stay_whole(function: Callable[..., Any], shapes: list[tuple[int, ...]], expected: str) -> None:
    programs, _ = programs_of(function, [torch.randn(shape) for shape in shapes])
    assert expected in targets(programs)


def test_nothing_is_both_whole_and_apart() -> None:
    assert not set(whole()) & set(decompositions())
    assert all(whole().values())


_LOSSES: dict[str, Callable[..., Tensor]] = {
    "mse_loss": lambda x, y: F.mse_loss(x, y),
    "smooth_l1_loss": lambda x, y: F.smooth_l1_loss(x, y, beta=0.5),
    "huber_loss": lambda x, y: F.huber_loss(x, y, delta=0.7),
    "binary_cross_entropy": lambda x, y: F.binary_cross_entropy(x.sigmoid(), y.sigmoid()),
    "binary_cross_entropy_with_logits": lambda x, y: F.binary_cross_entropy_with_logits(x, y.sigmoid()),
    "soft_margin_loss": lambda x, y: F.soft_margin_loss(x * 8, y.sign()),
    "cross_entropy": lambda x, y: F.cross_entropy(x, y.abs().long()),
    "kl_div": lambda x, y: F.kl_div(x.log_softmax(-1), y.softmax(-1), reduction="batchmean"),
}
_FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "gelu": lambda x: F.gelu(x),
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "mish": F.mish,
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "softplus": F.softplus,
    "elu": F.elu,
    "leaky_relu": F.leaky_relu,
    "logsigmoid": F.logsigmoid,
    "tanh": torch.tanh,
    "glu": lambda x: F.glu(x, 1),
    "softmax": lambda x: F.softmax(x, -1),
    "log_softmax": lambda x: F.log_softmax(x, -1),
    "layer_norm": lambda x: F.layer_norm(x, (8,)),
    "group_norm": lambda x: F.group_norm(x.view(2, 6, 8), 3),
    "instance_norm": lambda x: F.instance_norm(x.view(2, 6, 8)),
    "batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
    "var": lambda x: x.var(0),
    "std": lambda x: x.std(1),
    "logit": lambda x: x.sigmoid().logit(),
    "addcmul": lambda x: torch.addcmul(x, x, x.sin(), value=0.3),
    "addcdiv": lambda x: torch.addcdiv(x, x, x.exp(), value=0.3),
    "lerp": lambda x: torch.lerp(x, x.sin(), 0.7),
    "lerp_tensor": lambda x: torch.lerp(x, x.sin(), x.sigmoid()),
    "xlogy": lambda x: torch.xlogy(x, x.exp()),
    "logaddexp": lambda x: torch.logaddexp(x, x.sin()),
    "nan_to_num": lambda x: torch.nan_to_num(x.log()),
    "max_pool2d": lambda x: F.max_pool2d(x.view(1, 2, 6, 8), 2),
    "avg_pool2d": lambda x: F.avg_pool2d(x.view(1, 2, 6, 8), 2, padding=1),
    "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x.view(1, 2, 6, 8), (4, 3)),
    "interpolate_bilinear": lambda x: F.interpolate(x.view(1, 2, 6, 8), scale_factor=2, mode="bilinear"),
    "interpolate_nearest": lambda x: F.interpolate(x.view(1, 2, 6, 8), scale_factor=2),
    "reflection_pad2d": lambda x: F.pad(x.view(1, 2, 6, 8), (1, 2, 2, 1), mode="reflect"),
    "index_select": lambda x: x.index_select(0, torch.tensor([3, 1, 1])),
    "select_slice": lambda x: x[2, 1:7:2],
    "cumsum": lambda x: x.cumsum(1),
    "norm": lambda x: x.norm(dim=1),
    "attention": lambda x: F.scaled_dot_product_attention(*[x.view(1, 2, 6, 8)] * 3, is_causal=True),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", [*_FUNCTIONS, *_LOSSES])
def test_forward_and_backward_err_no_more_than_eager(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    loss = name in _LOSSES
    function = _LOSSES[name] if loss else _FUNCTIONS[name]
    x = torch.randn(12, 8).to(dtype).requires_grad_()
    args = [x, torch.rand(12, 8).to(dtype) * 7 - 3.5] if loss else [x]
    if name == "cross_entropy":
        args[1] = args[1][:, 0]
    _, mine = programs_of(function, args)
    eager = results(function, args)
    exact = results(function, [arg.detach().double().requires_grad_(arg.requires_grad) for arg in args])
    assert mine[0].stride() == eager[0].stride()
    for got, theirs, reference in zip(mine, eager, exact, strict=True):
        assert (got.dtype, got.shape) == (theirs.dtype, theirs.shape)
        own, allowed = (got.double() - reference).abs(), (theirs.double() - reference).abs().max()
        slack = 4 * torch.finfo(dtype).eps * reference.abs()
        assert bool((own <= 4 * allowed + slack).all()), f"{own.max()} against eager's {allowed}"


def test_soft_margin_gradients_keep_their_digits_where_the_margin_is_wide() -> None:
    """PyTorch's own decomposition gives 0 here."""
    x = torch.tensor([18.0, 20.0, 40.0], requires_grad=True)
    y = torch.ones(3)
    _, (_, gradient) = programs_of(lambda x: F.soft_margin_loss(x, y, reduction="sum"), [x])
    expected = results(lambda x: F.soft_margin_loss(x, y, reduction="sum"), [x])[1]
    assert bool((gradient != 0).all())
    torch.testing.assert_close(gradient, expected, rtol=1e-6, atol=0)


def test_embedding_gradients() -> None:
    indices = torch.tensor([[1, 4, 1], [0, 4, 4]])
    weight = torch.randn(6, 3, requires_grad=True)
    programs, mine = programs_of(lambda w: F.embedding(indices, w, padding_idx=0), [weight])
    for got, theirs in zip(mine, results(lambda w: F.embedding(indices, w, padding_idx=0), [weight])):
        torch.testing.assert_close(got, theirs)
    assert "aten.embedding_dense_backward.default" in targets(programs)
