"""smelt.export: run against eager at several sizes, what is mutated, what is saved, what is refused."""

from __future__ import annotations

from typing import get_args

import pytest
import torch
from torch import nn
from torch.export import Dim

import smelt
from smelt.errors import SmeltError
from smelt.mlir.bindings import new_context
from smelt.mlir.diagnostics import PipelineError, UnsupportedOperatorsError
from smelt.mlir.export import Dialect, emitter
from smelt.mlir.parameters import load_parameters

ir = pytest.importorskip("torch_mlir.ir", reason="needs the extra [mlir]")


def agree(got, model, args):
    """Errors against float64 are at most four times eager's, and a few units in the last place."""
    eager = model(*args)
    double = model.double() if isinstance(model, nn.Module) else model
    exact = double(
        *[arg.double() if isinstance(arg, torch.Tensor) and arg.is_floating_point() else arg for arg in args]
    )
    if isinstance(model, nn.Module):
        model.float()
    leaves = torch.utils._pytree.tree_leaves
    assert len(leaves(got)) == len(leaves(eager))
    for mine, theirs, reference in zip(leaves(got), leaves(eager), leaves(exact)):
        if not isinstance(mine, torch.Tensor):
            assert mine == theirs
            continue
        assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape)
        if not mine.is_floating_point():
            assert torch.equal(mine, theirs)
            continue
        allowed = (
            4 * (theirs - reference).abs().max() + 8 * torch.finfo(mine.dtype).eps * reference.abs().max()
        )
        assert (mine - reference).abs().max() <= allowed


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.heads = nn.MultiheadAttention(8, 2, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))

    def forward(self, x):
        y = self.norm(x)
        y = x + self.heads(y, y, y, need_weights=False)[0]
        return y + self.mlp(y)


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(4, 4, 3, stride=2, groups=2),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )

    def forward(self, x):
        return torch.log_softmax(self.layers(x), -1)


def embed(indices, table):
    return table[indices].sum(1), indices.float().mean(), indices.shape[0]


CASES = {
    "attention": (lambda: Attention().eval(), lambda n: (torch.randn(n, 5, 8),)),
    "convolutions": (lambda: Convolutions().eval(), lambda n: (torch.randn(n, 3, 12, 12),)),
    "gather": (lambda: embed, lambda n: (torch.randint(0, 7, (n, 3)), torch.randn(7, 4))),
    "scan and sort": (
        lambda: lambda x: (x.cumsum(0), x.sort(1), x.argmax(1)),
        lambda n: (torch.randn(n, 6),),
    ),
    "bytes": (
        lambda: lambda x: (x + 200, x > 3),
        lambda n: (torch.arange(n * 2, dtype=torch.uint8).view(n, 2),),
    ),
}


def has_emitter(dialect):
    try:
        return emitter(dialect) is not None
    except SmeltError:
        return False


DIALECTS = [dialect for dialect in get_args(Dialect) if has_emitter(dialect)]


@pytest.mark.parametrize("name", CASES)
def test_a_module_computes_what_eager_does_at_every_size(name):
    torch.manual_seed(0)
    make, arguments = CASES[name]
    model = make()
    shapes = ({0: Dim.DYNAMIC}, *[None] * (len(arguments(2)) - 1))
    captured = smelt.export(model, arguments(3), to=DIALECTS[0], dynamic_shapes=shapes)
    for dialect in DIALECTS:
        exported = captured.to(dialect)
        for size in (3, 7, 2):
            args = arguments(size)
            with torch.no_grad():
                agree(exported.run(*args), model, args)


def test_every_dimension_dynamic():
    dims = {0: Dim.AUTO, 1: Dim.AUTO}
    exported = smelt.export(
        lambda x, y: x @ y, (torch.randn(3, 4), torch.randn(4, 5)), to="torch", dynamic_shapes=(dims, dims)
    )
    for rows, inner, columns in ((3, 4, 5), (6, 2, 7), (2, 9, 3)):
        x, y = torch.randn(rows, inner), torch.randn(inner, columns)
        torch.testing.assert_close(exported.run(x, y), x @ y)


def test_a_size_that_cannot_be_dynamic_is_said_once(caplog):
    with pytest.raises(SmeltError, match="dimension 0 of x as dynamic but your code") as caught:
        smelt.export(
            lambda x: x + torch.ones(3), (torch.ones(3),), to="torch", dynamic_shapes=({0: Dim.DYNAMIC},)
        )
    assert caught.value.code == "SM0723"
    assert "Error while creating guard" not in caplog.text


def test_complex_numbers_run():
    x = torch.randn(3, 4, dtype=torch.complex64)
    exported = smelt.export(lambda x: (torch.linalg.vector_norm(x), x * x), (x,), to="torch")
    torch.testing.assert_close(exported.run(x), (torch.linalg.vector_norm(x), x * x))


def test_training_batch_norm_writes_its_statistics():
    torch.manual_seed(0)
    model, twin = nn.BatchNorm1d(4), nn.BatchNorm1d(4)
    exported = smelt.export(model, (torch.randn(5, 4),), to="torch")
    for _ in range(2):
        x = torch.randn(5, 4)
        torch.testing.assert_close(exported.run(x), twin(x))
    torch.testing.assert_close(dict(model.named_buffers()), dict(twin.named_buffers()))
    assert model.num_batches_tracked == 2


def test_mutated_arguments_are_written_to():
    def write(x, y):
        x.add_(y)
        return x * 2

    exported = smelt.export(write, (torch.zeros(3), torch.zeros(3)), to="torch")
    x = torch.ones(3)
    assert torch.equal(exported.run(x, torch.full((3,), 2.0)), torch.full((3,), 6.0))
    assert torch.equal(x, torch.full((3,), 3.0))


def test_external_weights_are_arguments_and_are_passed():
    model = nn.Linear(4, 2)
    exported = smelt.export(model, (torch.randn(3, 4),), to="torch", weights="external")
    assert "vtensor.literal" not in str(exported)
    assert [each.name for each in exported.signature.held] == ["weight", "bias"]
    x = torch.randn(3, 4)
    torch.testing.assert_close(exported.run(x), model(x))


def test_nested_results_numbers_and_none():
    def nest(x, *, scale=2.0, extra=None):
        return {"a": [x * scale, None], "b": (x.shape[0], 3, extra)}

    exported = smelt.export(
        nest,
        (torch.ones(2),),
        {"scale": 3.0},
        to="torch",
        dynamic_shapes={"x": {0: Dim.DYNAMIC}, "scale": None},
    )
    result = exported.run(torch.ones(5), scale=3.0)
    assert result["b"] == (5, 3, None)
    assert torch.equal(result["a"][0], torch.full((5,), 3.0))


def test_a_wrong_size_is_an_error_never_a_wrong_number():
    exported = smelt.export(
        lambda x: x * 2, (torch.ones(3, 4),), to="torch", dynamic_shapes=({0: Dim.DYNAMIC},)
    )
    for args, said in (
        ((torch.ones(3, 5),), "dimension 1 of input x is 5"),
        ((torch.ones(3, 4).double(),), "float64"),
        ((torch.ones(3, 4), 1), "not nested"),
    ):
        with pytest.raises(SmeltError, match=said) as caught:
            exported.run(*args)
        assert caught.value.code == "SM0603"


def test_sizes_that_were_equal_have_to_be():
    exported = smelt.export(
        lambda x, y: x + y,
        (torch.ones(3), torch.ones(3)),
        to="torch",
        dynamic_shapes=({0: Dim.AUTO}, {0: Dim.AUTO}),
    )
    with pytest.raises(SmeltError) as caught:
        exported.run(torch.ones(4), torch.ones(5))
    assert caught.value.code == "SM0603"


def test_what_is_saved_is_the_module(tmp_path):
    exported = smelt.export(nn.Linear(4, 2), (torch.randn(3, 4),), to="torch")
    for name in ("model.mlir", "model.mlirbc"):
        exported.save(tmp_path / name)
        with new_context():
            assert str(ir.Module.parseFile(str(tmp_path / name))) == str(exported)


def test_an_unknown_dialect_lists_those_that_exist():
    with pytest.raises(SmeltError) as caught:
        smelt.export(nn.Tanh(), (torch.ones(2),), to="onnx")
    assert caught.value.code == "SM0720"
    assert "stablehlo" in str(caught.value)


class Layer(nn.Module):
    """One of many: a linear layer, and in some an operator that nobody knows."""

    def __init__(self, operator) -> None:
        super().__init__()
        self.linear, self.operator = nn.Linear(8, 8), operator

    def forward(self, x):
        x = self.linear(x).relu()
        return x if self.operator is None else self.operator(x)


@pytest.fixture
def fifty_layers():
    """Two operators that no dialect has, in layers 17 and 33 of 50; and the line that calls them."""
    with torch.library._scoped_library("smelt_test", "DEF") as library:
        for name in ("first", "second"):
            library.define(f"{name}(Tensor x) -> Tensor")
            library.impl(name, torch.neg, "CPU")
            torch.library.register_fake(f"smelt_test::{name}", torch.empty_like, lib=library)
        found = {17: torch.ops.smelt_test.first.default, 33: torch.ops.smelt_test.second.default}
        line = Layer.forward.__code__.co_firstlineno + 2
        yield (
            nn.Sequential(*[Layer(found.get(place)) for place in range(50)]),
            f"test_export.py:{line} in forward",
        )


def test_unknown_operators_of_fifty_layers_are_listed_or_fail_in_the_pipeline_together(fifty_layers):
    model, line = fifty_layers
    exported = smelt.export(model, (torch.ones(2, 8),), to="torch")
    for dialect in ("linalg", "stablehlo", "tosa"):
        with pytest.raises(UnsupportedOperatorsError) as caught:
            exported.to(dialect)
        first, second = caught.value.problems
        assert first.what.startswith("smelt_test.first.default in module 17: ")
        assert second.what.startswith("smelt_test.second.default in module 33: ")
        assert all("no loop functions" in each.what and each.where == line for each in (first, second))
        assert caught.value.code == "SM0711"
    assert str(exported).count("torch.operator") == 2
    with pytest.raises(PipelineError) as caught:
        exported.compile()
    told = [each for each in caught.value.diagnostics if each.message.startswith("no pass converts")]
    assert [each.operation for each in told] == ["torch.smelt_test.first", "torch.smelt_test.second"]
    assert [each.where for each in told] == [line, line]
    assert (caught.value.operation, caught.value.where) == ("torch.smelt_test.first", line)


@pytest.mark.parametrize(
    "model, args, options, said",
    [
        (nn.Tanh(), torch.ones(2), {}, "not a sequence"),
        (nn.Tanh(), [torch.ones(2)], {"weights": "inlined"}, "one of inline, external"),
        ("tanh", [torch.ones(2)], {}, "no model"),
        (torch.export.export(nn.Tanh(), (torch.ones(2),)), [torch.ones(2)], {}, "already: args"),
        (
            torch.export.export(nn.Tanh(), (torch.ones(2),)),
            [],
            {"dynamic_shapes": ({0: 1},)},
            "dynamic_shapes",
        ),
    ],
)
def test_arguments_that_do_not_fit(model, args, options, said):
    with pytest.raises(SmeltError, match=said) as caught:
        smelt.export(model, args, **options)
    assert caught.value.code == "SM0722"


def test_a_branch_on_data_names_its_line():
    def branch(x):
        return x if x.sum() > 0 else -x

    with pytest.raises(SmeltError, match="data-dependent") as caught:
        smelt.export(branch, (torch.ones(3),))
    assert caught.value.code == "SM0723"
    assert caught.value.where == f"test_export.py:{branch.__code__.co_firstlineno + 1} in branch"
    assert "torch.cond" in caught.value.remedy


def test_what_a_function_closes_over_has_names_and_changes():
    torch.manual_seed(0)
    norm, twin = nn.BatchNorm1d(4), nn.BatchNorm1d(4)
    exported = smelt.export(lambda x: norm(x) * 2, (torch.ones(5, 4),), weights="external")
    names = [
        "x",
        "norm.running_mean",
        "norm.running_var",
        "norm.num_batches_tracked",
        "norm.weight",
        "norm.bias",
    ]
    assert [each.name for each in exported.signature.arguments] == names
    x = torch.randn(5, 4)
    torch.testing.assert_close(exported.run(x), twin(x) * 2)
    torch.testing.assert_close(dict(norm.named_buffers()), dict(twin.named_buffers()))


def test_lines_of_a_function_that_is_not_named_forward():
    def double(x):
        return torch.add(x, x)

    node = smelt.export(double, (torch.ones(3),)).program.graph_module.graph.find_nodes(
        op="call_function", target=torch.ops.aten.add.Tensor
    )[0]
    assert node.meta["where"] == f"test_export.py:{double.__code__.co_firstlineno + 1} in double"


def test_reductions_of_pytorchs_prims():
    def reduce(x):
        prims = torch.ops.prims
        return prims.sum(x, [0, 2]), prims.prod(x, [1]), prims.amax(x, [0]), prims.amin(x, [1, 2])

    exported = smelt.export(reduce, (torch.randn(2, 3, 4),), dynamic_shapes=({0: Dim.DYNAMIC},))
    x = torch.randn(5, 3, 4)
    for each in (exported, exported.to("torch")):
        agree(each.run(x), reduce, (x,))


class Numbers(nn.Module):
    def forward(self, x, y):
        return torch.ops.aten.ge(int(x), int(y)), float(torch.ops.aten.sqrt(int(x)))


def test_operators_of_numbers_that_depend_on_data():
    exported = smelt.export(Numbers(), (torch.tensor(9), torch.tensor(2)))
    for each in (exported, exported.to("torch")):
        for x, y in ((9, 2), (4, 5)):
            assert each.run(torch.tensor(x), torch.tensor(y)) == (x >= y, x**0.5)


def test_external_weights_are_saved_beside_the_module(tmp_path):
    model = nn.Linear(4, 2)
    smelt.export(model, (torch.ones(3, 4),), weights="external").save(tmp_path / "model.mlir")
    found = load_parameters(tmp_path / "model.safetensors")
    torch.testing.assert_close(found, dict(model.named_parameters()))


def test_the_words_of_torch_mlir_are_there_after_import():
    module = smelt.mlir.fx.export_and_import(nn.Tanh(), torch.ones(2, 3), func_name="forward")
    pipeline = "builtin.module(func.func(torch-decompose-complex-ops),"
    pipeline += "torch-backend-to-linalg-on-tensors-backend-pipeline)"
    smelt.mlir.run_pipeline_with_repro_report(module, pipeline, "to Linalg")
    assert "linalg.generic" in str(module)


def test_a_program_that_is_not_for_smelt():
    with pytest.raises(SmeltError) as caught:
        smelt.export(lambda x: x.to_sparse(), (torch.ones(2, 2),), to="torch")
    assert caught.value.code in ("SM0602", "SM0711")
