"""Type promotion, rounding, integers at their limits, sizes at theirs; and what eager refuses."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.semantics.sameness import compiled, raises_alike, same

F = torch.nn.functional
DTYPES = (
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.int32, torch.int64),
    *(torch.uint8, torch.bool),
)
PAIRS = list(itertools.product(DTYPES, DTYPES))


def sample(dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor([0, 1, 2, 3, 5, 1, 7, 2]).to(dtype)


def arithmetic(x: Any, y: Any) -> list[Any]:
    return [x + y, x * y, x / (y + 1), torch.maximum(x, y), x == y, torch.where(x > y, x, y)]


@pytest.mark.long
def test_pairs_of_dtypes() -> None:
    """Tensors of every dtype with tensors of every dtype, with dimensions and without."""
    xs = [sample(dtype) for dtype in DTYPES]
    same(lambda *xs: [arithmetic(x, y) for x in xs for y in xs], *xs, calls=1)
    zeros = [x[3] for x in xs]
    same(lambda *ts: [x + y for x in ts[: len(xs)] for y in ts[len(xs) :]], *xs, *zeros, calls=1)


@pytest.mark.parametrize("number", [2, 2.5, True, -1, 1e30])
def test_tensors_with_numbers(number: Any) -> None:
    xs = [sample(dtype) for dtype in DTYPES if not (number in (-1, 1e30) and dtype is torch.uint8)]
    if isinstance(number, bool):
        same(lambda *xs: [x + number for x in xs], *xs, calls=1)
        return
    same(lambda *xs: [(x + number, x * number, number - x.float(), x > number) for x in xs], *xs, calls=1)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8])
def test_integers_at_their_limits(dtype: torch.dtype) -> None:
    info = torch.iinfo(dtype)
    x = torch.tensor([info.min, info.min + 1, 0, 1, info.max - 1, info.max], dtype=dtype)
    y = torch.tensor([3, -3, 2, -1, 7, 5]).to(dtype)
    same(lambda x, y: (x + 1, x - 1, x * y, -x, x.abs(), x * x, ~x, x.sum(), x.prod(), x.cumsum(0)), x, y)
    same(
        lambda x, y: (x // y, x % y, torch.fmod(x, y), torch.div(x, y, rounding_mode="trunc"), x / y),
        x,
        torch.where(y == 0, torch.ones_like(y), y),
    )


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64, torch.uint8])
def test_shifts_by_too_much(dtype: torch.dtype) -> None:
    x = torch.tensor([1, 3, 100, 7, 5]).to(dtype)
    same(lambda x: [(x << n, x >> n) for n in (0, 1, 7, 8, 31, 32, 63, 64, 100)], x)


def test_signs_and_special_numbers() -> None:
    x = torch.tensor([0.0, -0.0, float("inf"), -float("inf"), float("nan"), 1.0, -2.5])
    same(
        lambda x: [
            *(x + 0, x * 0, x / 0, 0 / x, x // 2, x % 2, torch.fmod(x, 2), x.sign(), x.sqrt(), x.log()),
            *(x.exp(), x.tanh(), x.sigmoid(), x.max(), x.min(), x.sum(), x.amax(), x.relu(), x.round()),
            *(x.pow(2), x.pow(0), x.pow(-1), x.pow(0.5), torch.atan2(x, -x), torch.copysign(x, -x)),
            *(x.clamp(-1, 1), x.nan_to_num(), torch.hypot(x, x), x.floor(), x.ceil(), x.trunc(), x.frac()),
        ],
        x,
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_rounds_after_each_operator(dtype: torch.dtype) -> None:
    x = torch.linspace(-3, 3, 512).to(dtype)
    y = torch.linspace(0.1, 5, 512).to(dtype)
    same(lambda x, y: ((x + y) * y - x, (x * y + x) / y, x.exp() * y.log() + x.tanh()), x, y)
    same(lambda x, y: (x.float() * y).to(dtype), x, y)


def test_conversions() -> None:
    x = torch.tensor([-1.5, -0.5, 0.0, 0.5, 1.5, 127.9, 100.2])
    same(lambda x: [x.to(dtype) for dtype in DTYPES if dtype is not torch.uint8], x)
    same(lambda x: [(x != 0).to(dtype) + 1 for dtype in DTYPES], x)
    same(lambda x: x.to(torch.int64).to(torch.uint8).to(torch.float16), x)


@pytest.mark.long
def test_more_elements_than_int32_counts() -> None:
    """Strides of zero: 2**32 elements in one byte; only a few are looked at."""
    big = torch.ones(1, 1, dtype=torch.int8).expand(1 << 16, 1 << 16)
    same(lambda x: x[-3:, -2:] + 1, big)
    same(lambda x: x.reshape(-1).numel() if False else x.shape[0] * x.shape[1], big)
    same(lambda x: x[(1 << 16) - 1, (1 << 16) - 1] * 2, big)


@pytest.mark.long
def test_flat_positions_beyond_int32() -> None:
    """An argmax whose position needs more than 31 bits."""
    rows = torch.zeros(1, dtype=torch.int8).expand(1 << 31)
    same(lambda x: torch.cat([x[:2], x[-1:] + 1]).argmax() + (x.shape[0] - 1), rows)


# -- what eager refuses --------------------------------------------------------------------------------------

X = torch.rand(4, 6)
LARGE = torch.rand(64, 64)
POSITIONS = torch.tensor([0, 9])
REFUSED: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "matmul of two dtypes": (lambda x, y: x @ y, (X.half(), X.t())),
    "large matmul of two dtypes": (lambda x, y: x @ y, (LARGE.half(), LARGE)),
    "linear of another dtype": (F.linear, (X.half(), X)),
    "bias of another dtype": (F.linear, (X, X, X[0, :4].half())),
    "large bias of another dtype": (F.linear, (LARGE, LARGE, LARGE[0].double())),
    "bmm of two dtypes": (torch.bmm, (LARGE[None], LARGE[None].half())),
    "convolution of two dtypes": (F.conv1d, (LARGE[None].half(), LARGE[:, :, None])),
    "shapes that do not broadcast": (lambda x, y: x + y, (X, X.t())),
    "inner dimensions": (lambda x, y: x @ y, (X, X)),
    "index": (lambda x, i: x[i], (X, POSITIONS)),
    "negative index": (lambda x, i: x[i], (X, torch.tensor([-5]))),
    "gather": (lambda x, i: x.gather(0, i), (X, torch.full((1, 6), 7))),
    "index_select": (lambda x, i: x.index_select(1, i), (X, POSITIONS)),
    "embedding": (lambda w, i: F.embedding(i, w), (X, POSITIONS)),
    "scatter": (lambda x, i: x.scatter(0, i, 1.0), (X, torch.full((1, 6), 9))),
    "index_add": (lambda x, i: x.index_add(0, i, x[:2]), (X, POSITIONS)),
    "take": (lambda x, i: x.take(i), (X, torch.tensor([99]))),
    "class out of range": (F.cross_entropy, (X, torch.tensor([0, 1, 2, 6]))),
    "nll target": (F.nll_loss, (X, torch.tensor([0, 1, 2, -7]))),
    "probabilities above 1": (F.binary_cross_entropy, (X + 1, X)),
    "integer division by zero": (lambda x: x // torch.zeros_like(x), (torch.arange(1, 5),)),
    "remainder by zero": (lambda x: x % torch.zeros_like(x), (torch.arange(1, 5),)),
    "reshape": (lambda x: x.reshape(5, 5), (X,)),
    "view of a transpose": (lambda x: x.t().view(-1), (X,)),
    "dim": (lambda x: x.sum(3), (X,)),
    "max of nothing": (lambda x: x.max(), (X[:0],)),
    "concatenation": (lambda x, y: torch.cat([x, y]), (X, X[:, :3])),
    "bool minus bool": (lambda x: x - x, (X > 0.5,)),
    "negated bool": (lambda x: -x, (X > 0.5,)),
    "mean of integers": (lambda x: x.mean(), (torch.arange(4),)),
    "in place to a lower kind": (lambda x: x.add_(0.5), (torch.arange(4),)),
    "one_hot": (lambda x: F.one_hot(x, 3), (torch.tensor([0, 5]),)),
    "integers to negative powers": (lambda x: x**-1, (torch.arange(1, 4),)),
    "pad by too much": (lambda x: F.pad(x[None], (9, 9), mode="reflect"), (X,)),
    "negative size": (lambda x: torch.zeros(x.shape[0] - 9), (X,)),
    "multinomial of nothing": (lambda x: torch.multinomial(x, 2), (torch.zeros(3),)),
    "repeat_interleave": (lambda x, n: x.repeat_interleave(n, 0), (X, torch.tensor([1, -1, 1, 1]))),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_eager_refuses_is_refused(name: str) -> None:
    function, inputs = REFUSED[name]
    raises_alike(function, *inputs)


@pytest.mark.parametrize("name", ["index", "gather", "embedding", "class out of range", "take"])
def test_refused_at_any_size(name: str) -> None:
    function, inputs = REFUSED[name]
    raises_alike(function, *inputs, dynamic=True)


# -- guards --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: x + y,
        lambda x, y: (x * y).sum(0) / x.shape[0],
        lambda x, y: torch.cat([x, y]).softmax(0),
        lambda x, y: x[: y.shape[0]] - y[: x.shape[0]],
    ],
)
def test_any_sizes_one_after_another(function: Callable[..., Any]) -> None:
    """Sizes of 0, of 1, equal ones and broadcast ones: whatever is assumed is guarded."""
    torch._dynamo.reset()
    fast = torch.compile(function, backend="smelt", fullgraph=True, dynamic=True)
    for m, n in [(4, 4), (5, 5), (1, 5), (5, 1), (1, 1), (0, 0), (7, 7), (2, 2)]:
        x, y = torch.randn(m, 3), torch.randn(n, 3)
        torch.testing.assert_close(fast(x, y), function(x, y), equal_nan=True)


@pytest.mark.parametrize("elements", [1, 40])
def test_to_an_integer_and_back(elements: int) -> None:
    """No -0.0 comes back, and what no integer holds does not pass unharmed (g++ would make it a trunc)."""
    halves = torch.tensor([-0.5, -2.5, 0.7, 1e30, float("nan"), -0.0]).repeat(8)[:elements]
    xs = [halves.to(dtype) for dtype in (torch.float32, torch.float64, torch.bfloat16)]
    integers = (torch.int32, torch.int64)
    same(lambda *xs: [(x.to(n).to(x.dtype), torch.copysign(x, x.to(n))) for x in xs for n in integers], *xs)
    signs = torch.compile(lambda x: torch.signbit(x.to(torch.int64).to(x.dtype)), backend="smelt")
    assert not signs(torch.full((elements,), -0.5)).any()


def test_the_gradient_of_hardsigmoid_in_float64() -> None:
    """Eager multiplies by a sixth that was rounded to float32."""
    same(
        lambda x: torch.autograd.grad(F.hardsigmoid(x).sum(), x)[0],
        torch.linspace(-4, 4, 9, dtype=torch.float64).requires_grad_(),
        whole=False,
    )


EMPTY = torch.zeros(3, 0)
ALONG, OF_ALL = ("max", "min", "median", "nanmedian", "mode"), ("max", "min", "aminmax")
NO_ELEMENTS = {
    **{name: lambda x, name=name: getattr(x, name)(1) for name in ALONG},
    **{f"{name} of all": lambda x, name=name: getattr(x, name)() for name in OF_ALL},
    "argmin": lambda x: x.argmin(1),
    "integers": lambda x: x.long().max(1),
}


@pytest.mark.parametrize("name", NO_ELEMENTS)
def test_reductions_over_nothing_raise(name: str) -> None:
    raises_alike(NO_ELEMENTS[name], EMPTY)


def test_reductions_over_nothing_raise_at_run_time() -> None:
    """Of a size that depends on data."""
    fast = compiled(lambda x: x[x > 0].max(0)[0] + 1)
    assert fast(torch.ones(3)) == 2
    with pytest.raises(IndexError, match=r"max\(\): Expected reduction dim 0 to have non-zero size"):
        fast(torch.zeros(3))


def test_reductions_over_nothing_that_have_a_result() -> None:
    same(lambda x: (x.median(), x.bool().median(), x.max(0), x.sort(1), x.cummax(1), x.logsumexp(1)), EMPTY)


@pytest.mark.parametrize("name", ["softmax", "sort", "cummax", "cumsum", "argsort", "median", "unbind"])
@pytest.mark.parametrize("shape", [(2, 3), ()])
def test_dimensions_that_are_not_there(name: str, shape: tuple[int, ...]) -> None:
    raises_alike(lambda x: getattr(x, name)(2), torch.ones(shape))


INDICES = {
    "index_copy": lambda x, i: x.index_copy(0, i, x[:2]),
    "index_copy of columns": lambda x, i: x.index_copy(1, i, x[:, :2]),
    "index_add": lambda x, i: x.index_add(0, i, x[:2]),
    "index_select": lambda x, i: x.index_select(0, i),
    "gather": lambda x, i: x.gather(0, i.view(-1, 1)),
    "scatter": lambda x, i: x.scatter(1, i.view(1, -1), 2.0),
    "index_reduce": lambda x, i: x.index_reduce(0, i, x[:2], "prod"),
    "embedding": lambda x, i: F.embedding(i, x),
}


@pytest.mark.parametrize("name", INDICES)
def test_negative_indices_that_eager_refuses(name: str) -> None:
    raises_alike(INDICES[name], torch.ones(3, 4), torch.tensor([-1, 0]))


@pytest.mark.parametrize(
    "function",
    [
        lambda x, i: x.index_copy(0, i, x[:2]),
        lambda x, i: x.index_fill(0, i, 1.0),
        lambda x, i: x.clone().put_(i, x[0, :2]),
        lambda x, i: F.nll_loss(x[:2], i),
        lambda x, i: (x > 0).argmax(1),
        lambda x, i: F.binary_cross_entropy(x, x.double()),
        lambda x, i: F.binary_cross_entropy_with_logits(x, x.long()),
    ],
)
def test_dtypes_that_eager_refuses(function: Callable[..., Any]) -> None:
    raises_alike(function, torch.full((3, 4), 0.5), torch.tensor([0, 1], dtype=torch.int32))


LOW = (torch.float16, torch.bfloat16)


@pytest.mark.parametrize("dtype", LOW)
def test_0d_factors_of_low_precision_tensors(dtype: torch.dtype) -> None:
    """Products and quotients take a 0-d second operand as it is, other operators round it first."""
    x = (torch.arange(400) / 20 - 10).to(dtype)
    for other in (torch.float32, torch.float64, LOW[dtype is LOW[0]]):
        fast = compiled(_with_0d)
        s = torch.tensor(0.3333, dtype=torch.float64).to(other)
        for got, expected in zip(fast(x, s), _with_0d(x, s), strict=True):
            assert torch.equal(got, expected)


def _with_0d(x: torch.Tensor, s: torch.Tensor) -> list[torch.Tensor]:
    quotients = [torch.div(x, s, rounding_mode=mode) for mode in (None, "floor", "trunc")]
    return [*quotients, x * s, s * x, s / x, x + s, x - s, x // s, torch.maximum(x, s)]


@pytest.mark.parametrize("dtype", LOW)
def test_logit_of_low_precision_rounds_each_step(dtype: torch.dtype) -> None:
    x = torch.linspace(-0.1, 1.1, 200).to(dtype)
    fast = compiled(lambda x: [torch.logit(x, eps).nan_to_num(7) for eps in (None, 1e-6, 0.1)])
    for got, eps in zip(fast(x), (None, 1e-6, 0.1), strict=True):
        assert torch.equal(got, torch.logit(x, eps).nan_to_num(7))


def test_ldexp() -> None:
    x, n = torch.tensor([1e-30, 1e-38, 3.0, 1.0]), torch.tensor([140, 149, -130, 3])
    same(lambda x, n: (torch.ldexp(x, n), torch.ldexp(x.half(), n), torch.ldexp(x.double(), n * 5)), x, n)
    same(lambda x, n: (torch.ldexp(x, n / 16), torch.ldexp(x.bfloat16(), n / 16), torch.ldexp(n, n)), x, n)


@pytest.mark.parametrize("target", [torch.float16, torch.float32, torch.float64])
def test_losses_of_mixed_dtypes(target: torch.dtype) -> None:
    x, y = torch.rand(6).bfloat16(), torch.rand(6).to(target)
    for reduction in ("none", "sum"):
        same(
            lambda x, y, how=reduction: (
                F.huber_loss(x, y, reduction=how),
                F.soft_margin_loss(x, y, reduction=how),
                F.binary_cross_entropy(x, x, weight=y, reduction=how),
            ),
            x,
            y,
            calls=1,
        )
