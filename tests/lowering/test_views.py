"""Views are index transforms: right elements, eager's strides, nothing computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from smelt.contract import decompositions
from smelt.contract.facts import is_view
from smelt.loops.dependencies import analyze
from smelt.loops.ir import StridedView
from smelt.lowering.registry import complex_row_of, row_of
from tests.lowering.harness import check

aten = torch.ops.aten

VIEWS: dict[str, Callable[[torch.Tensor], Any]] = {
    "view split": lambda x: x.view(2, 2, 6),
    "view merge": lambda x: x.view(24),
    "view -1": lambda x: x.view(-1, 3),
    "view ones": lambda x: x.view(1, 4, 1, 6, 1),
    "_unsafe_view": lambda x: aten._unsafe_view(x, [6, 4]),
    "permute": lambda x: x.view(2, 2, 6).permute(2, 0, -2),
    "transpose": lambda x: x.transpose(0, -1),
    "t": lambda x: x.t(),
    "expand": lambda x: x[:, :1].expand(4, 5),
    "expand front": lambda x: x.expand(3, -1, -1),
    "squeeze": lambda x: x.view(1, 4, 1, 6).squeeze(),
    "squeeze dim": lambda x: x.view(1, 4, 1, 6).squeeze(-2),
    "squeeze dims": lambda x: x.view(1, 4, 1, 6).squeeze((0, 1, 2)),
    "unsqueeze": lambda x: (x.unsqueeze(0), x.unsqueeze(-1), x.unsqueeze(1)),
    "slice": lambda x: x[1:3],
    "slice step": lambda x: x[:, 1::2],
    "slice negative": lambda x: x[-3:-1, -100:100],
    "slice empty": lambda x: x[3:1],
    "select": lambda x: (x[2], x[:, -1]),
    "split": lambda x: torch.split(x, 4, 1),
    "split_with_sizes": lambda x: torch.split(x, [1, 0, 5], 1),
    "chunk": lambda x: torch.chunk(x, 4, 1),
    "unbind": lambda x: torch.unbind(x, -1),
    "diagonal": lambda x: (x.diagonal(), x.diagonal(1), x.diagonal(-2), x.view(2, 2, 6).diagonal(0, 2, 1)),
    "unfold": lambda x: x.unfold(1, 3, 2),
    "narrow": lambda x: x.narrow(1, 2, 3),
    "movedim": lambda x: x.view(2, 2, 6).movedim(0, 2),
    "chain": lambda x: x.t()[1:5].unsqueeze(1).expand(4, 3, 4).permute(2, 0, 1)[:, ::2],
    "as_strided": lambda x: x.as_strided((3, 4), (6, 1), 1),
    "as_strided overlapping": lambda x: x.as_strided((5, 4), (2, 1)),
    "detach": lambda x: x.detach(),
}
DECOMPOSED: dict[str, Callable[[torch.Tensor], Any]] = {
    "detach": lambda x: x.detach(),
    "_reshape_alias": lambda x: aten._reshape_alias(x, [6, 4], [4, 1]),
    "_unsafe_view": lambda x: aten._unsafe_view(x, [6, 4]),
    "unsafe_split": lambda x: torch.unsafe_split(x, 4, 1),
    "unsafe_split_with_sizes": lambda x: torch.unsafe_split_with_sizes(x, [1, 0, 5], 1),
}
"""Views that are decomposed, but not if they belong to a denied call."""
SYMBOLIC = [name for name in VIEWS if name not in ("view split", "view ones", "_unsafe_view")]


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
@pytest.mark.parametrize("name", DECOMPOSED)
def test_a_view_of_a_denied_call(name: str, dtype: torch.dtype) -> None:
    graph = check(DECOMPOSED[name], torch.randn(4, 6, dtype=dtype), decompositions={})
    assert not graph.nodes


def test_every_decomposed_view_has_rows() -> None:
    views = {overload for overload in decompositions() if is_view(overload)}
    assert {aten.detach.default, aten.unsafe_split.Tensor} <= views
    assert not [str(each) for each in views if row_of(each) is None or complex_row_of(each) is None]


@pytest.mark.parametrize("name", VIEWS)
def test_of_an_input(name: str) -> None:
    graph = check(VIEWS[name], torch.randn(4, 6))
    assert not graph.nodes
    assert all(isinstance(out, StridedView) and out.buffer == graph.inputs[0] for out in graph.outputs)


@pytest.mark.parametrize("name", VIEWS)
def test_of_a_computed_tensor(name: str) -> None:
    check(lambda x: VIEWS[name](x * 2), torch.randn(4, 6))


@pytest.mark.parametrize("name", VIEWS)
def test_feeding_a_computation(name: str) -> None:
    def function(x: torch.Tensor) -> list[torch.Tensor]:
        result = VIEWS[name](x)
        return [part + 1 for part in (result if isinstance(result, (list, tuple)) else [result])]

    check(function, torch.randn(4, 6))


@pytest.mark.parametrize("name", ["slice", "select", "t", "chain", "diagonal", "expand", "permute", "unbind"])
def test_with_symbolic_sizes(name: str) -> None:
    def function(x: torch.Tensor) -> list[torch.Tensor]:
        x = x.view(x.shape[0], -1)
        result = VIEWS[name](x.view(2, 2, -1).reshape(4, -1) if name == "permute" else x)
        return [part * 2 for part in (result if isinstance(result, (list, tuple)) else [result])]

    check(function, torch.randn(4, 6), symbolic=True)


def test_symbolic_view_of_heads() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        heads = x.view(batch, length, 4, 8).transpose(1, 2)
        return (heads + 1).transpose(1, 2).contiguous().view(batch, length, 32) * 2

    others = [(torch.randn(b, n, 32),) for b, n in ((2, 5), (3, 7), (5, 2))]
    check(function, torch.randn(4, 6, 32), symbolic=True, others=others)


def test_symbolic_slices() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        n = y.shape[0]
        return x[:n] + y, x[n:] * 2, x[-n:] + y, x[: x.shape[0] // 2] * 3

    check(function, torch.randn(9), torch.randn(4), symbolic=True, others=[(torch.randn(12), torch.randn(5))])


@pytest.mark.parametrize("shape", [(), (0,), (1,), (0, 3)])
def test_small_shapes(shape: tuple[int, ...]) -> None:
    check(
        lambda x: (x.reshape(-1) + 1, x.squeeze() * 2, x.unsqueeze(0) + 1, x.expand(2, *x.shape) * 2),
        torch.ones(shape),
    )


def test_reshape_of_a_transposed_tensor_copies() -> None:
    check(lambda x: x.t().reshape(-1), torch.randn(4, 6))


def test_views_of_inputs_with_an_offset() -> None:
    base = torch.randn(40)
    check(lambda x: (x[1:] + 1, x.as_strided((3,), (2,)) * 2, x.as_strided((3,), (2,), 8) * 2), base[7:19])


def test_as_strided_that_leaves_its_tensor_is_copied_by_aten() -> None:
    x = torch.randn(40)[7:19]
    check(lambda x: x.as_strided((3,), (2,), 4) * 2, x, fallbacks=["aten.clone.default"])


def test_channels_last_stays() -> None:
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    check(lambda x: ((x + 1).flatten(2), (x * 2).permute(0, 2, 3, 1).view(2, 20, 3)), x)


AS_STRIDED = {
    "rows": lambda x: x.as_strided((x.shape[0] - 1, x.shape[1]), (x.shape[1], 1), x.shape[1]) * 2,
    "transposed": lambda x: x.t().as_strided((x.shape[1], x.shape[0]), (1, x.shape[1])).sin(),
    "diagonal of a result": lambda x: (x + 1).as_strided((x.shape[0],), (x.shape[1] + 1,)) * 3,
    "columns of a result": lambda x: (x * 2).as_strided((x.shape[0], x.shape[1] // 2), (x.shape[1], 2)).exp(),
}


@pytest.mark.parametrize("name", AS_STRIDED)
def test_as_strided_of_dynamic_sizes(name: str) -> None:
    x, other = torch.randn(4, 7), torch.randn(6, 9)
    check(AS_STRIDED[name], x, symbolic=True, others=[(other,)])


def test_a_reshape_of_a_reshape_is_one() -> None:
    def back_and_forth(x: torch.Tensor) -> torch.Tensor:
        for _ in range(300):
            x = x.reshape(4, 16).reshape(2, 32).reshape(8, 8)
        return x.reshape(2, 32) + 1

    graph = check(back_and_forth, torch.randn(8, 8))
    (read,) = analyze(graph.nodes[-1]).reads
    assert str(read.index) == "(4*i0 + ((i1//8)), Mod(i1, 8))"
