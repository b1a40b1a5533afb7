"""Random tensors: rand, randn and randint, bernoulli, dropout, and the distributions.

Rows refuse calls with wrong arguments, so that ATen raises eager's errors.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from sympy import Expr

from smelt.errors import Unsupported
from smelt.lowering.builder import Builder
from smelt.lowering.dims import broadcast_index, cast, compute_dtype, convert, load_as, result_dtype
from smelt.lowering.numbers import constant
from smelt.lowering.random.draw import DIGITS, Draw, draw, refuse, require
from smelt.lowering.registry import lowers
from smelt.lowering.tensor import Index, Tensor
from smelt.ops import ops
from smelt.symbolic import as_expr

aten = torch.ops.aten

# -- uniform and normal ------------------------------------------------------------------------------------


def _floating_result(ctx: Builder) -> torch.dtype:
    """The compute dtype of the current node's result.

    Raises:
        Unsupported: the result is no floating tensor; eager raises.
    """
    refuse(not ctx.dtype.is_floating_point, f"{ctx.dtype}")
    return compute_dtype(ctx.dtype)


def _numbers(*values: Any) -> None:
    """Leave a call to ATen if its parameters are known only at run time."""
    if any(isinstance(value, Expr) for value in values):
        raise Unsupported("random: a parameter depends on sizes")


@lowers(aten.rand.default, aten.rand.generator, aten.rand_like.default, aten.rand_like.generator)
def rand(ctx: Builder, *args: Any, generator: Any = None, **kwargs: Any) -> Tensor:
    return uniform(ctx, None, generator=generator)


@lowers(aten.uniform.default)
def uniform(ctx: Builder, x: Any, low: float = 0.0, high: float = 1.0, *, generator: Any = None) -> Tensor:
    """``[low, high)`` in steps of ``(high - low) * 2**-digits``, as ``at::uniform_real_distribution``."""
    compute, dtype = _floating_result(ctx), ctx.dtype
    _numbers(low, high)
    largest = torch.finfo(dtype).max
    within = -largest <= low <= high <= largest and high - low <= largest
    refuse(not within, f"uniform from {low} to {high}")
    numbers = draw(ctx, generator)

    def inner(index: Index) -> Any:
        value = numbers.uniform(index, dtype)
        if (low, high) != (0.0, 1.0):
            scaled = ops.mul(value, constant(high - low, compute))
            value = ops.add(scaled, constant(low, compute))
        return convert(value, compute, dtype)

    return ctx.pointwise(inner)


@lowers(aten.randn.default, aten.randn.generator, aten.randn_like.default, aten.randn_like.generator)
def randn(ctx: Builder, *args: Any, generator: Any = None, **kwargs: Any) -> Tensor:
    return _normal(ctx, 0.0, 1.0, generator)


@lowers(aten.normal_functional.default)
def normal_functional(
    ctx: Builder, x: Any, mean: float = 0.0, std: float = 1.0, *, generator: Any = None
) -> Tensor:
    return _normal(ctx, mean, std, generator)


@lowers(aten.normal.float_float)
def normal_of_size(
    ctx: Builder, mean: float, std: float, size: Any, *, generator: Any = None, **kwargs: Any
) -> Tensor:
    return _normal(ctx, mean, std, generator)


@lowers(aten.normal.Tensor_float, aten.normal.float_Tensor, aten.normal.Tensor_Tensor)
def normal(ctx: Builder, mean: Any, std: Any = 1.0, *, generator: Any = None) -> Tensor:
    return _normal(ctx, mean, std, generator)


def _normal(ctx: Builder, mean: Any, std: Any, generator: Any) -> Tensor:
    """``mean + std * x`` for standard normal ``x``; both are numbers or tensors that broadcast."""
    compute, dtype = _floating_result(ctx), ctx.dtype
    _numbers(mean, std)
    if isinstance(std, Tensor):
        refuse(not std.dtype.is_floating_point, f"std of {std.dtype}")
        none_negative(ctx, std, "normal expects all elements of std >= 0.0")
    else:
        refuse(not std >= 0, f"std {std}")
    numbers = draw(ctx, generator)

    def inner(index: Index) -> Any:
        value = numbers.normal(index, compute)
        if isinstance(std, Tensor) or std != 1:
            value = ops.mul(value, _operand(std, index, compute))
        if isinstance(mean, Tensor) or mean != 0:
            value = ops.add(value, _operand(mean, index, compute))
        return convert(value, compute, dtype)

    return ctx.pointwise(inner)


def _operand(x: Any, index: Index, compute: torch.dtype) -> Any:
    if isinstance(x, Tensor):
        return load_as(x, broadcast_index(index, x.shape), compute)
    return constant(x, compute)


def none_negative(ctx: Builder, x: Tensor, message: str) -> None:
    """Raise RuntimeError with ``message`` at run time if ``x`` has a negative element or NaN."""
    require(ctx, lambda index: ops.ge(x.load(index), constant(0.0, x.dtype)), x.shape, message)


# -- integers ----------------------------------------------------------------------------------------------


@lowers(aten.randint.default, aten.randint.generator)
def randint(ctx: Builder, high: Any, size: Any, *, generator: Any = None, **kwargs: Any) -> Tensor:
    return _integers(ctx, 0, high, generator)


@lowers(aten.randint.low, aten.randint.low_generator)
def randint_low(
    ctx: Builder, low: Any, high: Any, size: Any, *, generator: Any = None, **kwargs: Any
) -> Tensor:
    return _integers(ctx, low, high, generator)


@lowers(aten.randint_like.default, aten.randint_like.generator)
def randint_like(ctx: Builder, x: Tensor, high: Any, *, generator: Any = None, **kwargs: Any) -> Tensor:
    return _integers(ctx, 0, high, generator)


@lowers(aten.randint_like.low_dtype, aten.randint_like.low_generator_dtype)
def randint_like_low(
    ctx: Builder, x: Tensor, low: Any, high: Any, *, generator: Any = None, **kwargs: Any
) -> Tensor:
    return _integers(ctx, low, high, generator)


@lowers(aten.random.default)
def random(ctx: Builder, x: Tensor, *, generator: Any = None) -> Tensor:
    """All non-negative integers of the dtype; of a floating dtype, those it represents without gaps."""
    return _integers(ctx, 0, _largest(ctx.dtype) + 1, generator)


@lowers(aten.random.to)
def random_to(ctx: Builder, x: Tensor, high: int, *, generator: Any = None) -> Tensor:
    return _integers(ctx, 0, high, generator)


@lowers(getattr(aten.random, "from"))
def random_from(ctx: Builder, x: Tensor, low: int, high: int | None, *, generator: Any = None) -> Tensor:
    return _integers(ctx, low, _largest(ctx.dtype) + 1 if high is None else high, generator)


def _largest(dtype: torch.dtype) -> int:
    """The largest integer that ``random_`` draws for a dtype."""
    if dtype.is_floating_point:
        return 1 << DIGITS[dtype]
    return 1 if dtype is torch.bool else torch.iinfo(dtype).max


def _integers(ctx: Builder, low: Any, high: Any, generator: Any) -> Tensor:
    """Integers in ``[low, high)`` as the result's dtype."""
    dtype = ctx.dtype
    count = high - low
    if isinstance(count, Expr) and not count.is_Integer:
        if not (count.is_positive and dtype is torch.int64):
            raise Unsupported("random: whether there is an integer from low to high depends on sizes")
    else:
        low, high, count = int(low), int(high), int(count)
        refuse(count <= 0, f"integers from {low} to {high}")
        largest = _largest(dtype)
        least = -largest if dtype.is_floating_point else 0
        if not dtype.is_floating_point and dtype is not torch.bool:
            least = torch.iinfo(dtype).min
        refuse(not (least <= low and high - 1 <= largest), f"{low} to {high} in {dtype}")
    numbers = draw(ctx, generator)

    def inner(index: Index) -> Any:
        value = numbers.below(index, count)
        if low != 0:
            offset = ops.index_expr(low, torch.int64) if isinstance(low, Expr) else constant(low, torch.int64)
            value = ops.add(value, offset)
        return convert(value, torch.int64, dtype)

    return ctx.pointwise(inner)


@lowers(aten.randperm.default, aten.randperm.generator)
def randperm(ctx: Builder, count: Any, *, generator: Any = None, **kwargs: Any) -> Tensor:
    """The positions of random keys in ascending order."""
    dtype = ctx.dtype
    if dtype is not torch.int64:
        largest = (1 << DIGITS[dtype]) if dtype.is_floating_point else _largest(dtype)
        refuse(not (as_expr(count).is_Integer and count <= largest), f"a permutation of {count} in {dtype}")
    numbers = draw(ctx, generator)
    _, positions = ctx.sort(numbers.bits, shape=numbers.shape, dtype=torch.int64)
    return cast(ctx, positions, dtype)


# -- yes or no ---------------------------------------------------------------------------------------------

_CHANCE = "Expected p_in >= 0 && p_in <= 1 to be true, but got false."


@lowers(aten.bernoulli.p)
def bernoulli_p(ctx: Builder, x: Tensor, p: float, *, generator: Any = None) -> Tensor:
    dtype = ctx.dtype
    _numbers(p)
    refuse(not 0 <= p <= 1, f"a probability of {p}")
    numbers = draw(ctx, generator)
    return ctx.pointwise(lambda index: convert(numbers.chance(index, p), torch.bool, dtype))


@lowers(aten.bernoulli.default)
def bernoulli(ctx: Builder, p: Tensor, *, generator: Any = None) -> Tensor:
    return _bernoulli(ctx, p, generator)


@lowers(aten.bernoulli.Tensor)
def bernoulli_tensor(ctx: Builder, x: Tensor, p: Tensor, *, generator: Any = None) -> Tensor:
    return _bernoulli(ctx, p, generator)


def _bernoulli(ctx: Builder, p: Tensor, generator: Any) -> Tensor:
    """1 with the probability at the same index of ``p``. A probability outside [0, 1] raises."""
    dtype = ctx.dtype
    refuse(not p.dtype.is_floating_point, f"a probability of {p.dtype}")

    def holds(index: Index) -> Any:
        value = load_as(p, index, compute_dtype(p.dtype))
        zero, one = (constant(number, compute_dtype(p.dtype)) for number in (0.0, 1.0))
        return ops.logical_and(ops.ge(value, zero), ops.le(value, one))

    require(ctx, holds, p.shape, _CHANCE)
    numbers = draw(ctx, generator)

    def inner(index: Index) -> Any:
        chance = load_as(p, broadcast_index(index, p.shape), torch.float64)
        return convert(ops.lt(numbers.uniform(index, torch.float64), chance), torch.bool, dtype)

    return ctx.pointwise(inner)


@lowers(aten.native_dropout.default)
def native_dropout(ctx: Builder, x: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    """(``x * mask / (1 - p)``, mask); if nothing is dropped, (``x``, ones)."""
    dtype = result_dtype(ctx, 0)
    compute = compute_dtype(dtype)
    if train is False:
        mask = ctx.pointwise(lambda index: constant(True, torch.bool), shape=x.shape, dtype=torch.bool)
        return ctx.pointwise(x.load, shape=x.shape, dtype=dtype), mask
    _numbers(p)
    refuse(not 0 <= p <= 1, f"a probability of {p}")
    refuse(not dtype.is_floating_point, f"{dtype}")
    scale = 0.0 if p == 1 else 1.0 / (1.0 - p)
    numbers = draw(ctx, shape=x.shape)
    mask = ctx.pointwise(lambda index: numbers.chance(index, 1.0 - p), shape=x.shape, dtype=torch.bool)

    def inner(index: Index) -> Any:
        kept = ops.mul(load_as(x, index, compute), load_as(mask, index, compute))
        return convert(ops.mul(kept, constant(scale, compute)), compute, dtype)

    return ctx.pointwise(inner, shape=x.shape, dtype=dtype), mask


@lowers(aten.rrelu_with_noise_functional.default)
def rrelu_with_noise_functional(
    ctx: Builder,
    x: Tensor,
    noise: Tensor,
    lower: float = 0.125,
    upper: float = 1 / 3,
    training: bool = False,
    generator: Any = None,
) -> tuple[Tensor, Tensor]:
    """(the activation, the slope of each element): slopes of non-positive elements are random in training."""
    dtype = result_dtype(ctx, 0)
    _numbers(lower, upper)
    refuse(not dtype.is_floating_point or not lower <= upper, f"rrelu in {dtype} from {lower} to {upper}")
    compute = compute_dtype(dtype)
    zero, one = (lambda: constant(0.0, compute)), (lambda: constant(1.0, compute))
    slope: Callable[[Index], Any]
    if training:
        numbers = draw(ctx, generator, x.shape)

        def slope(index: Index) -> Any:
            spread = ops.mul(numbers.uniform(index, torch.float64), _double(upper - lower))
            drawn = convert(ops.add(spread, _double(lower)), torch.float64, compute)
            return ops.where(ops.le(load_as(x, index, compute), zero()), drawn, one())

        noise_out = ctx.pointwise(
            lambda index: convert(slope(index), compute, noise.dtype), shape=x.shape, dtype=noise.dtype
        )
    else:

        def slope(index: Index) -> Any:
            leak = constant((lower + upper) / 2, compute)
            return ops.where(ops.gt(load_as(x, index, compute), zero()), one(), leak)

        noise_out = ctx.pointwise(noise.load, shape=noise.shape, dtype=noise.dtype)
    result = ctx.pointwise(
        lambda index: convert(ops.mul(load_as(x, index, compute), slope(index)), compute, dtype),
        shape=x.shape,
        dtype=dtype,
    )
    return result, noise_out


@lowers(aten.rrelu_with_noise_backward.default)
def rrelu_with_noise_backward(
    ctx: Builder,
    grad: Tensor,
    x: Tensor,
    noise: Tensor,
    lower: float,
    upper: float,
    training: bool,
    self_is_result: bool,
) -> Tensor:
    """``grad`` times the slope of each element: its noise in training, else a leaky relu's slope."""
    dtype = ctx.dtype
    _numbers(lower, upper)
    refuse(not dtype.is_floating_point, f"rrelu in {dtype}")
    compute, leak = compute_dtype(dtype), (lower + upper) / 2
    refuse(not training and self_is_result and leak < 0, f"a slope of {leak} in place")

    def inner(index: Index) -> Any:
        slope = (
            load_as(noise, broadcast_index(index, noise.shape), compute)
            if training
            else constant(leak, compute)
        )
        value = load_as(grad, broadcast_index(index, grad.shape), compute)
        scaled = ops.mul(value, slope)
        if not training:
            above = ops.gt(load_as(x, broadcast_index(index, x.shape), compute), constant(0.0, compute))
            scaled = ops.where(above, value, scaled)
        return convert(scaled, compute, dtype)

    return ctx.pointwise(inner)


def _double(value: float) -> Any:
    return constant(value, torch.float64)


# -- other distributions -----------------------------------------------------------------------------------


def _distribution(
    ctx: Builder, generator: Any, function: Callable[[Draw, Index], Any], compute: torch.dtype
) -> Tensor:
    """``function`` of the index, computed in the dtype ``compute``."""
    dtype, numbers = ctx.dtype, draw(ctx, generator)
    return ctx.pointwise(lambda index: convert(function(numbers, index), compute, dtype))


@lowers(aten.exponential.default)
def exponential(ctx: Builder, x: Tensor, rate: float = 1.0, *, generator: Any = None) -> Tensor:
    """``-log(u) / rate``, never 0 before the division (as ``at::exponential_distribution``)."""
    compute = _floating_result(ctx)
    _numbers(rate)
    refuse(not rate > 0, f"a rate of {rate}")
    least = torch.finfo(compute).eps / 2

    def value(numbers: Draw, index: Index) -> Any:
        logarithm = ops.neg(ops.log(numbers.positive(index, compute)))
        return ops.truediv(ops.maximum(logarithm, constant(least, compute)), constant(rate, compute))

    return _distribution(ctx, generator, value, compute)


@lowers(aten.geometric.default)
def geometric(ctx: Builder, x: Tensor, p: float, *, generator: Any = None) -> Tensor:
    """The number of trials until the first success: ``ceil(log(u) / log(1 - p))``, at least 1."""
    dtype = ctx.dtype
    _numbers(p)
    refuse(not 0 < p < 1 or dtype is torch.bool, f"geometric in {dtype} with a probability of {p}")

    def value(numbers: Draw, index: Index) -> Any:
        trials = ops.truediv(ops.log(numbers.positive(index, torch.float64)), _double(math.log1p(-p)))
        return ops.maximum(ops.ceil(trials), _double(1.0))

    return _distribution(ctx, generator, value, torch.float64)


@lowers(aten.cauchy.default)
def cauchy(
    ctx: Builder, x: Tensor, median: float = 0.0, sigma: float = 1.0, *, generator: Any = None
) -> Tensor:
    """``median + sigma * tan(pi * (u - 1/2))``, in float64 as ATen."""
    _floating_result(ctx)
    _numbers(median, sigma)
    refuse(not sigma > 0, f"sigma {sigma}")

    def value(numbers: Draw, index: Index) -> Any:
        turn = ops.sub(numbers.positive(index, torch.float64), _double(0.5))
        spread = ops.mul(ops.tan(ops.mul(turn, _double(math.pi))), _double(sigma))
        return ops.add(spread, _double(median))

    return _distribution(ctx, generator, value, torch.float64)


@lowers(aten.log_normal.default)
def log_normal(
    ctx: Builder, x: Tensor, mean: float = 1.0, std: float = 2.0, *, generator: Any = None
) -> Tensor:
    """``exp(mean + std * n)``, in float64 as ATen."""
    _floating_result(ctx)
    _numbers(mean, std)
    refuse(not std > 0, f"std {std}")

    def value(numbers: Draw, index: Index) -> Any:
        normal = numbers.normal(index, torch.float64)
        return ops.exp(ops.add(ops.mul(normal, _double(std)), _double(mean)))

    return _distribution(ctx, generator, value, torch.float64)


# -- left to ATen ------------------------------------------------------------------------------------------


@lowers(
    aten.poisson.default,
    aten.binomial.default,
    aten._standard_gamma.default,
    aten._sample_dirichlet.default,
)
def rejection(ctx: Builder, *args: Any, **kwargs: Any) -> Tensor:
    """Leave rejection sampling to ATen: in a fold, every element would draw as often as the worst one."""
    raise Unsupported("random: drawn by rejection, in as many turns as each element needs")


@lowers(aten._standard_gamma_grad.default, aten._dirichlet_grad.default)
def implicit_gradient(ctx: Builder, *args: Any, **kwargs: Any) -> Tensor:
    raise Unsupported("the gradient of a sampler: ATen's fit to it, which no formula gives")
