"""Recipes against smelt's own schedules, family by family: the same computation, in turns.

`python benchmarks/recipes.py [--threads N] [--seconds S] [--families matmul,attention] [--json FILE]`. A
recipe schedules loops that are written in `te`. Smelt's own kernels are built from the same loops if these
are products; else from the PyTorch program, without ATen (option ``own``), and then a call also passes
Dynamo's guards: what they take is measured with a call of next to nothing, and subtracted. Times are the
fastest calls, each with the memory of its results. Compile time is that of scheduling, printing and the C++
compiler; no cache has the kernel. Results are compared with eager's first.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import exp, log
from pathlib import Path
from statistics import fmean
from time import perf_counter
from typing import Any
from unittest.mock import patch

import torch
from rich.table import Table
from torch.nn import functional as F

import smelt
from smelt import te, tir, topi
from smelt.cli.bench import duration
from smelt.cli.console import check_folder, out, progress
from smelt.cli.measure import race
from smelt.tir import recipes

PHASES = ("schedule", "codegen", "compile", "wait")


@dataclass(frozen=True, slots=True)
class Case:
    """A computation: ``loops`` gives its function of loops, ``program`` computes it in PyTorch, from tensors
    of the shapes ``inputs``; results are of the shapes ``outputs``. ``block``: the recipe's. ``alike``: smelt
    schedules the loops as it does the program.
    """

    name: str
    recipe: Callable[..., None]
    loops: Callable[[], tir.PrimFunc]
    program: Callable[..., Any]
    inputs: Sequence[tuple[int, ...]]
    outputs: Sequence[tuple[int, ...]]
    block: str | None = None
    alike: bool = False
    prepare: Callable[..., Sequence[torch.Tensor]] = field(default=lambda *inputs: inputs)
    """From the inputs, those of the PyTorch program."""


# -- computations --------------------------------------------------------------------------------------------


def product(rows: int, columns: int, depth: int, recipe: Callable[..., None], turned: bool = True) -> Case:
    """``relu(a @ b)``, or with ``turned`` ``relu(a @ b.T)``, as of a layer's weight."""
    second = (columns, depth) if turned else (depth, columns)

    def loops() -> tir.PrimFunc:
        a, b = te.placeholder((rows, depth), name="a"), te.placeholder(second, name="b")
        k = te.reduce_axis((0, depth), name="k")
        c = te.compute(
            (rows, columns),
            lambda i, j: te.sum(a[i, k] * (b[j, k] if turned else b[k, j]), axis=k),
            name="c",
        )
        return te.create_prim_func([a, b, te.compute(c.shape, lambda i, j: te.max(c[i, j], 0.0), name="d")])

    def program(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (a @ (b.t() if turned else b)).relu()

    name = f"{rows} x {columns} x {depth}, {'weight' if turned else 'rows'}"
    return Case(name, recipe, loops, program, ((rows, depth), second), ((rows, columns),), alike=True)


def convolution(
    layout: str, channels: int, filters: int, size: int, window: int = 3, stride: int = 1
) -> Case:
    """A convolution of one image with relu; ``layout`` NHWC or NCHW."""
    last, pad = layout == "NHWC", window // 2
    image = (1, size, size, channels) if last else (1, channels, size, size)
    weight = (window, window, channels, filters) if last else (filters, channels, window, window)
    side = (size + 2 * pad - window) // stride + 1
    result = (1, side, side, filters) if last else (1, filters, side, side)

    def loops() -> tir.PrimFunc:
        x, f = te.placeholder(image, name="x"), te.placeholder(weight, name="f")
        conv = topi.nn.conv2d_nhwc if last else topi.nn.conv2d_nchw
        return te.create_prim_func([x, f, topi.nn.relu(conv(x, f, stride, pad, 1))])

    def program(x: torch.Tensor, f: torch.Tensor) -> torch.Tensor:
        y = F.conv2d(x, f, stride=stride, padding=pad).relu()
        return y.permute(0, 2, 3, 1) if last else y

    def prepare(x: torch.Tensor, f: torch.Tensor) -> Sequence[torch.Tensor]:
        """Both packages' tensors lie in memory alike, but for the weight, whose channels PyTorch has last."""
        if not last:
            return x, f
        return x.permute(0, 3, 1, 2), f.permute(3, 2, 0, 1).contiguous(memory_format=torch.channels_last)

    name = f"{layout} {channels} to {filters}, {size} x {size}, window {window}, stride {stride}"
    return Case(name, recipes.convolution, loops, program, (image, weight), (result,), prepare=prepare)


def attention(heads: int, queries: int, keys: int, depth: int) -> Case:
    """Softmax attention, no mask; a row of the result is divided by its sum, as smelt's own does."""
    shapes = [(heads, queries, depth), (heads, keys, depth), (heads, keys, depth)]
    scale = depth**-0.5

    def loops() -> tir.PrimFunc:
        q, k, v = (te.placeholder(shape, name=name) for shape, name in zip(shapes, "QKV"))
        r, x, y, z = (te.reduce_axis((0, n), name=x) for n, x in zip((depth, keys, keys, keys), "rxyz"))
        scores, rows = (heads, queries, keys), (heads, queries)
        s = te.compute(scores, lambda h, i, j: te.sum(q[h, i, r] * k[h, j, r], axis=r), name="S")
        t = te.compute(scores, lambda h, i, j: s[h, i, j] * scale, name="T")
        m = te.compute(rows, lambda h, i: te.max(t[h, i, x], axis=x), name="M")
        w = te.compute(scores, lambda h, i, j: te.exp(t[h, i, j] - m[h, i]), name="W")
        total = te.compute(rows, lambda h, i: te.sum(w[h, i, y], axis=y), name="total")
        o = te.compute(q.shape, lambda h, i, c: te.sum(w[h, i, z] * v[h, z, c], axis=z), name="O")
        out = te.compute(q.shape, lambda h, i, c: o[h, i, c] / total[h, i], name="out")
        return te.create_prim_func([q, k, v, out])

    name = f"{heads} heads, {queries} x {keys} of {depth}"
    return Case(name, recipes.attention, loops, _attention, shapes, shapes[:1], "O", prepare=_in_a_batch)


def gradients(heads: int, queries: int, keys: int, depth: int) -> Case:
    """The gradients of `attention`. PyTorch's operator is given the result and the sums of the forward pass,
    the recipe makes the sums again.
    """
    shapes = [(heads, queries, depth), (heads, keys, depth), (heads, keys, depth), (heads, queries, depth)]
    scale, scores = depth**-0.5, (heads, queries, keys)

    def loops() -> tir.PrimFunc:
        q, k, v, g = (te.placeholder(shape, name=name) for shape, name in zip(shapes, ("Q", "K", "V", "dO")))
        r, c, j, i = (te.reduce_axis((0, n), name=x) for n, x in zip((depth, depth, keys, queries), "rcji"))
        s = te.compute(scores, lambda h, i, j: te.sum(q[h, i, r] * k[h, j, r], axis=r), name="S")
        p = topi.nn.softmax(te.compute(scores, lambda h, i, j: s[h, i, j] * scale, name="T"))
        dp = te.compute(scores, lambda h, i, j: te.sum(g[h, i, c] * v[h, j, c], axis=c), name="dP")
        d = te.compute(scores[:2], lambda h, i: te.sum(p[h, i, j] * dp[h, i, j], axis=j), name="D")
        ds = te.compute(scores, lambda h, i, j: p[h, i, j] * (dp[h, i, j] - d[h, i]) * scale, name="dS")
        dq = te.compute(q.shape, lambda h, i, x: te.sum(ds[h, i, j] * k[h, j, x], axis=j), name="dQ")
        dk = te.compute(k.shape, lambda h, j, x: te.sum(ds[h, i, j] * q[h, i, x], axis=i), name="dK")
        dv = te.compute(v.shape, lambda h, j, x: te.sum(p[h, i, j] * g[h, i, x], axis=i), name="dV")
        return te.create_prim_func([q, k, v, g, dq, dk, dv])

    def prepare(*inputs: torch.Tensor) -> Sequence[torch.Tensor]:
        q, k, v, g = _in_a_batch(*inputs)
        made, sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v)
        return q, k, v, g, made, sums

    name = f"{heads} heads, {queries} x {keys} of {depth}"
    return Case(
        name, recipes.attention_gradients, loops, _gradients, shapes, shapes[:3], "dQ", prepare=prepare
    )


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v)[0]


def _gradients(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, made: torch.Tensor, sums: torch.Tensor
) -> list[torch.Tensor]:
    operator = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    return [each[0] for each in operator(g, q, k, v, made, sums, 0.0, False)]


def _in_a_batch(*inputs: torch.Tensor) -> Sequence[torch.Tensor]:
    return [each[None] for each in inputs]


FAMILIES: dict[str, Sequence[Case]] = {
    "matmul": tuple(
        product(*sizes, recipes.matmul, turned)
        for *sizes, turned in (
            (128, 512, 768, False),
            (128, 768, 768, True),
            (128, 3072, 768, True),
            (128, 768, 3072, True),
            (512, 768, 768, True),
            (197, 768, 3072, True),
            (100, 500, 700, True),
            (1024, 1024, 1024, False),
        )
    ),
    "few rows": tuple(
        product(*sizes, recipes.few_rows)
        for sizes in (
            (1, 576, 576),
            (1, 1536, 576),
            (1, 3072, 768),
            (4, 768, 3072),
            (8, 768, 768),
            (1, 16384, 576),
        )
    ),
    "convolution NHWC": tuple(
        convolution("NHWC", *sizes)
        for sizes in (
            (3, 64, 224, 7, 2),
            (64, 64, 56, 3),
            (128, 128, 28, 3),
            (256, 256, 14, 3),
            (128, 256, 28, 3, 2),
            (64, 256, 56, 1),
            (1024, 256, 14, 1),
        )
    ),
    "convolution NCHW": tuple(
        convolution("NCHW", *sizes)
        for sizes in ((64, 64, 56, 3), (128, 128, 28, 3), (256, 256, 14, 3), (64, 256, 56, 1))
    ),
    "attention": (
        attention(12, 128, 128, 32),
        attention(12, 128, 128, 64),
        attention(12, 197, 197, 64),
        attention(12, 512, 512, 64),
        attention(8, 1024, 1024, 64),
    ),
    "gradients of attention": (
        gradients(12, 128, 128, 64),
        gradients(12, 197, 197, 64),
        gradients(12, 512, 512, 64),
        gradients(4, 1024, 1024, 64),
    ),
}


# -- measurement ---------------------------------------------------------------------------------------------


def main() -> int:
    """Measure, print a table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--seconds", type=float, default=3.0, help="for each computation")
    parser.add_argument("--families", default=",".join(FAMILIES), help="separated by commas (default: all)")
    parser.add_argument("--json", default=None)
    options = parser.parse_args()
    families = [each.strip() for each in options.families.split(",")]
    if unknown := [each for each in families if each not in FAMILIES]:
        parser.error(f"no such family: {', '.join(unknown)}; there are {', '.join(FAMILIES)}")
    check_folder("--json", options.json)
    if options.threads:
        torch.set_num_threads(options.threads)
    document: dict[str, Any] = {"threads": torch.get_num_threads(), "families": {}}
    with tempfile.TemporaryDirectory() as folder, patch.dict(os.environ, SMELT_CACHE_DIR=folder):
        for case in (product(8, 16, 16, recipes.matmul), attention(1, 8, 16, 16)):
            measured(case, 0.01)  # what is loaded and learnt once
        for family in families:
            with progress(family) as said:
                document["families"][family] = list(_measured(FAMILIES[family], options.seconds, said))
    show(document)
    if options.json:
        Path(options.json).write_text(json.dumps(document, indent=1) + "\n")
    return 0


def _measured(cases: Sequence[Case], seconds: float, said: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    for case in cases:
        said(case.name)
        yield {"name": case.name, **measured(case, seconds)}


def measured(case: Case, seconds: float) -> dict[str, float]:
    """Seconds of the fastest call of eager, of smelt's own and of the recipe, and of compiling the last two.

    Raises:
        AssertionError: a result is not eager's.
    """
    torch.manual_seed(0)
    torch._dynamo.reset()
    smelt.reset()
    inputs = [torch.randn(shape) for shape in case.inputs]
    given = [each.detach() for each in case.prepare(*inputs)]

    def program() -> Any:
        return case.program(*given)

    with torch.no_grad():
        begin = perf_counter()
        if case.alike:
            own = _built(case.loops(), case, inputs)
            results, compiling = own(), perf_counter() - begin
        else:
            whole = smelt.compile(case.program, own=True, dynamic=False)
            own = lambda: whole(*given)  # noqa: E731
            results = own()
            (report,) = smelt.reports()
            compiling = sum(report.phase_seconds.get(phase, 0.0) for phase in PHASES)
        begin = perf_counter()
        sch = tir.Schedule(case.loops())
        sch.apply(case.recipe, block=case.block)
        scheduled = perf_counter()
        recipe = _built(sch, case, inputs)
        found, end = recipe(), perf_counter()
        for made in (results, found):
            for one, other in zip(_several(made), _several(program()), strict=True):
                torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)
        times = fastest({"eager": program, "own": own, "recipe": recipe}, seconds)
        if not case.alike:
            times["own"] -= guards()
    return {
        **times,
        "own_compile": compiling,
        "recipe_compile": end - begin,
        "recipe_schedule": scheduled - begin,
    }


def _built(what: Any, case: Case, inputs: Sequence[torch.Tensor]) -> Callable[[], list[torch.Tensor]]:
    """A call of a function of loops, or of its schedule, with new results."""
    library = smelt.build(what)

    def run() -> list[torch.Tensor]:
        results = [torch.empty(shape) for shape in case.outputs]
        library(*inputs, *results)
        return results

    return run


def fastest(runs: dict[str, Callable[[], Any]], seconds: float) -> dict[str, float]:
    """Seconds of the fastest call of each."""
    return {name: min(timing.seconds) for name, timing in race(runs, seconds).items()}


@cache
def guards() -> float:
    """Seconds by which a compiled program of next to nothing takes longer than the same loops."""
    x = torch.ones(8)
    compiled = smelt.compile(lambda x: x + 1.0, own=True, dynamic=False)
    a = te.placeholder((8,), name="a")
    loops = te.create_prim_func([a, te.compute((8,), lambda i: a[i] + 1.0, name="b")])
    built = smelt.build(loops)
    times = fastest({"program": lambda: compiled(x), "loops": lambda: built(x, torch.empty(8))}, 0.3)
    return times["program"] - times["loops"]


def _several(results: Any) -> list[torch.Tensor]:
    return [results] if torch.is_tensor(results) else list(results)


def show(document: dict[str, Any]) -> None:
    """A row for each computation and each family's geometric means: more is faster."""
    table = Table(
        title=f"{document['threads']} thread(s)", title_justify="left", box=None, padding=(0, 2, 0, 0)
    )
    headings = ("computation", "eager", "own", "recipe", "own / recipe", "compile", "recipe", "scheduling")
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "computation" else "right")
    for family, rows in document["families"].items():
        mean = exp(fmean(log(row["own"] / row["recipe"]) for row in rows))
        slower = exp(fmean(log(row["recipe_compile"] / row["own_compile"]) for row in rows))
        table.add_row(f"[bold]{family}", "", "", "", f"[bold]{mean:.3f}", "", f"[bold]{slower:.2f}x")
        for row in rows:
            times = (duration(row[each]) for each in ("eager", "own", "recipe"))
            compiling = (
                f"{row[each]:.2f} s" for each in ("own_compile", "recipe_compile", "recipe_schedule")
            )
            table.add_row(f"  {row['name']}", *times, f"{row['own'] / row['recipe']:.3f}", *compiling)
    out().print(table)


if __name__ == "__main__":
    sys.exit(main())
