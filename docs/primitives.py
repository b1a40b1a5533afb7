"""Writes docs/primitives.md when the documents are built (conf.py): each step of `tir.Schedule` with the
primitive's docstring and an example that is run here.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from smelt.script.diff import diff_text
from smelt.tir import Schedule
from smelt.tir.loops import LoopMoves
from smelt.tir.places import PlaceMoves

PAGE = Path(__file__).parent / "primitives.md"

HEAD = '''# Primitives

Each step of `tir.Schedule`: what it makes of what, when it is refused, and an example with what the step
changed in the function's text. A step that is refused changes nothing; [errors](errors.md) has the codes. The
primitives are functions of nests, which smelt's own scheduler calls too; their docstrings are this page.

```python
from smelt import te, tir


def schedule():
    """relu(A @ B), to be scheduled."""
    A, B = te.placeholder((64, 48), name="A"), te.placeholder((48, 32), name="B")
    k = te.reduce_axis((0, 48), name="k")
    C = te.compute((64, 32), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k), name="matmul")
    D = te.compute((64, 32), lambda i, j: te.max(C[i, j], 0.0), name="relu")
    return tir.Schedule(te.create_prim_func([A, B, D]))


def loops(sch, block="matmul"):
    return sch.get_loops(sch.get_block(block))
```
'''

EXAMPLES: dict[str, str] = {
    "split": "i, j, k = loops(sch)\nk_0, k_1 = sch.split(k, factors=[None, 16])",
    "fuse": "i, j, k = loops(sch)\nsch.fuse(i, j)",
    "merge": "sch.merge(loops(sch)[0], loops(sch, 'relu')[0])",
    "reorder": "i, j, k = loops(sch)\nsch.reorder(k, i, j)",
    "fission": "i = sch.merge(loops(sch)[0], loops(sch, 'relu')[0])\nsch.fission(i)",
    "loop_partition": "i, j = loops(sch, 'relu')\nsch.loop_partition(i, factors=[16, None])",
    "tighten": """i, j = loops(sch, 'relu')
i_0, i_1 = sch.split(i, factors=[None, 24])
whole, rest = sch.loop_partition(i_0, factors=[2, None])
sch.tighten(rest)""",
    "add_unit_loop": "sch.add_unit_loop(sch.get_block('relu'))",
    "parallel": "sch.parallel(loops(sch)[0])",
    "vectorize": "sch.vectorize(loops(sch, 'relu')[1])",
    "reduce_in_lanes": "sch.reduce_in_lanes(loops(sch)[2])",
    "turn": """A = te.placeholder((32, 64), name="A")
sch = tir.Schedule(te.create_prim_func([A, te.compute((64, 32), lambda i, j: A[j, i], name="T")]))
i, j = sch.get_loops("T")
(i_0, i_1), (j_0, j_1) = sch.split(i, factors=[None, 8]), sch.split(j, factors=[None, 8])
sch.reorder(i_0, j_0, i_1, j_1)
sch.vectorize(i_1)
sch.turn(j_1)""",
    "unroll": "sch.unroll(sch.split(loops(sch)[2], factors=[None, 4])[1])",
    "bind": "sch.bind(loops(sch, 'relu')[0], 'blockIdx.x')",
    "annotate": "sch.annotate(loops(sch, 'relu')[0], 'why', 'rows are short')",
    "unannotate": "i, _ = loops(sch, 'relu')\nsch.annotate(i, 'why', 'short')\nsch.unannotate(i, 'why')",
    "decompose_reduction": "sch.decompose_reduction('matmul', loops(sch)[2])",
    "decompose_padding": """A = te.placeholder((32,), name="A")
inside = lambda i: te.if_then_else(te.all(i >= 4, i < 36), A[i - 4], 0.0)
sch = tir.Schedule(te.create_prim_func([A, te.compute((40,), inside, name="P")]))
sch.decompose_padding("P", sch.get_loops("P")[0])""",
    "rfactor": "k_0, k_1 = sch.split(loops(sch)[2], factors=[4, None])\nsch.rfactor(k_0, factor_axis=0)",
    "compute_at": "sch.compute_at(sch.get_block('matmul'), loops(sch, 'relu')[0])",
    "reverse_compute_at": "sch.reverse_compute_at(sch.get_block('relu'), loops(sch)[1])",
    "fuse_reduction_epilogue": """A, k = te.placeholder((8, 16), name="A"), te.reduce_axis((0, 16), name="k")
b = te.placeholder((8,), name="b")
S = te.compute((8,), lambda i: te.sum(A[i, k], axis=k), name="S")
T = te.compute((8,), lambda i: S[i] + b[i], name="T")
sch = tir.Schedule(te.create_prim_func([A, b, T]))
sch.fuse_reduction_epilogue("S", "T")""",
    "compute_inline": "copy = sch.cache_read('matmul', 0, 'global')\nsch.compute_inline(copy)",
    "reverse_compute_inline": "copy = sch.cache_write('relu', 0, 'global')\nsch.reverse_compute_inline(copy)",
    "cache_read": "sch.cache_read('matmul', 1, 'local')",
    "cache_write": "sch.cache_write('matmul', 0, 'local')",
    "reindex": "sch.reindex('matmul', ('read', 1))",
    "reindex_cache_read": "sch.reindex_cache_read('matmul', 1, 'local', lambda i, j, k: (j, k))",
    "reindex_cache_write": "sch.reindex_cache_write('matmul', 0, 'local', lambda i, j, k: (j, i))",
    "set_scope": "sch.set_scope('matmul', 0, 'local')",
    "storage_align": "sch.storage_align('matmul', 0, axis=0, factor=32, offset=1)",
    "transform_layout": "sch.transform_layout('matmul', ('write', 0), lambda i, j: (i, j // 8, j % 8))",
    "transform_block_layout": "sch.transform_block_layout('relu', lambda i, j: (i * 32 + j,))",
    "reorder_block_iter_var": "sch.reorder_block_iter_var('matmul', [2, 0, 1])",
    "pad_einsum": "sch.pad_einsum('matmul', [1, 1, 32])",
    "blockize": "k_0, k_1 = sch.split(loops(sch)[2], factors=[None, 8])\nsch.blockize(k_1)",
}

WITHOUT = {
    "enter_postproc": "A mark in the trace.",
    "cache_inplace": "Its example needs a block that overwrites what it reads.",
    "tensorize": "Its example is in [kernels by hand](kernels.md).",
    "prefetch": """i, j, k = loops(sch)
i_0, i_1 = sch.split(i, factors=[None, 8])
sch.tensorize(i_1, "smelt.tile_8x32")
sch.prefetch("matmul_o", "B", lambda i, j, k: (i, 0), 1)""",
}


def steps() -> list[str]:
    """The names of the methods that change functions."""
    found = [
        name for each in (LoopMoves, PlaceMoves) for name, value in vars(each).items() if callable(value)
    ]
    return [name for name in found if not name.startswith("_")]


def primitive(name: str) -> Any:
    """The function of nests that a method calls; the method itself, where it names none."""
    method = getattr(Schedule, name)
    named = re.search(r"`(smelt\.nest\.[\w.]+)\.(\w+)`", inspect.getdoc(method) or "")
    return method if named is None else getattr(import_module(named[1]), named[2])


def section(name: str) -> Iterator[str]:
    method = getattr(Schedule, name)
    parameters = [
        str(each.replace(annotation=inspect.Parameter.empty))
        for each in inspect.signature(method).parameters.values()
        if each.name != "self"
    ]
    yield f"## {name}\n"
    yield f"`{name}({', '.join(parameters)})`\n"
    text, _, raised = (inspect.getdoc(primitive(name)) or "").partition("\nRaises:\n")
    for paragraph in text.strip().split("\n\n"):
        if ">>>" in paragraph:
            continue
        yield f"```text\n{paragraph}\n```\n" if "→" in paragraph else f"{paragraph}\n"
    for said in re.findall(r"^ {4}\w+: ((?:.|\n {8})*)", raised, re.MULTILINE):
        linked = re.sub(r"(SM[0-9]{4})", r"[\1](errors.md)", " ".join(said.split()))
        yield f"Refused: {linked}\n"
    if name in WITHOUT:
        yield f"{WITHOUT[name]}\n"
    elif name in EXAMPLES:
        yield f"```python\nsch = schedule()\n{EXAMPLES[name]}\n```\n"
        yield f"```diff\n{changed(name)}\n```\n"


def changed(name: str) -> str:
    """What the last step of an example changes in the text of the function."""
    known: dict[str, Any] = {}
    head = re.search(r"```python\n(.*?)```", HEAD, re.DOTALL)
    assert head is not None
    exec(f"{head[1]}\nsch = schedule()\n{EXAMPLES[name]}", known)
    sch = known["sch"]
    (_, before), (_, after) = sch.steps[-2:]
    lines = diff_text(before.script(), after.script()).splitlines()
    kept = [line.rstrip() for line in lines if line[:1] in "+-" and not line.startswith(("+++", "---"))]
    return "\n".join(kept) or "  (its text stays)"


def page() -> str:
    shown = [name for name in steps() if not name.startswith("sample_") and name != "enter_postproc"]
    return "\n".join([HEAD, *(line for name in shown for line in section(name))])


if __name__ == "__main__":
    text = page()
    if not PAGE.exists() or PAGE.read_text() != text:
        PAGE.write_text(text)
