"""What a step changed, and the page of all steps."""

from html.parser import HTMLParser

from smelt.script import from_source
from smelt.script.diff import diff_lines, diff_text
from smelt.script.html import html

ONE = from_source("""
@T.prim_func
def main(B: T.Buffer((8,), "int32")):
    for i in range(8):
        B[i] = T.min(3, B[i])
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
