"""The kernel in docs/triton.md is the one that smelt prints; ``SMELT_GOLDEN=1`` writes it anew."""

from __future__ import annotations

import os
import re
from pathlib import Path

import torch

import smelt
from smelt.backend import backend_for
from smelt.pipeline.triton import Launched, absent_target
from tests.codegen.triton.products import PRODUCTS

PAGE = Path(__file__).parents[3] / "docs" / "triton.md"
BLOCK = re.compile(r"```text\n# golden: (\w+)\n(.*?)```", re.DOTALL)
"""Text, because ruff formats what is marked as Python."""


def _printed(name: str) -> str:
    function, make = PRODUCTS[name]
    target = absent_target("sm90")
    target = Launched(target.device, target.architecture, target.driver, products=True)
    torch.manual_seed(0)
    smelt.reset()
    torch.compile(function, backend=backend_for(target))(*make())
    text = smelt.reports()[-1].text("triton")
    lines = text[text.rindex("@triton.jit") :].splitlines()
    return "\n".join(line for line in lines if not line.lstrip().startswith("#")) + "\n"


def test_the_kernel_of_the_page_is_the_one_that_is_printed() -> None:
    page = PAGE.read_text()
    found = dict(BLOCK.findall(page))
    printed = {name: _printed(name) for name in found}
    if os.environ.get("SMELT_GOLDEN"):
        PAGE.write_text(BLOCK.sub(lambda m: f"```text\n# golden: {m[1]}\n{printed[m[1]]}```", page))
        return
    assert found == printed and found
