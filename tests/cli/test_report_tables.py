"""Reports as tables and as plain data."""

from __future__ import annotations

import io

from rich.console import Console

from smelt.cli import report_tables
from smelt.reporting import CompileReport, Fallback


def _reports() -> list[CompileReport]:
    forward = CompileReport(
        "forward",
        "graph 0",
        phase_seconds={"lowering": 0.5, "codegen": 0.25},
        kernels=["k0", "k1", "k2"],
        fused=[["mul", "add"], ["exp"], ["mul", "add"]],
        native_calls=2,
        externs={"aten.mm.default": 2},
        symbols={"s0": 8},
        arena_bytes=1 << 20,
    )
    forward.add_fallback("aten.sort.stable", "no lowering", "model.py:7 in forward")
    backward = CompileReport(
        "backward", "graph 0", {"lowering": 1.0}, externs={"aten.mm.default": 3}, cache_hit=True
    )
    backward.add_fallback("aten.sort.stable", "no lowering", "model.py:9 in forward")
    backward.add_fallback("aten.sort.stable", "no lowering")
    return [forward, backward]


def _printed(what) -> str:
    console = Console(file=io.StringIO(), width=200)
    console.print(what)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_totals_over_graphs():
    reports = _reports()
    assert report_tables.total_phases(reports) == {"lowering": 1.5, "codegen": 0.25}
    assert report_tables.total_externs(reports) == {"aten.mm.default": 5}
    assert report_tables.total_fallbacks(reports) == [
        Fallback("aten.sort.stable", "no lowering", 3, "model.py:7 in forward")
    ]


def test_summary_is_plain_data():
    import json

    facts = report_tables.summary(_reports())
    assert json.loads(json.dumps(facts)) == facts
    assert facts["graphs"] == 2
    assert facts["eager_graphs"] == 0
    assert facts["kernels"] == 3
    assert facts["cache_hits"] == 1
    assert facts["fallbacks"][0]["where"] == "model.py:7 in forward"


def test_graphs_left_to_eager_are_counted():
    assert report_tables.summary([CompileReport("eager", "graph 1")])["eager_graphs"] == 1


def test_overview_has_fallbacks_with_reason_and_line():
    text = _printed(report_tables.overview(_reports()))
    for part in (
        "1 forward, 1 backward",
        "aten.mm.default ×5",
        "no lowering",
        "model.py:7 in forward",
        "1.75 s",
        "s0",
    ):
        assert part in text
    assert "no fallbacks" in _printed(report_tables.overview([CompileReport("inference", "graph 0")]))


def test_equal_kernels_are_one_line():
    text = _printed(report_tables.graph_tables(_reports()))
    assert text.count("mul → add") == 1
    line = next(line for line in text.splitlines() if "mul → add" in line)
    assert line.split()[:2] == ["k0", "2"]
    assert "exp" in text
    assert "sizes s0 (seen: 8)" in text


def test_names_with_brackets_are_text_and_no_markup():
    one = CompileReport("inference", "graph [red]", kernels=["k"], fused=[["a[bold]"]])
    one.add_fallback("op[/x]", "because [green]")
    text = _printed(report_tables.graph_tables([one])) + _printed(report_tables.overview([one]))
    for part in ("graph [red]", "a[bold]", "op[/x]", "because [green]"):
        assert part in text
