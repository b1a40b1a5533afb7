"""The page of two traces in a real browser."""

from __future__ import annotations

import copy

from smelt.viewer import render_difference
from tests.viewer.traces import trace

TIMES = {
    "attention": 1e-4,
    "fused_addmm": 4e-4,
    "fused_addmm_gelu": 6e-4,
    "fused_addmm_add": 7e-4,
    "addmm": 2e-4,
}


def of(**changed: float):
    return trace(2, seconds=lambda name, layer: {**TIMES, **changed}.get(name, 3e-5))


def listed(page) -> list[str]:
    texts = "(rows) => rows.map((row) => [...row.children].map((each) => each.textContent.trim()).join(' '))"
    return page.locator(".steps .row").evaluate_all(texts)


def test_what_lost_most_stands_first(opened):
    page = opened(render_difference(of(), of(attention=3e-4, fused_addmm_gelu=1e-4)))
    rows = listed(page)
    assert len(rows) == 14
    assert all(row.startswith("slower") and "+0.20 ms" in row and "3.00×" in row for row in rows[:2])
    assert all(row.startswith("faster") and "−0.50 ms" in row for row in rows[-2:])
    assert all(row.startswith("same") for row in rows[2:-2])
    assert page.locator(".top .total").inner_text().endswith("1.17 × as fast")
    assert "100 µs" in page.locator(".pair").inner_text() and "300 µs" in page.locator(".pair").inner_text()


def test_new_gone_and_changed_steps(opened):
    before, after = of(), of()
    graph = after["graphs"][0]
    del graph["steps"][13]
    graph["steps"][3] |= {"name": "fused_everything"}  # the same operators under another name
    new = {
        **copy.deepcopy(graph["steps"][1]),
        "id": "k99",
        "name": "softmax",
        "origins": [0, 0],
        "loops": [],
        "nest": None,
        "code": None,
    }
    graph["steps"].insert(5, new)
    graph["nests"][3][-1]["lines"][1] = "    parallel for i1_0 in range(99):"
    page = opened(render_difference(before, after))
    rows = listed(page)
    assert rows[0].startswith("new") and "softmax" in rows[0]
    assert rows[-1].startswith("gone") and "layer_norm" in rows[-1]
    assert len(rows) == 15
    page.click(".toggle[data-name=changed]")
    assert ["fused_addmm_gelu text changed" in row for row in listed(page)] == [True, True]
    page.locator(".steps .row").first.click()
    assert page.locator(".row.gone").inner_text().endswith("range(48):")
    assert "range(99):" in page.locator(".row.new").inner_text()
    page.locator(".row.fold").last.click()
    assert page.locator(".row.fold").count() == 0
    page.keyboard.press("c")
    assert "The text is the same." in page.locator(".column .row").nth(2).inner_text()


def test_keys_and_filter_of_a_difference(opened):
    page = opened(render_difference(of(), of(attention=3e-4)), "#k8", theme="dark")
    assert page.locator(".pair b").all_inner_texts() == ["attention", "attention"]
    page.keyboard.press("/")
    page.keyboard.type("layers.1.mlp")
    assert len(listed(page)) == 1
    page.keyboard.press("Escape")
    assert len(listed(page)) == 14
    page.keyboard.press("j")
    page.keyboard.press("j")
    assert page.locator(".steps .row.pin").count() == 1
    box = page.locator(".strip").nth(1).bounding_box()
    page.mouse.click(box["x"] + 3, box["y"] + 20)
    assert "fused_addmm" in page.locator(".steps .row.pin").inner_text()


def test_a_difference_without_times(opened):
    page = opened(render_difference(trace(1, timed=False), trace(2, timed=False)))
    assert "7 steps → 14, not timed" in page.locator(".top").inner_text()
    assert [row.split()[0] for row in listed(page)].count("new") == 7


def test_two_long_runs_are_compared_soon(opened):
    page = opened(render_difference(trace(286), trace(280)))
    assert page.locator(".toggle[data-name=gone]").inner_text() == "gone 42"
    taken = page.evaluate(
        """() => Array.from({ length: 10 }, () => {
            const begin = performance.now();
            document.body.dispatchEvent(new KeyboardEvent("keydown", { key: "j", bubbles: true }));
            document.body.getBoundingClientRect();
            return performance.now() - begin; })"""
    )
    assert sorted(taken)[5] < 100
