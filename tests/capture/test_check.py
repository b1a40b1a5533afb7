"""An exported program is run only for sizes that it holds for."""

from __future__ import annotations

import pytest
import torch

from smelt.capture import capture_export
from smelt.capture.check import InputCheck
from smelt.errors import SmeltError


def test_sizes_for_which_tracing_would_have_gone_another_way() -> None:
    class Pool(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.avg_pool2d(x, 3, 3, 1, ceil_mode=True)

    auto = torch.export.Dim.AUTO
    exported = torch.export.export(Pool(), (torch.rand(1, 1, 75, 75),), dynamic_shapes=({2: auto, 3: auto},))
    check = InputCheck(capture_export(exported, {}), exported.range_constraints)
    check([torch.rand(1, 1, 76, 78)])
    with pytest.raises(SmeltError, match=r"SM0603.*= 77"):
        check([torch.rand(1, 1, 75, 77)])
