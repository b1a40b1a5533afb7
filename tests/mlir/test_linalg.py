"""Linalg: verified, compiled and run against eager and float64, at a second size where sizes are dynamic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

pytest.importorskip("torch_mlir", reason="needs the extra [mlir]")

import smelt
from smelt.capture import capture_function
from smelt.contract import contract, portable_decompositions
from smelt.mlir.diagnostics import UnsupportedOperatorsError
from smelt.mlir.execute import Executable
from smelt.mlir.linalg import emit

F = torch.nn.functional
DYNAMIC = torch.export.Dim.DYNAMIC
BOTH = ({0: DYNAMIC},)
torch.manual_seed(0)
X, Y = torch.randn(4, 6), torch.randn(7, 6)


def wide(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.double()
    return value


def check(
    function: Callable[..., Any],
    inputs: tuple[Any, ...],
    others: tuple[Any, ...] | None = None,
    dims: Any = None,
) -> Any:
    """Export for ``inputs``, run on these and on ``others``; returns what was exported."""
    exported = smelt.export(function, inputs, to="linalg", dynamic_shapes=dims)
    for given in (inputs, others):
        if given is not None:
            compare(exported.run(*given), function(*given), function(*map(wide, given)))
    return exported


def compare(found: Any, expected: Any, exact: Any) -> None:
    """Error at most four times eager's and a few ulp; integers exact, NaN in the same places."""
    if isinstance(expected, (tuple, list)):
        assert len(found) == len(expected)
        for parts in zip(found, expected, exact, strict=True):
            compare(*parts)
        return
    if not isinstance(expected, torch.Tensor):
        assert found == expected
        return
    assert found.dtype == expected.dtype and found.shape == expected.shape
    if not expected.dtype.is_floating_point:
        assert torch.equal(found, expected)
        return
    assert torch.equal(found.isnan(), expected.isnan())
    error, own = found.double() - exact.double(), expected.double() - exact.double()
    largest = exact.double().abs().nan_to_num(0, 0, 0).max().clamp_min(1) if exact.numel() else 1.0
    bound = 4 * own.abs().nan_to_num(0, 0, 0).max() + 8 * torch.finfo(expected.dtype).eps * largest
    assert error.nan_to_num(0, 0, 0).abs().max() <= bound


ROWS = {
    "elementwise": lambda x: x.tanh() * 2 - x.exp().log1p() / (x.abs() + 1),
    "softmax": lambda x: x.softmax(1) + x.log_softmax(0),
    "norm": lambda x: F.layer_norm(x, (6,)) + (x + 1000).var(0),
    "extremes": lambda x: (x.argmax(0), x.amin(1), x.max(), x.argmin(), (x > 0).any(1), (x > 0).all()),
    "sorted": lambda x: x.sort(0, descending=True),
    "topk": lambda x: x.topk(2, 1),
    "views": lambda x: torch.cat([x, x[1:]]).flip(0).reshape(-1)[::2],
    "transposed": lambda x: x.t().reshape(2, 3, -1).permute(2, 0, 1).contiguous() + 1,
    "returned": lambda x: (x, x.t(), x.reshape(-1), x[1:, None], x.t().reshape(-1), x.expand(2, -1, 6)),
    "padded": lambda x: F.pad(x, (2, -1, 0, 3), value=1.5),
    "windows": lambda x: x.unfold(1, 3, 2) * 2,
    "triangle": lambda x: x.tril(1) + (x @ x.t()).triu()[:, :1],
    "scans": lambda x: (x.cumsum(0), *x.cummax(1), x.logcumsumexp(0)),
    "folds": lambda x: torch.special.hermite_polynomial_h(x, 4) - torch.special.legendre_polynomial_p(x, 3),
    "chosen": lambda x: x[:, torch.tensor([3, -1, 0])],
    "stored": lambda x: x.index_put((torch.tensor([1, 0, 1]),), torch.ones(6).to(x), accumulate=True),
    "scattered": lambda x: x.scatter(0, torch.ones(1, 6, dtype=torch.long), x.sum(0, keepdim=True)),
    "prims": lambda x: (torch.ops.prims.sum(x, [0]), torch.ops.prims.prod(x[:3], [0, 1])),
    "integers": lambda x: ((x * 9).int() // 4 % 3 << 1, (x * 9).long().pow(3), torch.fmod((x * 9).int(), -4)),
    "bytes": lambda x: ((x * 50).abs().to(torch.uint8) + 200) // 3,
    "special": lambda x: x.erf() + x.lgamma() + F.gelu(x) + (x * 0.3).erfinv() + x.digamma(),
    "near zero": lambda x: (x * 1e-4).expm1() + (x * 1e-4).abs().log1p() + (x * 1e-4).sinh(),
    "rounding": lambda x: (x * 8).round() + (x * 2).trunc() - x.floor() * x.sign() + torch.copysign(x, -x),
    "sizes": lambda x: x.sum(0) / x.shape[0] + torch.arange(x.shape[0]).sum(),
    "factors": lambda x: torch.add(x, x[0], alpha=x.shape[0]) * (x.shape[0] ** 0.5) ** 0.5,
    "number": lambda x: (x.shape[0] * 2, x.sum()),
    "bfloat16": lambda x: ((x.bfloat16() * 3).sin(), x.half().softmax(1)),
    "products": lambda x: (
        x @ x.t() @ x,
        x.reshape(-1, 2, 3) @ x.reshape(-1, 3, 2),
        x.mv(x[0]),
        x[0].dot(x[1]),
    ),
    "heads": lambda x: F.scaled_dot_product_attention(*[x.reshape(1, -1, 2, 3).transpose(1, 2)] * 3),
    "pooled": lambda x: F.max_pool2d(x.reshape(-1, 1, 2, 3), 2, 1, padding=1, return_indices=True),
    "averaged": lambda x: F.avg_pool1d(x.reshape(-1, 1, 6), 3, 2, padding=1),
    "convolved": lambda x: F.conv2d(x.reshape(-1, 1, 2, 3), torch.ones(3, 1, 2, 2).to(x), padding=1),
    "transposed convolution": lambda x: F.conv_transpose1d(
        x.unsqueeze(1), torch.ones(1, 2, 3).to(x), stride=2
    ),
    "channels": lambda x: F.conv1d(x.reshape(-1, 2, 3), torch.ones(2, 1, 2).to(x), groups=2),
    "groups": lambda x: F.conv2d(x.reshape(-1, 6, 1, 1), torch.ones(4, 3, 1, 1).to(x), groups=2),
    "upsampled": lambda x: F.interpolate(x[None, None], scale_factor=2.0, mode="bilinear"),
    "embedded": lambda x: F.embedding(torch.tensor([[0, 2], [1, 1]]), x),
}


@pytest.mark.parametrize("name", ROWS)
def test_programs_over_rows(name: str) -> None:
    exported = check(ROWS[name], (X,), (Y,), BOTH)
    assert "tensor<?x6xf32>" in str(exported)


@pytest.mark.parametrize("name", ["elementwise", "views", "products", "scans", "convolved", "sorted"])
def test_static_programs_have_no_dynamic_size(name: str) -> None:
    assert "?" not in str(check(ROWS[name], (X,)))


def test_empty_tensors() -> None:
    empty = torch.empty(0, 6)
    assert torch.equal(smelt.export(lambda x: x.sum(0), [empty]).run(empty), torch.zeros(6))
    exported = smelt.export(
        lambda x: (x.cumsum(0), torch.cat([x, x]), x.sort(0)[0]), [X], dynamic_shapes=BOTH
    )
    assert [each.shape for each in exported.compile()(empty)] == [(0, 6)] * 3


def test_long_sums_keep_their_digits() -> None:
    torch.manual_seed(1)
    check(lambda x: (x.sum(), x.mean(1), x.var(1)), (torch.rand(3, 5000) + 100,))


# -- sizes, positions, divisors -------------------------------------------------------------------------


def test_equal_sizes_are_asserted() -> None:
    exported = smelt.export(lambda x, y: x + y, [X, X], dynamic_shapes=({0: DYNAMIC}, {0: DYNAMIC}))
    assert "cf.assert" in str(exported)
    with pytest.raises(RuntimeError, match="dimension 0 of y"):
        exported.compile()(X, Y)
    with pytest.raises(smelt.errors.SmeltError, match="SM0603"):
        exported.run(X, Y)


def test_a_tensor_given_twice_stands_for_two() -> None:
    exported = smelt.export(lambda x, y, *, z: x.add_(1) - 2 * y + z, [X, X], {"z": X})
    given, other = X.clone(), X.flip(0)
    torch.testing.assert_close(exported.run(given, other, z=other), X + 1 - other)
    assert torch.equal(given, X + 1)


def test_what_a_program_was_captured_for_is_asserted() -> None:
    auto = torch.export.Dim.AUTO
    exported = smelt.export(lambda x: x.view(-1, 4) * 2, [torch.ones(8)], dynamic_shapes=({0: auto},))
    assert exported.compile()(torch.ones(12))[0].shape == (3, 4)
    with pytest.raises(RuntimeError, match="captured for"):
        exported.compile()(torch.ones(10))


def test_a_position_out_of_range_is_an_index_error() -> None:
    exported = smelt.export(
        lambda x, at: x[at], [X, torch.tensor([1, 2])], dynamic_shapes=({0: DYNAMIC}, None)
    )
    assert torch.equal(exported.run(Y, torch.tensor([-1, 6])), Y[[-1, 6]])
    with pytest.raises(IndexError, match="out of range"):
        exported.run(Y, torch.tensor([0, 7]))


def test_what_an_operator_asserts_of_its_data_is_asserted() -> None:
    exported = smelt.export(lambda x: F.one_hot(x, 4), [torch.tensor([1, 2])], dynamic_shapes=BOTH)
    assert torch.equal(exported.run(torch.tensor([3, 0, 3])), F.one_hot(torch.tensor([3, 0, 3]), 4))
    with pytest.raises(RuntimeError, match="num_classes"):
        exported.run(torch.tensor([4, 0, 3]))


def test_dividing_by_zero_raises() -> None:
    exported = smelt.export(lambda x, y: x // y, [torch.tensor([7]), torch.tensor([2])])
    assert exported.run(torch.tensor([-7]), torch.tensor([2])) == -4
    assert exported.run(torch.tensor([-(2**63)]), torch.tensor([-1])) == -(2**63)
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        exported.run(torch.tensor([7]), torch.tensor([0]))


def test_sizes_that_depend_on_data() -> None:
    check(lambda x: x[x > 0].sum(), (X,), (Y,), BOTH)
    check(lambda x: (x > 0).nonzero(), (X,), (Y,), BOTH)


# -- mutation, state, control flow ----------------------------------------------------------------------


def test_mutated_inputs_are_written_back() -> None:
    def program(x: Any, y: Any) -> Any:
        x.mul_(2)
        y[0] = x.sum(0)
        return x + 1

    exported = smelt.export(program, (X.clone(), X.clone()), dynamic_shapes=({0: DYNAMIC}, {0: DYNAMIC}))
    mine, eagers = [Y.clone(), Y.clone()], [Y.clone(), Y.clone()]
    torch.testing.assert_close(exported.run(*mine), program(*eagers))
    torch.testing.assert_close(mine, eagers)


def test_batch_norm_in_training_updates_its_statistics() -> None:
    model, twin = torch.nn.BatchNorm1d(6), torch.nn.BatchNorm1d(6)
    exported = smelt.export(model, [X], dynamic_shapes=BOTH)
    for given in (X, Y):
        torch.testing.assert_close(exported.run(given), twin(given))
    torch.testing.assert_close(dict(model.named_buffers()), dict(twin.named_buffers()))


def test_control_flow_is_scf() -> None:
    def branches(x: Any) -> Any:
        return torch.cond(x.sum() > 0, lambda x: x.sin() + 1, lambda x: x * 2, (x,))

    exported = check(branches, (X.abs(),), (-Y.abs(),), BOTH)
    assert "scf.if" in str(exported)

    def loop(x: Any) -> Any:
        from torch._higher_order_ops.while_loop import while_loop

        return while_loop(lambda n, x: n < 3, lambda n, x: (n + 1, x * 2 + 1), (torch.tensor(0), x))

    exported = smelt.export(loop, [X])
    assert "scf.while" in str(exported)
    number, value = exported.run(X)
    assert number == 3
    torch.testing.assert_close(value, X * 8 + 7)


def test_random_numbers_are_new_at_every_run() -> None:
    exported = smelt.export(lambda x: (torch.rand_like(x), F.dropout(x)), [torch.ones(50, 40)])
    one, two = exported.run(torch.ones(50, 40)), exported.run(torch.ones(50, 40))
    assert not torch.equal(one[0], two[0])
    assert 0.45 < one[0].mean() < 0.55 and one[0].min() >= 0 and one[0].max() < 1
    assert set(one[1].unique().tolist()) == {0.0, 2.0}


def test_a_training_step_is_one_module() -> None:
    def step(x: Any, weight: Any) -> Any:
        def loss(weight: Any) -> Any:
            return F.conv2d(x, weight, stride=2, padding=1).relu().square().mean()

        gradient, value = torch.func.grad_and_value(loss)(weight)
        return value, weight - 0.1 * gradient

    torch.manual_seed(2)
    given = torch.randn(2, 3, 6, 6), torch.randn(4, 3, 3, 3)
    module = emit(contract(capture_function(step, given, portable_decompositions())))
    compare(Executable(module)(*given), step(*given), step(*map(wide, given)))


def test_groups_of_channels_at_any_size() -> None:
    auto = dict.fromkeys(range(4), torch.export.Dim.AUTO)
    exported = check(
        lambda x, taps: (F.conv2d(x, taps, groups=2), F.conv2d(x, taps, taps[:, 0, 0, 0], 2, 1, groups=2)),
        (torch.randn(2, 8, 7, 8), torch.randn(6, 4, 3, 2)),
        (torch.randn(3, 4, 5, 9), torch.randn(4, 2, 2, 3)),
        (auto, auto),
    )
    assert "linalg.conv_2d_ngchw_gfchw" in str(exported)
    with pytest.raises(RuntimeError, match="captured for"):
        exported.compile()(torch.ones(1, 4, 5, 5), torch.ones(5, 2, 2, 2))


def test_determinants() -> None:
    check(lambda x: (torch.linalg.det(x), torch.linalg.slogdet(x)), (torch.randn(3, 4, 4),))
    exported = smelt.export(lambda x: torch.linalg.det(x), [torch.ones(3, 3)])
    assert exported.run(torch.ones(3, 3)) == 0


def test_complex_numbers() -> None:
    def program(x: Any, y: Any) -> Any:
        z = torch.complex(x, y)
        return torch.view_as_real(z * torch.polar(x.abs(), y)), z.abs(), z.conj().imag, torch.cat([z, z]).real

    check(program, (X, X.flip(0)))
    spectrum = smelt.export(lambda x: torch.fft.rfft(x, norm="ortho"), [X], dynamic_shapes=BOTH).run(Y)
    torch.testing.assert_close(spectrum, torch.fft.rfft(Y, norm="ortho"))


def test_functions_of_complex_numbers() -> None:
    def program(x: Any, y: Any) -> Any:
        z, w = torch.complex(x, y), torch.polar(x.abs() + 1, y)
        quotient = (z / w).exp().sqrt() + z.log() * w.reciprocal()
        moved = torch.where(x > 0, z, w).flip(0).roll(1, 1)
        return quotient.angle(), moved.real, (z @ w.t()).imag, z.cumsum(0).abs(), z.prod(1).real

    check(program, (X, X.flip(0) + 0.5))


def test_complex_arguments_and_results() -> None:
    z, w = torch.randn(4, 6, dtype=torch.complex64), torch.randn(7, 6, dtype=torch.complex64)

    class Model(torch.nn.Module):
        def forward(self, z: torch.Tensor) -> Any:
            return z.conj() * z, z.real + 1, z[1:].t() * torch.tensor(1j), z.mul_(2).imag

    exported = smelt.export(Model(), (z,), to="linalg", dynamic_shapes=BOTH)
    for each in (z, w):
        given, same = each.clone(), each.clone()
        torch.testing.assert_close(exported.run(given), Model()(same))
        torch.testing.assert_close(given, same)


def test_fourier_transforms() -> None:
    def program(x: Any) -> Any:
        there = torch.fft.fft(torch.complex(x, x.flip(0)), dim=0, norm="forward")
        odd = torch.fft.irfft(torch.fft.rfft(x[:, :5], norm="ortho"), n=5, norm="ortho")
        return there.abs(), odd, torch.fft.irfft2(torch.fft.rfft2(x), s=x.shape)

    check(program, (X,))


def test_all_that_is_unsupported_is_listed() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.linalg.svdvals(x), torch.linalg.eigvals(x @ x.t()).real

    with pytest.raises(UnsupportedOperatorsError) as found:
        smelt.export(Model(), [X])
    assert found.value.code == "SM0711"
    assert len(found.value.problems) >= 2
    assert "test_linalg.py" in str(found.value)
