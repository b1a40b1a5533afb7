"""The whole road, as a user takes it: ``torch.compile(..., backend="smelt")`` against eager PyTorch."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from torch import nn

import smelt
from smelt.pipeline import PHASES


@pytest.fixture(autouse=True)
def _verified(own_cache: None, fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMELT_VERIFY", "1")


class Block(nn.Module):
    """A transformer block, small: layer norms, attention, gelu, residuals."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(x)).chunk(3, -1)
        x = x + self.out(nn.functional.scaled_dot_product_attention(q, k, v))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Convolutions(nn.Module):
    """Batch norm with statistics, pooling, a residual and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.second, self.head = nn.Conv2d(8, 8, 3, padding=1), nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.max_pool2d(torch.relu(self.norm(self.first(x))), 3, 2, 1)
        x = x + torch.relu(self.second(x))
        return torch.log_softmax(self.head(x.mean((2, 3))), -1)


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], torch.Tensor]]] = {
    "transformer": (Block, lambda n: torch.randn(n, 5 + n, 32)),
    "convolutions": (Convolutions, lambda n: torch.randn(n, 3, 12 + 2 * n, 12 + 2 * n)),
}


def step(
    model: nn.Module, run: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor
) -> list[torch.Tensor]:
    """Output, loss gradients and buffers after one forward and backward."""
    model.zero_grad()
    x = x.clone().requires_grad_(x.is_floating_point())
    out = run(x)
    (out * out).mean().backward()
    grads = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    assert x.grad is not None
    return [out.detach(), x.grad, *grads, *(b.clone() for b in model.buffers())]


def assert_within_the_promise(
    got: list[torch.Tensor], eager: list[torch.Tensor], exact: list[torch.Tensor]
) -> None:
    """Error against float64 at most four times eager's own plus a few ulp of the largest element."""
    assert len(got) == len(eager) == len(exact)
    for mine, theirs, truth in zip(got, eager, exact):
        assert mine.shape == theirs.shape
        assert mine.dtype == theirs.dtype
        assert mine.stride() == theirs.stride()
        if not mine.is_floating_point():
            assert torch.equal(mine, theirs)
            continue
        error, bound = ((each.double() - truth).abs().max().item() for each in (mine, theirs))
        largest = truth.abs().max().item()
        assert error <= 4 * bound + 8 * torch.finfo(mine.dtype).eps * max(largest, 1e-4), (error, bound)


@pytest.mark.parametrize("name", MODELS)
def test_training_step(name: str) -> None:
    make, inputs = MODELS[name]
    torch.manual_seed(0)
    model, x = make(), inputs(2)
    double = copy.deepcopy(model).double()
    other = copy.deepcopy(model)
    exact = step(double, double, x.double())
    eager = step(model, model, x)
    compiled = step(other, torch.compile(other, backend="smelt", fullgraph=True), x)
    assert_within_the_promise(compiled, eager, exact)
    assert [report.kind for report in smelt.reports()] == ["forward", "backward"]
    assert all(not report.fallbacks for report in smelt.reports())


@pytest.mark.parametrize("name", MODELS)
def test_one_compile_serves_ten_sizes(name: str) -> None:
    make, inputs = MODELS[name]
    torch.manual_seed(0)
    model = make().eval()
    compiled = torch.compile(model, backend="smelt", dynamic=True, fullgraph=True)
    with torch.no_grad():
        for size in range(2, 12):
            x = inputs(size)
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
    (report,) = smelt.reports()
    assert report.symbols


def test_training_with_dynamic_sizes_compiles_once() -> None:
    torch.manual_seed(0)
    model = Block()
    compiled = torch.compile(model, backend="smelt", dynamic=True, fullgraph=True)
    for size in (2, 3, 5):
        x = torch.randn(size, 4 + size, 32)
        for mine, theirs in zip(step(model, compiled, x), step(model, model, x)):
            torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-5)
    assert len(smelt.reports()) == 2


def test_mark_dynamic_makes_one_size_a_symbol() -> None:
    compiled = torch.compile(lambda x: torch.softmax(x, -1) + 1, backend="smelt")
    for rows in (4, 9, 30):
        x = torch.randn(rows, 7)
        torch._dynamo.mark_dynamic(x, 0)
        torch.testing.assert_close(compiled(x), torch.softmax(x, -1) + 1)
    (report,) = smelt.reports()
    assert len(report.symbols) == 1


def test_inputs_are_mutated_and_aliases_kept() -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x.mul_(2).add_(y)
        y[1:] += x[:-1]
        return x.t(), y + x

    x, y = torch.randn(4, 4), torch.randn(4, 4)
    x2, y2 = x.clone(), y.clone()
    want = program(x, y)
    got = torch.compile(program, backend="smelt", fullgraph=True)(x2, y2)
    for mine, theirs in zip((*got, x2, y2), (*want, x, y)):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0)
        assert mine.stride() == theirs.stride()
    assert got[0].data_ptr() == x2.data_ptr()


def test_overlapping_and_strided_inputs() -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x * y).sum(0) + x.amax(1)

    base = torch.randn(9)
    x, y = base.expand(9, 9), torch.randn(18, 9)[::2].t()
    torch.testing.assert_close(torch.compile(program, backend="smelt")(x, y), program(x, y))


def test_index_out_of_range_raises_as_eager_does() -> None:
    table, ids = torch.randn(5, 3), torch.tensor([0, 7])
    compiled = torch.compile(lambda t, i: nn.functional.embedding(i, t) * 2, backend="smelt")
    with pytest.raises(IndexError, match="out of range"):
        compiled(table, ids)
    torch.testing.assert_close(compiled(table, ids.clamp(max=4)), table[[0, 4]] * 2)


def test_a_model_that_raises_raises_the_same() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] != 3:
            raise ValueError("three rows, please")
        return x + 1

    with pytest.raises(ValueError, match="three rows, please"):
        torch.compile(program, backend="smelt")(torch.randn(2))


def test_random_numbers_are_eagers_on_request() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.ReLU(), nn.Dropout(0.3))
    x = torch.randn(16, 8)
    torch.manual_seed(3)
    want = model(x)
    torch.manual_seed(3)
    options = {"fallback_random": True}
    got = torch.compile(model, backend="smelt", fullgraph=True, options=options)(x)
    torch.testing.assert_close(got, want)
    assert {each.op for each in smelt.reports()[0].fallbacks} == {"aten.native_dropout.default"}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.uint8])
def test_dtypes(dtype: torch.dtype) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.where(x > y, x * y + x, y - x).sum(-1)

    x, y = (torch.randint(0, 9, (6, 11)).to(dtype) for _ in range(2))
    want, got = program(x, y), torch.compile(program, backend="smelt")(x, y)
    assert got.dtype == want.dtype
    assert torch.equal(got, want)


@pytest.mark.parametrize("shape", [(), (0,), (0, 4), (4, 0)])
def test_no_elements_and_no_dimensions(shape: tuple[int, ...]) -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.exp() + 1, x.sum()

    x = torch.randn(shape)
    for mine, theirs in zip(torch.compile(program, backend="smelt")(x), program(x)):
        torch.testing.assert_close(mine, theirs)


def test_special_numbers() -> None:
    x = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 0.0, 1e-45, 3.4e38])

    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        largest = torch.maximum(x, x.flip(0))
        return torch.softmax(x, 0), x.max(), x.sum(), x * 0, largest, 1 / x, torch.relu(x), x.double().relu()

    for mine, theirs in zip(torch.compile(program, backend="smelt")(x), program(x)):
        torch.testing.assert_close(mine, theirs, equal_nan=True)
        assert torch.equal(mine.signbit() & ~mine.isnan(), theirs.signbit() & ~theirs.isnan())


def test_the_report_says_what_happened() -> None:
    model = Block().eval()
    with torch.no_grad():
        smelt.compile(model, fullgraph=True, contractions=False)(torch.randn(2, 5, 32))
    (report,) = smelt.reports()
    assert len(report.kernels) == len(report.fused)
    assert 0 < report.native_calls <= len(report.kernels)
    assert report.externs["aten.addmm.default"] == 4
    assert report.arena_bytes > 0
    assert set(report.phase_seconds) <= {*PHASES, "cache"}
    assert all(report.text(stage).strip() for stage in ("fx", "contract", "loops", "nest", "cpp", "plan"))


def test_equal_layers_are_printed_once() -> None:
    model = nn.Sequential(*(Block() for _ in range(4))).eval()
    with torch.no_grad():
        torch.compile(model, backend="smelt", fullgraph=True)(torch.randn(2, 5, 32))
    (report,) = smelt.reports()
    assert len(report.kernels) > report.text("cpp").count("\nstatic void kernel_") > 0


@pytest.mark.long
def test_a_second_process_finds_the_cache() -> None:
    script = (
        "import torch, smelt; torch.manual_seed(0); x = torch.randn(8, 8)\n"
        "got = smelt.compile(lambda x: torch.softmax(x, -1) @ x)(x)\n"
        "torch.testing.assert_close(got, torch.softmax(x, -1) @ x)\n"
        "print([(r.cache_hit, len(r.kernels)) for r in smelt.reports()])"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", script], env=os.environ, capture_output=True, text=True, check=True
        )
        for _ in range(2)
    ]
    assert runs[0].stdout.strip() == "[(False, 2)]"
    assert runs[1].stdout.strip() == "[(True, 2)]"


def test_threads_do_not_change_results() -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.softmax(x * 3, -1), x.sum()

    x = torch.randn(300, 400)
    compiled = torch.compile(program, backend="smelt")
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            results.append(compiled(x))
    finally:
        torch.set_num_threads(before)
    for one, two in zip(*results):
        assert torch.equal(one, two)


def test_without_fusion_the_numbers_are_the_same() -> None:
    x = torch.randn(5, 7)

    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x.exp() + 1, -1).sum(0)

    torch.testing.assert_close(smelt.compile(program, fusion=False)(x), program(x))
    assert len(smelt.reports()[0].kernels) > 1
