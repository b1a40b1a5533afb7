"""Programs that are compiled in part: results, training, sizes, equal clusters, reports, what goes wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import smelt
from smelt import pipeline
from smelt.cli.explain import explain
from smelt.errors import InternalError
from smelt.reporting import CompileReport

pytestmark = [
    pytest.mark.usefixtures("fresh"),
    pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor"),
]


def rounded(x: Tensor) -> Tensor:
    """To 8 bits and back, through a quantized tensor; the gradient goes straight through."""
    near = torch.quantize_per_tensor(x.detach(), 1 / 32, 0, torch.qint8).dequantize()
    return x + (near - x).detach()


class Layer(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mlp(rounded(self.norm(x)))


def layers(count: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(Layer() for _ in range(count)))


def compiled(function: Any, dynamic: bool | None = None, **options: Any) -> Any:
    return torch.compile(function, backend="smelt", dynamic=dynamic, options=options)


def outer() -> CompileReport:
    (report,) = (report for report in smelt.reports() if report.regions)
    return report


def native(report: CompileReport) -> int:
    return sum(region.is_native for region in report.regions)


def test_inference_and_equal_clusters_are_compiled_once(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path))
    model, x = layers(4), torch.randn(3, 16)
    with torch.no_grad():
        call = compiled(model)
        for _ in range(2):
            torch.testing.assert_close(call(x), model(x))
    assert native(outer()) == 4  # the first norm is left alone
    clusters = [report for report in smelt.reports() if report.is_cluster]
    assert [report.cache_hit for report in clusters] == [False, False, True, True]
    assert {(each.op, each.reason, each.count) for each in outer().fallbacks} == {
        ("aten.quantize_per_tensor.default", "a quantized or nested tensor", 4),
        ("aten.dequantize.self", "a quantized or nested tensor", 4),
        ("aten.native_layer_norm.default", "fewer than 2 operators together (min_cluster)", 1),
    }
    assert all("test_clusters.py" in str(each.where) for each in outer().fallbacks)


def test_training() -> None:
    model = layers(3)
    call, x = compiled(model), torch.randn(5, 16, requires_grad=True)
    wanted = [x, *model.parameters()]
    got = torch.autograd.grad(call(x).square().sum(), wanted)
    torch.testing.assert_close(got, torch.autograd.grad(model(x).square().sum(), wanted))
    assert native(outer()) == 3
    assert {report.kind for report in smelt.reports()} == {"forward", "backward"}


def test_sizes_that_are_not_known_and_a_backward_in_parts() -> None:
    def program(x: Tensor, y: Tensor) -> Tensor:
        first = (x.sin() * y).exp()
        between = torch.cond(x.sum() > 0, lambda z: z.cos(), lambda z: z * 2, (first,))
        return (between + y).tanh() * x.shape[0]

    call = compiled(program, True, deny="cond")
    for rows in (3, 5, 8):
        x, y = (torch.randn(rows, 4, requires_grad=True) for _ in range(2))
        results = [each(x, y) for each in (call, program)]
        torch.testing.assert_close(*results)
        torch.testing.assert_close(*(torch.autograd.grad(each.sum(), (x, y)) for each in results))
    forward, backward = (report for report in smelt.reports() if report.regions)
    assert (forward.kind, backward.kind) == ("forward", "backward")
    assert native(forward) == native(backward) == 2
    assert {each.reason for each in forward.fallbacks} == {"denied: cond (option deny)"}


def test_with_frozen_weights_equal_clusters_keep_their_own() -> None:
    model, x = layers(4), torch.randn(3, 16)
    with torch.no_grad():
        call = compiled(model, freezing=True)
        for _ in range(2):
            torch.testing.assert_close(call(x), model(x))


def test_in_place_changes_and_views() -> None:
    def program(x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        state.mul_(0.9).add_(x.sin() * 2)
        y = rounded(state.t()).exp()
        state.add_(y.t() * 0.1)
        return y[1:] * 2, state.view(-1)

    x, state = torch.randn(4, 4), torch.randn(4, 4)
    mine, its = state.clone(), state.clone()
    got, expected = compiled(program)(x, mine), program(x, its)
    torch.testing.assert_close((got, mine), (expected, its))
    assert native(outer()) == 2
    got[1].zero_()
    assert not mine.any()


def test_sizes_of_data_go_from_cluster_to_cluster() -> None:
    def program(x: Tensor) -> Tensor:
        found = torch.nonzero(x.sin() > 0)[:, 0]
        rows = x[found].exp() * 2
        rows = torch.cond(x.sum() > 0, lambda z: z.cos(), lambda z: z * 2, (rows,))
        return rows.tanh() * found.shape[0] + found.unsqueeze(1)

    for seed in range(3):
        torch.manual_seed(seed)
        x = torch.randn(12, 3)
        with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
            torch.testing.assert_close(compiled(program, deny="cond")(x), program(x))
    assert native(outer()) == 2


def test_a_meta_tensor_in_one_corner() -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        shape = torch.empty_like(x, device="meta").repeat(2, 1)
        return x.sin().exp() + 1, shape

    x = torch.randn(5, 3)
    got = compiled(program)(x)
    torch.testing.assert_close(got[0], program(x)[0])
    assert (got[1].shape, got[1].device.type) == ((10, 3), "meta")
    assert native(outer()) == 1


def test_what_is_too_small_is_pytorchs() -> None:
    program, x = (lambda x: rounded(x * 2).sin().cos() * 3), torch.randn(10)
    torch.testing.assert_close(compiled(program)(x), program(x))
    assert [region.is_native for region in outer().regions] == [False, False, True]
    smelt.reset()
    compiled(program, min_cluster=1)(x)
    assert [region.is_native for region in outer().regions] == [True, False, True]
    smelt.reset()
    compiled(program, min_cluster=9)(x)
    (report,) = smelt.reports()
    assert report.kind == "eager"


def test_a_cluster_that_cannot_be_compiled_is_pytorchs(monkeypatch: pytest.MonkeyPatch) -> None:
    before: Callable[..., Any] = pipeline.schedule

    def broken(graph: Any, *args: Any, **kwargs: Any) -> Any:
        if any(node.origin.op == "aten.cos.default" for node in graph.nodes):
            raise ValueError("nobody expected this")
        return before(graph, *args, **kwargs)

    monkeypatch.setattr(pipeline, "schedule", broken)
    program, x = (lambda x: rounded(x.exp() * 2).sin().cos()), torch.randn(10)
    torch.testing.assert_close(compiled(program, strict=False)(x), program(x))
    first, _, last = outer().regions
    assert first.is_native
    assert str(last.reason).startswith("SM0505: a bug of smelt")


def test_a_cluster_that_fails_when_it_runs_is_pytorchs_and_what_precedes_it_is_run_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("SMELT_STRICT")
    compile_cluster, run = pipeline._compile, 0

    def broken(program: Any, *args: Any) -> Any:
        compiled = compile_cluster(program, *args)
        if not program.name.endswith("cluster 2"):

            def counted(values: list[Any]) -> Any:
                nonlocal run
                run += 1
                return compiled(values)

            return counted

        def fail(values: list[Any]) -> Any:
            raise InternalError("SM0506", "a bug of this test")

        return fail

    monkeypatch.setattr(pipeline, "_compile", broken)

    def function(x: Tensor) -> Tensor:
        return rounded(x.sin() * 2).exp() + 1

    x = torch.randn(4, 4)
    compiled = torch.compile(function, backend="smelt")
    torch.testing.assert_close(compiled(x), function(x))
    assert run == 1
    report = next(report for report in smelt.reports() if report.regions)
    assert [region.name for region in report.regions].count("PyTorch") == 2
    assert report.kind == "inference" and "SM0506" in str(report.regions[-1].reason)


def test_a_call_that_breaks_the_scheduler_is_atens_and_the_rest_is_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before: Callable[..., Any] = pipeline.schedule

    def broken(graph: Any, *args: Any, **kwargs: Any) -> Any:
        blame(graph)
        return before(graph, *args, **kwargs)

    source = (
        "def blame(graph):\n"
        "    for node in graph.nodes:\n"
        "        if node.origin.op == 'aten.cos.default' and not hasattr(node.body, 'target'):\n"
        "            raise ValueError('nobody expected this')\n"
    )
    scope: dict[str, Any] = {}
    made_up = pipeline.__file__.replace("pipeline/__init__.py", "schedule/made_up.py")
    exec(compile(source, made_up, "exec"), scope)
    blame = scope["blame"]
    monkeypatch.setattr(pipeline, "schedule", broken)
    program, x = (lambda x: (x.exp() * 2).sin().cos() + 1), torch.randn(10)
    torch.testing.assert_close(compiled(program, strict=False)(x), program(x))
    (report,) = smelt.reports()
    (fallback,) = report.fallbacks
    assert (report.kind, fallback.op) == ("inference", "aten.cos.default")
    assert fallback.reason.startswith("SM0505: a bug of smelt in aten.cos.default")


def test_explain_shows_regions_and_their_share_of_time(
    capsys: pytest.CaptureFixture[str], tmp_path: Any
) -> None:
    model = tmp_path / "model.py"
    model.write_text(
        "import torch\n"
        "def half(x):\n"
        "    near = torch.quantize_per_tensor(x.exp() * 2, 0.1, 0, torch.qint8).dequantize()\n"
        "    return near.sin() + near.cos()\n"
        "def made():\n"
        "    return half, (torch.randn(10),), {}\n"
    )
    explain(f"{model}:made", train=False, stage=None, moments=[], dynamic=None, options={})
    text = capsys.readouterr().out
    assert "cluster 1" in text and "cluster 2" in text and "it saves 1 clusters" in text and "%" in text
    assert "2, PyTorch between them" in text and "(inference): 1 graph(s)" in text
