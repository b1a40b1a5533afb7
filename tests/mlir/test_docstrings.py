"""The examples in the docstrings of the MLIR floor run."""

from __future__ import annotations

import doctest
import pkgutil
from importlib import import_module

import pytest

import smelt.mlir

pytest.importorskip("torch_mlir", reason="needs the extra [mlir]")

MODULES = [
    "smelt.lowering.needs",
    "smelt.cli.schema",
    *(found.name for found in pkgutil.walk_packages(smelt.mlir.__path__, "smelt.mlir.")),
]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_run(name):
    result = doctest.testmod(import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.failed == 0
