"""The examples in docstrings run."""

from __future__ import annotations

import doctest
import pkgutil
from importlib import import_module

import pytest

import smelt

MODULES = [
    found.name for found in pkgutil.walk_packages(smelt.__path__, "smelt.") if found.name != "smelt.__main__"
]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_run(name):
    if name.startswith("smelt.mlir."):
        pytest.importorskip("torch_mlir", reason="needs the extra [mlir]")
    if name == "smelt.codegen.triton.functions":
        pytest.importorskip("triton", reason="needs the extra [triton]")
    smelt.reset()
    result = doctest.testmod(import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.failed == 0
