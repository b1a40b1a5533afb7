"""The Torch dialect: what it looks like, and that torch-mlir's own pipelines take it as it is."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.export import Dim

import smelt
from smelt.errors import SmeltError
from smelt.mlir import fx, run_pipeline_with_repro_report
from smelt.mlir.capturing import capture
from smelt.mlir.diagnostics import UnsupportedOperatorsError
from smelt.mlir.signature import signature_of
from smelt.mlir.torch_dialect import emit

from .support import filecheck

PIPELINES = ("linalg-on-tensors", "tosa", "stablehlo")


def lowered(module, target: str):
    """``module`` after torch-mlir's own pipeline, as a person would write it."""
    run_pipeline_with_repro_report(
        module,
        f"builtin.module(func.func(torch-decompose-complex-ops),torch-backend-to-{target}-backend-pipeline)",
        f"lowering to {target}",
    )
    assert "!torch" not in str(module)
    return module


class SimpleModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(10, 5)
        self.norm = nn.BatchNorm1d(5)

    def forward(self, x):
        return torch.softmax(self.norm(torch.relu(self.linear(x))), dim=-1)


def test_the_program_of_the_readme():
    m = fx.export_and_import(SimpleModel(), torch.randn(3, 10))
    run_pipeline_with_repro_report(
        m,
        "builtin.module(func.func(torch-decompose-complex-ops),torch-backend-to-linalg-on-tensors-backend-pipeline)",
        "Lowering to Linalg",
        enable_ir_printing=False,
    )
    assert "linalg." in str(m)


@pytest.mark.parametrize("target", PIPELINES)
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_backend_pipelines_take_a_model(target, dynamic):
    shapes = {"x": {0: Dim("batch")}} if dynamic else None
    module = fx.export_and_import(SimpleModel().eval(), torch.randn(3, 10), dynamic_shapes=shapes)
    assert ("tensor<?x10xf32>" in str(lowered(module, target))) == dynamic


@pytest.mark.parametrize("target", PIPELINES)
def test_backend_pipelines_take_a_convolutional_net(target):
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )
    lowered(fx.export_and_import(net.eval(), torch.randn(2, 3, 8, 8)), target)


def test_sizes_symbols_and_lines():
    class Model(nn.Module):
        def forward(self, x, y):
            return torch.tanh(x) @ y

    batch = Dim("batch", min=2, max=64)
    module = fx.export_and_import(
        Model(),
        torch.randn(3, 4),
        torch.randn(4, 5),
        dynamic_shapes=({0: batch}, {}),
        import_symbolic_shape_expressions=True,
        func_name="net",
    )
    filecheck(
        module.operation.get_asm(enable_debug_info=True),
        """
        // CHECK: func.func @net(%[[X:.*]]: !torch.vtensor<[?,4],f32> loc("x"),
        // CHECK-SAME: %[[Y:.*]]: !torch.vtensor<[4,5],f32>
        // CHECK-SAME: -> !torch.vtensor<[?,5],f32>
        // CHECK: %[[S:.*]] = torch.symbolic_int "{{s[0-9]+}}" {min_val = 2, max_val = 64} : !torch.int
        // CHECK: torch.bind_symbolic_shape %[[X]], [%[[S]]], affine_map<()[s0] -> (s0, 4)>
        // CHECK: %[[T:.*]] = torch.aten.tanh %[[X]] : {{.*}} loc(#[[LINE:.*]])
        // CHECK: torch.bind_symbolic_shape %[[T]], [%[[S]]], affine_map<()[s0] -> (s0, 4)>
        // CHECK: %[[R:.*]] = torch.aten.mm %[[T]], %[[Y]]
        // CHECK: return %[[R]]
        // CHECK: #[[FILE:.*]] = loc("test_torch_dialect.py":
        // CHECK: #[[LINE]] = loc("forward"(#[[FILE]]))
        """,
    )
    lowered(module, "linalg-on-tensors")


def test_derived_sizes_are_affine():
    def double(x):
        return torch.cat([x, x, x[:1]])

    module = fx.export_and_import(
        double, torch.randn(3), dynamic_shapes=({0: Dim("n")},), import_symbolic_shape_expressions=True
    )
    filecheck(module, "// CHECK: affine_map<()[s0] -> (s0 * 2 + 1)>")


def test_weights_are_resources_or_arguments():
    program = capture(SimpleModel().eval(), (torch.randn(3, 10),)).program
    filecheck(
        emit(program, "inline"),
        """
        // CHECK: func.func @main(%{{.*}}: !torch.vtensor<[3,10],f32>) ->
        // CHECK: torch.vtensor.literal(dense_resource<linear.weight> : tensor<5x10xf32>)
        // CHECK: torch.vtensor.literal(dense<1.000000e+00> : tensor<5xf32>)
        // CHECK: dialect_resources
        // CHECK: linear.weight: "0x
        """,
    )
    filecheck(
        emit(program, "external"),
        """
        // CHECK: func.func @main(%{{.*}}: !torch.vtensor<[3,10],f32>, %{{.*}}: !torch.vtensor<[5,10],f32>,
        // CHECK-NOT: vtensor.literal({{.*}}tensor<5
        // CHECK-NOT: dialect_resources
        """,
    )


def test_weights_are_not_copied():
    model = nn.Linear(64, 64)
    program = capture(model, (torch.randn(2, 64),)).program
    module = emit(program)
    with torch.no_grad():
        model.weight.zero_()
    assert "weight" in str(module)
    assert str(module).count("0" * 1000) > 0


def test_training_batch_norm_returns_its_statistics_first():
    module = fx.export_and_import(nn.BatchNorm1d(5), torch.randn(3, 5))
    filecheck(
        module,
        """
        // CHECK: func.func @main(%{{[^:]*}}: !torch.vtensor<[3,5],f32>, %{{[^:]*}}: !torch.vtensor<[5],f32>,
        // CHECK-SAME: %{{[^:]*}}: !torch.vtensor<[5],f32>, %{{[^:]*}}: !torch.vtensor<[],si64>)
        // CHECK-SAME: -> (!torch.vtensor<[5],f32>, !torch.vtensor<[5],f32>,
        // CHECK-SAME: !torch.vtensor<[],si64>, !torch.vtensor<[3,5],f32>)
        """,
    )
    lowered(module, "linalg-on-tensors")


def test_mutated_inputs_come_back_as_results():
    def write(x, y):
        x.add_(1)
        return y * 2

    module = fx.export_and_import(write, torch.ones(3), torch.ones(4))
    filecheck(module, "// CHECK: -> (!torch.vtensor<[3],f32>, !torch.vtensor<[4],f32>)")


def test_what_was_fixed_while_capturing_is_no_argument():
    def scale(x, factor, flag=None, bias=None):
        return x * factor + (1 if bias is None else bias)

    program = capture(scale, (torch.ones(3), 2), {"flag": True, "bias": torch.ones(3)}).program
    assert signature_of(program).places == (0, 3)
    filecheck(
        emit(program),
        "// CHECK: @main(%{{[^:]*}}: !torch.vtensor<[3],f32>, %{{[^:]*}}: !torch.vtensor<[3],f32>)",
    )


def test_dtypes_and_literals():
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mask", torch.tensor([True, False, True]))
            self.register_buffer("low", torch.full((3,), 0.5, dtype=torch.bfloat16))
            self.register_buffer("bytes_", torch.tensor([1, 255, 3], dtype=torch.uint8))
            self.register_buffer("empty", torch.zeros(0, 3))
            self.register_buffer("wave", torch.tensor([1j, 2, 3]))

        def forward(self, x):
            return self.mask & x, self.low + 1, self.bytes_ + 1, self.empty + 1, self.wave * 2

    filecheck(
        fx.export_and_import(Model(), torch.ones(3, dtype=torch.bool)),
        """
        // CHECK-DAG: dense<[true, false, true]> : tensor<3xi1>) : !torch.vtensor<[3],i1>
        // CHECK-DAG: dense<5.000000e-01> : tensor<3xbf16>) : !torch.vtensor<[3],bf16>
        // CHECK-DAG: dense<[1, 255, 3]> : tensor<3xui8>) : !torch.vtensor<[3],ui8>
        // CHECK-DAG: dense<> : tensor<0x3xf32>) : !torch.vtensor<[0,3],f32>
        // CHECK-DAG: tensor<3xcomplex<f32>>) : !torch.vtensor<[3],complex<f32>>
        """,
    )


def test_numbers_from_sizes_are_computed():
    def scale(x):
        n = x.shape[0]
        return x * (n / (n - 1)), n // 2

    module = fx.export_and_import(scale, torch.randn(4, 3), dynamic_shapes=({0: Dim("n", min=2)},))
    filecheck(
        module,
        """
        // CHECK: %[[N:.*]] = torch.aten.size.int
        // CHECK: %[[M:.*]] = torch.aten.add.int %int-1, %[[N]]
        // CHECK: %[[Q:.*]] = torch.aten.div.float
        // CHECK: torch.aten.mul.Scalar %{{.*}}, %[[Q]]
        // CHECK: torch.aten.floordiv.int
        """,
    )
    lowered(module, "linalg-on-tensors")


def test_control_flow_is_if_and_loop():
    class Branch(nn.Module):
        def forward(self, x):
            return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))

    module = fx.export_and_import(Branch(), torch.randn(3))
    filecheck(
        module,
        """
        // CHECK: %[[P:.*]] = torch.aten.Bool.Tensor
        // CHECK: torch.prim.If %[[P]] -> (!torch.vtensor<[3],f32>)
        // CHECK: torch.prim.If.yield
        // CHECK: } else {
        // CHECK: torch.prim.If.yield
        """,
    )
    assert "scf.if" in str(lowered(module, "linalg-on-tensors"))

    class Loop(nn.Module):
        def forward(self, i, x):
            loop = torch._higher_order_ops.while_loop
            return loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 2), (i, x))

    module = fx.export_and_import(Loop(), torch.tensor(0), torch.randn(3))
    assert "torch.prim.Loop.condition" in str(module)
    assert "scf.while" in str(lowered(module, "linalg-on-tensors"))


@torch.library.custom_op("smelt_tests::torch_dialect_twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@twice.register_fake
def _(x):
    return torch.empty_like(x)


def test_an_unknown_operator_is_torch_operator():
    module = fx.export_and_import(lambda x: twice(x) + 1, torch.randn(3))
    filecheck(module, '// CHECK: torch.operator "torch.smelt_tests.torch_dialect_twice"(%{{.*}}) :')


def test_all_that_has_no_form_is_listed_at_once():
    class Model(nn.Module):
        def forward(self, x):
            x = x.to(torch.uint16).to(torch.float32)
            return x.to(torch.uint32)

    with pytest.raises(UnsupportedOperatorsError) as caught:
        fx.export_and_import(Model(), torch.randn(3))
    error = caught.value
    assert error.code == "SM0711"
    assert error.unsupported
    assert len(error.problems) == 2
    assert "torch.uint16" in str(error)
    assert "torch.uint32" in str(error)
    assert all("test_torch_dialect.py:" in problem.where for problem in error.problems)


def test_as_strided_reads_the_memory_of_what_it_views():
    def windows(x):
        return x.t()[1:].as_strided((2, 2), (1, 2), 1)

    module = fx.export_and_import(windows, torch.randn(3, 4))
    filecheck(
        module,
        """
        // CHECK: torch.aten.slice.Tensor {{.*}} -> !torch.vtensor<[4],f32>
        // CHECK: torch.aten.view {{.*}} -> !torch.vtensor<[2,2],f32>
        // CHECK: torch.aten.permute
        """,
    )
    lowered(module, "linalg-on-tensors")


@pytest.mark.parametrize("output_type", ["torch", fx.OutputType.TORCH, "TORCH"])
def test_output_type_torch_is_in_backend_form(output_type):
    module = fx.export_and_import(nn.Softmax(-1), torch.randn(3), output_type=output_type)
    assert "torch.aten.exp" in str(module)


@pytest.mark.parametrize("output_type", ["raw", "linalg-on-tensors", "stablehlo", "tosa"])
def test_a_table_of_ones_own_is_no_bar_to_other_dialects(output_type):
    def function(x):
        return torch.addcmul(x, x, torch.zeros_like(x)).std(-1)

    module = fx.export_and_import(
        function, torch.randn(4, 6), output_type=output_type, decomposition_table={}
    )
    assert ("torch.aten.addcmul" in str(module)) is (output_type == "raw")


def test_an_unknown_output_type_lists_those_that_exist():
    with pytest.raises(SmeltError) as caught:
        fx.export_and_import(nn.Tanh(), torch.randn(3), output_type="onnx")
    assert caught.value.code == "SM0715"
    assert "linalg-on-tensors" in str(caught.value)


def test_exported_programs_and_keywords():
    class Model(nn.Module):
        def forward(self, x, *, scale):
            return x * scale

    exported = torch.export.export(Model(), (torch.randn(3),), {"scale": torch.randn(3)})
    one = fx.export_and_import(exported)
    other = fx.export_and_import(Model(), torch.randn(3), scale=torch.randn(3))
    assert str(one) == str(other)


def test_several_unknown_sizes_become_one():
    """torch-mlir's view takes all of them but the first for 1."""
    model = torch.nn.Linear(3, 5)
    every = {0: Dim.DYNAMIC, 1: Dim.DYNAMIC}
    exported = smelt.export(model, (torch.randn(7, 5, 3),), to="torch", dynamic_shapes=(every,))
    flat = smelt.export(
        lambda x: x.flatten(0, 1),
        (torch.randn(2, 3, 4, 5),),
        to="torch",
        dynamic_shapes=({**every, 2: Dim.DYNAMIC},),
    )
    for rows, columns in ((7, 5), (2, 9)):
        x, y = torch.randn(rows, columns, 3), torch.randn(rows, columns, 6, 5)
        torch.testing.assert_close(exported.run(x), model(x))
        torch.testing.assert_close(flat.run(y), y.flatten(0, 1))
