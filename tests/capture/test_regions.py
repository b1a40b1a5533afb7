"""Parts of a function that are traced once for all of their calls."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from smelt.capture import Program, Regions
from smelt.config import Config
from smelt.contract import contract, decompositions
from smelt.pipeline import compile_program

WEIGHTS = [torch.full((4, 4), 0.5), torch.eye(4), torch.eye(4)[::2]]


def _program(regions: Regions, spoil: bool = False) -> Program:
    def layer(x: Tensor, weight: Tensor) -> tuple[Tensor]:
        y = x @ weight.T
        y[:, :1] += 1  # in place, on memory of its own
        return (y.sin(),)

    def network(x: Tensor, *weights: Tensor) -> Sequence[Tensor]:
        if spoil:
            x = x.clone()
            x.mul_(2)
        for weight in weights:
            (x,) = regions.call("layer", layer, x, weight)
        return (x.sum(0),)

    names = ["x", *(f"weight{number}" for number in range(3))]
    return regions.capture(network, [torch.ones(5, 4), *WEIGHTS], names, [(0,), (), (), ()])


def _expected(x: Tensor) -> Tensor:
    for weight in WEIGHTS:
        x = x @ weight.T
        x[:, :1] += 1
        x = x.sin()
    return x.sum(0)


def test_a_region_is_traced_once_for_operands_of_one_layout() -> None:
    regions = Regions(decompositions())
    program = _program(regions)
    assert len(regions.traced) == 2  # the last weight has another shape
    assert len(program.graph_module.graph.find_nodes(op="get_attr")) == 3
    contract(program)
    compiled = compile_program(program, Config())
    for rows in (5, 3, 7):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(compiled([x, *WEIGHTS])[0], _expected(x))


def test_writes_around_regions_become_functional_too() -> None:
    program = _program(Regions(decompositions()), spoil=True)
    contract(program)  # it has no writes
    x = torch.randn(6, 4)
    torch.testing.assert_close(compile_program(program, Config())([x, *WEIGHTS])[0], _expected(2 * x))
