"""The trace of a schedule that a person wrote: its blocks, its steps as a film, and the C++ at the end."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence

import torch

import smelt
from smelt.codegen.cpp.traced import traced
from smelt.errors import SmeltError
from smelt.nest.finish import finish
from smelt.nest.ir import Block, Kernel, Let, Stage, Stmt
from smelt.nest.origins import Places
from smelt.nest.printer import lines_of
from smelt.nest.tree import blocks_of, rewritten, stages, with_body
from smelt.nest.work import work
from smelt.records import replace
from smelt.runtime import toolchain
from smelt.script.module import IRModule, PrimFunc
from smelt.tir.schedule import Schedule
from smelt.tracing import parts
from smelt.tracing.about import VERSION, about, peaks_of
from smelt.tracing.parts import Data


def schedule_trace(sch: Schedule, *, title: str, command: str, seconds: float = 1.0) -> Data:
    """The trace of the function that the schedule works on: a film with a frame for each step. Its source is
    the schedule as text. It runs on random numbers for ``seconds``; with sizes that are not known, or 0
    seconds, it is not timed.

    Raises:
        SmeltError: SM0930, the schedule has no function.
    """
    name = sch.func_working_on
    if name is None:
        raise SmeltError("SM0930", f"there is nothing of {title} to show", why="work_on a function first")
    label = name.name_hint
    written = dict(zip(sch.trace.insts, sch.trace.as_python()))
    frames = [
        ("start" if step is None else written.get(step, step.kind), _kernel_of(module, label))
        for step, module in sch.steps
    ]
    final = frames[-1][1]
    blocks = {each: place for place, each in enumerate(_block_names([kernel for _, kernel in frames]))}
    text = sch.trace.as_python()
    tools = toolchain.find()
    printed = traced(finish(_marked(final, blocks), tools.vector_bytes // 4))
    done = work(final, {})
    spent = _seconds(sch.func, seconds) if seconds > 0 and not final.sizes else None
    step = parts.step(
        "k0",
        "kernel",
        label,
        origins=list(blocks.values()),
        loops=list(blocks.values()),
        seconds=spent,
        operations=int(done.operations),
        moved=int(done.moved),
        parallel=parts.is_parallel(final),
        nest=0,
        code=0,
    )
    graph = parts.graph(
        label,
        "te",
        sizes=[str(size) for size in final.sizes],
        operators=[_operator(each, text) for each in blocks],
        loops=[{"text": _loops_of(frames, each), "operators": [place]} for each, place in blocks.items()],
        steps=[step],
        nests=[[_frame(title, kernel, blocks) for title, kernel in frames]],
        codes=[parts.code("c++", label, printed)],
    )
    return {
        "schema": "smelt.trace",
        "version": VERSION,
        "title": title,
        "made": about({}, command),
        "peaks": peaks_of() if spent is not None else None,
        "run_seconds": spent,
        "files": [{"path": "the schedule", "name": "schedule", "first": 1, "text": "\n".join(text)}],
        "compile": [],
        "graphs": [graph],
    }


def _kernel_of(module: IRModule, name: str) -> Kernel:
    function = module[name]
    assert isinstance(function, PrimFunc)
    return function.kernel


def _block_names(kernels: Sequence[Kernel]) -> list[str]:
    """The blocks of all frames, in order of appearance."""
    return list(dict.fromkeys(stage.name for kernel in kernels for stage in stages(kernel.body)))


def _marked(kernel: Kernel, blocks: Mapping[str, int]) -> Kernel:
    """The kernel whose instructions have their block as origin, also once blocks are dissolved."""

    def inside(block: Block, place: int) -> Block:
        def rewrite(stmt: Stmt) -> Sequence[Stmt] | None:
            if isinstance(stmt, Let):
                return (replace(stmt, of=(place,)),)
            return (marked(stmt),) if isinstance(stmt, Stage) else None

        return rewritten(block, rewrite)

    def marked(stage: Stage) -> Stage:
        place = blocks[stage.name]
        init = None if stage.init is None else inside(stage.init, place)
        return replace(stage, body=inside(stage.body, place), init=init)

    return with_body(
        kernel, rewritten(kernel.body, lambda stmt: (marked(stmt),) if isinstance(stmt, Stage) else None)
    )


def _frame(title: str, kernel: Kernel, blocks: Mapping[str, int]) -> Data:
    found: dict[int, Places] = {}

    def visit(stmt: Stmt, around: Places) -> Places:
        mine = (blocks[stmt.name],) if isinstance(stmt, Stage) else around
        held = [visit(each, mine) for block in blocks_of(stmt) for each in block.stmts]
        found[id(stmt)] = mine or tuple(sorted({place for each in held for place in each}))
        return found[id(stmt)]

    for stmt in kernel.body.stmts:
        visit(stmt, ())
    return parts.frame(title, kernel, lambda stmt: found[id(stmt)])


def _operator(block: str, text: Sequence[str]) -> Data:
    """A block as an operator; its lines are those of the schedule that get it or name what they got."""
    named = re.compile(rf"\b{re.escape(block)}\b")
    got = next((number for number, line in enumerate(text, 1) if named.search(line)), None)
    lines = [] if got is None else [[0, got, "schedule"]]
    return parts.operator(block, "block", f"block {block}", lines=lines)


def _loops_of(frames: Sequence[tuple[str, Kernel]], block: str) -> str:
    """The text of a block, in the first frame that has it."""
    for _, kernel in frames:
        for stage in stages(kernel.body):
            if stage.name == block:
                return "\n".join(line for line, _ in lines_of(Block((stage,))))
    return block


def _seconds(func: PrimFunc, seconds: float) -> float:
    """The best time of one call, on random numbers."""
    built, kernel = smelt.build(func), func.kernel
    args = [_random(param.dtype, [int(size) for size in param.shape]) for param in kernel.params]
    built(*args)
    best, end = float("inf"), time.perf_counter() + seconds
    while True:
        begin = time.perf_counter()
        built(*args)
        now = time.perf_counter()
        best = min(best, now - begin)
        if now > end:
            return best


def _random(dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
    if dtype.is_floating_point:
        return torch.randn(*shape).to(dtype)
    return torch.zeros(*shape, dtype=dtype)
