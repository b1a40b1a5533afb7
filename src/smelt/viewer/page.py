"""One HTML file from a trace: the page's script and style inside, and nothing from elsewhere."""

from __future__ import annotations

import base64
import hashlib
import html
import re
from functools import cache
from pathlib import Path
from typing import Any

from smelt.viewer.checks import check
from smelt.viewer.packing import pack

_FOLDER = Path(__file__).parent / "assets"
_MODULES = (
    *("format", "dom", "load", "joins", "state", "align", "highlight", "filter", "rows"),
    *("columns", "texts", "strip", "spans", "card", "top", "keys", "trace_page", "difference", "main"),
)
"""Modules of the script, each after those that it imports: they become one scope."""
_IMPORT = re.compile(r"^import\s[^;]*;\n", re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|class|const|let)\b)", re.MULTILINE)


def render(trace: dict[str, Any]) -> str:
    """The page of a trace.

    Raises:
        SmeltError: it is no trace that the page can show (SM0131, SM0132).
    """
    check(trace)
    return _page(str(trace.get("title", "trace")), {"trace": trace})


def render_difference(before: dict[str, Any], after: dict[str, Any]) -> str:
    """The page of what two traces do not share: steps that got slower or faster, are new, gone, changed.

    Raises:
        SmeltError: one is no trace that the page can show (SM0131, SM0132).
    """
    check(before)
    check(after)
    return _page(f"{before.get('title')} → {after.get('title')}", {"before": before, "after": after})


def _page(title: str, traces: dict[str, Any]) -> str:
    style, script = _style(), _script()
    sources = ("default-src 'none'", f"script-src {_digest(script)}", f"style-src {_digest(style)}")
    policy = "; ".join((*sources, "base-uri 'none'", "form-action 'none'"))
    template = (_FOLDER / "page.html").read_text("utf-8")
    parts = {"title": html.escape(title), "policy": policy, "style": style, "script": script}
    parts["data"] = pack(traces)
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)


@cache
def _style() -> str:
    return "\n" + "".join(path.read_text("utf-8") for path in sorted(_FOLDER.glob("*.css")))


@cache
def _script() -> str:
    """The modules in one function: their imports name what stands above them."""
    texts = [(_FOLDER / f"{name}.js").read_text("utf-8") for name in _MODULES]
    body = "".join(_EXPORT.sub("", _IMPORT.sub("", text)) for text in texts)
    return f'\n(() => {{\n"use strict";\n{body}}})();\n'


def _digest(text: str) -> str:
    """What Content-Security-Policy calls a text that the page itself has."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
