"""TorchScript's operators of numbers, of numbers that depend on data."""

from __future__ import annotations

import pytest
import torch

from smelt.capture.numbers import OperatorsOfNumbers

aten = torch.ops.aten


@pytest.mark.parametrize(
    "operator, args",
    [
        (aten.ge, (3, 3)),
        (aten.lt, (2.5, 1.0)),
        (aten.div, (3, 2)),
        (aten.sqrt, (9,)),
        (aten.ceil, (2.5,)),
        (aten.Bool, (0.5,)),
        (aten.Bool, (0,)),
        (aten.Bool, (torch.tensor(2),)),
        (aten.Int, (torch.tensor(2.75),)),
        (aten.Int, (torch.tensor(True),)),
        (aten.Float, (3,)),
        (aten.ScalarImplicit, (torch.tensor(3),)),
        (aten.numel, (torch.ones(3, 4),)),
        (aten.add, (torch.ones(2), 1)),
        (aten.sqrt, (torch.ones(2),)),
    ],
)
def test_what_pytorch_gives(operator, args):
    wanted = operator(*args)
    with OperatorsOfNumbers():
        found = operator(*args)
    assert type(found) is type(wanted)
    torch.testing.assert_close(found, wanted)


class Numbers(torch.nn.Module):
    def forward(self, x, y):
        return aten.ge(int(x), int(y)), float(aten.sqrt(int(x))), float(aten.div(int(x), int(y)))


def test_numbers_that_depend_on_data():
    args = torch.tensor(9), torch.tensor(2)
    with pytest.raises(Exception, match="data-dependent"):
        torch.export.export(Numbers(), args, strict=True)
    with OperatorsOfNumbers():
        exported = torch.export.export(Numbers(), args, strict=True)
    for given in (args, (torch.tensor(4), torch.tensor(8))):
        assert exported.module()(*given) == Numbers()(*given)
