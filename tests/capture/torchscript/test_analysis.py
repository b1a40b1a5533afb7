"""Ranks, dtypes and sizes of TorchScript's values."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from smelt.capture import analyze
from smelt.errors import SmeltError

from . import programs
from .test_from_torchscript import script, trace

X = torch.ones(3, 4)
F32 = torch.float32


def returned(analysis, scripted):
    (value,) = scripted.graph.outputs()
    return analysis[value.debugName()]


def test_sizes_are_told_by_those_of_inputs():
    scripted = script(programs.interp)
    for given in (X, ((-1, -1), F32)):
        fact = [each for each in analyze(scripted, [given]).facts if each.rank == 4][-1]
        assert (fact.rank, fact.dtype, fact.dims) == (4, F32, (1, 1, "2*x[0]", "2*x[1]"))


def _product(x, y, bias):
    return (x @ y + bias).transpose(0, 1).to(torch.float64)


def test_equal_sizes_have_equal_names():
    scripted = trace(_product, X, torch.ones(4, 5), torch.ones(5))
    analysis = analyze(scripted, [((-1, -1), F32), ((-1, -1), F32), ((6,), F32)])
    fact = returned(analysis, scripted)
    assert (fact.dtype, fact.dims) == (torch.float64, (6, "x[0]"))
    assert analysis["y"].dims == ("x[1]", 6)
    assert set(analysis.conditions) == {"x[1] == y[0]", "y[1] == 6"}


def test_an_examples_sizes_of_zero_and_one_are_fixed():
    scripted = script(programs.dtypes)
    assert analyze(scripted, [torch.ones(1, 0, 5), None])["x.1"].dims == (1, 0, "x[2]")


def test_a_branch_on_sizes_is_taken_as_the_example_takes_it():
    analysis = analyze(script(programs.raising), [X])
    assert analysis.conditions == ("x[0] <= 3",)


@pytest.mark.parametrize("name", ["newton", "early", "collatz"])
def test_both_branches_are_looked_at_where_data_decides(name):
    scripted = script(getattr(programs, name))
    given = {"newton": [X], "early": [X, 100], "collatz": [torch.ones(5)]}[name]
    analysis = analyze(scripted, given)
    tensors = [each for each in analysis.facts if each.type == "Tensor" and each.rank is not None]
    assert len(tensors) > 4
    sizes = tuple(f"x[{dim}]" for dim in range(given[0].dim()))
    assert all(each.dims in (sizes, ()) for each in tensors)


class _Growing(nn.Module):
    def forward(self, x, n: int):
        y = x
        while bool(y.sum() > 0):
            y = torch.cat([y, x])
        z = x if bool(x.sum() > 1) else x.sum(0)
        return y, z, torch.zeros(int(x.sum()), n)


def test_what_data_decides_is_not_known():
    analysis = analyze(script(_Growing()), [X, 7])
    facts = {each.name: each for each in analysis.facts}
    grown = [each for each in facts.values() if each.rank == 2 and str(each.dims[0]).startswith("data")]
    assert any(each.dims[1] == "x[1]" for each in grown)  # what is concatenated
    assert any(each.dims[1] == 7 for each in grown)  # torch.zeros
    assert any(each.why == "the branches do not agree" for each in facts.values())


def test_attributes_of_modules():
    analysis = analyze(script(programs.Lstm().eval()), [((-1, -1, 4), F32)])
    assert any(each.dims == ("x[0]", 2) for each in analysis.facts)
    assert any(each.dims == (1, "x[0]", 5) for each in analysis.facts)


def test_types_of_a_graph_are_used_where_nothing_is_given():
    scripted = trace(torch.relu, X)
    assert returned(analyze(scripted), scripted).dims == (3, 4)
    fact = returned(analyze(scripted.graph), scripted)
    assert (fact.rank, fact.dtype) == (2, F32)
    assert analyze(script(programs.inplace))["x.1"].why == "no facts are given on this argument"


def test_the_table_has_lines_and_conditions():
    lines = str(analyze(script(programs.inplace), [((-1, 4), F32)])).splitlines()
    assert lines[0] == "%x.1 : rank 2, float32[x[0], 4]"
    assert any("# programs.py:" in line for line in lines)
    assert str(analyze(script(programs.raising), [X])).endswith("where x[0] <= 3")


@pytest.mark.parametrize("program, given", [(torch.nn.ReLU(), []), (torch.relu, None)])
def test_other_programs_are_refused(program, given):
    with pytest.raises(SmeltError, match=r"SM0113: a .* has no TorchScript graph"):
        analyze(program, given)


def test_another_number_of_inputs_is_refused():
    with pytest.raises(SmeltError, match="SM0113: the program has 1 arguments, and 2 are given"):
        analyze(script(programs.inplace), [X, X])
