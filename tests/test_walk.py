"""docs/walk.md says what the compiler does today."""

import pytest
import torch

from tests import walk


@pytest.mark.skipif(
    not torch.__version__.startswith("2.13"), reason="FX prints graphs otherwise in other versions"
)
def test_the_walk_is_what_the_compiler_prints() -> None:
    assert walk.PAGE.read_text() == walk.page(), "python -m tests.walk writes it anew"


def test_no_paragraph_of_the_walk_is_long() -> None:
    paragraphs = [text for text in walk.PAGE.read_text().split("\n\n") if "```" not in text]
    assert max(len(text.splitlines()) for text in paragraphs) <= 10
