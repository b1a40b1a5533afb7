"""What the tests of every dialect share: FileCheck on the text of a module."""

from __future__ import annotations

import io
from typing import Any

import pytest

pytest.importorskip("torch_mlir", reason="needs the extra [mlir]")


def filecheck(module: Any, checks: str) -> None:
    """Fail unless the text of ``module`` is what the ``CHECK`` lines say, as LLVM's FileCheck reads them."""
    from filecheck.finput import FInput
    from filecheck.matcher import Matcher
    from filecheck.options import Options
    from filecheck.parser import Parser, pattern_for_opts

    text = str(module)
    options = Options(match_filename="checks")
    parser = Parser(options, io.StringIO(checks), *pattern_for_opts(options))
    assert Matcher(options, FInput("module", text), parser).run() == 0, text
