"""What is told of dynamic sizes: which dimensions they are, what PyTorch fixed, and the line that did it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo.config
from torch import Tensor

import smelt
from smelt.cli.report_tables import size_lines, summary
from smelt.reporting import CompileReport

pytestmark = pytest.mark.usefixtures("fresh")


def report_of(program: Callable[..., Any], *args: Any, **options: Any) -> CompileReport:
    torch.compile(program, backend="smelt", fullgraph=True, **options)(*args)
    return smelt.reports()[0]


def fixed(report: CompileReport) -> list[str]:
    return [guard.condition for guard in report.size_guards if guard.fixed]


def test_each_symbol_names_its_dimensions() -> None:
    report = report_of(lambda x, y: x @ y, torch.randn(4, 6), torch.randn(6, 5), dynamic=True)
    assert {size.places for size in report.dynamic_sizes} == {
        ("x.size(0)",),
        ("x.size(1)", "y.size(0)"),
        ("y.size(1)",),
    }
    assert sorted(size.hint or 0 for size in report.dynamic_sizes) == [4, 5, 6]
    assert not report.size_guards


def test_static_programs_have_nothing_to_tell() -> None:
    report = report_of(lambda x: x + 1, torch.randn(4, 6))
    assert not report.dynamic_sizes
    assert not report.size_guards


def test_a_specialization_names_the_users_line() -> None:
    def program(x: Tensor) -> Tensor:
        if x.shape[0] == 7:
            return x + 1
        return x

    report = report_of(program, torch.randn(7, 5), dynamic=True)
    assert fixed(report) == ["x.size(0) == 7"]
    (guard,) = report.size_guards
    assert guard.where is not None
    assert guard.where.startswith("test_sizes.py:")
    assert guard.where.endswith("in program: if x.shape[0] == 7:")
    assert [size.places for size in report.dynamic_sizes] == [("x.size(1)",)]


def test_a_guard_that_fixes_nothing_is_told_of_too() -> None:
    def program(x: Tensor) -> Tensor:
        return x * 2 if x.shape[0] % 2 == 0 else x

    report = report_of(program, torch.randn(8, 5), dynamic=True)
    assert [(guard.condition, guard.fixed) for guard in report.size_guards] == [("x.size(0)%2 == 0", False)]


def test_sizes_of_one_are_told_of_where_sizes_were_to_be_dynamic() -> None:
    assert fixed(report_of(lambda x: x * 2, torch.randn(8, 1), dynamic=True)) == ["x.size(1) == 1"]


def test_a_size_from_data_names_the_call() -> None:
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        report = report_of(lambda x: x.nonzero() + 1, torch.eye(3))
    (size,) = report.dynamic_sizes
    assert size.hint is None
    assert size.places[0].startswith("what aten.nonzero.default gives at test_sizes.py:")
    assert size.symbol not in report.symbols


def test_lines_and_summary() -> None:
    report = report_of(lambda x: x[:, : x.shape[0]] * 2, torch.randn(4, 6), dynamic=True)
    lines = [str(line) for line in size_lines(report)]
    assert sum(line.startswith("  dynamic: ") for line in lines) == 2
    assert summary([report])["dynamic_sizes"] == [str(size) for size in report.dynamic_sizes]
    assert summary([report])["specialized"] == []
