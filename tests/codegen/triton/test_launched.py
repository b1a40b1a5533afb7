"""Launches without a GPU: real machine code and launchers, and a driver that interprets the kernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import smelt
from smelt.capture import Program, capture_function
from smelt.codegen.triton import cubins
from smelt.codegen.triton.cubins import Machine, Order, compile_orders
from smelt.config import Config
from smelt.errors import SmeltError, ToolchainError, Unsupported
from smelt.pipeline import compile_program
from smelt.pipeline.triton import Launched, gpu_target
from smelt.runtime.gpu import DeviceMemory, NativeDriver
from tests.codegen.triton.launched import CHOSEN, MORE, STREAM, USUAL
from tests.codegen.triton.test_triton import TRITON, said

aten = torch.ops.aten
needs_triton = pytest.mark.skipif(not TRITON.is_dir(), reason="no Triton: make test")


@pytest.fixture(scope="module")
def launched() -> dict[str, dict[str, Any]]:
    return said("tests.codegen.triton.launched", *USUAL, TRITON_INTERPRET="1")


@needs_triton
@pytest.mark.long
@pytest.mark.parametrize("name", CHOSEN)
def test_launches_compute_what_eager_does(launched: dict[str, dict[str, Any]], name: str) -> None:
    check_launched(launched[name])


@needs_triton
@pytest.mark.slow
def test_more_launches() -> None:
    for found in said("tests.codegen.triton.launched", *MORE, TRITON_INTERPRET="1").values():
        check_launched(found)


def check_launched(found: dict[str, Any]) -> None:
    assert "error" not in found, found["error"]
    assert not found["errors"] and not found["differences"], found
    assert found["launches"] and len(found["launches"]) >= 2 * found["loaded"]
    assert {each["stream"] for each in found["launches"]} == {STREAM}


@needs_triton
@pytest.mark.long
def test_inputs_at_odd_addresses_take_other_code(launched: dict[str, dict[str, Any]]) -> None:
    found = launched["unaligned"]
    first, second, third = (each["name"] for each in found["launches"])
    assert not found["differences"] and first == third != second


@needs_triton
@pytest.mark.long
def test_descriptors_have_memory_of_their_launch(launched: dict[str, dict[str, Any]]) -> None:
    found = launched["descriptors"]
    first, second = (each["name"] for each in found["launches"])
    assert not found["differences"] and first != second
    assert found["taken"] == [2 * 128 * 6] and not found["kept"]


@needs_triton
@pytest.mark.long
def test_a_failed_check_is_raised_by_the_next_call_alone(launched: dict[str, dict[str, Any]]) -> None:
    before, failing, raised, after = launched["checks"]["said"]
    assert (before, failing, after) == ("[2.0, 8.0]", "[2.0, 0.0]", "[6.0, 6.0]")
    assert raised == "IndexError: index out of range in self"


@needs_triton
@pytest.mark.long
def test_calls_of_mode_max_are_replayed(launched: dict[str, dict[str, Any]]) -> None:
    found = launched["recorded"]
    assert found["said"] == ["", "", "", "", "IndexError", ""]  # the fourth index is wrong
    assert (found["recordings"], found["replays"], found["note"]) == (1, 4, "CUDA graphs for 1 size")


@needs_triton
@pytest.mark.long
def test_plans_and_launches_are_cached(launched: dict[str, dict[str, Any]]) -> None:
    found = launched["warm"]
    assert not found["differences"] and found["hits"] == [False, True]


@pytest.fixture()
def on_path(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(TRITON)
    cubins.triton_folder.cache_clear()
    yield
    cubins.triton_folder.cache_clear()


@needs_triton
def test_what_triton_refuses_is_an_error_with_the_kept_source(on_path: None) -> None:
    text = "@triton.jit\ndef broken_0(failed):\n    nothing_here(1)\n"
    broken = Order("broken_0", "broken", text, {"failed": "*i32"})
    with pytest.raises(ToolchainError, match=r"(?s)SM0207: Triton refused the kernel broken_0.*nothing_here"):
        compile_orders([broken], Machine("cuda", 90))


def test_a_driver_that_is_not_there_is_an_error() -> None:
    with pytest.raises(ToolchainError, match=r"SM0208: the GPU's driver libnothing\.so does not load"):
        NativeDriver("libnothing.so", "cu", "LaunchKernel")


def test_without_triton_pytorch_runs_cuda_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smelt.pipeline.triton.find_spec", lambda name: None)
    gpu_target.cache_clear()
    with pytest.raises(Unsupported, match="kernels for cuda:0 need Triton"):
        gpu_target(torch.device("cuda:0"))


# -- programs with tensors on CUDA devices, which are fake here ----------------------------------------------


def _program(function: Any, *inputs: tuple[Sequence[int], str]) -> Program:
    with FakeTensorMode():
        args = [torch.empty(shape, device=device) for shape, device in inputs]
    return capture_function(function, args)


@pytest.fixture()
def compiled(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Compiles a program for GPUs that are not there; returns its reports."""

    def reports(program: Program, products: bool = False) -> list[Any]:
        def target(device: torch.device) -> Launched:
            driver = lambda: NativeDriver("libnothing.so", "cu", "LaunchKernel")  # noqa: E731
            return Launched(device, Machine("cuda", 90), driver, products)

        monkeypatch.setattr("smelt.pipeline.triton.gpu_target", target)
        before = len(smelt.reports())
        compile_program(program, Config(min_cluster=1))
        return list(smelt.reports()[before:])

    return reports


def test_a_program_on_a_gpu_has_its_memory_and_stream_there(compiled: Any) -> None:
    (report,) = compiled(_program(lambda x: torch.softmax(x * 2, -1).sum(0), ((40, 30), "cuda")))
    assert not report.fallbacks
    plan, text = report.text("plan"), report.text("triton")
    assert "_stream = _current_stream()" in plan and ", _stream)" in plan
    assert "@triton.jit" in text and "tl.program_id(0)" in text


def _flash(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, upstream: torch.Tensor) -> Any:
    out, *kept, _ = aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True)
    sums, cum_q, cum_k, most_q, most_k, *state = kept
    rest = sums, cum_q, cum_k, most_q, most_k, 0.0, True, *state
    return out, *aten._scaled_dot_product_flash_attention_backward(upstream, q, k, v, out, *rest)


def _efficient(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, upstream: torch.Tensor) -> Any:
    out, *kept = aten._scaled_dot_product_efficient_attention(q, k, v, None, True)
    given = upstream, q, k, v, None, out, *kept, 0.0, [True, True, True, False]
    return out, kept[0], *aten._scaled_dot_product_efficient_attention_backward(*given)


def _cudnn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, upstream: torch.Tensor) -> Any:
    out, sums, cum_q, cum_k, most_q, most_k, *state, _ = aten._scaled_dot_product_cudnn_attention(
        q, k, v, None, True
    )
    rest = out, sums, *state, None, cum_q, cum_k, most_q, most_k, 0.0, False
    return out, *state, *aten._scaled_dot_product_cudnn_attention_backward(upstream, q, k, v, *rest)


@pytest.mark.parametrize("function", [_flash, _efficient, _cudnn])
def test_attention_on_a_gpu_is_one_call_of_its_own_or_kernels(compiled: Any, function: Any) -> None:
    program = _program(function, *[((2, 3, 40, 32), "cuda")] * 4)
    name = f"_scaled_dot_product{function.__name__}_attention"
    for products in (False, True):
        (report,) = compiled(program, products)
        plan = report.text("plan")
        assert not report.fallbacks
        for call in (f"_aten_{name}(", f"_aten_{name}_backward("):
            assert plan.count(call) == (0 if products else 1)
        assert plan.count("_aten_new_empty(") == (2 if products and function is _cudnn else 0)
        assert len(report.kernels) == ((4 if function is _flash else 5) if products else 0)


def test_each_cluster_has_one_device(compiled: Any) -> None:
    def both(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        moved = (y.exp() + 1).to(x.device)
        return (x.sin() * 2 + moved).cos(), y.tanh() * 3

    whole, *clusters = compiled(_program(both, ((8, 5), "cuda"), ((8, 5), "cpu")))
    assert [region.ops for region in whole.regions if not region.is_native] == [("aten._to_copy.default",)]
    stages = [("triton" in each.stages(), "_stream" in each.text("plan")) for each in clusters]
    assert sorted(stages) == [(False, False), (True, True), (True, True)]


def test_two_gpus_are_two_clusters(compiled: Any) -> None:
    program = _program(lambda x, y: (x.sin() + 1, y.sin() + 1), ((8,), "cuda:0"), ((8,), "cuda:1"))
    whole, *clusters = compiled(program)
    assert len(clusters) == 2 and all(region.is_native for region in whole.regions)


def test_numbers_on_the_cpu_are_copied_once(compiled: Any) -> None:
    def scaled(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return (x * scale + scale).relu() / scale

    whole, cluster = compiled(_program(scaled, ((8, 5), "cuda"), ((), "cpu")))
    assert [region.nodes for region in whole.regions if not region.is_native] == [1]
    assert cluster.text("plan").count(".data_ptr()") == 3


def test_random_numbers_are_drawn_on_the_device(compiled: Any) -> None:
    (report,) = compiled(_program(lambda x: torch.rand_like(x) + x, ((8, 5), "cuda")))
    assert "_aten_randint_low" in report.text("plan") and "device=_device_cuda_0" in report.text("plan")


def test_what_runs_instead_gets_the_error_of_the_first_call() -> None:
    driver = lambda: NativeDriver("libnothing.so", "cu", "LaunchKernel")  # noqa: E731
    target, codes = Launched(torch.device("cpu"), Machine("cuda", 90), driver), []

    def instead(program: Program, error: SmeltError) -> Any:
        codes.append(error.code)
        return lambda args: (args[0] + 1,)

    program = _program(lambda x: x + 1, ((8,), "cpu"))
    run = compile_program(program, Config(), instead=instead, target=target)
    assert run([torch.ones(8)])[0].tolist() == [2.0] * 8
    assert codes == ["SM0208" if find_spec("triton") else "SM0209"]


def test_a_device_arena_is_fresh_memory() -> None:
    memory = DeviceMemory(torch.device("cpu"))
    pool = memory.pool(
        lambda key: key[0] * 4, lambda storage, start, key: (torch.empty(0).set_(storage, start, key),)
    )
    first, second = pool.acquire((6,)), pool.acquire((6,))
    (tensor,) = pool.tensors(first, (6,))
    assert first.address != second.address and tensor.data_ptr() == first.address and tensor.shape == (6,)
    pool.release(first)
    assert memory.empty((2, 3), (1, 2), torch.float64).stride() == (1, 2) and memory.stream() == 0
