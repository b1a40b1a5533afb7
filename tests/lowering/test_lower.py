"""The walk from a contract graph to a loop graph: inputs, constants, outputs, mutations, externs, errors."""

from __future__ import annotations

import pytest
import torch
from harness import check, lowered
from torch.fx import Graph as FxGraph

from smelt.errors import SmeltError
from smelt.loops.ir import StridedView
from smelt.lowering import lower


def test_chosen_externs_are_no_fallbacks() -> None:
    graph = check(lambda x, y: torch.mm(x, y), torch.randn(3, 4), torch.randn(4, 5))
    assert graph.nodes[0].body.reason is None


def test_an_operator_without_a_row_falls_back_with_its_reason() -> None:
    graph = lowered(lambda x: torch.linalg.inv(x), torch.eye(3))
    assert graph.nodes[0].body.reason == "no lowering for aten.linalg_inv_ex.default"
