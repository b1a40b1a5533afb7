"""Modules of the Torch dialect run by way of torch-mlir's pipelines: right, or refused with a reason."""

from __future__ import annotations

import math
import sys

import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.utils._pytree import tree_leaves

import smelt
from smelt.errors import SmeltError
from smelt.mlir import isolated
from smelt.mlir.bisection import first_operation
from smelt.mlir.torch_dialect import pipelines

pytest.importorskip("torch_mlir")
F = nn.functional


def check(function, *args, dynamic=None, others=None, rtol=1e-5, atol=1e-6):
    """What the exported module gives is what eager gives; returns the module."""
    exported = smelt.export(function, args, to="torch", dynamic_shapes=dynamic)
    given = others or args
    want, got = tree_leaves(function(*given)), tree_leaves(exported.run(*given))
    assert len(want) == len(got)
    for one, other in zip(got, want):
        assert one.dtype == other.dtype
        torch.testing.assert_close(one, other, rtol=rtol, atol=atol, equal_nan=True)
    return exported


ROWS = torch.arange(30.0).reshape(6, 5)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, i: x[i],
        lambda x, i: x[:, i],
        lambda x, i: x.index_put((i,), x[:2] * 2, accumulate=True),
        lambda x, i: x.index_put((i, i), x[0, :2]),
    ],
)
def test_positions_are_wrapped_and_checked(function):
    exported = check(function, ROWS, torch.tensor([-1, 2]))
    with pytest.raises(IndexError):
        exported.run(ROWS, torch.tensor([0, 9]))


@pytest.mark.parametrize(
    "function",
    [
        lambda x, i: x.gather(0, i[None]),
        lambda x, i: x.scatter(0, i[None], 7.0),
        lambda x, i: x.scatter_add(0, i[None], x),
        lambda x, i: x.scatter_reduce(0, i[None], x, "amax"),
        lambda x, i: x.index_select(0, i),
        lambda x, i: x.index_add(0, i, x[:2]),
        lambda x, i: F.embedding(i, x),
    ],
)
def test_positions_that_are_not_wrapped_are_checked(function):
    exported = check(function, ROWS, torch.tensor([5, 2]))
    for wrong in (torch.tensor([0, 6]), torch.tensor([0, -1])):
        with pytest.raises((IndexError, RuntimeError)):
            exported.run(ROWS, wrong)


def test_boolean_masks():
    check(lambda x: (x[x > 7], (x > 7).nonzero(), x[:, x[0] > 2]), ROWS)


BYTES = torch.tensor([250, 3, 0, 255, 100, 7], dtype=torch.uint8)


def test_uint8_is_no_int8():
    def program(u):
        return (
            *(u.sum(), u - 1, u.sort(stable=True), u.max(), u.prod(), u.cumsum(0), u.argmin()),
            *(u // 3, u % 7, u > 200, u.float(), u.to(torch.int32), u * 2, u / 2, u >> 1, ~u),
            *(u.clamp(10, 200), u.reshape(2, 3).T, torch.full_like(u, 200), F.pad(u, (1, 2))),
            *(torch.maximum(u, 5 - u), u.masked_fill(u > 9, 255), u.flip(0), u.bool(), u.bfloat16()),
        )

    check(program, BYTES)


def test_integers():
    def program(i, narrow, b):
        return (
            *(i**2, i.clamp(max=2.5), i.clamp(min=1), i // 3, i % 3, i.sum(), i.float().mean()),
            *(narrow * narrow, narrow.abs(), narrow.sort(stable=True), narrow << 1, narrow.cumprod(0)),
            *(b.sum(), b.cumsum(0), b.any(), b ^ True, b.int() + 1),
        )

    numbers = torch.arange(-3, 5)
    check(program, numbers, numbers.to(torch.int8), torch.tensor([True, False, True]))


def test_a_quotient_by_zero_raises():
    exported = smelt.export(lambda x, y: x // y, (torch.arange(3), torch.arange(3) + 1), to="torch")
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        exported.run(torch.arange(3), torch.arange(3))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bits_are_rounded_once(dtype):
    def special(x):
        return (
            *(x.erf(), x.sigmoid(), x.tan(), x.lgamma(), x.softmax(-1), x.sum(), F.gelu(x), x.cumsum(0)),
            *(F.layer_norm(x, (8,)), x @ x.T, x.std(-1), x.expm1(), F.avg_pool1d(x, 3), x.erfinv()),
        )

    x = torch.linspace(-0.9, 0.9, 32).reshape(4, 8).to(dtype)
    step = torch.finfo(dtype).eps
    check(special, x, rtol=2 * step, atol=step / 8)


ODD = torch.tensor([[1.0, math.nan, -2.0, math.inf, 3.0, -0.0], [2.0, 2.0, 1.0, math.nan, 1.0, -math.inf]])


def test_nan_and_ties_are_as_eager_has_them():
    def program(x):
        return (
            *(x.max(-1), x.min(-1), x.argmax(-1), x.argmax(), x.amax(0), x.isfinite(), x == x),
            *(x.sort(dim=-1, stable=True), x.sort(dim=-1, stable=True, descending=True)),
            *(torch.maximum(x, x.flip(0)), x.clamp(-1, 2), F.hardtanh(x), F.relu6(x), x.relu()),
            *(x.sign(), x.fmod(0.1), torch.div(x, 0.1, rounding_mode="floor"), x**0.5, x.cummax(-1)),
        )

    check(program, ODD)


def test_what_the_pipelines_do_not_know():
    def program(x):
        return (
            *(torch.copysign(x, -x.abs()), F.pad(x, (2, 2), mode="reflect"), x.median(-1)[0]),
            *(x.sum().cumsum(0), x[0, 0, 0].sort(0)[0], x.signbit(), F.adaptive_avg_pool2d(x, (3, 5))),
        )

    x = torch.randn(3, 4, 8)
    check(program, x)
    check(
        lambda x: (torch.fft.rfft(x).abs(), torch.fft.irfft(torch.fft.rfft(x)), torch.fft.fft(x).abs().log()),
        x,
        atol=1e-4,
    )


def test_sizes_that_only_the_run_shows():
    def several(x, i):
        return (
            x[i],
            x.bfloat16().softmax(-1),
            x.median(-1)[0],
            x[x > 0],
            x.clamp(0, 1).unflatten(1, (-1, 2)),
            x.argmax(),
        )

    auto = {0: Dim.AUTO, 1: Dim.AUTO}
    small, large = (torch.randn(3, 4), torch.tensor([0, -1])), (torch.randn(5, 6), torch.tensor([4, -5, 1]))
    check(several, *small, dynamic=(auto, {0: Dim.AUTO}), others=large)


def test_long_sums_keep_their_digits():
    x = torch.full((1 << 20,), 0.1)
    check(lambda x: (x.sum(), x.mean()), x, rtol=3e-6)


def test_functions_near_zero():
    x = torch.tensor([1e-7, -1e-7, 1e-3, 0.0, 20.0])
    check(lambda x: (x.tanh(), x.log1p(), x.expm1(), x.double().tanh(), F.elu(x)), x, rtol=1e-6, atol=0.0)
    found = smelt.export(lambda x: x.tanh(), (x,)).run(x)
    torch.testing.assert_close(found, x.tanh(), rtol=1e-6, atol=0.0)


@torch.library.custom_op("smelt_tests::torch_run_twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@twice.register_fake
def _(x):
    return torch.empty_like(x)


def test_what_would_be_wrong_is_refused_before_it_runs():
    exported = smelt.export(lambda x: twice(x) + 1, (BYTES,), to="torch")
    with pytest.raises(SmeltError, match="uint8 is taken for int8") as caught:
        exported.run(BYTES)
    assert caught.value.code == "SM0742"
    assert "test_torch_run.py:" in str(caught.value)


def test_a_crash_is_an_error_that_names_the_operation(monkeypatch):
    monkeypatch.setattr(pipelines, "FAULTS", ())
    exported = smelt.export(lambda x, u: (x.exp(), (u - 1) * 2), (ROWS, BYTES), to="torch")
    with pytest.raises(SmeltError, match="crashed") as caught:
        exported.run(ROWS, BYTES)
    assert caught.value.code == "SM0740"
    assert "torch.aten.sub" in str(caught.value)
    assert "test_torch_run.py:" in str(caught.value.where)
    check(lambda x: x.exp(), ROWS)


def test_a_hang_is_an_error(monkeypatch):
    monkeypatch.setattr(isolated, "COMPILE_LIMIT", 0.001)
    exported = smelt.export(lambda x: x.exp(), (ROWS,), to="torch")
    with pytest.raises(SmeltError, match="did not end within") as caught:
        exported.run(ROWS)
    assert caught.value.code == "SM0741"


def test_without_processes_there_is_no_run(monkeypatch):
    monkeypatch.setattr(isolated, "_servers", [])
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(SmeltError) as caught:
        smelt.export(lambda x: x.exp(), (ROWS,), to="torch").run(ROWS)
    assert caught.value.code == "SM0743"


def test_the_first_operation_that_fails_is_found():
    module = smelt.export(lambda x: (x.exp().sin() + 1).cos(), (ROWS,), to="torch").module
    name, where = first_operation(module, lambda part: "aten.sin" in str(part))
    assert name == "torch.aten.sin"
    assert "test_torch_run.py:" in str(where)
    assert first_operation(module, lambda part: False) == (None, None)


def test_a_pipeline_of_fx_that_crashes_is_an_error(monkeypatch, capfd):
    """`fx.export_and_import` runs it in another process."""
    printed = smelt.mlir.fx.export_and_import(
        lambda x: x.exp() @ x.t(), ROWS, output_type="torch", enable_ir_printing=True
    )
    assert "torch.aten.mm" in str(printed) and "IR Dump After" in capfd.readouterr().err
    monkeypatch.setattr(isolated, "COMPILE_LIMIT", 0.001)
    with pytest.raises(SmeltError, match="did not end within") as caught:
        smelt.mlir.fx.export_and_import(lambda x: x.exp(), ROWS, output_type="torch")
    assert caught.value.code == "SM0741"


@pytest.mark.parametrize("function", [torch.signbit, lambda x: torch.copysign(torch.ones(3), x)])
def test_the_sign_of_nan_is_refused(function):
    exported = smelt.export(function, (torch.ones(3),), to="torch")
    x = torch.tensor([-0.0, -math.inf, 2.0])
    torch.testing.assert_close(exported.run(x), function(x))
    with pytest.raises(RuntimeError, match="sign of NaN"):
        exported.run(torch.tensor([1.0, -math.nan, 2.0]))


# -- the operations that are taken as they are, of each dtype ------------------------------------------

F = nn.functional
ONE = "neg abs sqrt rsqrt reciprocal exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan"
ONE += " sinh cosh tanh asinh acosh atanh erf sigmoid floor ceil trunc round sign relu logical_not square"
TWO = "add sub mul div maximum minimum pow atan2 remainder fmod eq ne lt le gt ge"
TWO += " logical_and logical_or logical_xor"
OF_INTEGERS = "bitwise_and bitwise_or bitwise_xor"
OTHERS = {
    "numbers": lambda x, y: (x + 2, x - 2, 1 - x, x * 3, x / 2, x**2, x > 1, x == 1, x <= 1, x % 3, 2**x),
    "where": lambda x, y: (torch.where(x > y, x, y), torch.where(x > y, x, 1), x.masked_fill(x > 1, 3)),
    "made": lambda x, y: (torch.full_like(x, 3), x.new_ones(3), torch.arange(5, dtype=x.dtype) + x[:5]),
    "reductions": lambda x, y: (
        x.sum(),
        x.reshape(4, 4).sum(1),
        x.amax(),
        x.reshape(4, 4).amin(0),
        x.any(),
        x.all(),
    ),
    "means": lambda x, y: (x.mean(), x.reshape(4, 4).var(1), x.std(), x.softmax(0), x.log_softmax(0)),
    "products": lambda x, y: (
        x.reshape(4, 4) @ y.reshape(4, 4),
        x @ y,
        torch.bmm(x.reshape(2, 2, 4), y.reshape(2, 4, 2)),
    ),
    "linear": lambda x, y: (
        torch.addmm(x[:4], x.reshape(4, 4), y.reshape(4, 4), alpha=2),
        F.linear(x.reshape(2, 8), y.reshape(2, 8), x[:2]),
        torch.mv(x.reshape(4, 4), y[:4]),
    ),
    "convolution": lambda x, y: F.conv2d(x.reshape(1, 1, 4, 4), y[:4].reshape(1, 1, 2, 2), x[:1], 1, 1),
    "pooling": lambda x, y: (
        F.max_pool2d(x.reshape(1, 1, 4, 4), 3, 2, 1),
        F.avg_pool2d(x.reshape(1, 1, 4, 4), 2),
        F.avg_pool1d(x.reshape(1, 1, 16), 3, 2, 1),
        F.adaptive_avg_pool2d(x.reshape(1, 1, 4, 4), 2),
        F.interpolate(x.reshape(1, 1, 4, 4), scale_factor=2),
    ),
    "normalization": lambda x, y: (
        F.layer_norm(x.reshape(4, 4), (4,), y[:4], x[:4]),
        F.group_norm(x.reshape(2, 4, 2), 2),
        F.batch_norm(x.reshape(4, 4), y[:4], y[:4].abs() + 1),
    ),
    "sizes": lambda x, y: (
        F.pixel_shuffle(x.reshape(1, 4, 2, 2), 2),
        x.reshape(4, 4).t().flatten(),
        x.unfold(0, 3, 2),
        torch.cat([x, y]),
        x[2:9:3],
    ),
    "conversions": lambda x, y: (x.double(), x.float(), x.bool(), (x % 5).to(torch.int32), (x % 5).long()),
}
ON_FLOATS = ("means", "convolution", "normalization", "pooling", "products", "linear")


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64]
)
def test_every_operation_that_is_taken_as_it_is(dtype):
    """One module of them all: `PLAIN` and `OF_FLOATS` are right for what they are said to be."""
    floats = dtype.is_floating_point
    odd = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        2.5,
        -7.25,
        1e-3,
        33.3,
        math.inf,
        -math.inf,
        math.nan,
        100.0,
        -3.0,
        88.0,
        0.1,
    ]
    x = torch.tensor(odd, dtype=dtype) if floats else torch.arange(-7, 9, dtype=dtype) * 3
    y = x.roll(5) if floats else torch.where(x.roll(5) == 0, 1, x.roll(5))
    plain = torch.linspace(-2, 3, 16).to(dtype), torch.linspace(1, 4, 16).to(dtype)
    names = [*ONE.split(), *(() if floats else ("bitwise_not",))]
    pairs = [*TWO.split(), *(() if floats else OF_INTEGERS.split())]
    if not floats:
        names, pairs = [n for n in names if n != "reciprocal"], [n for n in pairs if n != "pow"]
    others = {n: f for n, f in OTHERS.items() if floats or n not in ON_FLOATS}
    if not floats:
        others["products"] = lambda x, y: x.reshape(4, 4) @ y.reshape(4, 4)

    def every(x, y, p, q):
        found = {name: getattr(torch, name)(x) for name in names}
        found |= {name: getattr(torch, name)(x, y) for name in pairs}
        return found | {name: function(p, q) for name, function in others.items()}

    got, want = smelt.export(every, (x, y, *plain), to="torch").run(x, y, *plain), every(x, y, *plain)
    wide = every(*(each.double() if floats else each for each in (x, y, *plain)))
    digits = {torch.float32: 3e-6, torch.float64: 1e-12, torch.float16: 4e-3, torch.bfloat16: 3e-2}
    wrong = []
    for name in want:
        leaves = (torch.utils._pytree.tree_leaves(each[name]) for each in (got, want, wide))
        for mine, eager, exact in zip(*leaves, strict=True):
            kind = mine.dtype == eager.dtype and mine.shape == eager.shape
            limit = digits.get(eager.dtype, 0.0)
            if eager.is_floating_point():  # eager's vectors overflow early in sinh, exact does not
                reference = exact.to(eager.dtype) if exact.is_floating_point() else eager
                near = torch.isclose(mine, eager, limit, limit, equal_nan=True)
                near |= torch.isclose(mine, reference, limit, limit, equal_nan=True)
            else:
                near = mine == eager
            if not kind or not near.all():
                wrong.append(name)
    assert wrong == []
