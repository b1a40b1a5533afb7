"""Complex tensors: two real values each in loop functions; ATen's calls take them as they lie in memory."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import smelt
from smelt.capture import capture_function
from smelt.contract import contract
from smelt.loops.interpreter import run_graph
from smelt.loops.ir import Extern
from smelt.lowering.chosen import chosen
from smelt.reporting import LOG
from tests.lowering.harness import check, flat, lowered


def given(*shape: int, dtype: torch.dtype = torch.complex64) -> torch.Tensor:
    torch.manual_seed(len(shape))
    return torch.randn(shape, dtype=dtype)


def calls(graph: Any) -> list[str]:
    return [node.body.target for node in graph.nodes if isinstance(node.body, Extern)]


COMPLEX = (torch.complex64, torch.complex128)
FUNCTIONS = """
exp expm1 log log2 log10 log1p sqrt rsqrt reciprocal sin cos tan sinh cosh tanh asin acos atan asinh acosh
atanh abs angle sgn sigmoid
""".split()  # noqa: SIM905
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 89.0, -95.0, 1e20, 3e38, -3e38, math.inf, -math.inf, math.nan]


def native(function: Any, *inputs: Any, **options: Any) -> Any:
    """The checked graph of a function that has no call of ATen."""
    graph = check(function, *inputs, **options)
    assert calls(graph) == []
    return graph


@pytest.mark.parametrize("dtype", COMPLEX, ids=str)
def test_arithmetic(dtype: torch.dtype) -> None:
    x, y = given(3, 4, dtype=dtype), given(4, dtype=dtype)
    r = torch.randn(3, 4)
    native(lambda x, y: (x + y, x - 2 * y, x * y, x / y, -x, torch.addcmul(x, x, y, value=2)), x, y)
    native(lambda x, r: (x + r, r * x, x / r, r / x, x**2, x**r, r**x, 2**x, x * 1j + 3), x, r, slack=8)
    native(lambda x, y: (x**y, x**0, x**1, x**0.5, x**-1, x**3, x ** (1 + 2j)), x, y, slack=8)
    native(lambda x, y: (x == y, x != y, x == 1j, x.isnan(), x.isinf(), x.logical_not()), x, y)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_ordinary_numbers(name: str) -> None:
    x = given(400)
    near_one = torch.polar(torch.ones(100) + torch.randn(100) * 1e-6, torch.rand(100) * 6)
    x = torch.cat([x, x * 10, x * 0.01, x * 1e-4, near_one, torch.complex(x.real, torch.zeros(400))])
    native(getattr(torch, name), x, zeros=False)
    native(getattr(torch, name), given(50, dtype=torch.complex128), zeros=False)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_special_numbers(name: str) -> None:
    """NaN and infinities are where they are in eager, where its code for one number and for many agree."""
    function = getattr(torch, name)
    x = torch.tensor([complex(a, b) for a, b in itertools.product(SPECIAL, SPECIAL)])
    (got,) = run_graph(lowered(function, x), [x])
    many, single = function(x), torch.stack([function(each.clone()) for each in x])
    parts = [torch.view_as_real(each) if each.is_complex() else each for each in (got, many, single)]
    ours, eager, other = (torch.where(each.isfinite(), 0, each) for each in parts)
    agree = torch.isclose(eager, other, equal_nan=True)
    assert torch.equal(torch.isclose(ours, eager, equal_nan=True) | ~agree, torch.ones_like(agree))


def test_division_neither_overflows_nor_underflows() -> None:
    x = torch.tensor([1e30 + 1e30j, 1e-30 - 1e-30j, 3 + 4j, 1e20j])
    native(lambda x: (x / x.flip(0).conj(), 1 / x, x.abs(), x.sgn()), x)


def test_creation_and_conversion() -> None:
    r, z = torch.randn(3, 4), given(3, 4)
    native(lambda r: (torch.complex(r, r[0]), torch.polar(r.abs(), r), r * 1j, r.to(torch.complex64)), r)
    native(lambda r: (torch.view_as_complex(r.view(3, 2, 2)), r.view(torch.complex64)), r)
    native(lambda z: (torch.view_as_real(z) + 1, z.real, z.imag + 1, z.view(torch.float32) * 2), z)
    native(lambda z: (torch.full((2,), 1 + 2j), torch.zeros_like(z), torch.ones_like(z), z.to(torch.bool)), z)
    native(lambda z: (z.to(torch.complex128), torch.eye(3, dtype=torch.complex64), z.clone()), z)


def test_elements_are_moved_part_by_part() -> None:
    z, r = given(4, 6), torch.randn(4, 6)
    at = torch.tensor([2, 0, 2])
    native(lambda z: (z.t()[1:].unsqueeze(0).expand(2, 5, 4) * 2, z.view(24)[3:], z.t().reshape(24)), z)
    native(lambda z, r: (torch.cat([z, z[:1]]), torch.stack([z, r]), z.flip(0), z.roll(1, 0), z.tril()), z, r)
    native(lambda z, at: (z[at], z.gather(0, at.view(3, 1)), z.index_select(1, at), z[:, at, None]), z, at)
    native(lambda z, at: z.index_add(0, at, z[:3], alpha=2), z, at)
    native(lambda z, r: (torch.where(r > 0, z, r), z.masked_fill(r > 0, 2), z.masked_fill(r > 0, 1j)), z, r)
    native(lambda z: (torch.slice_scatter(z, z[:2] * 2, 0, 1, 3), F.pad(z, (1, 2)), z.diag_embed()), z)


@pytest.mark.parametrize("dtype", COMPLEX, ids=str)
def test_reductions(dtype: torch.dtype) -> None:
    z = given(3, 4, 5, dtype=dtype)
    native(
        lambda z: (z.sum(1), z.sum(), z.mean((0, 2)), z.cumsum(1), z.prod(1), z.prod(), z.cumprod(0)),
        z,
        slack=8,
    )
    native(lambda z: (z.var(1), torch.linalg.vector_norm(z, dim=1), z.any(), z.all(1)), z, slack=8)
    native(lambda z: z[:0].prod(0) + z[:0].sum(0), z)


def test_strides_of_memory() -> None:
    """Of an input, whose parts are side by side, and of computed parts, which have buffers of their own."""
    z = given(4, 6)
    native(lambda z: (z.as_strided((3, 2), (6, 2), 1) * 2, (z * 2).as_strided((3, 2), (6, 2), 1) + 1), z)


def test_types_are_promoted() -> None:
    z, wide = given(3), torch.randn(3, dtype=torch.float64)
    native(lambda z, wide: (z * wide, z + wide[0], z * 2.5, torch.arange(3) * z, wide * 2j), z, wide)


def test_sizes_are_dynamic() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        return x.conj() * y / 2, (x + y).abs().sum(0), torch.cat([x, y]).exp()

    native(function, given(3, 4), given(3, 4), symbolic=True, slack=4, others=[(given(5, 7), given(5, 7))])


def test_gradients() -> None:
    """Compiled, of real and complex arguments, with conjugates in the backward."""

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (
            ((x * y).exp() / (x.conj() + 2)).abs().sum() + (x.sgn() * y).real.sum() + y.sqrt().angle().sum()
        )

    def gradients(run: Any) -> Any:
        x, y = given(5, 3).requires_grad_(), given(3).requires_grad_()
        return torch.autograd.grad(run(x, y), [x, y])

    LOG.clear()
    ours = gradients(torch.compile(function, backend="smelt", fullgraph=True))
    torch.testing.assert_close(ours, gradients(function))
    assert not [each for report in smelt.reports() for each in report.fallbacks]


def test_conjugates_of_a_part_are_kept_for_the_backward() -> None:
    """A conjugate of a view has that view's strides as traced; it is computed in the forward."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return (x[:, :1].conj() * x[:, 1:2] * x[:, 2:]).abs().sum()

    def gradient(run: Any) -> Any:
        x = given(5, 4).requires_grad_()
        return torch.autograd.grad(run(x), x)

    compiled = torch.compile(function, backend="smelt", fullgraph=True)
    torch.testing.assert_close(gradient(compiled), gradient(function))


def test_conjugates_are_given_lazily() -> None:
    """Compiled for one tensor, called with one whose memory holds conjugates."""
    compiled = torch.compile(lambda x: x * 2, backend="smelt", fullgraph=True)
    for x in (given(3, 4), given(4, 3).t().conj(), given(3, 8)[:, ::2].conj()):
        torch.testing.assert_close(compiled(x), x * 2)


def test_atens_calls_have_a_reason() -> None:
    z = given(3, 4)
    graph = check(
        lambda z: (z.logcumsumexp(0), z @ z.t()), z, fallbacks=["aten.logcumsumexp.default"], slack=8
    )
    reasons = {node.body.target: node.body.reason for node in graph.nodes if isinstance(node.body, Extern)}
    assert reasons == {
        "aten.logcumsumexp.default": "complex numbers: no lowering for aten.logcumsumexp.default",
        "aten.mm.default": None,
    }
    assert chosen(torch.ops.aten.mm.default) == "a matrix product"


def test_a_product_of_computed_numbers_reads_them_as_complex_ones() -> None:
    """What loop functions computed lies in memory as ATen wants it, and the other way round."""
    z = given(4, 4)
    compiled = torch.compile(lambda z: ((z * 2).t() @ (z + 1).conj()).abs() + z.real, backend="smelt")
    torch.testing.assert_close(compiled(z), ((z * 2).t() @ (z + 1).conj()).abs() + z.real)


def test_views_of_an_input_stay_views() -> None:
    z, r = given(4, 6), torch.randn(4, 2)

    def function(z: torch.Tensor, r: torch.Tensor) -> Any:
        return z[1:], z.real, torch.view_as_complex(r)

    compiled = torch.compile(function, backend="smelt", fullgraph=True)
    part, real, paired = compiled(z, r)
    assert part.data_ptr() == z[1:].data_ptr()
    assert real.data_ptr() == z.data_ptr()
    assert paired.data_ptr() == r.data_ptr()
    torch.testing.assert_close([part, real, paired], [z[1:], z.real, torch.view_as_complex(r)])


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
def test_conjugates(dtype: torch.dtype) -> None:
    x = given(3, 3, dtype=dtype)
    check(lambda x: (x.conj() * 2, x.mH @ x, x.conj().imag + 1, torch.resolve_conj(x.conj())), x)
    check(lambda x: x.imag + 1, x.conj())
    check(lambda x: x * 2, x.conj().imag)


def test_the_contract_keeps_a_conjugate_apart_from_its_argument() -> None:
    program = contract(capture_function(lambda x: torch.ops.aten._conj.default(x) * 2, [given(3)]))
    targets = [node.target for node in program.graph_module.graph.nodes]
    assert torch.ops.aten._conj.default in targets


def test_inputs_that_are_overwritten() -> None:
    def scaled(x: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return x + 1

    def through_a_view(x: torch.Tensor) -> torch.Tensor:
        x.real.mul_(2)
        x[1] = 3
        return x + 1

    for function in (scaled, through_a_view):
        check(function, given(3, 4), functionalize=True)
        x, y = given(3, 4), given(3, 4)
        result = torch.compile(function, backend="smelt", fullgraph=True)(x)
        torch.testing.assert_close([result, x], [function(y), y], rtol=0, atol=0)


def test_transforms_and_linear_algebra_are_no_fallbacks() -> None:
    def function(x: torch.Tensor) -> Any:
        return torch.fft.hfft2(torch.fft.rfft2(x)), *torch.linalg.svd(x)[1:2], torch.linalg.det(x)

    x = torch.randn(4, 4)
    check(function, x, slack=8)
    compiled = torch.compile(lambda x: torch.fft.ifftn(x).conj().real, backend="smelt", fullgraph=True)
    torch.testing.assert_close(compiled(x), flat(torch.fft.ifftn(x).conj().real)[0])


def test_chosen_operators_have_a_kind() -> None:
    assert chosen(torch.ops.aten.linalg_eig.default) == "linear algebra"
    assert chosen(torch.ops.aten._fft_c2c.default) == "a Fourier transform"
    assert chosen(torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default) == "attention"
    assert chosen(torch.ops.aten.sort.default) is None
