"""Complex tensors: ATen computes on them by choice; views are strides; conjugates are values."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from smelt.capture import capture_function
from smelt.contract import contract
from smelt.loops.ir import Extern
from smelt.lowering.chosen import chosen
from tests.lowering.harness import check, flat


def given(*shape: int, dtype: torch.dtype = torch.complex64) -> torch.Tensor:
    torch.manual_seed(len(shape))
    return torch.randn(shape, dtype=dtype)


def calls(graph: Any) -> list[str]:
    return [node.body.target for node in graph.nodes if isinstance(node.body, Extern)]


def test_calls_on_complex_tensors_are_chosen() -> None:
    graph = check(lambda x: (x * 2, x.abs(), x == 1j, x.angle(), torch.view_as_real(x) + 1), given(3, 4))
    assert len(calls(graph)) == 5


def test_real_tensors_times_an_imaginary_number() -> None:
    check(lambda x: x * 1j, torch.randn(3))
    check(lambda x, y: torch.complex(x, y) + torch.polar(x.abs(), y), torch.randn(3), torch.randn(3))


def test_views_of_complex_tensors_are_strides() -> None:
    def function(x: torch.Tensor) -> Any:
        return x.t()[1:].unsqueeze(0).expand(2, 5, 4).abs(), x[:, 1].real + 1, x.view(24)[3:].abs()

    graph = check(function, given(4, 6))
    assert calls(graph) == ["aten.abs.default", "aten.view_as_real_copy.default", "aten.abs.default"]


def test_what_no_strides_reach_is_copied() -> None:
    graph = check(lambda x: x.t().reshape(24).abs(), given(4, 6))
    assert calls(graph)[-1] == "aten.abs.default"


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
