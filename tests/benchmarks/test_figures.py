"""The README's table and pictures are those of docs/figures/inference.json; a run can replace these."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest

import figures


def test_what_is_committed_is_what_the_data_gives():
    document = json.loads(figures.DATA.read_text())
    readme = (figures.ROOT / "README.md").read_text()
    assert figures.put(readme, figures.markdown(document)) == readme
    assert figures.BEGIN in readme and figures.markdown(document) in readme
    for theme in figures.THEMES:
        text = (figures.FOLDER / f"inference-{theme}.svg").read_text()
        assert text == figures.svg(document, theme), "run: make figures"
        ElementTree.fromstring(text)


def _program(name, seconds, threads=2, mode="inference"):
    contenders = {
        each: {"run": {"median": seconds, "min": seconds}, "speedup": 1.0 if each == "eager" else 2.0}
        for each in figures.LABELS
    }
    return {"name": name, "mode": mode, "threads": threads, "contenders": contenders}


def _results(*programs):
    machine = {"processor": "a processor", "cpus": 2, "isa": "AVX2", "versions": {"torch": "2.13"}}
    return {"date": "2026-01-02 03:04", "command": "run.py", "machine": machine, "programs": list(programs)}


def test_a_run_becomes_figures():
    failed = _program("failed", 0.1)
    failed["contenders"]["openvino"]["run"] = None
    others = _program("other", 0.1, threads=1), _program("step", 0.1, mode="train"), failed
    found = figures.from_results(_results(_program("model", 0.0123456), *others))
    assert found["milliseconds"] == {"model": dict.fromkeys(figures.LABELS, 12.3)}
    assert found["means"] == dict.fromkeys(figures.BARS, 2.0)
    assert found["date"] == "2026-01-02"
    assert "| model | **12.3** |" in figures.markdown(found)


def test_a_run_without_peers_is_refused():
    with pytest.raises(ValueError, match="no program has"):
        figures.from_results(_results(_program("model", 0.1, threads=1)))
