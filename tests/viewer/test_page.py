"""The page of a trace in a real browser."""

from __future__ import annotations

import statistics

import pytest

from smelt.viewer import View
from tests.viewer.traces import trace

LINE = "[data-name=source] .row:has-text('{}')"


MEASURE = """() => {
    const timed = (act) => {
        const begin = performance.now();
        act();
        document.body.getBoundingClientRect();
        return performance.now() - begin;
    };
    const over = (row) => timed(() => row.dispatchEvent(new PointerEvent("pointerover", { bubbles: true })));
    const down = (key) => new KeyboardEvent("keydown", { key, bubbles: true });
    const press = (key) => timed(() => document.body.dispatchEvent(down(key)));
    const field = document.querySelector("input[type=search]");
    const find = (text) => timed(() => { field.value = text; field.dispatchEvent(new Event("input")); });
    const list = document.querySelector("[data-name=operators] .list");
    const scroll = (top) => timed(() => { list.scrollTop = top; list.dispatchEvent(new Event("scroll")); });
    const rows = (name) => [...document.querySelectorAll(`[data-name=${name}] .row[role=option]`)];
    const ten = Array.from({ length: 10 }, (_, at) => at);
    return {
        line: rows("source").map(over),
        operator: rows("operators").slice(0, 10).map(over),
        step: ten.map(() => press("j")),
        pin: rows("source").slice(20, 30).map((row) => timed(() => row.click())),
        filter: ["g", "ge", "gel", "gelu", "gelu 1", "", "n", "no", "nor", "norm"].map(find),
        film: ten.map(() => press("f")),
        scroll: ten.map((at) => scroll(at * 5000)),
    };
}"""


def rows(page, column: str, kind: str) -> list[str]:
    return page.locator(f"[data-name={column}] .row.{kind}").all_inner_texts()


def names(page) -> list[str]:
    """The operators that are pointed at."""
    return page.locator("[data-name=operators] .row.hot .t-name").all_inner_texts()


def point(page, selector: str) -> None:
    page.hover(selector, position={"x": 20, "y": 9})


def pick(page, selector: str) -> None:
    page.click(selector, position={"x": 20, "y": 9})


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 1920])
def test_the_page_opens(opened, width, theme):
    page = opened(trace(12), width=width, theme=theme)
    assert page.locator("h1").inner_text() == "encoder (inference)"
    assert "84 steps, 12 of them ATen or PyTorch" in page.locator(".run").inner_text()
    shown = page.locator(".column:not([hidden]) h2").all_inner_texts()
    assert shown == ["Source", "Operators", "Nest"] + ["C++"] * (width == 1920)
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, ground[4:-1].split(","))) < 200) == (theme == "dark")
    assert page.evaluate("document.documentElement.scrollWidth") == width


def test_times_of_lines_stand_in_the_gutter(opened):
    page = opened(trace(12, seconds=lambda name, layer: {"attention": 1e-3}.get(name, 0.0)))
    # The kernel has four operators: three views of split_heads, and the attention.
    assert page.locator(LINE.format("return x.view")).locator(".heat").inner_text() == "9.00"
    page.select_option("[data-name=source] select", "0")
    assert page.locator(LINE.format("mixed = scaled")).locator(".heat").inner_text() == "3.00"
    page.evaluate("location.hash = '#line=model.py:38'")  # its caller has the time in grey
    assert page.locator(LINE.format("x = self.first")).locator(".heat.below").inner_text() == "12.0"
    assert page.locator("aside .big").inner_text() == "12.0 ms 100 % of the run"


def test_pointing_marks_the_same_thing_everywhere(opened):
    page = opened(trace(2), "#k4")
    point(page, "[data-name=operators] .row:has-text('gelu: f32')")
    assert names(page) == ["gelu"]
    page.locator(".passes button").first.click()
    point(page, "[data-name=operators] .row:has-text('gelu: f32')")
    assert len(rows(page, "nest", "hot")) == 2
    page.mouse.move(5, 5)
    assert rows(page, "operators", "hot") == rows(page, "nest", "hot") == []
    point(page, "[data-name=nest] .row:has-text('gelu(v3')")
    assert names(page) == ["gelu"]
    assert ["gelu(self.up(x))" in text for text in rows(page, "source", "hot")] == [True]


def test_pointing_at_a_line_marks_its_operators(opened):
    page = opened(trace(2))
    page.select_option("[data-name=source] select", "0")
    point(page, LINE.format("mixed = scaled"))
    assert names(page)[0] == "attention"
    pick(page, LINE.format("mixed = scaled"))
    assert page.evaluate("location.hash") == "#line=model.py:25"
    assert "model.py:25" in page.locator("aside h3").inner_text()
    assert page.locator("aside .links").first.locator("li").count() == 2  # two layers
    page.keyboard.press("Escape")
    assert rows(page, "operators", "pin") == []
    assert page.evaluate("location.hash") == ""


@pytest.mark.parametrize(
    ("address", "title"),
    [
        ("#k4", "fused_addmm_gelu k4"),
        ("#a2", "addmm a2"),
        ("#line=model.py:25", "model.py:25 forward"),
        ("#op=gelu_1", "gelu_1 aten.gelu.default"),
        ("#module=layers.1.mlp", "layers.1.mlp module"),
        ("#loop=3", "loop"),
    ],
)
def test_an_address_pins(opened, address, title):
    page = opened(trace(2), address)
    assert page.locator("aside h3").inner_text() == title
    assert page.evaluate("location.hash") == address
    page.evaluate("location.hash = '#k0'")
    page.locator("aside h3:has-text('fused_addmm k0')").wait_for()


def test_keys(opened):
    page = opened(trace(2), "#k0")
    page.keyboard.press("j")
    page.keyboard.press("j")
    assert page.evaluate("location.hash") == "#a2"
    assert "ATen runs addmm." in page.locator("[data-name=nest] .note").inner_text()
    page.keyboard.press("k")
    assert page.evaluate("location.hash") == "#k1"
    page.keyboard.press("6")
    page.keyboard.press("1")
    assert page.locator(".column:not([hidden]) h2").all_inner_texts() == ["Operators", "Nest", "C++"]
    page.keyboard.press("?")
    assert page.locator("dialog").is_visible()
    page.keyboard.press("Escape")
    assert not page.locator("dialog").is_visible()
    assert page.evaluate("location.hash") == "#k1"
    page.keyboard.press("d")
    assert not page.locator("aside").is_visible()
    page.keyboard.press("t")
    page.keyboard.press("t")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_a_column_that_comes_back_shows_what_is_pinned(opened):
    page = opened(trace(12), "#k70")
    for key in ("2", "j", "j", "2"):
        page.keyboard.press(key)
    assert page.locator("[data-name=operators] .row.pin").first.is_visible()


def test_everything_can_be_reached_without_a_pointer(opened):
    page = opened(trace(2))
    reached = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.add(
            page.evaluate(
                "document.activeElement.getAttribute('aria-label') || document.activeElement.textContent"
            )
        )
    assert {"Source", "Operators", "Nest", "steps in run order", "filter", "film", "width", "keys"} <= reached
    page.locator("[data-name=operators] .list").focus()
    for _ in range(4):
        page.keyboard.press("ArrowDown")
    assert page.locator("[data-name=operators] .row.cursor").count() == 1
    assert page.evaluate("document.activeElement.getAttribute('aria-activedescendant')")
    page.keyboard.press("Enter")
    assert len(rows(page, "operators", "pin")) == 1
    before = page.locator("[data-name=source]").bounding_box()["width"]
    page.locator(".splitter").first.focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("[data-name=source]").bounding_box()["width"] > before + 10
    roles = {"listbox", "option", "slider", "separator", "tablist", "tab", "tabpanel", "tooltip", "status"}
    assert roles <= set(
        page.evaluate("[...document.querySelectorAll('[role]')].map((each) => each.getAttribute('role'))")
    )


def test_the_filter(opened):
    page = opened(trace(3))
    page.keyboard.press("4")
    page.keyboard.press("/")
    page.keyboard.type("layers.1 gelu.default")
    assert page.locator(".matches").inner_text() == "1 step, 1 operator"
    assert len(page.locator("[data-name=steps] .row").all()) == 1
    assert page.locator("[data-name=operators] .row[role=option]:has-text('gelu_1')").count() == 1
    assert page.locator("[data-name=source] .row.dim").count() > 10
    page.keyboard.press("Enter")
    page.keyboard.press("j")
    assert page.evaluate("location.hash") == "#k11"
    page.keyboard.press("Escape")
    assert len(page.locator("[data-name=steps] .row").all()) > 10


def test_the_film_shows_what_a_pass_changes(opened):
    page = opened(trace(1), "#k0")
    assert page.locator("[data-name=nest] .row.new").count() == 0
    page.keyboard.press("f")
    assert page.locator(".passes [aria-selected=true]").inner_text() == "choose_loops"
    gone, new = rows(page, "nest", "gone"), rows(page, "nest", "new")
    assert any("for i0 in range(128), i1 in range(2304):" in text for text in gone)
    assert any("parallel for i1 in range(2304):" in text for text in new)
    assert f"−{len(gone)}  +{len(new)} lines" in page.locator("[data-name=nest] .row").first.inner_text()
    page.keyboard.press("]")
    assert page.locator(".passes [aria-selected=true]").inner_text() == "vectorize"
    assert any("vector for" in text for text in rows(page, "nest", "new"))
    page.keyboard.press("f")
    assert page.locator(".passes [aria-selected=true]").inner_text() == "tile_registers"
    assert page.locator("[data-name=nest] .row.new").count() == 0


def test_a_line_of_the_nest_and_one_of_the_code_are_joined(opened):
    page = opened(trace(1), "#k3", width=1920)
    page.locator(".passes button").first.click()
    point(page, "[data-name=nest] .row:has-text('rsqrt(')")
    marked = rows(page, "code", "hot")
    assert any("welford<f32, 16>" in text for text in marked) and not any("  // x" in text for text in marked)
    point(page, "[data-name=code] .row:has-text('  // x')")
    assert any("p0[768*i0 + i1]" in text for text in rows(page, "nest", "hot"))
    assert names(page) == ["add"]
    pick(page, "[data-name=code] .row:has-text('  // x')")
    assert page.evaluate("location.hash") == "#op=add"


def test_the_code_of_a_gpu_has_its_name(opened):
    given = trace(1)
    for code in given["graphs"][0]["codes"]:
        code["language"] = "triton"
    page = opened(given, width=1920)
    assert page.locator("[data-name=code] h2").inner_text() == "Triton"


def test_assembly_is_folded_into_the_code(opened):
    page = opened(trace(1), "#k4", width=1920)
    code = page.locator("[data-name=code] .list")
    code.evaluate("(list) => list.scrollTo(0, 1e6)")
    page.click("[data-name=code] .row.fold")
    assert page.locator("[data-name=code] .row.fold").inner_text().startswith("▾ asm")
    code.evaluate("(list) => list.scrollTo(0, 1e6)")
    assert page.locator("[data-name=code] .row:has-text('vfmadd231ps')").count() > 0


def test_the_card_of_a_kernel(opened):
    page = opened(trace(2), "#k4")
    card = page.locator("aside").inner_text()
    for said in ("640 µs", "parallel", "bound by arithmetic", "604 Mop", "944 Gop/s", "gelu", "layers.py:19"):
        assert said in card, said
    for said in ("Why not more", "its sums end", "Sizes", "Guards"):
        assert said in card, said
    page.click("aside .link:has-text('gelu')")
    assert page.evaluate("location.hash") == "#op=gelu"


def test_what_costs_most(opened):
    page = opened(trace(2))
    side = page.locator("aside").inner_text()
    assert side.index("layers.py:19") < side.index("model.py:22")
    assert "ATen's product is faster at this shape" in side
    assert page.locator("aside .links").nth(1).locator("li").first.inner_text().split() == [
        "2",
        "×",
        "fused_addmm_add",
        "1.48",
        "ms",
    ]


def test_the_strip_tells_and_pins(opened):
    page = opened(trace(2))
    box = page.locator(".strip").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.2, box["y"] + 20)
    assert "of the roofline" in page.locator(".tip").inner_text()
    page.mouse.click(box["x"] + 5, box["y"] + 20)
    assert page.evaluate("location.hash") == "#k0"
    page.mouse.click(box["x"] + 30, box["y"] + 47)
    assert page.evaluate("location.hash") == "#module=layers.0"
    page.keyboard.press("+")
    assert page.locator(".strip").evaluate("(strip) => strip.scrollWidth > strip.clientWidth")


def test_a_trace_without_times_says_so(opened):
    page = opened(trace(2, timed=False))
    assert "Not timed: the width is bytes moved" in page.locator(".run").inner_text()
    assert "Not timed" in page.locator("aside").inner_text()
    page.keyboard.press("j")
    assert "not timed" in page.locator("aside").inner_text()


def test_a_program_with_clusters(opened):
    given = trace(1)
    steps = [
        {
            "id": "e0",
            "kind": "eager",
            "name": "all_reduce",
            "reason": "a collective operation",
            "seconds": 1e-3,
        },
        {"id": "c0", "kind": "cluster", "name": "graph 0 cluster 1", "seconds": 1e-3},
        {"id": "e1", "kind": "eager", "name": "all_gather", "reason": "a collective operation"},
        {"id": "c1", "kind": "cluster", "name": "graph 0 cluster 1", "seconds": 1e-3},
    ]
    given["graphs"][0]["name"] = "graph 0 cluster 1 inference"
    empty = {name: [] for name in ("operators", "loops", "nests", "codes")}
    given["graphs"].append({"name": "graph 0", "kind": "eager", "steps": steps, **empty})
    page = opened(given, "#e0")
    assert "a collective operation" in page.locator("aside").inner_text()
    assert "PyTorch runs all_reduce." in page.locator("[data-name=nest] .note").inner_text()
    page.keyboard.press("4")
    ids = page.locator("[data-name=steps] .by").all_inner_texts()
    assert ids == ["e0", "k0", "k1", "a2", "k3", "k4", "k5", "k6", "e1", "c1"]


def test_a_trace_of_nothing_opens(opened):
    page = opened({"schema": "smelt.trace", "version": 1, "title": "nothing", "files": [], "graphs": []})
    for key in ("j", "k", "f", "]", "1", "1", "4", "Escape"):
        page.keyboard.press(key)
    assert "No file of the model" in page.locator("[data-name=source]").inner_text()


def test_texts_of_the_model_are_no_markup(opened):
    page = opened({**trace(1), "title": "<img src=x onerror=alert(1)>"})
    assert page.locator("h1").inner_text() == "<img src=x onerror=alert(1)>"
    assert page.locator("img").count() == 0


def test_a_notebook_shows_it(opened):
    page = opened(f"<!doctype html><html data-ready><body>{View(trace(1))._repr_html_()}</body></html>")
    frame = page.frame_locator("iframe")
    frame.locator(LINE.format("return self.down")).click()
    assert "layers.py:19" in frame.locator("aside h3").inner_text()


def test_two_thousand_kernels_stay_responsive(opened):
    page = opened(trace(286), width=1920)
    for key in ("3", "4"):
        page.keyboard.press(key)
    assert page.locator(".column:not([hidden])").count() == 6
    taken = page.evaluate(MEASURE)
    fast = {name: statistics.quantiles(values, n=4)[0] for name, values in taken.items()}
    assert all(value < 100 for value in fast.values()), fast  # ms; others at work slow down the rest of them


def test_files_of_one_name_are_told_apart(opened):
    given = trace(1)
    given["files"][1] |= {"path": "/home/me/other/model.py", "name": "model.py"}
    page = opened(given, "#line=other/model.py:19")
    assert "other/model.py:19" in page.locator("aside h3").inner_text()
    names = page.locator("[data-name=source] option").all_inner_texts()
    assert names == ["encoder/model.py", "other/model.py"]


def test_a_key_that_is_held_down_does_not_flood_the_address(opened):
    page = opened(trace(60), "#k0")
    page.evaluate(
        """() => {
            window.kept = 0;
            const replace = history.replaceState.bind(history);
            history.replaceState = (...given) => { window.kept += 1; replace(...given); };
        }"""
    )
    for _ in range(120):
        page.keyboard.press("j")
    page.wait_for_timeout(600)
    assert page.evaluate("location.hash") == "#k120"
    assert page.evaluate("window.kept") < 80


def test_numbers_stay_where_a_line_is_scrolled_sideways(opened):
    page = opened(trace(1))
    before = page.locator(LINE.format("return self.down")).locator(".number").bounding_box()["x"]
    page.locator("[data-name=source] .list").evaluate("(list) => list.scrollTo(80, list.scrollTop)")
    after = page.locator(LINE.format("return self.down")).locator(".number").bounding_box()["x"]
    assert abs(after - before) <= 3.5
