"""`relax.frontend.nn`: models written as modules give what torch's give with the same parameters."""

import pytest
import torch

from smelt import relax
from smelt.relax import RelaxError
from smelt.relax.frontend import nn


class Net(nn.Module):
    def __init__(self) -> None:
        self.rows, self.norm = nn.Embedding(7, 6), nn.LayerNorm(6)
        self.layers = nn.ModuleList([nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4, bias=False)])

    def forward(self, ids: relax.Expr) -> relax.Expr:
        return nn.softmax(self.layers(self.norm(self.rows(ids))), axis=-1)

    def scores(self, x: relax.Expr, y: relax.Expr) -> tuple[relax.Expr, ...]:
        return self.layers(x), x + y


class Torch(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rows, self.norm = torch.nn.Embedding(7, 6), torch.nn.LayerNorm(6)
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(6, 5), torch.nn.ReLU(), torch.nn.Linear(5, 4, bias=False)
        )

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.layers(self.norm(self.rows(ids))).softmax(-1)


def test_methods_are_functions_of_their_inputs_and_the_parameters() -> None:
    model, wanted = Net(), Torch()
    two = nn.spec.Tensor(("n", 6), "float32")
    mod, params = model.export_tvm(
        {"forward": {"ids": nn.spec.Tensor(("n",), "int32")}, "scores": {"x": two, "y": two}}
    )
    assert [name for name, _ in params] == list(wanted.state_dict())
    model.load_state_dict(wanted.state_dict())
    held = [each.data for _, each in params]
    vm = relax.VirtualMachine(relax.build(mod))
    ids, x, y = torch.tensor([3, 0, 6]), torch.randn(2, 6), torch.randn(2, 6)
    with torch.no_grad():
        torch.testing.assert_close(vm["forward"](ids.int(), *held), wanted(ids))
        first, second = vm["scores"](x, y, *held)
        torch.testing.assert_close(first, wanted.layers(x))
        torch.testing.assert_close(second, x + y)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(RelaxError, match=r"SM1301: forward takes ids; the spec says x"):
        Net().export_tvm({"forward": {"x": nn.spec.Tensor((2,), "int32")}})
    with pytest.raises(RelaxError, match=r"SM1305: tensors and parameters differ in bias, weight"):
        nn.Linear(2, 3).load_state_dict({})
    with pytest.raises(RelaxError, match=r"SM1305: weight is \[2, 3\]"):
        nn.Linear(2, 3, bias=False).load_state_dict({"weight": torch.zeros(2, 3)})
