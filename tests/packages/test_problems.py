"""What cannot be packaged is said at once, with the user's lines; memory is known before a run."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from smelt.config import from_options
from smelt.contract import export_decompositions
from smelt.errors import is_input
from smelt.mlir.capturing import capture
from smelt.packages.problems import NotPackageableError, check_packageable, unpackable
from smelt.pipeline.passes import lowered
from smelt.runtime.plan import AllocStep
from smelt.schedule import Scheduled, Target, schedule

TARGET = Target(32, multiply_adds=2)


def _scheduled(model: nn.Module, *args: Any) -> Scheduled:
    config = from_options({"own": True, "freezing": True})
    program = capture(model, args, decompositions=export_decompositions()).program
    return schedule(lowered(program, config, TARGET), config, TARGET)


@torch.library.custom_op("smelt_tests::halved", mutates_args=())
def halved(x: Tensor) -> Tensor:
    return x / 2


@halved.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


class Refused(nn.Module):
    """An operator of the user's, a size that depends on data, control flow, and what packages have."""

    def forward(self, x: Tensor) -> Tensor:
        y = halved(x) + torch.rand(4)
        z = torch.nonzero(y > 0).sum()
        found: Tensor = torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (y,))
        return found + z


def test_everything_is_said_at_once() -> None:
    scheduled = _scheduled(Refused(), torch.randn(4))
    with pytest.raises(NotPackageableError) as caught:
        check_packageable("refused", scheduled)
    error = caught.value
    assert error.code == "SM1401" and is_input(error) and len(error.problems) == 3
    text = str(error)
    for words in ("halved", "the size of a tensor depends on data", "control flow that data decides"):
        assert words in text
    assert [each.where.split(" ")[0].split(":")[0] for each in error.problems if each.where] == [
        "test_problems.py"
    ] * 3
    assert "randint" not in text


def test_random_numbers_and_products_are_no_problem() -> None:
    model = nn.Sequential(nn.Linear(3, 5), nn.Dropout(0.5), nn.Linear(5, 2)).double().train()
    assert not unpackable(_scheduled(model, torch.randn(2, 3).double()))


class OneQuery(nn.Module):
    """A step of text generation: the number of blocks of keys depends on the mask."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, length: Tensor) -> Tensor:
        mask = torch.arange(k.shape[-2])[None] < length
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def test_memory_for_a_number_of_blocks_is_planned() -> None:
    given = (torch.randn(1, 2, count, 16) for count in (1, 512, 512))
    scheduled = _scheduled(OneQuery(), *given, torch.tensor(40))
    assert not unpackable(scheduled) and scheduled.graph.limits
    made = [step.spec for step in scheduled.plan.steps if isinstance(step, AllocStep)]
    assert [spec.shape for spec in made] == [(1, 2, 1, 16)]  # the output
    assert isinstance(scheduled.plan.arena_bytes, int)
