"""A captured program for one instruction set: its plan, its kernels as C++, and its constants."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from sympy import Expr, Integer
from torch.utils._sympy.functions import Max

from smelt.capture import Program
from smelt.codegen.cpp import UnitPrinter, print_unit
from smelt.codegen.cpp.kernel import STACK_BYTES
from smelt.config import Config
from smelt.errors import SmeltError
from smelt.nest.ir import Alloc, Block, Kernel, Run, SortRow
from smelt.packages.problems import SEED, check_packageable
from smelt.packages.targets import Level
from smelt.pipeline.built import with_errors
from smelt.pipeline.passes import lowered
from smelt.pipeline.targets import machine_target
from smelt.runtime import cache, executor, library, toolchain
from smelt.runtime.made_with import source_digest
from smelt.runtime.plan import ExternStep, Plan, Size
from smelt.schedule import AHEAD, schedule
from smelt.symbolic.text import python_text

HEADER = "smelt_kernels.h"
ENTRY_BYTES = 16
"""Most bytes of an element and its position while a row is sorted (``smelt_sort.h``)."""


class _Included:
    """Has the printer include the header, which a package has once."""

    header = f'#include "{HEADER}"'

    def free(self) -> bool:
        return False

    def start(self, text: str) -> None:
        raise AssertionError("no part is compiled early")


@dataclass(frozen=True, slots=True)
class LevelProgram:
    """A program for one instruction set. ``files``: C++ texts; ``constants``: name → value;
    ``names``: constant → its name in the weights file; ``scratch``: bytes of scratch memory of each kernel,
    for one thread.
    """

    plan: Plan
    files: tuple[str, ...]
    constants: Mapping[str, torch.Tensor]
    names: Mapping[str, str]
    scratch: tuple[Size, ...]
    runs: tuple[Run, ...]
    level: Level

    @property
    def seeded(self) -> bool:
        """Whether the program takes a seed."""
        return any(isinstance(step, ExternStep) and step.target == SEED for step in self.plan.steps)


def level_program(program: Program, config: Config, level: Level, prefix: str, parts: int) -> LevelProgram:
    """Compiles a program in contract form down to C++. ``prefix`` begins the names of its functions;
    ``parts``: the number of files that are compiled in parallel.

    Raises:
        NotPackageableError: SM1401, it needs what packages do not have.
    """
    graph = lowered(program, config, level.target)
    here = machine_target(toolchain.find())
    scheduled = schedule(graph, config, level.target, prefix, constants=here)
    check_packageable(program.name, scheduled)
    ahead = [run for run in scheduled.runs if run.name.startswith(f"{prefix}{AHEAD}")]
    own = [run for run in scheduled.runs if run not in ahead]
    unit = UnitPrinter(_Included(), watched=False).finish(own, parts)
    constants = {name: tensor for each in graph.with_bodies() for name, tensor in each.constants.items()}
    plan = with_errors(scheduled.plan, unit.errors)
    constants |= dict(_folded(plan, program, ahead))
    scratch = [scratch_bytes(call.kernel) for run in own for call in run.calls]
    texts = tuple(dict.fromkeys(python_text(each) if not each.is_Integer else int(each) for each in scratch))
    return LevelProgram(plan, unit.parts, constants, _names(plan, program), texts, tuple(own), level)


def _names(plan: Plan, program: Program) -> dict[str, str]:
    """Names for the constants that are computed ahead, from those of their sources."""
    names = dict[str, str]()
    for each in plan.folded:
        for use in each.uses:
            sources = [program.inputs[source] for source in use.sources]
            paths = "+".join(each.path or each.name for each in sources)
            names |= dict.fromkeys(use.results, f"ahead.{paths}")
    return names


def _folded(plan: Plan, program: Program, runs: Sequence[Run]) -> Iterator[tuple[str, torch.Tensor]]:
    """The constants that are computed ahead, by this machine's compiler: name → value."""
    if not plan.folded:
        return
    tools = toolchain.find()
    unit = print_unit(runs, library.compilers()) if runs else None
    built = None
    if unit is not None:
        key = cache.key_of("package", unit.text, tools.identity, source_digest())
        built = library.compile_unit(unit.text, tools, cache.open_cache(), key, parts=unit.parts).result()
    for each in plan.folded:
        compute = executor.build(replace(each.plan, notes={}), built, {})
        for use in each.uses:
            values = [program.inputs[source].value for source in use.sources]
            assert all(value is not None for value in values)
            results = compute([value.detach() for value in values if value is not None])
            yield from zip(use.results, results)


def scratch_bytes(kernel: Kernel) -> Expr:
    """The most scratch memory in bytes that one thread has at once in a kernel, each piece rounded up.

    Raises:
        SmeltError: SM1405, a piece whose size depends on a loop.
    """
    sizes = set(kernel.sizes)

    def of(block: Block) -> Expr:
        own, inner = Integer(0), Integer(0)
        for stmt in block.stmts:
            if isinstance(stmt, Alloc):
                count = stmt.count
                if count.is_Integer and int(count) * stmt.dtype.itemsize <= STACK_BYTES:
                    continue
                if not count.free_symbols <= sizes:
                    what = f"scratch memory of {count} elements in kernel {kernel.name}"
                    raise SmeltError("SM1405", what, why="its size depends on a loop")
                own += _rounded(count * stmt.dtype.itemsize)
            if isinstance(stmt, SortRow):
                inner = Max(inner, _rounded(stmt.length * 2 * ENTRY_BYTES))
            for each in _blocks(stmt):
                inner = Max(inner, of(each))
        return own + inner

    return of(kernel.body)


def _rounded(size: Expr) -> Expr:
    return Integer(-(-int(size) // 64) * 64) if size.is_Integer else size + 63


def _blocks(stmt: object) -> Iterator[Block]:
    """The blocks inside of a statement."""
    for name in getattr(stmt, "__dataclass_fields__", ()):
        value = getattr(stmt, name)
        if isinstance(value, Block):
            yield value
        elif isinstance(value, tuple):
            yield from (each for each in value if isinstance(each, Block))
