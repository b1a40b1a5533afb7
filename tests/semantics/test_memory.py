"""Mutation, aliasing, views, strides: what is left in memory is what eager leaves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.semantics.sameness import compiled, raises_alike, same

X = torch.arange(24.0).reshape(4, 6)
Y = torch.linspace(-1, 1, 24).reshape(4, 6)
IMAGE = torch.randn(2, 3, 5, 4, generator=torch.Generator().manual_seed(0))
CHANNELS_LAST = IMAGE.contiguous(memory_format=torch.channels_last)


def in_place_chain(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.add_(y).mul_(2)
    x[1] = 0
    x[:, 2:4].sub_(1)
    return x + 1


def mutated_through_a_view(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    flat = x.view(-1)
    flat[::3] = 7
    x.t()[0].copy_(y[:, 0])
    return flat.sum()


def view_of_what_was_mutated(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    view = x[1:3]
    x.mul_(2)
    return view, view.t(), x


def flat_view_of_what_was_mutated(x: torch.Tensor) -> torch.Tensor:
    x[0].copy_(x[1])
    return x.flatten()[3:]


def fresh_results_that_share(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    total = x + y
    return total, total[1], total.view(-1), total.t()


def swapped(x: torch.Tensor, y: torch.Tensor) -> None:
    kept = x.clone()
    x.copy_(y)
    y.copy_(kept)


def into_out(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    torch.add(x, y, out=out)
    torch.mul(out, 2, out=out)
    return out


def into_the_callers(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.sub(x, y, out=y)


def out_of_a_view(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    torch.exp(y[:, :3], out=x[:, 3:])
    return x


MEMORY: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "in place": (in_place_chain, (X, Y)),
    "through a view": (mutated_through_a_view, (X, Y)),
    "view of a mutated input": (view_of_what_was_mutated, (X, Y)),
    "flat view of a strided input": (flat_view_of_what_was_mutated, (X[:, ::2],)),
    "results that share": (fresh_results_that_share, (X, Y)),
    "swap": (swapped, (X, Y)),
    "out=": (into_out, (X, Y)),
    "out= an input": (into_the_callers, (X, Y)),
    "input returned": (lambda x: x, (X,)),
    "input twice": (lambda x: (x, x), (X,)),
    "views of an input": (lambda x: (x.t(), x[1], x.view(2, 12), x.unsqueeze(0), x.detach()), (X,)),
    "expanded result": (lambda x: x[:1].expand(4, 6), (X,)),
    "a copy": (lambda x: x.clone(), (X,)),
    "contiguous of contiguous": (lambda x: x.contiguous(), (X,)),
    "contiguous of strided": (lambda x: x.contiguous(), (X.t(),)),
    "to the same dtype": (lambda x: x.to(torch.float32), (X,)),
    "reshape that copies": (lambda x: x.t().reshape(-1), (X,)),
    "the same tensor twice": (lambda x, y: x.add_(1) + y, (X, X)),
    "transposed input": (lambda x: x.sin_() + 1, (X.t(),)),
    "strided input": (lambda x: x.mul_(2), (X[:, ::2],)),
    "expanded input": (lambda x: x + 1, (X[:1].expand(4, 6),)),
    "zero strides in between": (lambda x: x.sum(1), (X.as_strided((4, 3, 6), (6, 0, 1)),)),
    "overlapping windows": (lambda x: x * 2, (X.view(-1).as_strided((9, 6), (2, 1)),)),
    "a part of windows written": (lambda x: x.unfold(-1, 2, 1).select_scatter(x[:, 1:] * 2, -1, 1), (X,)),
    "fill and zero": (lambda x, y: (x.fill_(3), y.zero_()), (X, Y)),
    "index_put_": (lambda x, y: x.index_put_((torch.tensor([0, 2, 0]),), y[:3], accumulate=True), (X, Y)),
    "masked_fill_": (lambda x, y: x.masked_fill_(y > 0, -1.0), (X, Y)),
    "scatter_": (lambda x: x.scatter_(1, torch.tensor([[0, 1], [2, 3]]), 5.0), (X,)),
    "index_add_": (lambda x, y: x.index_add_(0, torch.tensor([1, 1, 3]), y[:3], alpha=2), (X, Y)),
    "squeeze_ and t_": (lambda x: (x + 0).unsqueeze_(0).squeeze_(0).t_(), (X,)),
    "set item of a slice": (lambda x, y: x.__setitem__((slice(1, 3), 2), y[0, :2]), (X, Y)),
    "split and write": (lambda x: [part.add_(n) for n, part in enumerate(x.split(2))], (X,)),
    "chunk views": (lambda x: x.chunk(3, 1), (X,)),
    "unbind": (lambda x: x.unbind(0), (X,)),
    "diagonal": (lambda x: x.diagonal().fill_(9), (X,)),
    "as_strided of an input": (lambda x: x.as_strided((2, 3), (1, 2), 3), (X,)),
    "strides with holes": (lambda x: (torch.empty_strided((3, 2), (8, 2)).fill_(0) * 0).sum() + x, (X,)),
    "roll, channels last": (lambda x: torch.roll(x, 1, 2), (CHANNELS_LAST,)),
    "bytes of floats": (lambda x: x.view(torch.int32) & 255, (X,)),
}


@pytest.mark.parametrize("name", MEMORY)
def test_memory(name: str) -> None:
    function, inputs = MEMORY[name]
    same(function, *inputs)


OF_NO_DIMENSION: dict[str, Callable[..., Any]] = {
    **{
        name: lambda x, name=name: getattr(x, name)(0)
        for name in ("cumsum", "cumprod", "logcumsumexp", "cummax", "sort", "median", "nanmedian", "mode")
    },
    "topk": lambda x: x.topk(1),
    "kthvalue": lambda x: x.kthvalue(1),
    "index_select": lambda x: x.index_select(0, torch.tensor([0])),
    "amax": lambda x: (x.amax(), x.sum(0), x.flip(0), x.max(), x.repeat(1), x.clamp(0)),
}


@pytest.mark.parametrize("name", OF_NO_DIMENSION)
def test_results_of_0d_tensors_are_memory_of_their_own(name: str) -> None:
    same(OF_NO_DIMENSION[name], torch.tensor(2.5), calls=1)


def test_views_that_change_nothing_are_tensors_of_their_own() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x + 1
        return y, y.view_as(y), y[:], y.detach()

    results = compiled(function)(X)
    assert len({id(each) for each in results}) == 4
    assert len({each.data_ptr() for each in results}) == 1


def test_memory_with_holes() -> None:
    assert compiled(lambda x: x.new_empty_strided((3, 2), (8, 3)))(X).stride() == (8, 3)


HOLES: dict[str, Callable[[torch.Tensor], Any]] = {
    "rows": lambda x: torch.empty_strided(x.size(), (16, 1)).copy_(x * 2),
    "columns": lambda x: torch.empty_strided(x.size(), (1, 7), dtype=torch.bool).copy_(x > 0),
    "complex numbers": lambda x: torch.empty_strided(x.size(), (9, 1), dtype=torch.complex64).copy_(x),
    "as of an input": lambda x: torch.empty_strided(x.size(), x.stride())[:].copy_(x + x),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", HOLES)
def test_results_have_the_holes_between_their_elements(name: str, dynamic: bool) -> None:
    same(HOLES[name], X[:, ::2] if name == "as of an input" else X, dynamic=dynamic)


OF_ANY_SIZE = ["in place", "through a view", "flat view of a strided input", "results that share"]


@pytest.mark.parametrize("name", [*OF_ANY_SIZE, "views of an input"])
def test_memory_of_any_size(name: str) -> None:
    function, inputs = MEMORY[name]
    if name == "views of an input":
        same(lambda x: (x.t(), x[1], x.unsqueeze(0)), *inputs, dynamic=True)
    else:
        same(function, *inputs, dynamic=True)


LAYOUTS = {
    "channels last": IMAGE.contiguous(memory_format=torch.channels_last),
    "transposed": IMAGE.transpose(1, 3),
    "rotated": IMAGE.permute(3, 0, 2, 1),
    "every other": IMAGE[:, :, ::2],
    "one channel": IMAGE[:, :1].contiguous(memory_format=torch.channels_last),
    "expanded": IMAGE[:, :1].expand(2, 3, 5, 4),
}
KEPT: dict[str, Callable[[torch.Tensor], Any]] = {
    "pointwise": lambda x: x.relu() * 2,
    "with a number tensor": lambda x: x + torch.ones(()),
    "with a contiguous one": lambda x: x + torch.ones(x.shape),
    "contiguous first": lambda x: torch.ones(x.shape) + x,
    "broadcast": lambda x: x * torch.ones(x.shape[1], 1, 1),
    "where": lambda x: torch.where(x > 0, x, 0.0),
    "to bfloat16": lambda x: x.to(torch.bfloat16),
    "clone": lambda x: x.clone(),
    "empty_like": lambda x: torch.zeros_like(x),
    "softmax": lambda x: x.softmax(1),
    "sum": lambda x: x.sum(2),
    "mean keepdim": lambda x: x.mean((2, 3), keepdim=True),
    "max pool": lambda x: torch.nn.functional.max_pool2d(x, 2),
    "avg pool": lambda x: torch.nn.functional.avg_pool2d(x, 2),
    "upsample": lambda x: torch.nn.functional.interpolate(x, scale_factor=2),
    "cat": lambda x: torch.cat([x, x], 1),
    "cumsum": lambda x: x.cumsum(1),
    "flip": lambda x: x.flip(1),
    "batch norm": lambda x: torch.nn.functional.batch_norm(
        x, torch.zeros(x.shape[1]), torch.ones(x.shape[1])
    ),
    "sort": lambda x: x.sort(1),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", KEPT)
def test_layouts_are_eagers(name: str, layout: str) -> None:
    if name == "batch norm" and layout in ("transposed", "rotated"):
        pytest.skip("PyTorch's own metadata of batch norm has other strides than its kernel")
    same(KEPT[name], LAYOUTS[layout], calls=1)


def test_convolutions_keep_channels_last() -> None:
    weight = torch.randn(4, 3, 3, 3)
    same(lambda x, w: torch.nn.functional.conv2d(x, w).relu(), LAYOUTS["channels last"], weight)


def test_batch_norm_statistics_move_as_in_eager() -> None:
    torch.manual_seed(0)
    theirs = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU())
    mine = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU())
    mine.load_state_dict(theirs.state_dict())
    fast = compiled(mine)
    for _ in range(3):
        torch.testing.assert_close(fast(IMAGE), theirs(IMAGE))
    for (name, one), other in zip(mine.state_dict().items(), theirs.state_dict().values()):
        torch.testing.assert_close(one, other, msg=name)
    assert int(mine[1].num_batches_tracked) == 3
    mine.eval(), theirs.eval()
    torch.testing.assert_close(fast(IMAGE), theirs(IMAGE))


def test_gradients_reach_what_was_mutated() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = x * 2
        z[:, 1:3] = y[:, :2].exp()
        z.mul_(y)
        return z.sum()

    grads = []
    for run in (function, compiled(function)):
        x, y = X.clone().requires_grad_(), Y.clone().requires_grad_()
        run(x, y).backward()
        grads.append((x.grad, y.grad))
    for mine, theirs in zip(*grads):
        torch.testing.assert_close(mine, theirs)


def test_results_that_are_views_have_gradients() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.t()[1:]

    x, z = X.clone().requires_grad_(), X.clone().requires_grad_()
    (compiled(function)(x) ** 2).sum().backward()
    (function(z) ** 2).sum().backward()
    assert torch.equal(x.grad, z.grad)


@pytest.mark.parametrize("function", [out_of_a_view, lambda x, y: torch.cat([x, y]).resize_(3, 4)])
def test_what_dynamo_leaves_to_python(function: Callable[..., Any]) -> None:
    """These break the graph; what is around them is compiled."""
    same(function, X, Y, whole=False)


def test_a_leaf_that_needs_gradients_is_not_written_to() -> None:
    leaf = X.clone().requires_grad_()
    raises_alike(lambda: leaf.add_(1))
