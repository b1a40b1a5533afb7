"""docs/walk.md: one small model on its way through the compiler, printed after every pass that changes it.

``python -m tests.walk`` writes the page; a test compares it with what the compiler does today.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import unified_diff
from pathlib import Path
from typing import Any

import torch
from torch import nn

from smelt.capture import Program
from smelt.capture.function import capture_function
from smelt.codegen.cpp.printer import print_unit
from smelt.config import Config
from smelt.contract.graph import contracted
from smelt.passes import Pass, name_of, summary_of
from smelt.pipeline.passes import FORMS, PASSES, lowered
from smelt.schedule import Target, schedule

PAGE = Path(__file__).parents[1] / "docs" / "walk.md"
TARGET = Target(vector_bytes=32)
HEAD = """# A walk through the compiler

A linear layer, GELU and a layer norm, from the captured graph to C++. After each pass stands what it made;
a pass that changes nothing here has its sentence only. This page is printed by `python -m tests.walk`, and
a test keeps it true. `smelt explain SPEC --after PASS` prints the same of any program, `smelt explain
--passes` lists the passes. [Architecture](architecture.md) says what the floors promise each other.

```python
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(32, 64)
        self.norm = nn.LayerNorm(64)

    def forward(self, x):  # (16, 32)
        return self.norm(F.gelu(self.linear(x)))
```
"""
BETWEEN = {
    "inline_calls": """## The captured graph and the contract

Dynamo and AOTAutograd give an FX graph of ATen calls. The contract is the closed form of it: functional,
with static ranks and dtypes, sizes that may be symbols, and a source line on every node. What smelt cannot
have is left to PyTorch here, in clusters.
""",
    "join_products": """## Loop functions

A row of the lowering table turns each call into a loop function, from an index to a value. Nothing is
stored or fused yet. A contraction keeps its two operands and what is summed; ATen's call for it is
remembered until a kernel is chosen.
""",
    "rewrite": """## Items: what is computed, in which loops

Nodes become items: a node with the order of its loops and what it reads. A cheap item is computed where it
is read.
""",
    "fuse_items": """## Groups: what shares a loop nest

A group becomes one kernel. An item joins the group that writes what it reads if each turn of the shared
loops reads only what that turn has written.
""",
    "build_nests": """## Kernels and memory

Each group becomes a nest: products by their recipe, the others as plain loops. Then each buffer gets its
memory.
""",
    "flatten_indices": """## One nest

These passes run inside of `arrange_nests`, on the plain nest of the second group; a primitive of
`smelt.nest.primitives` makes each change and checks that it is legal.
""",
    "C++": """## C++

The nest is printed as C++ that uses the compiler's vector types. This is the second kernel, for vectors of
32 bytes:
""",
}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(32, 64)
        self.norm = nn.LayerNorm(64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(torch.nn.functional.gelu(self.linear(x)))


def page() -> str:
    """The text of the page."""
    seen: dict[str, tuple[str, str]] = {}

    def watch(moment: str, pass_: Pass, ir: Any) -> None:
        text = _text(ir)
        before = seen.get(name_of(pass_), ("", ""))[0]
        seen[name_of(pass_)] = (text, "") if moment == "before" else (before, text)

    program = _program()
    contract = contracted(program, watch=watch)
    config = Config()
    graph = lowered(contract, config, TARGET, watch)
    scheduled = schedule(graph, config, TARGET, watch=watch)
    parts = [HEAD]
    for about, passes in PASSES:
        for pass_ in passes:
            name = name_of(pass_)
            if "person" in about or "GPU" in about:
                continue
            parts.append(BETWEEN.get(name, ""))
            before, after = seen[name]
            parts.append(f"**`{name}`** {summary_of(pass_)}\n")
            parts.append(_shown(before, after))
    parts.append(BETWEEN["C++"])
    unit = print_unit(scheduled.all_runs).text
    kernel = re.search(r"^static void kernel_fused_.*?^}\n", unit, re.MULTILINE | re.DOTALL)
    assert kernel is not None
    parts.append(f"```cpp\n{kernel.group(0)}```\n")
    return "\n".join(part for part in parts if part)


def _shown(before: str, after: str) -> str:
    """The IR after a pass; where little has changed, what has."""
    if before == after:
        return ""
    lines = unified_diff(before.splitlines(), after.splitlines(), n=1, lineterm="")
    changed = [line for line in lines if not line.startswith(("---", "+++", "@@"))]
    if len(changed) <= 2 * len(after.splitlines()) // 3:
        return "\n".join(["```diff", *changed, "```", ""])
    return f"```text\n{after}```\n"


def _program() -> Program:
    torch.manual_seed(0)
    model = Block().eval()
    names = dict(model.named_parameters())

    def call(x: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(model, dict(zip(names, parameters)), (x,))

    with torch.no_grad():
        return capture_function(call, [torch.randn(16, 32), *names.values()])


def _text(ir: Any) -> str:
    form = next(form for form in FORMS if isinstance(ir, form.kind))
    return "".join(_lines(form.text(ir)))


def _lines(text: str) -> Iterator[str]:
    """The lines without source files, empty lines and what only a terminal would show."""
    for line in text.splitlines():
        line = re.sub(r"( at|  *)\s\S+:\d+ in \w+", "", line).rstrip()
        if line and not line.lstrip().startswith("# File:"):
            yield line + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
