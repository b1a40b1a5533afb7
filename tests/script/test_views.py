"""What a step changed, and the page of all steps."""

from html.parser import HTMLParser

from smelt.script import from_source
from smelt.script.diff import diff_lines, diff_text
from smelt.script.html import html
from smelt.tir import Schedule

ONE = from_source("""
@T.prim_func
def main(B: T.Buffer((8,), "int32")):
    for i in range(8):
        with T.sblock("copy"):
            vi = T.axis.spatial(8, i)
            B[vi] = T.min(3, B[vi])
""")
OTHER = from_source(ONE.script().replace("range(8)", "T.parallel(8)"))


def test_diff():
    lines = list(diff_lines(ONE.script(), OTHER.script()))
    assert [line.strip() for line in lines if line[:1] in "+-"] == [
        "-    for i in range(8):",
        "+    for i in T.parallel(8):",
    ]
    assert "\x1b[32m+" in diff_text(ONE.script(), OTHER.script(), colours=True)
    assert not list(diff_lines(ONE.script(), ONE.script()))


def test_a_page_has_a_tab_for_each_step():
    page = html([("start", ONE), ("parallel(i) <&>", OTHER)])
    found = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag, attrs):
            found.append(tag)

        def handle_endtag(self, tag):
            found.append(f"/{tag}")

    Reader().feed(page)
    for tag in ("section", "details", "summary", "label", "div"):
        assert found.count(tag) == found.count(f"/{tag}") > 0
    assert found.count("section") == 2 and "parallel(i) &lt;&amp;&gt;" in page
    assert "http" not in page and "<script" not in page


def test_a_schedule_is_a_page_of_its_steps():
    sch = Schedule(ONE)
    other = sch.copy()
    (loop,) = sch.get_loops(sch.get_block("copy"))
    outer, _ = sch.split(loop, factors=[2, 4])
    sch.parallel(outer)
    page = sch.html()
    assert page.count("<section") == 3 and "sch.parallel(" in page and "T.parallel(2)" in page
    assert other.html().count("<section") == 1
