"""TOSA: verified, valid by the specification, and run through the upstream passes against eager."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt
from smelt.mlir.diagnostics import UnsupportedOperatorsError
from smelt.mlir.tosa import CAPABILITIES
from tests.mlir import test_stablehlo
from tests.mlir.support import filecheck
from tests.mlir.test_stablehlo import ROWS

F = torch.nn.functional
DYNAMIC = torch.export.Dim.DYNAMIC
aten = torch.ops.aten


def check(
    function: Callable[..., Any],
    inputs: tuple[Any, ...],
    others: tuple[Any, ...] | None = None,
    dims: Any = None,
) -> smelt.Exported:
    """Export for ``inputs``, run on these and on ``others``."""
    return compare(smelt.export(function, inputs, to="tosa", dynamic_shapes=dims), function, inputs, others)


def compare(
    exported: smelt.Exported,
    function: Callable[..., Any],
    inputs: tuple[Any, ...],
    others: tuple[Any, ...] | None = None,
) -> smelt.Exported:
    """Run a module on ``inputs`` and on ``others``; returns it."""
    for given in (inputs, others):
        if given is None:
            continue
        found, expected = exported.run(*given), function(*given)
        exact = function(*(x.double() if _is_float(x) else x for x in given))
        for one, eager, wide in zip(*map(_listed, (found, expected, exact)), strict=True):
            assert one.dtype == eager.dtype
            assert one.shape == eager.shape
            if not eager.dtype.is_floating_point:
                assert torch.equal(one, eager)
                continue
            assert torch.equal(one.isnan(), eager.isnan())
            infinite = eager.isinf()
            assert torch.equal(one[infinite], eager[infinite])
            finite = wide.isfinite() & ~infinite
            wide = torch.where(finite, wide.double(), 0.0)
            error, own = ((torch.where(finite, x.double(), 0.0) - wide).abs() for x in (one, eager))
            ulp = torch.finfo(eager.dtype).eps * wide.abs().clamp_min(1)
            assert (error <= 4 * own.max() + 8 * ulp).all() if error.numel() else True
    return exported


def _is_float(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.is_floating_point()


def _listed(x: Any) -> list[torch.Tensor]:
    return [part for each in x for part in _listed(each)] if isinstance(x, (tuple, list)) else [x]


torch.manual_seed(0)
X, Y = torch.randn(4, 6), torch.randn(7, 6)
BOTH = ({0: DYNAMIC},)
ROWS_AND_COLUMNS = ({0: DYNAMIC, 1: DYNAMIC},)


@pytest.mark.parametrize("name", ROWS)
def test_programs_over_rows(name: str) -> None:
    """In StableHLO and TOSA, static and with a dynamic size."""
    static, dynamic = (
        smelt.export(ROWS[name], (X,), to="stablehlo", dynamic_shapes=dims) for dims in (None, BOTH)
    )
    assert "?" not in str(test_stablehlo.compare(static.module, ROWS[name], (X,)))
    assert "?" in str(test_stablehlo.compare(dynamic.module, ROWS[name], (X,), (Y,)))
    assert "?" not in str(static.to("tosa"))
    assert "?" in str(compare(dynamic.to("tosa"), ROWS[name], (X,), (Y,)))


SPECIAL = torch.tensor(
    [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0, 1e-30, 100.0, -1e10, math.inf, -math.inf, math.nan]
)
PAIRS = torch.cartesian_prod(SPECIAL, SPECIAL).T.contiguous()


def test_functions_of_one_number_keep_inf_and_nan() -> None:
    def function(x: torch.Tensor) -> list[torch.Tensor]:
        names = (
            "sqrt rsqrt reciprocal exp log trunc round floor ceil neg abs sigmoid tanh "
            "signbit sign isnan isinf"
        )
        return [getattr(torch, name)(x) for name in names.split()]

    check(function, (SPECIAL[:-1],))
    check(lambda x: (x.sqrt(), x.relu(), x.round(), x.isnan(), x.atan(), x.erf()), (SPECIAL,))
    check(lambda x: (x.erf(), x.exp(), x.sqrt()), (SPECIAL.double(),))


def test_functions_of_two_numbers_keep_inf_and_nan() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        names = "maximum minimum fmax fmin eq ne lt le gt ge copysign atan2"
        return [getattr(torch, name)(x, y) for name in names.split()]

    check(function, tuple(PAIRS))
    finite = PAIRS[:, (PAIRS.isfinite() & (PAIRS.abs() > 0.1)).all(0)]
    check(lambda x, y: x / y, tuple(finite))


def test_remainders_of_floats_are_exact() -> None:
    x = torch.tensor([6.0, -6.0, 1000.3, 7.5, -7.5, 1e6, 5.0, 0.3])
    y = torch.tensor([3.0, 3.0, 0.7, -2.0, -2.0, 0.3, math.inf, 1.0])
    exported = smelt.export(lambda x, y: (x.fmod(y), x.remainder(y), x // y), (x, y), to="tosa")
    for found, eager in zip(exported.run(x, y), (x.fmod(y), x.remainder(y), x // y)):
        torch.testing.assert_close(found, eager, rtol=1e-6, atol=1e-6)


INTEGERS = torch.tensor([7, -7, 0, 1, -1, 100, -128, 127])
DIVISORS = torch.tensor([2, 2, 3, -3, 5, 7, 3, -2])


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64])
def test_integers(dtype: torch.dtype) -> None:
    x, y = INTEGERS.to(dtype), DIVISORS.to(dtype)

    def function(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        divided = [x // y, x % y, x.fmod(y), torch.div(x, y, rounding_mode="trunc")]
        compared = [x < y, x >= y, torch.maximum(x, y), torch.minimum(x, y), x.abs(), x.sign(), -x]
        bits = [x & y, x | y, x ^ y, ~x, x << 3, x >> 1, x << y.abs(), x >> y.abs()]
        rows = x.reshape(2, 4)
        reduced = [rows.amax(1), rows.amin(0), rows.sum(1), rows.prod(1), rows.argmax(1), rows.argmin(1)]
        moved = [x.float(), x.to(torch.int16), x.to(torch.uint8), x.bool(), x.sort()[0], x * y, x**3]
        return divided + compared + bits + reduced + moved

    check(function, (x, y))


def test_bools() -> None:
    x, y = torch.tensor([True, True, False, False]), torch.tensor([True, False, True, False])

    def function(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        compared = [x < y, x <= y, x > y, x >= y, x == y, x != y, torch.maximum(x, y)]
        return [
            *compared,
            x & y,
            x | y,
            x ^ y,
            ~x,
            x.all(),
            y.any(),
            x.sum(),
            x.int(),
            F.pad(x, (1, 1)),
        ]

    check(function, (x, y))


def test_floats_become_integers_by_truncation() -> None:
    x = torch.tensor([2.7, -2.7, 2.5, -0.5, 0.0, 200.0])
    check(lambda x: (x.int(), x.long(), x.to(torch.int16), x.abs().to(torch.uint8), x.bool()), (x,))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_floats(dtype: torch.dtype) -> None:
    x = X.to(dtype)
    exported = smelt.export(
        lambda x: (x.sin() * 2 + x, x.softmax(1), x @ x.t(), x.float(), x.double()), (x,), to="tosa"
    )
    for found, eager in zip(
        exported.run(x), (x.sin() * 2 + x, x.softmax(1), x @ x.t(), x.float(), x.double())
    ):
        assert found.dtype == eager.dtype
        bound = 4 * torch.finfo(dtype).eps
        torch.testing.assert_close(found, eager, rtol=bound, atol=4 * bound)


CONVOLUTIONS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "one dimension": ((2, 3, 9), (4, 3, 3), {"padding": 1, "stride": 2}),
    "two": ((2, 3, 8, 7), (4, 3, 3, 2), {"padding": (1, 0), "stride": (2, 3)}),
    "dilated": ((1, 2, 9, 9), (3, 2, 3, 3), {"dilation": 2, "stride": 3}),
    "three": ((1, 2, 5, 6, 5), (3, 2, 2, 3, 2), {"padding": 1}),
    "depthwise": ((1, 4, 6, 6), (8, 1, 3, 3), {"groups": 4, "padding": 1}),
    "grouped": ((1, 4, 6, 6), (6, 2, 3, 3), {"groups": 2, "stride": 2}),
    "grouped line": ((1, 4, 6), (4, 1, 3), {"groups": 4}),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name: str) -> None:
    x, weight, options = CONVOLUTIONS[name]
    layer = (F.conv1d, F.conv2d, F.conv3d)[len(x) - 3]
    bias = torch.randn(weight[0])
    text = str(check(lambda x, w, b: layer(x, w, b, **options), (torch.randn(x), torch.randn(weight), bias)))
    operation = {"three": "conv3d", "depthwise": "depthwise_conv2d", "grouped line": "depthwise_conv2d"}
    assert f"tosa.{operation.get(name, 'conv2d')}" in text


@pytest.mark.parametrize(
    ("x", "weight", "options"),
    [
        ((2, 3, 4, 5), (3, 4, 3, 3), {"stride": 2, "padding": 1, "output_padding": 1}),
        ((1, 4, 5, 5), (4, 3, 2, 3), {"groups": 2, "dilation": 2}),
        ((1, 2, 6), (2, 3, 4), {"stride": 3, "padding": 4}),
    ],
)
def test_transposed_convolutions(x: Any, weight: Any, options: dict[str, Any]) -> None:
    layer = F.conv_transpose1d if len(x) == 3 else F.conv_transpose2d
    exported = check(lambda x, w: layer(x, w, **options), (torch.randn(x), torch.randn(weight)))
    assert "tosa.conv2d" in str(exported)


def test_a_convolution_has_a_dynamic_batch() -> None:
    weight = torch.randn(4, 3, 3, 3)
    x, y = torch.randn(2, 3, 6, 6), torch.randn(5, 3, 6, 6)
    exported = check(lambda x: F.max_pool2d(F.conv2d(x, weight.to(x)).relu(), 2), (x,), (y,), BOTH)
    assert "tosa.conv2d" in str(exported)


def test_sorting_is_stable_and_nan_is_largest() -> None:
    x = torch.tensor([[3.0, math.nan, 1.0, 3.0, -math.inf, math.nan], [0.0, -0.0, 0.0, 2.0, 2.0, 1.0]])
    for descending in (False, True):
        check(lambda x, d=descending: torch.sort(x, dim=1, descending=d, stable=True), (x,))
    check(lambda x: x.topk(3, 1), (X,))


def test_positions_of_extremes_are_the_first_and_nan_is_one() -> None:
    x = torch.tensor([[1.0, 5.0, 5.0, 0.0, 0.0], [1.0, math.nan, 7.0, math.nan, -1.0]])
    check(lambda x: (x.argmax(1), x.argmin(1), x.argmax(), x.max(0)[0], x.max(1)), (x,))


@pytest.mark.parametrize("size", [5, 3000])
def test_stores_to_the_same_place(size: int) -> None:
    """Few are compared with every place; many are stored one after the other."""
    where = torch.randint(0, size, (1500 if size > 5 else 8,))
    values = torch.randn(where.shape)
    base = torch.randn(size)

    def function(base: torch.Tensor, where: torch.Tensor, values: torch.Tensor) -> list[torch.Tensor]:
        return [
            base.index_put((where,), values),
            base.index_put((where,), values, accumulate=True),
            base.scatter_reduce(0, where, values, "amax"),
            base.scatter_reduce(0, where, values, "prod"),
        ]

    check(function, (base, where, values))


def test_nan_is_true() -> None:
    numbers = torch.tensor([0.0, -0.0, math.nan, math.inf, 1e-30])
    check(lambda x: (x.bool(), numbers.bool(), torch.logical_not(x)), (numbers,))


def test_arrays_without_elements() -> None:
    x = torch.randn(0, 3)
    check(
        lambda x: (
            x + 1,
            x.sum(0),
            x.sum(1),
            torch.cat([x, torch.ones(2, 3)]),
            x.t() @ x,
            F.pad(x, (0, 0, 1, 1)),
        ),
        (x,),
    )


def test_control_flow() -> None:
    def looped(x: torch.Tensor) -> torch.Tensor:
        def body(turn: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return turn + 1, x * 1.5 + turn

        return torch._higher_order_ops.while_loop(lambda turn, x: turn < 4, body, (torch.tensor(0), x))[1]

    def branched(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.sin() + 2, lambda x: x.cos(), (x,))

    assert "tosa.while_loop" in str(check(looped, (X,)))
    exported = smelt.export(branched, (X,), to="tosa", dynamic_shapes=BOTH)
    assert "tosa.cond_if" in str(exported)
    for x in (X.abs(), -Y.abs()):
        torch.testing.assert_close(exported.run(x), branched(x))


def test_a_training_step_with_batch_norm_writes_back() -> None:
    torch.manual_seed(0)
    layers = torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU()
    model, same = (torch.nn.Sequential(*layers) for _ in range(2))
    import copy

    same = copy.deepcopy(model)
    x = torch.randn(2, 3, 6, 6)
    torch.testing.assert_close(smelt.export(model, (x,), to="tosa").run(x), same(x))
    torch.testing.assert_close(model[1].running_mean, same[1].running_mean)
    assert model[1].num_batches_tracked == 1


def test_sizes_are_computed_in_shapes() -> None:
    """Sums, products and quotients of two dynamic sizes."""
    dims = ROWS_AND_COLUMNS
    exported = check(
        lambda x: (
            x.reshape(-1),
            torch.cat([x, x[:, 1:]], 1),
            x[::2, 1::3],
            x.t().reshape(-1, 2),
            x.flip(0).repeat(2, 1),
        ),
        (torch.randn(4, 6),),
        (torch.randn(6, 9),),
        dims,
    )
    filecheck(exported.module, "CHECK-DAG: tosa.dim\nCHECK-DAG: tosa.concat_shape\nCHECK-NOT: tensor.")


GOLDENS: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...], str]] = {
    "pointwise": (
        lambda x: (x * 2).exp() - x,
        (X,),
        """
        CHECK: [[TWO:%.*]] = "tosa.const"() <{values = dense<2.000000e+00> : tensor<1x1xf32>}>
        CHECK: [[DOUBLE:%.*]] = tosa.mul %arg0, [[TWO]], {{.*}} -> tensor<4x6xf32>
        CHECK-NEXT: [[POWER:%.*]] = tosa.exp [[DOUBLE]]
        CHECK-NEXT: [[RESULT:%.*]] = tosa.sub [[POWER]], %arg0
        CHECK-NEXT: return [[RESULT]]
        """,
    ),
    "reductions": (
        lambda x: (x.sum(1), x.amax(0)),
        (X,),
        """
        CHECK-NOT: transpose
        CHECK: tosa.reduce_sum %arg0 {axis = 1 : i32} : (tensor<4x6xf32>) -> tensor<4x1xf32>
        CHECK-NOT: transpose
        CHECK: tosa.reduce_max %arg0 {axis = 0 : i32} : (tensor<4x6xf32>) -> tensor<1x6xf32>
        """,
    ),
    "gather": (
        lambda x, index: x[index],
        (X, torch.tensor([1, 0, -1])),
        """
        CHECK: [[LOW:%.*]] = tosa.minimum
        CHECK: [[IN_RANGE:%.*]] = tosa.maximum [[LOW]]
        CHECK: [[ROWS:%.*]] = tosa.reshape %arg0, {{.*}} -> tensor<1x4x6xf32>
        CHECK: tosa.reshape [[IN_RANGE]]
        CHECK: [[PLACES:%.*]] = tosa.cast {{.*}} -> tensor<1x3xi32>
        CHECK: tosa.gather [[ROWS]], [[PLACES]]
        """,
    ),
    "product": (
        lambda x, y: x @ y,
        (X, X[:3].t().contiguous()),
        """
        CHECK: [[LEFT:%.*]] = tosa.reshape %arg0, {{.*}} -> tensor<1x4x6xf32>
        CHECK: [[RIGHT:%.*]] = tosa.reshape %arg1, {{.*}} -> tensor<1x6x3xf32>
        CHECK: [[FOUND:%.*]] = tosa.matmul [[LEFT]], [[RIGHT]]
        CHECK: tosa.reshape [[FOUND]], {{.*}} -> tensor<4x3xf32>
        """,
    ),
    "convolution": (
        lambda x, w: F.conv2d(x, w, stride=2, padding=1),
        (torch.randn(1, 3, 7, 7), torch.randn(4, 3, 3, 3)),
        """
        CHECK: [[DATA:%.*]] = tosa.transpose %arg0 {perms = array<i32: 0, 2, 3, 1>}
        CHECK: [[TAPS:%.*]] = tosa.transpose %arg1 {perms = array<i32: 0, 2, 3, 1>}
        CHECK: [[FOUND:%.*]] = tosa.conv2d [[DATA]], [[TAPS]]
        CHECK-SAME: pad = array<i64: 1, 1, 1, 1>, stride = array<i64: 2, 2>
        CHECK: tosa.transpose [[FOUND]] {perms = array<i32: 0, 3, 1, 2>} {{.*}} -> tensor<1x4x4x4xf32>
        """,
    ),
}


@pytest.mark.parametrize("name", GOLDENS)
def test_the_shape_of_the_module(name: str) -> None:
    function, inputs, checks = GOLDENS[name]
    filecheck(check(function, inputs).module, checks)


def test_a_broadcast_of_a_dynamic_size_needs_no_sizes() -> None:
    exported = check(lambda x, y: x + y, (X, X[0]), (Y, Y[0]), ({0: DYNAMIC}, None))
    filecheck(
        exported.module,
        """
        CHECK-NOT: tosa.dim
        CHECK: [[LINE:%.*]] = tosa.reshape %arg1, {{.*}} -> tensor<1x6xf32>
        CHECK-NEXT: tosa.add %arg0, [[LINE]] {{.*}} -> tensor<?x6xf32>
        """,
    )


def validate(exported: smelt.Exported, passes: str) -> None:
    from torch_mlir.passmanager import PassManager

    with exported.module.context:
        PassManager.parse(f"builtin.module({passes})").run(exported.module.operation.clone())


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.linear = torch.nn.Conv2d(3, 4, 3, stride=2), torch.nn.Linear(36, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(self.conv(x).relu().flatten(1)).softmax(1)


def test_a_network_is_tosa_1_0() -> None:
    """The specification's floating-point profile takes it: nothing is float64 or int64."""
    exported = smelt.export(Net(), (torch.randn(2, 3, 8, 8),), to="tosa")
    validate(exported, "tosa-validate{strict-op-spec-alignment}")
    filecheck(
        exported.module,
        """
        CHECK: tosa.conv2d
        CHECK: tosa.matmul
        CHECK: [[MOST:%.*]] = tosa.reduce_max
        CHECK: tosa.sub {{.*}}, [[MOST]]
        CHECK: tosa.exp
        CHECK: tosa.reduce_sum
        CHECK: tosa.reciprocal
        """,
    )


def test_positions_need_the_extension_for_int64_only() -> None:
    exported = smelt.export(lambda x, i: x[i] + x.sort(0)[0], (X, torch.tensor([1, 0, 2, 2])), to="tosa")
    version = "tosa-attach-target{specification_version=1.1.draft profiles=pro_int,pro_fp extensions=int64}"
    validate(exported, f"{version},tosa-validate{{strict-op-spec-alignment}}")


def test_what_tosa_has_not_is_listed() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return x.nonzero(), torch.linalg.svd(x[None])[1], x[x > 0]

    with pytest.raises(UnsupportedOperatorsError) as error:
        smelt.export(Model(), (torch.ones(3),), to="tosa")
    reasons = [problem.what for problem in error.value.problems]
    assert [reason.split(":")[0] for reason in reasons][:2] == [
        "aten.nonzero.default",
        "aten._linalg_svd.default",
    ]
    assert all("test_tosa.py" in str(problem.where) for problem in error.value.problems)
    with pytest.raises(UnsupportedOperatorsError, match=r"nonzero.*computed from data"):
        smelt.export(lambda x: x.nonzero(), (torch.ones(3),), to="tosa")
    with pytest.raises(UnsupportedOperatorsError, match="no operation on shapes"):
        smelt.export(
            lambda x: F.interpolate(x[None], scale_factor=3.66),
            (X,),
            to="tosa",
            dynamic_shapes=ROWS_AND_COLUMNS,
        )


def test_capabilities() -> None:
    assert "erf" in CAPABILITIES.elementwise
    assert "bitcast" in CAPABILITIES.methods
    assert "Sort" in CAPABILITIES.bodies


# -- random numbers ---------------------------------------------------------------------------------


def test_random_numbers_are_linalgs_and_new_in_each_run() -> None:
    def drawn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.rand_like(x), torch.randn_like(x), torch.randint(0, 7, (9,)), F.dropout(x, 0.25)

    x = torch.ones(40, 50)
    exported = smelt.export(drawn, (x,), to="tosa")
    assert str(exported).count("tosa.variable @seed") == 1
    first, second = exported.run(x), exported.run(x)
    for mine, again, linalg in zip(first, second, exported.to("linalg").run(x), strict=True):
        torch.testing.assert_close(mine, linalg, rtol=2e-5, atol=2e-6)
        assert not torch.equal(mine, again)
    assert abs(first[0].mean() - 0.5) < 0.03 and abs(first[1].std() - 1) < 0.06
    assert abs((first[3] == 0).float().mean() - 0.25) < 0.05


# -- complex numbers --------------------------------------------------------------------------------


class Turned(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(3, dtype=torch.complex64))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        z = x * self.weight + y.conj()
        return z, z.sum(), z.abs(), torch.fft.fft(z.real), torch.view_as_real(z)


@pytest.mark.parametrize("shapes", [None, {"x": {0: torch.export.Dim("n")}, "y": {0: torch.export.Dim("n")}}])
def test_complex_arguments_and_results_are_pairs(shapes: Any) -> None:
    args = torch.randn(4, 3, dtype=torch.complex64), torch.randn(4, 3, dtype=torch.complex128)
    model = Turned()
    exported = smelt.export(model, args, to="tosa", dynamic_shapes=shapes)
    rows = "4" if shapes is None else "?"
    assert f"tensor<{rows}x3x2xf32>" in str(exported) and f"tensor<{rows}x3x2xf64>" in str(exported)
    with torch.no_grad():
        torch.testing.assert_close(exported.run(*args), model(*args), rtol=1e-5, atol=1e-5)


def test_complex_tensors_written_in_place_and_carried() -> None:
    def grown(x: torch.Tensor) -> torch.Tensor:
        x.mul_(2j)
        loop = torch._higher_order_ops.while_loop
        return loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * (1 + 1j)), (0, x + 1))[1]

    x = torch.randn(3, dtype=torch.complex64)
    exported = smelt.export(grown, (x.clone(),), to="tosa")
    mine, theirs = x.clone(), x.clone()
    torch.testing.assert_close(exported.run(mine), grown(theirs))
    torch.testing.assert_close(mine, theirs)


# -- bits and exact numbers -------------------------------------------------------------------------

ODD = torch.tensor([1.5, -1.5, 0.0, -0.0, math.inf, -math.inf, math.nan, -math.nan, 1e-42, -7.0, 1e10, 3e38])


def test_bits_of_floats() -> None:
    def looked(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            x.view(torch.int32),
            x.view(torch.int8),
            x.signbit(),
            torch.nextafter(x, x.flip(0)).view(torch.int32),
        )

    exported = smelt.export(looked, (ODD,), to="tosa", dynamic_shapes=({0: torch.export.Dim("n")},))
    assert "tensor.bitcast" in str(exported)
    for mine, theirs in zip(exported.run(ODD), looked(ODD), strict=True):
        if mine.dtype is torch.int32:
            mine, theirs = mine.view(torch.float32), theirs.view(torch.float32)
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_remainders_are_exact(dtype: torch.dtype) -> None:
    """By a reciprocal alone they were wrong for large quotients and for 0."""
    more = torch.tensor([1e300, 5e-324, 1e-310, 1e30, 65504.0, 0.1], dtype=torch.float64)
    numbers = torch.cat([ODD.double(), more]).to(dtype)
    x, y = numbers.repeat_interleave(len(numbers)), numbers.repeat(len(numbers))
    got = smelt.export(torch.fmod, (x, y), to="tosa").run(x, y)
    finite = x.isfinite() & ~y.isnan() & (y != 0)
    want = [math.fmod(*each) if good else math.nan for *each, good in zip(x.tolist(), y.tolist(), finite)]
    torch.testing.assert_close(
        got, torch.tensor(want, dtype=torch.float64).to(dtype), rtol=0, atol=0, equal_nan=True
    )


def test_what_upstream_folds_wrongly() -> None:
    """Upstream's folds make ``nan * 0.0`` 0, and -1.0 of True."""

    def folded(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        flags = torch.tensor([True, True]).to(torch.float32), torch.tensor([True, True]).to(torch.int32)
        return (
            x * 0.0,
            torch.copysign(torch.ones_like(x), x * -0.0),
            x * torch.zeros(12),
            *flags,
            1 / x.round(),
        )

    mine = smelt.export(folded, (ODD,), to="tosa").run(ODD)
    for place, (one, other) in enumerate(zip(mine, folded(ODD), strict=True)):
        known = ~ODD.isnan() & ODD.isfinite() if place == 1 else slice(None)  # the sign of a NaN is anyone's
        torch.testing.assert_close(one[known], other[known], rtol=1e-6, atol=0, equal_nan=True)
    torch.testing.assert_close((1 / mine[0])[:4], (1 / folded(ODD)[0])[:4])


# -- in a process of its own ------------------------------------------------------------------------


def test_passes_that_crash_do_not_end_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    from smelt.mlir import isolated
    from smelt.mlir.tosa import run

    exported = smelt.export(lambda x: x.exp(), (X,), to="tosa")
    monkeypatch.setattr(isolated, "COMPILE_LIMIT", 0.001)
    with pytest.raises(smelt.SmeltError, match="did not end within") as caught:
        run.executable(exported.module)
    assert caught.value.code == "SM0741"
    longer = smelt.export(lambda x: x.exp(), (X,), to="tosa")  # as it was written
    monkeypatch.undo()
    torch.testing.assert_close(longer.run(X), X.exp())
