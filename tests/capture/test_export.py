"""torch.export programs, and symbolically traced modules by the same road."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from smelt.capture import Program, capture_export, export
from smelt.contract import contract, export_decompositions

aten = torch.ops.aten


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.scale = torch.tensor([1.0, 2.0])

    def forward(self, x: Tensor) -> Tensor:
        self.steps.add_(1)
        return self.linear(x) * self.scale


def run(program: Program, *users: object) -> list[object]:
    """The program by ATen, parameters and buffers filled in."""
    given = iter(users)
    args = [
        each.value if each.role in ("parameter", "buffer", "constant") else next(given)
        for each in program.inputs
    ]
    return list(program.graph_module(*args))


def test_parameters_buffers_and_constants_are_inputs_with_values() -> None:
    model, x = Counting(), torch.randn(4, 3)
    program = export(model, (x,), None, export_decompositions())
    by_path = {each.path: each for each in program.inputs if each.path}
    assert by_path["linear.weight"].role == "parameter"
    assert by_path["linear.weight"].value is not None
    assert by_path["steps"].role == "buffer"
    assert [each.role for each in program.inputs][-1] == "user"
    assert "constant" in {each.role for each in program.inputs}
    assert all(each.static == (each.role != "user") for each in program.inputs)
    assert program.kind == "inference"
    assert program.output_roles == ("user",)
    torch.testing.assert_close(run(program, x)[0], model(x))


def test_a_mutated_buffer_becomes_a_copy_onto_its_placeholder() -> None:
    program = export(Counting(), (torch.ones(1, 3),), None, export_decompositions())
    ((target, _),) = program.mutations()
    assert program.inputs[program.placeholders.index(target)].path == "steps"
    steps = program.inputs[program.placeholders.index(target)].value
    run(program, torch.ones(1, 3))
    assert steps is not None and int(steps) == 1
    assert contract(program).mutations()


def test_a_mutated_user_input_becomes_a_copy() -> None:
    class InPlace(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            x.mul_(2)
            return x + 1

    program = export(InPlace(), (torch.ones(3),), None, export_decompositions())
    x = torch.ones(3)
    (result,) = run(program, x)
    assert x.tolist() == [2.0] * 3
    assert isinstance(result, Tensor) and result.tolist() == [3.0] * 3


def test_dynamic_shapes_are_bound_by_tensor_inputs() -> None:
    class Rows(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.reshape(-1).softmax(0)

    rows = torch.export.Dim("rows")
    program = export(
        Rows(), (torch.randn(4, 3),), None, export_decompositions(), dynamic_shapes={"x": {0: rows}}
    )
    assert program.size_inputs == ()
    assert list(program.hints().values()) == [4]
    x = torch.randn(7, 3)
    torch.testing.assert_close(contract(program).graph_module(x)[0], x.reshape(-1).softmax(0))


def test_a_symbolically_traced_module_goes_the_same_road() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.GELU())
    traced = torch.fx.symbolic_trace(model)
    x = torch.randn(2, 3)
    program = export(traced, (x,), None, export_decompositions())
    torch.testing.assert_close(run(contract(program), x)[0], model(x))


def test_composites_are_taken_apart_and_products_stay_whole() -> None:
    program = export(nn.Linear(3, 4), (torch.ones(2, 3),), None, export_decompositions())
    targets = [node.target for node in program.graph_module.graph.nodes if node.op == "call_function"]
    assert targets == [aten.permute.default, aten.addmm.default]


def test_an_exported_program_can_be_given_as_it_is() -> None:
    exported = torch.export.export(nn.ReLU(), (torch.randn(3),))
    program = capture_export(exported, export_decompositions(), "relu")
    assert program.name == "relu"
    assert run(program, torch.tensor([-1.0, 0.0, 2.0]))[0].tolist() == [0.0, 0.0, 2.0]  # type: ignore[attr-defined]


def test_an_input_without_a_tensor_is_refused_by_name() -> None:
    from torch.export.graph_signature import InputKind

    from smelt.errors import SmeltError

    exported = torch.export.export(nn.ReLU(), (torch.randn(3),))
    exported.graph_signature.input_specs[0].kind = InputKind.TOKEN
    with pytest.raises(SmeltError, match=r"SM0601.*token") as caught:
        capture_export(_Undecomposed(exported), export_decompositions())  # type: ignore[arg-type]
    assert caught.value.remedy


def test_a_sparse_buffer_is_refused_by_name() -> None:
    from smelt.errors import SmeltError

    module = nn.Identity()
    module.register_buffer("weight", torch.eye(2).to_sparse_csr())
    module.forward = lambda x: module.weight @ x  # type: ignore[method-assign, operator]
    exported = torch.export.export(module, (torch.randn(2, 1),))
    with pytest.raises(SmeltError, match=r"SM0601.*weight.*sparse_csr") as caught:
        capture_export(exported, export_decompositions())
    assert caught.value.remedy


class _Undecomposed:
    """run_decompositions leaves it alone (the real one would check the signature that we broke)."""

    def __init__(self, exported: torch.export.ExportedProgram) -> None:
        self.exported, self.graph_module = exported, exported.graph_module
        self.state_dict, self.constants = exported.state_dict, exported.constants

    def run_decompositions(self, _: object) -> torch.export.ExportedProgram:
        return self.exported
