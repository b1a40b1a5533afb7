"""A real browser: Debian's chromium, driven by Playwright."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from smelt.viewer import render


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="needs Playwright: pip install playwright")
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("needs a browser: apt-get install chromium")
    with api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        yield started
        started.close()


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Opens a page in a window of its own. At the end it must have said nothing and asked for nothing."""
    said: list[str] = []
    contexts = []

    def open_(
        page: str | dict[str, Any], address: str = "", *, width: int = 1280, theme: str = "light"
    ) -> Any:
        file = tmp_path / f"{len(contexts)}.html"
        file.write_text(page if isinstance(page, str) else render(page), "utf-8")
        context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=theme)
        contexts.append(context)
        shown = context.new_page()
        shown.set_default_timeout(10_000)
        shown.on("console", lambda message: said.append(message.text))
        shown.on("pageerror", lambda error: said.append(str(error)))
        shown.on("request", lambda sent: sent.url.startswith("file:") or said.append(sent.url))
        shown.goto(f"{file.as_uri()}{address}")
        shown.wait_for_selector("html[data-ready]")
        return shown

    yield open_
    for context in contexts:
        context.close()
    assert said == []
