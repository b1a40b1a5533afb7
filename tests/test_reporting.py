"""Reports and the log that keeps them."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from smelt.errors import SmeltError
from smelt.reporting import CompileReport, Fallback, ReportLog


def test_phases_add_up_also_where_one_raises() -> None:
    report = CompileReport("inference", "graph 0")
    for _ in range(2):
        with pytest.raises(KeyError), report.phase("lowering"):
            time.sleep(0.001)
            raise KeyError
    assert report.phase_seconds["lowering"] >= 0.002
    assert report.seconds == report.phase_seconds["lowering"]


def test_a_phase_inside_of_another_counts_for_itself() -> None:
    report = CompileReport("inference", "graph 0")
    began = time.perf_counter()
    with report.phase("schedule"):
        for _ in range(2):
            with report.phase("codegen"):
                time.sleep(0.02)
    whole = time.perf_counter() - began
    assert list(report.phase_seconds) == ["schedule", "codegen"]
    assert report.phase_seconds["codegen"] >= 0.04
    assert report.phase_seconds["schedule"] <= whole - 0.04
    assert report.seconds == pytest.approx(whole, abs=0.01)


def test_equal_fallbacks_are_counted() -> None:
    report = CompileReport("inference", "graph 0")
    report.add_fallback("aten.sort.stable", "no lowering", "a.py:1 in f")
    report.add_fallback("aten.sort.stable", "no lowering", "a.py:2 in f")
    report.add_fallback("aten.sort.stable", "complex numbers")
    assert report.fallbacks == [
        Fallback("aten.sort.stable", "no lowering", 2, "a.py:1 in f"),
        Fallback("aten.sort.stable", "complex numbers"),
    ]


def test_texts_are_printed_on_demand_and_once() -> None:
    printed = []
    report = CompileReport("inference", "graph 0")
    report.keep_text("cpp", lambda: printed.append(1) or "int main;")
    report.keep_text("fx", "graph()")
    assert printed == []
    assert [report.text("cpp"), report.text("cpp"), report.text("fx")] == [
        "int main;",
        "int main;",
        "graph()",
    ]
    assert printed == [1]
    assert report.stages() == ["fx", "cpp"]


def test_unknown_and_missing_stages() -> None:
    report = CompileReport("inference", "graph 0")
    for stage in ("mlir", "loops"):
        with pytest.raises(SmeltError, match="SM0104"):
            report.text(stage)
    with pytest.raises(SmeltError, match="SM0104"):
        report.keep_text("mlir", "")


def test_the_log_is_bounded_and_keeps_the_newest() -> None:
    log = ReportLog(kept=3)
    for number in range(5):
        log.add(CompileReport("inference", f"graph {number}"))
    assert [report.graph_name for report in log.all()] == ["graph 2", "graph 3", "graph 4"]
    assert log.last("graph 3") is log.all()[1]
    assert log.last("graph 0") is None
    log.clear()
    assert log.all() == []


def test_first_time_is_true_once_until_cleared() -> None:
    log = ReportLog()
    assert [log.first_time("a"), log.first_time("a"), log.first_time("b")] == [True, False, True]
    log.clear()
    assert log.first_time("a")


def test_threads_lose_no_report() -> None:
    log = ReportLog(kept=10_000)

    def add() -> None:
        for number in range(500):
            log.add(CompileReport("inference", f"{number}"))

    threads = [threading.Thread(target=add) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(log.all()) == 4000


def test_compiling_leaves_no_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports keep what prints their stages: whole graphs, of the newest and of programs that still run."""
    import gc

    import torch
    from torch.fx import GraphModule

    import smelt
    from smelt import reporting

    def compile_some(count: int) -> None:
        for number in range(count):
            scope: dict[str, Any] = {}
            exec(f"def f(x): return x * 2 + {number}", scope)
            torch.compile(scope["f"], backend="smelt")(torch.ones(3))

    def graphs() -> int:
        torch._dynamo.reset()
        gc.collect()
        return sum(isinstance(each, GraphModule) for each in gc.get_objects())

    smelt.reset()
    monkeypatch.setattr(reporting, "TEXTS_KEPT", 2)
    compile_some(4)
    first = graphs()
    compile_some(8)
    assert graphs() <= first
    compile_some(4)
    older, lives, newest = (smelt.reports()[each] for each in (3, -4, -1))
    assert not older.stages() and "smelt" in lives.text("cpp") and "fx" in newest.stages()
    smelt.reset()
