"""Products that people schedule by the GPU's recipe: ``python -m tests.codegen.triton.recipes interpret``."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import smelt
from smelt import te
from smelt.backend import backend_for
from smelt.pipeline.triton import Interpreted, Launched, absent_target
from smelt.schedule.tilings import Tiles
from smelt.tir import PrimFunc, Schedule, recipes


@dataclass(frozen=True)
class Program:
    """A function of tensor expressions, and what PyTorch has for it: the same text is expected of both."""

    function: Callable[..., Any]
    """The last tensor, given placeholders."""
    eager: Callable[..., torch.Tensor]
    shapes: tuple[tuple[int, ...], ...]
    dtype: torch.dtype = torch.float32
    tiles: Tiles | None = None

    def func(self) -> PrimFunc:
        name = str(self.dtype).removeprefix("torch.")
        given = [te.placeholder(s, name=f"x{n}", dtype=name) for n, s in enumerate(self.shapes)]
        return te.create_prim_func([*given, self.function(*given)])

    def schedule(self, target: Any) -> Schedule:
        sch = Schedule(self.func())
        tiles = {} if self.tiles is None else {"tiles": self.tiles}
        sch.apply(lambda *given: recipes.dots(*given, **tiles), target=target.machine)
        return sch

    def tensors(self) -> list[torch.Tensor]:
        torch.manual_seed(0)
        return [torch.randn(shape).to(self.dtype) for shape in self.shapes]


def _product(a: Any, b: Any, transposed: bool = False) -> Any:
    *batch, rows, depth = a.shape
    k = te.reduce_axis((0, depth), name="k")

    def element(*index: Any) -> Any:
        *at, i, j = index
        one, other = a[(*at, i, k)], b[(*at, j, k)] if transposed else b[(*at, k, j)]
        return te.sum(one.astype("float32") * other.astype("float32"), axis=k)

    return te.compute((*batch, rows, b.shape[-2 if transposed else -1]), element, name="product")


def _epilogue(a: Any, b: Any, c: Any) -> Any:
    product = _product(a, b)
    biased = te.compute(product.shape, lambda i, j: product[i, j] + c[j], name="biased")
    return te.compute(product.shape, lambda i, j: te.tanh(biased[i, j]), name="result")


def _narrow(a: Any, b: Any) -> Any:
    product = _product(a, b, transposed=True)
    return te.compute(product.shape, lambda i, j: product[i, j].astype("bfloat16"), name="result")


BIASED = (lambda a, b, c: torch.tanh(a @ b + c), ((70, 50), (50, 90), (90,)))
PROGRAMS = {
    "epilogue": Program(_epilogue, *BIASED),
    "whole_tiles": Program(_product, lambda a, b: a @ b, ((128, 64), (64, 128))),
    "many_tiles": Program(_product, lambda a, b: a @ b, ((1024, 16), (16, 65))),
    "one_tile": Program(_product, lambda a, b: a @ b, ((3, 5), (5, 2))),
    "batches": Program(_product, lambda a, b: a @ b, ((3, 20, 35), (3, 35, 18))),
    "bfloat16": Program(_narrow, lambda a, b: a @ b.T, ((40, 70), (30, 70)), torch.bfloat16),
    "tiles": Program(_epilogue, *BIASED, tiles=Tiles(16, 32, 16, warps=2, stages=4)),
    "descriptors": Program(
        lambda a, b: _product(a, b, transposed=True),
        lambda a, b: a @ b.T,
        ((200, 36), (88, 36)),
        tiles=Tiles(16, 16, 16, descriptors=True),
    ),
}


def looked_at(products: bool | Tiles = False) -> Launched:
    """A GPU that is not there."""
    absent = absent_target("sm90")
    return Launched(absent.device, absent.architecture, absent.driver, products)


def texts(name: str) -> tuple[str, str]:
    """The Triton functions of a program: from its schedule, and from PyTorch's call."""
    program, found = PROGRAMS[name], []
    tensors, target = program.tensors(), looked_at()
    out = torch.empty_like(program.eager(*tensors))
    smelt.reset()
    smelt.build(program.schedule(target), target=target)["main"].begin(*tensors, out)
    found.append(smelt.reports()[-1].text("triton"))
    smelt.reset()
    own = looked_at(program.tiles or True)
    torch.compile(program.eager, backend=backend_for(own))(*tensors)
    found.append(smelt.reports()[-1].text("triton"))
    return found[0], found[1]


def interpret(name: str) -> dict[str, Any]:
    """Runs a scheduled program in Triton's interpreter."""
    program, target = PROGRAMS[name], Interpreted()
    tensors = program.tensors()
    wanted = program.eager(*tensors)
    got = torch.full_like(wanted, 77)
    smelt.build(program.schedule(target), target=target)(*tensors, got)
    report = smelt.reports()[-1]
    return {
        "far": float((got - wanted).abs().max()),
        "kernels": len(report.kernels),
        "externs": report.externs,
    }


def compiled(name: str) -> dict[str, Any]:
    """Compiles a scheduled program for a GPU."""
    program, target = PROGRAMS[name], looked_at()
    tensors = program.tensors()
    out = torch.empty_like(program.eager(*tensors))
    smelt.build(program.schedule(target), target=target)["main"].begin(*tensors, out)
    ptx = smelt.reports()[-1].text("ptx")
    return {
        "multiplies": "mma" in ptx,
        "copies": "cp.async.bulk.tensor" in ptx,
        "entries": ptx.count(".entry"),
    }


if __name__ == "__main__":
    does = {"interpret": interpret, "compile": compiled}[sys.argv[1]]
    for each in sys.argv[2:] or PROGRAMS:
        print(json.dumps({"name": each, **does(each)}), flush=True)
