"""PyTorch's programs imported: numbers equal torch's, texts have relax's names, what is refused says why."""

from typing import Any

import pytest
import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from smelt import relax, te
from smelt.relax import RelaxError
from smelt.relax.frontend import detach_params
from smelt.relax.frontend.torch import (
    dynamo_capture_subgraphs,
    from_exported_program,
    from_fx,
    relax_dynamo,
)
from smelt.relax.transform import LegalizeOps


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 5), nn.Linear(5, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)))


class Sometimes(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:
        return x + 1, None


MODELS = {
    "no second result": (Sometimes, (3,)),
    "perceptron": (Net, (2, 6)),
    "convolutions": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()
        ),
        (1, 3, 8, 8),
    ),
    "transformer": (lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (2, 5, 8)),
    "recurrent": (lambda: nn.LSTM(4, 5), (3, 2, 4)),
    "without names": (lambda: nn.Sequential(nn.Fold((4, 4), 2), nn.LogSigmoid()), (1, 4, 9)),
}


def same(got: object, want: object) -> None:
    for a, b in zip(pytree.tree_leaves(got), pytree.tree_leaves(want), strict=True):
        torch.testing.assert_close(a, b)


@torch.no_grad()
@pytest.mark.parametrize("name", MODELS)
def test_an_exported_program_computes_what_it_computed(name: str) -> None:
    make, shape = MODELS[name]
    model, x = make().eval(), torch.randn(shape)
    mod = from_exported_program(torch.export.export(model, (x,)))
    want = model(x)
    same(relax.VirtualMachine(relax.build(mod))["main"](x), want)
    changed = LegalizeOps()(mod)
    assert changed["main"].captured is None
    same(relax.VirtualMachine(relax.build(changed))["main"](x), want)


@torch.no_grad()
def test_what_is_built_unchanged_is_the_program_that_was_captured() -> None:
    model, x = Net(), torch.randn(2, 6)
    main = from_exported_program(torch.export.export(model, (x,)), unwrap_unit_return_tuple=True)["main"]
    assert main.captured is not None
    text = main.script()
    assert "R.nn.relu" in text
    assert "R.matmul" in text
    assert "R.aten" not in text


@torch.no_grad()
def test_parameters_as_inputs() -> None:
    model, x = Net(), torch.randn(2, 6)
    mod = from_exported_program(torch.export.export(model, (x,)), keep_params_as_input=True)
    mod, params = detach_params(mod)
    names = [each.name_hint for each in mod["main"].params]
    assert names == ["x", "first.weight", "first.bias", "second.weight", "second.bias"]
    assert mod["main"].attrs["num_input"] == 1
    same(relax.VirtualMachine(relax.build(mod))["main"](x, *params["main"]), (model(x),))


@torch.no_grad()
def test_a_traced_module_with_a_size_that_is_a_variable() -> None:
    model = Net()
    mod = from_fx(fx.symbolic_trace(model), [((te.var("n"), 6), "float32")])
    assert 'x: R.Tensor(("n", 6), dtype="float32")' in mod["main"].script()
    main = relax.VirtualMachine(relax.build(mod))["main"]
    for rows in (1, 2, 7):
        x = torch.randn(rows, 6)
        same(main(x), model(x))


def test_results_of_a_traced_module_are_nested_as_its_own() -> None:
    class Two(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x + y, x * 2

    traced = fx.symbolic_trace(Two())
    info = [((2,), "float32"), ((2,), "float32")]
    x, y = torch.randn(2), torch.randn(2)
    for options in ({}, {"no_bind_return_tuple": True}):
        mod = from_fx(traced, info, **options)
        same(relax.VirtualMachine(relax.build(mod))["main"](x, y), (x + y, x * 2))
    assert "return (gv, gv1)" in mod["main"].script()


def test_dynamo_captures_and_compiles() -> None:
    model, x = Net(), torch.randn(2, 6)
    mod = dynamo_capture_subgraphs(model, x)
    assert [var.name_hint for var in mod] == ["subgraph_0"]
    with torch.no_grad():
        same(torch.compile(model, backend=relax_dynamo())(x), model(x))
    torch._dynamo.reset()


def test_control_flow_and_data_dependent_sizes_are_imported() -> None:
    class Choice(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            chosen = torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))
            return chosen, x.nonzero()

    mod = from_exported_program(torch.export.export(Choice(), (torch.randn(3),)))
    assert "R.higher_order.cond" in mod["main"].script()
    main = relax.VirtualMachine(relax.build(mod))["main"]
    for x in (torch.tensor([1.0, 0.0, 2.0]), torch.tensor([-1.0, -2.0, 0.0])):
        same(main(x), Choice()(x))


def test_what_does_not_fit_is_refused() -> None:
    traced = fx.symbolic_trace(Net())
    with pytest.raises(RelaxError, match="SM1308: input_info has 2 entries; the graph has the inputs x"):
        from_fx(traced, [((2, 6), "float32")] * 2)
    with pytest.raises(RelaxError, match=r"SM1308: the module does not run on such inputs"):
        from_fx(traced, [((2, 7), "float32")])


@pytest.mark.parametrize("name", ["gelu", "gelu.default"])
def test_an_operator_is_imported_by_a_function_of_ones_own(name: str) -> None:
    """Also one that would be decomposed; the function sees the node and what its arguments became."""
    model = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.GELU())
    seen = []

    def convert(node: fx.Node, importer: Any) -> Any:
        seen.append(str(node.target))
        return importer.block_builder.emit(relax.op.nn.relu(importer.env[node.args[0]]))

    x = torch.randn(2, 6)
    for mod in (
        from_fx(fx.symbolic_trace(model), [((2, 6), "float32")], custom_convert_map={name: convert}),
        from_exported_program(
            torch.export.export(model, (x,)),
            custom_convert_map={name: convert},
            unwrap_unit_return_tuple=True,
        ),
    ):
        assert "R.nn.relu" in mod["main"].script()
        same(relax.VirtualMachine(relax.build(mod))["main"](x), model[0](x).relu())
    assert seen == ["aten.gelu.default"] * 2
