"""The page as a file: its size, its texts, and traces that cannot be shown."""

from __future__ import annotations

import base64
import copy
import json
import re
import subprocess
import sys
import zlib

import pytest

from smelt.errors import SmeltError
from smelt.viewer import View, render, render_difference
from smelt.viewer import __main__ as command
from smelt.viewer import page as pages
from smelt.viewer.packing import pack
from tests.viewer.traces import trace


def _data(page: str) -> dict:
    text = re.search(r'<script type="text/plain" id="data">([^<]*)</script>', page)[1]
    return json.loads(zlib.decompress(base64.b64decode(text)))


def test_a_page_of_a_transformer_is_small():
    assert len(render(trace(12)).encode()) < 300_000
    assert len(render(trace(286)).encode()) < 1_500_000


def test_the_page_holds_all_of_the_trace():
    whole = _data(render(trace(1)))
    shown, given = whole["traces"]["trace"]["graphs"][0], trace(1)["graphs"][0]
    assert shown["steps"] == given["steps"]
    for text, origin in zip(
        (shown["nests"][0][-1], shown["codes"][0]), (given["nests"][0][-1], given["codes"][0])
    ):
        assert [whole["lines"][each] for each in text["lines"]] == origin["lines"]
        assert [whole["marks"][each] for each in text["marks"]] == origin["marks"]


def test_a_line_is_kept_once():
    one, two = trace(1), trace(1)
    two["graphs"] = two["graphs"] * 2
    assert len(_data(f'<script type="text/plain" id="data">{pack({"t": two})}</script>')["lines"]) == len(
        _data(f'<script type="text/plain" id="data">{pack({"t": one})}</script>')["lines"]
    )


def test_texts_of_the_trace_are_no_markup():
    evil = "</script></title><script>alert(1)</script>{{script}}"
    page = render({**trace(1), "title": evil})
    assert evil not in page
    assert page.count("</script>") == page.count("<script") == 2
    assert _data(page)["traces"]["trace"]["title"] == evil


def test_the_page_needs_nothing_from_elsewhere():
    page = render(trace(1))
    assert not re.search(r"(?:src|href)=|url\(|@import|https?://", page)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy


def test_the_script_is_one_scope_without_imports():
    script = pages._script()
    assert not re.search(r"^(?:import|export)\b", script, re.MULTILINE)
    names = re.findall(r"^(?:async )?(?:function|class|const|let) (\w+)", script, re.MULTILINE)
    assert len(names) == len(set(names)) > 50
    files = {path.stem for path in pages._FOLDER.glob("*.js")}
    assert files == set(pages._MODULES)


@pytest.mark.parametrize(
    "given", [None, [], {}, {"schema": "other"}, {"schema": "smelt.trace", "version": 99}]
)
def test_what_is_no_trace_is_refused(given):
    with pytest.raises(SmeltError, match="SM0131"):
        render(given)
    with pytest.raises(SmeltError, match="SM0131"):
        render_difference(trace(1), given)


def _origins(graph):
    graph["steps"][0]["origins"] = [10**6]


def _nest(graph):
    graph["steps"][0]["nest"] = 99


def _marks(graph):
    graph["codes"][0]["marks"].pop()


def _more(graph):
    graph["codes"][0]["more"][0]["marks"].pop()


def _file(graph):
    graph["operators"][0]["lines"] = [[7, 1, "forward"]]


def _input(graph):
    graph["operators"][0]["inputs"] = [-1]


def _loop(graph):
    graph["loops"][0]["operators"] = [10**6]


def _twice(graph):
    graph["steps"][1]["id"] = graph["steps"][0]["id"]


def _missing(graph):
    del graph["steps"]


@pytest.mark.parametrize("damage", [_origins, _nest, _marks, _more, _file, _input, _loop, _twice, _missing])
def test_a_broken_trace_is_refused(damage):
    broken = copy.deepcopy(trace(1))
    damage(broken["graphs"][0])
    with pytest.raises(SmeltError, match="SM0132"):
        render(broken)


def test_all_problems_are_told():
    broken = copy.deepcopy(trace(1))
    for damage in (_origins, _nest, _marks):
        damage(broken["graphs"][0])
    with pytest.raises(SmeltError) as caught:
        render(broken)
    assert len(caught.value.problems) == 3


def test_a_view_shows_itself_in_a_notebook(tmp_path):
    view = View(trace(1), height=500)
    shown = view._repr_html_()
    assert shown.startswith("<iframe srcdoc=") and shown.count("<iframe") == 1
    assert 'sandbox="allow-scripts"' in shown and "height:500px" in shown
    assert "<script" not in shown
    assert view.save(tmp_path / "page.html").read_text("utf-8") == render(view.trace)
    assert "7 steps" in repr(view)


def test_the_command_writes_pages(tmp_path, capsys):
    for name in ("a", "b"):
        (tmp_path / name).write_text(json.dumps(trace(1)))
    out = tmp_path / "page.html"
    assert command.main([str(tmp_path / "a"), "-o", str(out)]) == 0
    assert set(_data(out.read_text())["traces"]) == {"trace"}
    assert command.main([str(tmp_path / "a"), str(tmp_path / "b"), "-o", str(out)]) == 0
    assert set(_data(out.read_text())["traces"]) == {"before", "after"}
    (tmp_path / "c").write_text("no JSON")
    assert command.main([str(tmp_path / "c"), "-o", str(out)]) == 2
    assert "SM0131" in capsys.readouterr().err


def test_a_page_needs_no_torch():
    code = "import sys, smelt.viewer; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
