"""Fixtures of the whole test suite."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-goldens", action="store_true", help="write the golden texts anew")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """``golden(name, text)``: the text is what ``goldens/<name>`` beside the test says, or will say."""
    folder = Path(request.path).parent / "goldens"

    def check(name: str, text: str) -> None:
        path = folder / name
        if request.config.getoption("--update-goldens"):
            folder.mkdir(exist_ok=True)
            path.write_text(text)
        assert path.exists(), f"no {path.name}: run pytest --update-goldens"
        assert text == path.read_text()

    return check
