"""Every elementwise row against eager and float64: dtypes, special values, broadcasting, strides, sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.lowering.harness import DTYPES, FLOATS, INTEGERS, check

aten = torch.ops.aten
INF, NAN = float("inf"), float("nan")
SPECIAL = (NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.5, 1e-30, 3e4, -3e4, -3.0, 3.0, 20.0)
"""Sixteen, so that eager's kernels run whole vectors: some treat NaN otherwise in the last few elements."""
Function = Callable[..., Any]


def numbers(dtype: torch.dtype, *shape: int, seed: int = 0) -> torch.Tensor:
    """Numbers of both signs around 0; special ones first where there is room."""
    generator = torch.Generator().manual_seed(seed)
    if dtype is torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    if not dtype.is_floating_point:
        low = 0 if dtype is torch.uint8 else -9
        return torch.randint(low, 10, shape, generator=generator).to(dtype)
    return (torch.randn(shape, generator=generator, dtype=torch.float64) * 3).to(dtype)


def special(dtype: torch.dtype) -> torch.Tensor:
    """The numbers where functions have corners, then some usual ones."""
    if not dtype.is_floating_point:
        return numbers(dtype, 40)
    return torch.cat([torch.tensor(SPECIAL, dtype=torch.float64), torch.linspace(-8, 8, 48)]).to(dtype)


def pairs(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Every special number with every other."""
    if not dtype.is_floating_point:
        return numbers(dtype, 30, 1), numbers(dtype, 30, seed=1).clone()
    values = torch.tensor(SPECIAL, dtype=torch.float64).to(dtype)
    return values[:, None], values


UNARY = (
    "abs acos acosh asin asinh atan atanh ceil cos cosh digamma erf erfc erfinv exp exp2 expm1 floor "
    "frac isfinite isinf isnan isneginf isposinf lgamma log log10 log1p log2 logical_not nan_to_num "
    "neg reciprocal relu round rsqrt sgn sigmoid sign signbit sin sinc sinh sqrt square tan tanh "
    "trunc deg2rad rad2deg bitwise_not logit hardsigmoid hardswish silu mish softplus hardshrink "
    "softshrink hardtanh elu celu leaky_relu gelu log_sigmoid_forward special_entr"
)


def _power(exponent: float) -> Function:
    return lambda x: aten.pow(x, exponent)


WITH_ARGUMENTS: dict[str, Function] = {
    "gelu tanh": lambda x: aten.gelu(x, approximate="tanh"),
    "elu scaled": lambda x: aten.elu(x, 1.5, 1.1, 0.7),
    "celu": lambda x: aten.celu(x, 2.0),
    "leaky_relu": lambda x: aten.leaky_relu(x, 0.2),
    "threshold": lambda x: aten.threshold(x, 0.5, 7.0),
    "softplus": lambda x: aten.softplus(x, 2.0, 5.0),
    "logit eps": lambda x: aten.logit(x, 0.1),
    "nan_to_num": lambda x: aten.nan_to_num(x, 1.0, 2.0, -2.0),
    "round decimals": lambda x: aten.round(x, decimals=2),
    "round tens": lambda x: aten.round(x, decimals=-1),
    "hardtanh": lambda x: aten.hardtanh(x, -0.5, 2.0),
    "clamp both": lambda x: aten.clamp(x, -1, 2),
    "clamp low": lambda x: aten.clamp(x, min=0),
    "clamp float": lambda x: aten.clamp(x, -0.5, 2.5),
    "clamp crossed": lambda x: aten.clamp(x, 3, 1),
    "clamp nan": lambda x: aten.clamp(x, NAN, 1.0),
    "clamp_min": lambda x: aten.clamp_min(x, 1),
    "clamp_max": lambda x: aten.clamp_max(x, 1),
    "hardshrink": lambda x: aten.hardshrink(x, 1.0),
    "softshrink": lambda x: aten.softshrink(x, 1.0),
    "polygamma 0": lambda x: aten.polygamma(0, x),
    "masked_fill": lambda x: aten.masked_fill(x, x > 1, 3),
    "addcmul number": lambda x: aten.add(x, 3, alpha=2),
    "sub number": lambda x: aten.sub(x, 3),
    "rsub": lambda x: aten.rsub(x, 3),
    "rsub alpha": lambda x: aten.rsub(x, 3, 2),
    "mul": lambda x: aten.mul(x, 3),
    "mul float": lambda x: aten.mul(x, 0.1),
    "div": lambda x: aten.div(x, 3),
    "div floor": lambda x: aten.div(x, 3, rounding_mode="floor"),
    "div trunc": lambda x: aten.div(x, 3, rounding_mode="trunc"),
    "floor_divide": lambda x: aten.floor_divide(x, 3),
    "fmod": lambda x: aten.fmod(x, 3),
    "remainder": lambda x: aten.remainder(x, -3),
    "remainder of number": lambda x: aten.remainder(7, x * x + 1),
    "eq": lambda x: aten.eq(x, 0.1),
    "lt": lambda x: aten.lt(x, 1),
    "bitwise_and": lambda x: aten.bitwise_and(x, 3),
    "shift": lambda x: aten.bitwise_left_shift(x, 2),
    "copysign": lambda x: aten.copysign(x, -1.0),
    "xlogy": lambda x: aten.xlogy(x, 2.0),
    "lerp": lambda x: aten.lerp(x, x * 2 + 1, 0.3),
    "where numbers": lambda x: torch.where(x > 0, 1.0, 2.0),
    "where number": lambda x: torch.where(x > 0, x, 2),
    **{f"pow {p}": _power(p) for p in (0, 1, 2, 3, 4, 0.5, -0.5, -1, -2, 1.7)},
    "pow base": lambda x: aten.pow(2.0, x),
    "pow base 1": lambda x: aten.pow(1, x),
    "pow base int": lambda x: aten.pow(2, x.abs()),
}

BINARY = (
    "add sub mul div floor_divide fmod remainder pow maximum minimum fmax fmin atan2 hypot copysign "
    "logaddexp logaddexp2 xlogy special_xlog1py heaviside eq ne lt le gt ge logical_and logical_or "
    "logical_xor bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift "
    "sigmoid_backward tanh_backward silu_backward mish_backward hardswish_backward "
    "hardsigmoid_backward gelu_backward _prelu_kernel"
)

TERNARY: dict[str, Function] = {
    "add alpha": lambda x, y: aten.add(x, y, alpha=3),
    "sub alpha": lambda x, y: aten.sub(x, y, alpha=3),
    "rsub": lambda x, y: aten.rsub(x, y, alpha=2),
    "div floor": lambda x, y: aten.div(x, y, rounding_mode="floor"),
    "div trunc": lambda x, y: aten.div(x, y, rounding_mode="trunc"),
    "addcmul": lambda x, y: aten.addcmul(x, y, x + 1, value=2),
    "addcdiv": lambda x, y: aten.addcdiv(x, y, x + 1, value=2),
    "lerp": lambda x, y: aten.lerp(x, y, y * 0.3),
    "clamp": lambda x, y: aten.clamp(x, y, y + 1),
    "clamp_min": lambda x, y: aten.clamp_min(x, y),
    "where": lambda x, y: torch.where(x > y, x, y),
    "gelu_backward tanh": lambda x, y: aten.gelu_backward(x, y, approximate="tanh"),
    "elu_backward": lambda x, y: aten.elu_backward(x, 1.5, 1.1, 0.7, False, y),
    "elu_backward result": lambda x, y: aten.elu_backward(x, 1.5, 1.1, 0.7, True, y),
    "leaky_relu_backward": lambda x, y: aten.leaky_relu_backward(x, y, 0.2, False),
    "threshold_backward": lambda x, y: aten.threshold_backward(x, y, 0.5),
    "hardtanh_backward": lambda x, y: aten.hardtanh_backward(x, y, -1.0, 1.0),
    "hardshrink_backward": lambda x, y: aten.hardshrink_backward(x, y, 0.5),
    "softshrink_backward": lambda x, y: aten.softshrink_backward(x, y, 0.5),
    "softplus_backward": lambda x, y: aten.softplus_backward(x, y, 2.0, 5.0),
    "logit_backward": lambda x, y: aten.logit_backward(x, y, 0.1),
    "prelu_backward": lambda x, y: aten._prelu_kernel_backward(x, y, y * 2),
    "log_sigmoid_backward": lambda x, y: aten.log_sigmoid_backward(x, y, (-y.abs()).exp()),
    "nextafter": lambda x, y: aten.nextafter(x, y),
}


ZEROS_DIFFER = ("maximum", "minimum", "fmax", "fmin", "gelu")
"""The sign of a zero differs between ATen's own code paths: which of 0.0 and -0.0 is the larger, say, or what
oneDNN makes of gelu(-0.0) without AVX-512."""
NAN_DIFFERS = ("hardswish_backward",)
"""What its kernels make of NaN in the second operand differs (dtypes, with and without AVX-512)."""


def _or_skip(function: Function, *inputs: torch.Tensor) -> None:
    """Skip what eager itself refuses for a dtype."""
    try:
        function(*(x.clone() for x in inputs))
    except (RuntimeError, TypeError, ValueError) as refusal:
        pytest.skip(str(refusal).splitlines()[0])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", UNARY.split())
def test_unary(name: str, dtype: torch.dtype) -> None:
    function = getattr(aten, name)
    x = special(dtype)
    x = x[x.isfinite()] if name == "gelu" else x  # oneDNN's gelu makes NaN of inf, ATen's own does not
    _or_skip(function, x)
    check(function, x, zeros=name not in ZEROS_DIFFER)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", WITH_ARGUMENTS)
def test_with_arguments(name: str, dtype: torch.dtype) -> None:
    function = WITH_ARGUMENTS[name]
    x = special(dtype)
    _or_skip(function, x)
    check(function, x)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", BINARY.split())
def test_binary(name: str, dtype: torch.dtype) -> None:
    function, (x, y) = getattr(aten, name), pairs(dtype)
    y = y if dtype.is_floating_point else torch.where(y == 0, 1, y).to(dtype)
    y = y.nan_to_num() if name in NAN_DIFFERS else y
    _or_skip(function, x, y)
    check(function, x, y, zeros=name not in ZEROS_DIFFER)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", TERNARY)
def test_more_operands(name: str, dtype: torch.dtype) -> None:
    function, (x, y) = TERNARY[name], pairs(dtype)
    y = y if dtype.is_floating_point else torch.where(y == 0, 1, y).to(dtype)
    x, y = (part.contiguous() for part in torch.broadcast_tensors(x, y))
    _or_skip(function, x, y)
    check(function, x, y)


MIXED = [(a, b) for a in (torch.bool, torch.uint8, torch.int64, *FLOATS) for b in (torch.int8, *FLOATS)]


@pytest.mark.parametrize("left, right", MIXED, ids=str)
def test_promotion(left: torch.dtype, right: torch.dtype) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        zero = y[0]
        return (
            x + y,
            x * zero,
            x < y,
            x + 1.5,
            x - 2 if x.dtype != torch.bool else x,
            x / zero,
            torch.where(x > 0, y, x),
        )

    x, y = numbers(left, 5), numbers(right, 5, seed=3).abs() + 1
    check(function, x, y)


def test_numbers_wrap_in_narrow_integers() -> None:
    check(lambda x: (x + 300, x * 300), torch.tensor([1, -1, 100], dtype=torch.int8))


SHAPES = [
    lambda: (torch.randn(3, 4), torch.randn(4)),
    lambda: (torch.randn(3, 1), torch.randn(1, 4)),
    lambda: (torch.randn(()), torch.randn(2, 3)),
    lambda: (torch.randn(()), torch.randn(())),
    lambda: (torch.randn(0, 3), torch.randn(3)),
    lambda: (torch.randn(4, 3).t(), torch.randn(3, 4)),
    lambda: (torch.randn(1, 4).expand(3, 4), torch.randn(3, 8)[:, ::2]),
    lambda: (torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last), torch.randn(3, 1, 1)),
    lambda: (torch.randn(6).as_strided((4, 3), (1, 1)), torch.randn(3)),
]


@pytest.mark.parametrize("symbolic", [False, True], ids=["static", "symbolic"])
@pytest.mark.parametrize("number", range(len(SHAPES)))
def test_shapes_and_strides(number: int, symbolic: bool) -> None:
    check(lambda x, y: (x + y, torch.relu(x) * y, x > y), *SHAPES[number](), symbolic=symbolic)


def test_one_graph_serves_all_sizes() -> None:
    others = [(torch.randn(n, m), torch.randn(m)) for n, m in ((2, 3), (7, 5), (9, 9), (0, 4))]
    graph = check(
        lambda x, y: (x + y) * x.shape[0] / x.shape[1],
        torch.randn(4, 6),
        torch.randn(6),
        symbolic=True,
        others=others,
    )
    assert sorted(graph.hints.values()) == [4, 6]


def test_division_by_integer_zero_raises() -> None:
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        check(lambda x, y: x // y, torch.tensor([1]), torch.tensor([0]))


def test_low_precision_rounds_after_each_operator() -> None:
    x = torch.tensor([1.0, 3.0, 0.1], dtype=torch.bfloat16)
    graph = check(lambda x: (x * 1.1 + 0.3) * x, x)
    assert [node.body.dtype for node in graph.nodes] == [torch.bfloat16] * 3


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integers_wrap(dtype: torch.dtype) -> None:
    info = torch.iinfo(dtype)
    x = torch.tensor([info.max, info.min, 1], dtype=dtype)
    check(lambda x: (x + x, x * 3, -x, x.abs(), x - 1), x)


def test_other_names_have_the_same_rows() -> None:
    check(
        lambda x, y: (aten.true_divide(x, y), aten.multiply(x, y), aten.greater(x, 0)),
        torch.randn(3),
        torch.randn(3),
    )
