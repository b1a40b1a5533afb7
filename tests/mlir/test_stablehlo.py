"""StableHLO: verified, portable, and run by its reference interpreter against eager at two sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt
from smelt.errors import SmeltError
from smelt.mlir.capturing import capture
from smelt.mlir.diagnostics import UnsupportedOperatorsError
from smelt.mlir.stablehlo import CAPABILITIES, emit, evaluate_module, portable_artifact
from tests.mlir.support import filecheck

F = torch.nn.functional
DYNAMIC = torch.export.Dim.DYNAMIC


def check(
    function: Callable[..., Any],
    inputs: tuple[Any, ...],
    others: tuple[Any, ...] | None = None,
    dims: Any = None,
) -> Any:
    """Export for ``inputs``, run on these and on ``others``; returns the module."""
    return compare(emit(capture(function, inputs, dynamic_shapes=dims).program), function, inputs, others)


def compare(
    module: Any, function: Callable[..., Any], inputs: tuple[Any, ...], others: tuple[Any, ...] | None = None
) -> Any:
    """Run a module on ``inputs`` and on ``others``; returns it."""
    for given in (inputs, others):
        if given is None:
            continue
        found = evaluate_module(module, given)
        expected = function(*given)
        exact = function(*(x.double() if x.is_floating_point() else x for x in given))
        expected, exact = (list(x) if isinstance(x, (tuple, list)) else [x] for x in (expected, exact))
        assert len(found) == len(expected)
        for one, eager, wide in zip(found, expected, exact):
            assert one.dtype == eager.dtype and one.shape == eager.shape
            if not eager.dtype.is_floating_point:
                assert torch.equal(one, eager)
                continue
            error, own = (one.double() - wide.double()), (eager.double() - wide.double())
            bound = 4 * own.abs().max() + 8 * torch.finfo(eager.dtype).eps * wide.abs().max().clamp_min(1)
            assert torch.equal(one.isnan(), eager.isnan())
            assert error.nan_to_num(0, 0, 0).abs().max() <= bound.nan_to_num(0)
    return module


torch.manual_seed(0)
X, Y = torch.randn(4, 6), torch.randn(7, 6)
BOTH = ({0: DYNAMIC},)
ROWS = {
    "elementwise": lambda x: x.tanh() * 2 - x.exp().log1p() / (x.abs() + 1),
    "softmax": lambda x: x.softmax(1) + x.softmax(0),
    "norm": lambda x: F.layer_norm(x, (6,)) + x.var(0),
    "extremes": lambda x: (x.argmax(0), x.amin(1), x.max(), x.argmin()),
    "sorted": lambda x: x.sort(0, descending=True),
    "topk": lambda x: x.topk(2, 1)[0],
    "views": lambda x: torch.cat([x, x[1:]]).flip(0).reshape(-1)[::2],
    "transposed": lambda x: x.t().reshape(2, 3, -1).permute(2, 0, 1).contiguous() + 1,
    "padded": lambda x: F.pad(x, (2, -1, 0, 3), value=1.5),
    "windows": lambda x: x.unfold(1, 3, 2) * 2,
    "triangle": lambda x: x.tril(1) + (x @ x.t()).triu()[:, :1],
    "scans": lambda x: (x.cumsum(0), x.cummax(1)[0]),
    "folds": lambda x: torch.special.hermite_polynomial_h(x, 4) - torch.special.legendre_polynomial_p(x, 3),
    "chosen": lambda x: x[:, torch.tensor([3, -1, 0])],
    "stored": lambda x: x.index_put((torch.tensor([1, 0, 1]),), torch.ones(6).to(x), accumulate=True),
    "integers": lambda x: (x * 9).int() // 4 % 3 << 1,
    "bytes": lambda x: ((x * 50).abs().to(torch.uint8) + 200) // 3,
    "special": lambda x: x.erf() + x.lgamma() + F.gelu(x),
    "sizes": lambda x: x.sum(0) / x.shape[0] + torch.arange(x.shape[0]).sum(),
    "bfloat16": lambda x: (x.bfloat16() * 3).sin(),
    "complex": lambda x: _complex(torch.complex(x, x.flip(0)), x),
    "spectra": lambda x: _spectra(x),
    "determinants": lambda x: (
        torch.linalg.det(x.t() @ x),
        *torch.linalg.slogdet(x[:, :4].reshape(-1, 2, 2)),
        torch.linalg.det(x[:3, :3] * 0 + 1),
    ),
}


def _complex(z: torch.Tensor, x: torch.Tensor) -> list[torch.Tensor]:
    w = torch.view_as_complex(torch.stack([x, x + 2], -1))
    joined = torch.cat([z, z[:1]]).reshape(-1)[::2]
    summed = z.exp() - 2 * z + w * (1 + 2j) - z.sum(1, keepdim=True)
    norms = [torch.linalg.vector_norm(z, ord=order, dim=0) for order in (1, 2, float("inf"))]
    return [
        torch.view_as_real(z * torch.polar(x.abs(), x)),
        *(z.abs(), z.angle(), z.conj().imag, (z / w.flip(0)).real, (-joined).imag, summed.real),
        *((z @ w.t()).imag, z[:, :3].to(torch.complex128).real, *norms),
    ]


def _spectra(x: torch.Tensor) -> list[torch.Tensor]:
    half = torch.fft.rfft(x, norm="ortho")
    there, back = torch.fft.ifft2(torch.fft.fft2(x)), torch.fft.irfft(half, n=x.shape[1], norm="ortho")
    odd = torch.fft.irfft(torch.fft.rfft(x[:, :5]), n=5)
    windowed = x.stft(4, hop_length=1, window=torch.ones(4).to(x), center=False, return_complex=True)
    return [half.abs(), torch.fft.fft(x, dim=0).imag, there.real, back, odd, torch.view_as_real(windowed)]


IMAGE, OTHER = torch.randn(2, 4, 9, 8), torch.randn(3, 4, 11, 7)
IMAGES = {
    "max_pool": lambda x: F.max_pool2d(x, 3, 2, 1),
    "avg_pool": lambda x: F.avg_pool2d(x, 2),
    "nearest": lambda x: F.interpolate(x, scale_factor=2.0),
    "bilinear": lambda x: F.interpolate(x, scale_factor=1.5, mode="bilinear"),
    "batch_norm": lambda x: F.batch_norm(x, x[0, :, 0, 0] * 0, x[0, :, 0, 0] * 0 + 1, training=True),
    "group_norm": lambda x: F.group_norm(x, 2),
    "pixels": lambda x: F.pixel_shuffle(x, 2),
}


@pytest.mark.parametrize("name", IMAGES)
def test_programs_over_images(name: str) -> None:
    check(IMAGES[name], (IMAGE,), (OTHER,), ({0: DYNAMIC, 2: DYNAMIC, 3: DYNAMIC},))


def test_complex_arguments_and_results() -> None:
    z, w = torch.randn(4, 6, dtype=torch.complex64), torch.randn(7, 6, dtype=torch.complex64)

    class Model(torch.nn.Module):
        def forward(self, z: torch.Tensor) -> Any:
            return z.conj() * z, z.real + 1, z[1:].t() * torch.tensor(1j), z.mul_(2).imag

    exported = smelt.export(Model(), (z,), to="stablehlo", dynamic_shapes=BOTH)
    filecheck(exported.module, "CHECK: func.func @main(%arg0: tensor<?x6xcomplex<f32>>)")
    for each in (z, w):
        given, same = each.clone(), each.clone()
        torch.testing.assert_close(exported.run(given), Model()(same))
        torch.testing.assert_close(given, same)


GOLDENS: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...], str]] = {
    "pointwise": (
        lambda x: (x * 2).exp() - x,
        (X,),
        """
        CHECK: [[SIZE:%.*]] = stablehlo.get_dimension_size %arg0, dim = 0
        CHECK: [[TWO:%.*]] = stablehlo.dynamic_broadcast_in_dim %cst
        CHECK: [[DOUBLE:%.*]] = stablehlo.multiply %arg0, [[TWO]] : tensor<?x6xf32>
        CHECK-NEXT: [[POWER:%.*]] = stablehlo.exponential [[DOUBLE]] : tensor<?x6xf32>
        CHECK-NEXT: [[RESULT:%.*]] = stablehlo.subtract [[POWER]], %arg0 : tensor<?x6xf32>
        CHECK-NEXT: return [[RESULT]]
        """,
    ),
    "reductions": (
        lambda x: (x.sum(1), x.amax(0)),
        (X,),
        """
        CHECK-NOT: transpose
        CHECK: stablehlo.reduce(%arg0 init: {{.*}}) applies stablehlo.add across dimensions = [1]
        CHECK-NOT: transpose
        CHECK: stablehlo.reduce(%arg0 init: {{.*}}) applies stablehlo.maximum across dimensions = [0]
        """,
    ),
    "gather": (
        lambda x, index: x[index],
        (X, torch.tensor([1, 0, -1])),
        """
        CHECK: stablehlo.compare LT, %arg1
        CHECK: [[NONNEGATIVE:%.*]] = stablehlo.select
        CHECK: [[LOW:%.*]] = stablehlo.minimum [[NONNEGATIVE]]
        CHECK: [[IN_RANGE:%.*]] = stablehlo.maximum [[LOW]]
        CHECK: "stablehlo.gather"(%arg0, [[IN_RANGE]]) {{.*}}slice_sizes = array<i64: 1, 6>
        """,
    ),
    "product": (
        lambda x, y: x @ y.t(),
        (X, X[:3]),
        """
        CHECK-NOT: transpose
        CHECK: stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [1]
        CHECK-NEXT: return
        """,
    ),
    "broadcast": (
        lambda x, y: x + y,
        (X, X[0]),
        """
        CHECK: [[SIZE:%.*]] = stablehlo.get_dimension_size %arg0, dim = 0
        CHECK: [[SIZES:%.*]] = stablehlo.concatenate {{.*}}-> tensor<2xi64>
        CHECK: [[WIDE:%.*]] = stablehlo.dynamic_broadcast_in_dim %arg1, [[SIZES]], dims = [1]
        CHECK: stablehlo.add %arg0, [[WIDE]] : tensor<?x6xf32>
        """,
    ),
}


@pytest.mark.parametrize("name", GOLDENS)
def test_the_shape_of_the_module(name: str) -> None:
    function, inputs, checks = GOLDENS[name]
    dims = ({0: DYNAMIC}, *[None] * (len(inputs) - 1))
    filecheck(check(function, inputs, (Y, *inputs[1:]), dims), checks)


def test_convolutions_are_convolutions() -> None:
    weight, bias = torch.randn(6, 2, 3, 2), torch.randn(6)
    dims = ({0: DYNAMIC, 2: DYNAMIC}, None, None)
    module = check(
        lambda x, w, b: F.conv2d(x, w, b, stride=2, padding=1, dilation=(1, 2), groups=2),
        (IMAGE, weight, bias),
        (torch.randn(3, 4, 12, 8), weight, bias),
        dims,
    )
    filecheck(
        module,
        """
        CHECK: stablehlo.convolution(%{{.*}}, %{{.*}}) {{.*}}stride = [2, 2], pad = {{\\[}}[1, 1], [1, 1]]
        CHECK-NOT: stablehlo.convolution
        """,
    )
    taps = torch.randn(4, 3, 3, 2)
    turned = {"stride": 2, "padding": 1, "output_padding": 1, "groups": 2, "dilation": (2, 1)}
    found = check(lambda x, w: F.conv_transpose2d(x, w, **turned), (IMAGE, taps))
    assert str(found).count("stablehlo.convolution") == 1


def test_pads_and_concatenations_are_such() -> None:
    module = check(lambda x: torch.cat([x, F.pad(x, (1, -1), value=2.0)]), (X,), (Y,), BOTH)
    filecheck(
        module,
        """
        CHECK: %[[PADDED:.+]] = stablehlo.pad %{{.+}}, %{{.+}}, low = [0, 1], high = [0, 0]
        CHECK: stablehlo.concatenate %arg0, %[[PADDED]], dim = 0
        CHECK-NOT: stablehlo.select
        """,
    )


def test_running_sums_need_no_loop() -> None:
    program = lambda x: (x.cumsum(1), *x.cummax(1), x.logcumsumexp(1))  # noqa: E731
    assert "while" not in str(check(program, (X,)))
    assert "while" in str(check(program, (X.t(),), (Y.t(),), ({1: DYNAMIC},)))


def test_matrix_products_are_dots() -> None:
    module = check(
        lambda x, y: torch.einsum("bij,bkj->bik", x, y),
        (torch.randn(2, 3, 4), torch.randn(2, 5, 4)),
        (torch.randn(3, 3, 4), torch.randn(3, 5, 4)),
        ({0: DYNAMIC}, {0: DYNAMIC}),
    )
    filecheck(module, "CHECK: stablehlo.dot_general {{.*}}batching_dims = [0] x [0]")


def test_gradients() -> None:
    def step(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.ops.aten.convolution_backward(
            torch.ones(2, 3, 7, 6, dtype=x.dtype),
            x,
            w,
            [3],
            [1, 1],
            [0, 0],
            [1, 1],
            False,
            [0, 0],
            1,
            [True] * 3,
        )

    check(step, (IMAGE, torch.randn(3, 4, 3, 3)))


def test_sizes_that_depend_on_data() -> None:
    x, y = torch.tensor([1.0, 0, 2, 0, 3]), torch.tensor([0.0, 5, 0, 0, 0])
    check(lambda x: (x[x > 0] * 2, x.nonzero()), (x,), (y,))
    module = check(lambda x: torch.arange(5.0) + x[x > 0].sum(), (x,), (y,))
    assert "stablehlo" in str(module)


def test_control_flow() -> None:
    def branches(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x * 2, (x,))

    filecheck(check(branches, (X.abs(),), (-Y.abs(),), BOTH), "CHECK: stablehlo.if")

    def loop(x: torch.Tensor) -> Any:
        from torch._higher_order_ops import while_loop

        return while_loop(lambda i, y: i < 5, lambda i, y: (i + 1, y * 2), (torch.tensor(0), x))[1]

    filecheck(check(loop, (X,)), "CHECK: stablehlo.while")


def test_random_numbers_depend_on_the_seed() -> None:
    module = emit(capture(lambda x: torch.rand_like(x), (torch.zeros(40),)).program)
    torch.manual_seed(3)
    one, other = evaluate_module(module, [torch.zeros(40)])[0], evaluate_module(module, [torch.zeros(40)])[0]
    torch.manual_seed(3)
    again = evaluate_module(module, [torch.zeros(40)])[0]
    assert torch.equal(one, again) and not torch.equal(one, other)
    assert one.min() >= 0 and one.max() < 1 and 0.2 < one.mean() < 0.8


def test_weights_inside_or_as_arguments() -> None:
    model = torch.nn.Linear(6, 3)
    program = capture(model, (X,), dynamic_shapes=BOTH).program
    inside, outside = emit(program), emit(program, "external")
    expected = model(Y)
    torch.testing.assert_close(evaluate_module(inside, [Y])[0], expected)
    held = [model.weight, model.bias]
    torch.testing.assert_close(evaluate_module(outside, [Y, *held])[0], expected)
    arguments = [str(each) for each in outside.body.operations[0].type.inputs]
    assert arguments == ["tensor<?x6xf32>", "tensor<3x6xf32>", "tensor<3xf32>"]
    assert len(inside.body.operations[0].type.inputs) == 1


def test_mutated_buffers_come_first() -> None:
    model = torch.nn.BatchNorm1d(6).train()
    program = capture(model, (X,)).program
    state = {name: value.clone() for name, value in model.named_buffers()}
    found = evaluate_module(emit(program), [X, *state.values()])
    expected = model(X)
    assert len(found) == 4
    torch.testing.assert_close(found[:2], [model.running_mean, model.running_var])
    assert found[2] == 1
    torch.testing.assert_close(found[3], expected)


def test_the_module_is_a_portable_artifact() -> None:
    from torch_mlir import ir
    from torch_mlir._mlir_libs import _stablehlo as hlo

    for dims in (None, BOTH):
        module = emit(capture(lambda x: x.cumsum(0)[1:].softmax(0), (X,), dynamic_shapes=dims).program)
        before = str(module)
        for version in (None, hlo.get_minimum_version()):
            artifact = portable_artifact(module, version)
            assert str(module) == before
            with module.context, ir.Location.unknown():
                back = hlo.deserialize_portable_artifact(module.context, artifact)
                assert back.operation.verify()
            found = evaluate_module(back, [X])[0]
            torch.testing.assert_close(found, X.cumsum(0)[1:].softmax(0))
    newer = emit(capture(lambda x: x.tan(), (X,)).program)
    with pytest.raises(SmeltError, match=r"SM0732.*artifact"):
        portable_artifact(newer, hlo.get_minimum_version())


def test_all_that_is_not_supported_is_told_at_once() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return torch.linalg.eigh(x)[0] + torch.linalg.svd(x)[1]

    with pytest.raises(UnsupportedOperatorsError) as caught:
        emit(capture(Model(), (torch.eye(3),)).program)
    assert len(caught.value.problems) == 2
    assert all("test_stablehlo.py" in str(problem.where) for problem in caught.value.problems)


def test_determinants_of_complex_matrices_with_their_triangular_parts() -> None:
    def program(z: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return *torch.ops.aten._linalg_det(z), *torch.ops.aten._linalg_slogdet(x)

    given = torch.randn(2, 3, 3, dtype=torch.complex64), torch.randn(3, 3)
    exported = smelt.export(program, given)
    for dialect in ("linalg", "stablehlo", "tosa", "torch"):
        for mine, eagers in zip(exported.to(dialect).run(*given), program(*given), strict=True):
            torch.testing.assert_close(mine, eagers)


def test_what_the_interpreter_does_not_know_is_an_error() -> None:
    from torch_mlir import ir

    from smelt.mlir.bindings import new_context

    text = "func.func @main(%x: tensor<1x1xf32>) -> tensor<1x1xf32> {"
    text += " %y = stablehlo.cholesky %x, lower = true : tensor<1x1xf32> return %y : tensor<1x1xf32> }"
    module = ir.Module.parse(text, context=new_context())
    with pytest.raises(SmeltError, match=r"SM0731.*cholesky"):
        evaluate_module(module, [torch.ones(1, 1)])


def test_the_interpreter_leaves_the_module_as_it_is() -> None:
    module = emit(capture(lambda x: x + 1, (X,), dynamic_shapes=BOTH).program)
    before = str(module)
    evaluate_module(module, [X])
    assert str(module) == before


def test_capabilities_name_what_there_is() -> None:
    assert {"Pointwise", "Sort", "Scan"} <= CAPABILITIES.bodies and "lgamma" in CAPABILITIES.elementwise


def test_large_programs_run_compiled_by_way_of_linalg() -> None:
    from smelt.mlir.stablehlo import run

    def function(x: torch.Tensor) -> Any:
        return x.sin() + 1, (x * 100).abs().to(torch.uint8) // 3 + 150, x > 0

    x = torch.randn(600, 700)
    module = emit(capture(function, (x,), dynamic_shapes=BOTH).program)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(run._Run, "_evaluate", None)
        found = evaluate_module(module, [x])
    for one, expected in zip(found, function(x), strict=True):
        assert one.dtype == expected.dtype
        torch.testing.assert_close(one, expected)


def test_a_large_module_with_a_small_loop_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has no form in Linalg is interpreted, and the rest compiled."""
    from smelt.mlir.stablehlo import run

    compiled: list[str] = []
    own = run._Run._compiled

    def noted(self: Any, kinds: Any) -> Any:
        compiled.append(str(self.module))
        return own(self, kinds)

    monkeypatch.setattr(run._Run, "_compiled", noted)
    monkeypatch.setattr(run, "_MOST_INTERPRETED", 4000)

    def weighted(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ordered, places = x.sort(stable=True)
        running = torch._higher_order_ops.while_loop(lambda i, v: i < 3, lambda i, v: (i + 1, v * 2), (0, x))[
            1
        ]
        return (y[:, None] * ordered).amax(1), places, running

    x, y = torch.rand(30), torch.rand(500)
    found = smelt.export(weighted, (x, y), to="stablehlo").run(x, y)
    torch.testing.assert_close(found, weighted(x, y))
    assert len(compiled) == 1 and "stablehlo.sort" not in compiled[0] and "stablehlo.while" not in compiled[0]
