"""`smelt.tir.Schedule`: a program, and the primitives on it by the names that people see."""

from __future__ import annotations

import difflib
import random
from collections.abc import Callable, Sequence
from typing import Any

from sympy import Expr, Symbol

from smelt.nest.ir import For, Kernel, LoopKind, Stage
from smelt.nest.primitives import ScheduleError, stage_loops
from smelt.nest.primitives.refusals import Refused, named
from smelt.nest.scopes import consumers, is_output, members, place_of_stage, producers
from smelt.nest.tree import blocks_of, loops, stages, trip_count
from smelt.records import replace
from smelt.script.module import IRModule, PrimFunc
from smelt.te.errors import users_line
from smelt.tir.check import assert_same
from smelt.tir.places import PlaceMoves
from smelt.tir.trace import BlockRV, ExprRV, LoopRV, Reference, Step, Trace


class Schedule(PlaceMoves):
    """A program that is changed step by step: ``sch.mod`` is what it is now, ``sch.trace`` what was done.

    ``mod``: a function of loops, or a module of them. Each method checks that the step changes no result and
    raises `ScheduleError` otherwise; the program is then what it was. References to blocks and loops stay
    good through later steps. ``check``: each step is run besides, before and after, on random numbers.
    """

    def __init__(
        self, mod: PrimFunc | IRModule, *, check: bool = False, seed: int | None = None, **ignored: Any
    ) -> None:
        del ignored
        self._mod = IRModule({mod.name: mod}) if isinstance(mod, PrimFunc) else IRModule(mod.functions)
        functions = [str(var) for var, each in self._mod.items() if isinstance(each, PrimFunc)]
        self._function = "main" if "main" in functions or not functions else functions[0]
        self._alone = isinstance(mod, PrimFunc)
        self.check = check
        self.trace = Trace()
        self._random = random.Random(seed)
        self._blocks: list[BlockRV] = []
        self._undone: list[tuple[IRModule, str]] = []

    # -- what there is -----------------------------------------------------------------------------------

    @property
    def mod(self) -> IRModule:
        """The module as it is now."""
        return IRModule(self._mod.functions, self._mod.attrs)

    @property
    def func(self) -> PrimFunc:
        """The function that is worked on."""
        found = self._mod[self._function]
        assert isinstance(found, PrimFunc)
        return found

    @property
    def _kernel(self) -> Kernel:  # type: ignore[override]
        return self.func.kernel

    @property
    def func_working_on(self) -> str:
        return self._function

    def work_on(self, func_name: str) -> None:
        """Work on another function of the module.

        Raises:
            ScheduleError: SM1011 there is none of that name.
        """
        names = [str(var) for var in self._mod]
        if func_name not in names:
            self._refuse("SM1011", f"work_on({func_name!r})", "there is no such function", func_name, names)
        self._function = func_name

    def copy(self) -> Schedule:
        """Another schedule of the program as it is now, with the same trace."""
        made = Schedule(self.func if self._alone else self.mod, check=self.check)
        made._function = self._function
        made.trace = Trace(list(self.trace.steps))
        made._blocks = list(self._blocks)
        return made

    def show(self, *, diff: bool = False, **options: Any) -> None:
        """Print the program; ``diff``: what the last step changed in it."""
        if diff and self._undone:
            before = self._undone[-1][0].script().splitlines()
            for line in difflib.unified_diff(before, self.mod.script().splitlines(), lineterm="", n=2):
                print(line)
            return
        self.mod.show(**options)

    def get(self, reference: Any) -> Any:
        """What a reference stands for: a block (``name_hint``, ``iter_vars``), a loop, a number."""
        if isinstance(reference, BlockRV):
            return BlockView(self._stage(reference))
        if isinstance(reference, LoopRV):
            return LoopView(self._loop(reference))
        return int(reference)

    def get_block(self, name: str, func_name: str | None = None) -> BlockRV:
        """The block of that name.

        Raises:
            ScheduleError: SM1012 there is none, or several.
        """
        if func_name is not None and func_name != self._function:
            self.work_on(func_name)
        found = [stage for stage in stages(self._kernel.body) if stage.name == name]
        if len(found) != 1:
            names = [stage.name for stage in stages(self._kernel.body)]
            why = "there is no such block" if not found else f"there are {len(found)} such blocks"
            self._refuse("SM1012", f"get_block({name!r})", why, name, names)
        arguments = {"name": name} if func_name is None else {"name": name, "func_name": func_name}
        return self._record("get_block", arguments, [self._block(name)])[0]

    get_sblock = get_block

    def get_loops(self, block: BlockRV | str) -> list[LoopRV]:
        """The loops around a block, the outermost first, as far as the next block around it."""
        place = place_of_stage(self._kernel, self._stage_name(block))
        assert place is not None
        found: list[For] = []
        for stmt in place.around:
            if isinstance(stmt, Stage):
                found = []
            elif isinstance(stmt, For):
                found.append(stmt)
        made = [LoopRV(each.var, named(each)) for each in found]
        return self._record("get_loops", {"block": block}, made, many=True)

    def get_child_blocks(self, block_or_loop: BlockRV | LoopRV) -> list[BlockRV]:
        """The blocks inside of a block or a loop, without those inside of them."""
        if isinstance(block_or_loop, LoopRV):
            found = members(self._loop(block_or_loop).body)
        else:
            found = [each for part in blocks_of(self._stage(block_or_loop)) for each in members(part)]
        made = [self._block(each.name) for each in found]
        return self._record("get_child_blocks", {"block_or_loop": block_or_loop}, made, many=True)

    get_child_sblocks = get_child_blocks

    def get_producers(self, block: BlockRV | str) -> list[BlockRV]:
        """The blocks that write what a block reads."""
        return self._related("get_producers", producers, block)

    def get_consumers(self, block: BlockRV | str) -> list[BlockRV]:
        """The blocks that read what a block writes."""
        return self._related("get_consumers", consumers, block)

    def _related(self, method: str, function: Callable[..., list[Stage]], block: Any) -> list[BlockRV]:
        place = place_of_stage(self._kernel, self._stage_name(block))
        assert place is not None
        made = [self._block(each.name) for each in function(self._kernel, place)]
        return self._record(method, {"block": block}, made, many=True)

    def get_output_blocks(self, scope_block: BlockRV | str | None = None) -> list[BlockRV]:
        """The blocks that write results."""
        within = None if scope_block in (None, "root") else self._stage(scope_block)  # type: ignore[arg-type]
        inside = members(self._kernel.body if within is None else within.body)
        made = [self._block(each.name) for each in inside if is_output(self._kernel, each)]
        given = {} if scope_block is None else {"scope_block": scope_block}
        return self._record("get_output_blocks", given, made, many=True)

    # -- loops -------------------------------------------------------------------------------------------

    def split(
        self,
        loop: LoopRV,
        factors: Sequence[int | ExprRV | None],
        preserve_unit_iters: bool = True,
        **ignored: Any,
    ) -> list[LoopRV]:
        """Cut a loop into several (`smelt.nest.primitives.stage_loops.split`)."""
        del ignored, preserve_unit_iters
        numbers = [_number(each) for each in factors]
        return self._loops_step("split", stage_loops.split, loop, {"loop": loop, "factors": numbers}, numbers)

    def loop_partition(self, loop: LoopRV, factors: Sequence[int | None], **ignored: Any) -> list[LoopRV]:
        """Cut a loop into loops one after another (`smelt.nest.primitives.stage_loops.loop_partition`)."""
        del ignored
        numbers = [_number(each) for each in factors]
        given = {"loop": loop, "factors": numbers}
        return self._loops_step("loop_partition", stage_loops.loop_partition, loop, given, numbers)

    def fuse(self, *loops: LoopRV, preserve_unit_iters: bool = True) -> LoopRV:
        """Make one loop of several (`smelt.nest.primitives.stage_loops.fuse`)."""
        del preserve_unit_iters
        changed, var = self._tried(stage_loops.fuse, [self._loop_var(each) for each in loops])
        return self._changed(changed, "fuse", {"loops": list(loops)}, [self._loop_of(changed, var)])[0]

    def reorder(self, *ordered_loops: LoopRV) -> None:
        """Put loops in another order (`smelt.nest.primitives.stage_loops.reorder`)."""
        changed = self._tried(stage_loops.reorder, [self._loop_var(each) for each in ordered_loops])
        self._changed(changed, "reorder", {"ordered_loops": list(ordered_loops)}, [])

    def add_unit_loop(self, block_or_loop: BlockRV | LoopRV) -> LoopRV:
        """A loop of one turn around a block or a loop."""
        changed, var = self._tried(stage_loops.add_unit_loop, self._place(block_or_loop))
        given = {"block_or_loop": block_or_loop}
        return self._changed(changed, "add_unit_loop", given, [self._loop_of(changed, var)])[0]

    def parallel(self, loop: LoopRV) -> None:
        """Run the turns of a loop on a team of threads."""
        self._kind("parallel", loop, LoopKind.PARALLEL)

    def vectorize(self, loop: LoopRV) -> None:
        """Run the turns of a loop as lanes of vectors."""
        self._kind("vectorize", loop, LoopKind.VECTOR)

    def unroll(self, loop: LoopRV) -> None:
        """Write the turns of a loop out one after another."""
        self._kind("unroll", loop, LoopKind.UNROLL)

    def bind(self, loop: LoopRV, thread_axis: str) -> None:
        """Say that the turns of a loop are a GPU's threads or blocks (there is no such target yet)."""
        changed = self._tried(
            stage_loops.with_kind, self._loop_var(loop), LoopKind.PARALLEL, str(thread_axis)
        )
        self._changed(changed, "bind", {"loop": loop, "thread_axis": str(thread_axis)}, [])

    def _kind(self, method: str, loop: LoopRV, kind: LoopKind) -> None:
        changed = self._tried(stage_loops.with_kind, self._loop_var(loop), kind)
        self._changed(changed, method, {"loop": loop}, [])

    def annotate(self, block_or_loop: BlockRV | LoopRV, ann_key: str, ann_val: Any) -> None:
        """Write a note beside a block or a loop."""
        changed = self._tried(stage_loops.annotate, self._place(block_or_loop), ann_key, _number(ann_val))
        given = {"block_or_loop": block_or_loop, "ann_key": ann_key, "ann_val": _number(ann_val)}
        self._changed(changed, "annotate", given, [])

    def unannotate(self, block_or_loop: BlockRV | LoopRV, ann_key: str) -> None:
        """Take a note away."""
        changed = self._tried(stage_loops.unannotate, self._place(block_or_loop), ann_key)
        self._changed(changed, "unannotate", {"block_or_loop": block_or_loop, "ann_key": ann_key}, [])

    # -- reductions --------------------------------------------------------------------------------------

    def decompose_reduction(self, block: BlockRV, loop: LoopRV) -> BlockRV:
        """Initialize a reduction before a loop; gives the block that does
        (`smelt.nest.primitives.stage_loops.decompose_reduction`).
        """
        name = self._stage_name(block)
        changed, made = self._tried(stage_loops.decompose_reduction, name, self._loop_var(loop))
        for each in self._blocks:
            if each.name == name:
                each.name = f"{name}_update"
        given = {"block": block, "loop": loop}
        return self._changed(changed, "decompose_reduction", given, [self._block(made)])[0]

    def rfactor(self, loop: LoopRV, factor_axis: int = 0) -> BlockRV:
        """Make a reduction in parts, one for each turn of a loop; gives the block that makes them
        (`smelt.nest.primitives.stage_loops.rfactor`).
        """
        inside = members(self._loop(loop).body)
        if len(inside) != 1:
            names = ", ".join(each.name for each in inside)
            raise Refused("SM1008", f"rfactor({loop.label})", f"the loop holds {len(inside)} blocks: {names}")
        changed, made = self._tried(stage_loops.rfactor, inside[0].name, self._loop_var(loop), factor_axis)
        given = {"loop": loop, "factor_axis": factor_axis}
        return self._changed(changed, "rfactor", given, [self._block(made)])[0]

    # -- draws -------------------------------------------------------------------------------------------

    def sample_categorical(
        self, candidates: Sequence[int], probs: Sequence[float] | None = None, decision: int | None = None
    ) -> ExprRV:
        """One of the candidates; ``decision``: its place, as the trace keeps it."""
        if decision is None:
            decision = self._random.choices(range(len(candidates)), weights=probs)[0]
        made = ExprRV(int(candidates[decision]), "v")
        given = {"candidates": list(candidates), "probs": list(probs) if probs else None}
        self.trace.append(Step("sample_categorical", given, (made,), decision=decision))
        return made

    def sample_perfect_tile(
        self, loop: LoopRV, n: int, max_innermost_factor: int = 16, decision: Sequence[int] | None = None
    ) -> list[ExprRV]:
        """Factors of a loop's turns, whose product they are; the last is at most ``max_innermost_factor``."""
        turns = trip_count(self._loop(loop))
        if not turns.is_Integer:
            raise Refused("SM1013", f"sample_perfect_tile({loop.label})", f"it has {turns} turns: no number")
        if decision is None:
            decision = self._drawn(int(turns), n, max_innermost_factor)
        made = [ExprRV(int(each), "v") for each in decision]
        given = {"loop": loop, "n": n, "max_innermost_factor": max_innermost_factor}
        self.trace.append(Step("sample_perfect_tile", given, tuple(made), True, list(decision)))
        return made

    def _drawn(self, turns: int, count: int, most: int) -> list[int]:
        last = self._random.choice([d for d in range(1, min(turns, most) + 1) if turns % d == 0])
        found, rest = [last], turns // last
        for _ in range(count - 2):
            divisor = self._random.choice([d for d in range(1, rest + 1) if rest % d == 0])
            found.insert(0, divisor)
            rest //= divisor
        return [rest, *found] if count > 1 else [turns]

    # -- references and steps ----------------------------------------------------------------------------

    def _block(self, name: str) -> BlockRV:
        made = BlockRV(name)
        self._blocks.append(made)
        return made

    def _stage_name(self, block: Any) -> str:
        name = block.name if isinstance(block, BlockRV) else str(block)
        names = [stage.name for stage in stages(self._kernel.body)]
        if name not in names:
            why = "the block is gone" if isinstance(block, BlockRV) else "there is no such block"
            self._refuse("SM1012", name, why, name, names)
        return name

    def _stage(self, block: Any) -> Stage:
        name = self._stage_name(block)
        return next(stage for stage in stages(self._kernel.body) if stage.name == name)

    def _loop_var(self, loop: Any) -> Symbol:
        if isinstance(loop, LoopRV):
            if any(each.var == loop.var for each in loops(self._kernel.body)):
                found: Symbol = loop.var
                return found
            labels = [named(each) for each in loops(self._kernel.body)]
            self._refuse(
                "SM1014", f"loop {loop.label}", "it is gone: an earlier step replaced it", "", labels
            )
        if isinstance(loop, str):
            fitting = [each for each in loops(self._kernel.body) if named(each) == loop]
            if len(fitting) == 1:
                return fitting[0].var
            labels = [named(each) for each in loops(self._kernel.body)]
            why = "there is no such loop" if not fitting else f"there are {len(fitting)} such loops"
            self._refuse("SM1014", f"loop {loop!r}", why, loop, labels)
        raise Refused("SM1014", f"{loop!r}", "a loop is wanted, as get_loops gives them")

    def _loop(self, loop: Any) -> For:
        var = self._loop_var(loop)
        return next(each for each in loops(self._kernel.body) if each.var == var)

    def _place(self, thing: Any) -> Symbol | str:
        return self._stage_name(thing) if isinstance(thing, (BlockRV, str)) else self._loop_var(thing)

    def _loop_of(self, kernel: Kernel, var: Symbol) -> LoopRV:
        return LoopRV(var, named(next(each for each in loops(kernel.body) if each.var == var)))

    def _loops_step(
        self, method: str, primitive: Callable[..., Any], loop: LoopRV, given: dict[str, Any], factors: Any
    ) -> list[LoopRV]:
        changed, variables = self._tried(primitive, self._loop_var(loop), factors)
        made = [self._loop_of(changed, var) for var in variables]
        return self._changed(changed, method, given, made, many=True)

    def _tried(self, primitive: Callable[..., Any], *arguments: Any) -> Any:
        """What a primitive makes of the kernel; its refusal with the user's line and an excerpt."""
        try:
            return primitive(self._kernel, *arguments)
        except ScheduleError as error:
            raise self._located(error, arguments[0]) from None

    def _located(self, error: ScheduleError, subject: Any) -> ScheduleError:
        made = Refused.__new__(Refused)
        marked = subject[0] if isinstance(subject, list) and subject else subject
        why = _excerpt(self._kernel, marked) if isinstance(marked, Symbol) else error.why
        from smelt.errors import SmeltError

        SmeltError.__init__(
            made, error.code, error.what, where=users_line(), why=why or error.why, remedy=error.remedy
        )
        return made

    def _step(
        self, kernel: Kernel, method: str, arguments: dict[str, Any], made: Sequence[str]
    ) -> list[BlockRV]:
        """`PlaceMoves`: the kernel takes the place of the old one, the call is recorded."""
        return self._changed(kernel, method, arguments, [self._block(name) for name in made])

    def _changed(
        self,
        kernel: Kernel,
        method: str,
        arguments: dict[str, Any],
        made: Sequence[Any],
        many: bool = False,
    ) -> list[Any]:
        if self.check:
            assert_same(self._kernel, kernel, method)
        self._undone = [(self.mod, method)]
        self._mod[self._function] = replace(self.func, kernel=kernel)
        return self._record(method, arguments, made, many)

    def _record(
        self, method: str, arguments: dict[str, Any], made: Sequence[Any], many: bool = False
    ) -> list[Any]:
        self.trace.append(Step(method, arguments, tuple(made), many))
        return list(made)

    def _refuse(self, code: str, what: str, why: str, name: str, names: Sequence[str]) -> None:
        near = difflib.get_close_matches(name, names, n=1)
        listed = f"there are: {', '.join(dict.fromkeys(names))}" if names else "there are none"
        hint = f"did you mean {near[0]!r}?" if near else listed
        raise Refused(code, f"{what} in {self._function}", why, hint)


class BlockView:
    """A block, as people ask for it."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.name_hint = self.name = stage.name
        self.iter_vars = stage.axes
        self.annotations = dict(stage.notes)


class LoopView:
    """A loop, as people ask for it."""

    def __init__(self, loop: For) -> None:
        self.loop = loop
        self.name = named(loop)
        self.loop_var, self.min, self.extent = loop.var, loop.begin, trip_count(loop)
        self.kind, self.thread_binding = loop.kind, loop.thread
        self.annotations = dict(loop.notes)


def _number(value: Any) -> Any:
    if isinstance(value, ExprRV):
        return value.value
    if isinstance(value, Expr) and value.is_Integer:
        return int(value)
    return value


def _excerpt(kernel: Kernel, var: Symbol) -> str | None:
    """The loops around one, with a mark at it."""
    lines: list[str] = []

    def visit(block: Any, depth: int) -> bool:
        for stmt in block.nested:
            if isinstance(stmt, For):
                here = stmt.var == var
                head = f"for {named(stmt)} in range({stmt.end}):"
                mark = ">" if here else " "
                lines.append(f"{mark} {'  ' * depth}{head}{'          ← here' if here else ''}")
                if here or visit(stmt.body, depth + 1):
                    return True
                lines.pop()
            elif any(visit(part, depth + 1) for part in blocks_of(stmt)):
                return True
        return False

    return "\n      " + "\n      ".join(lines) if visit(kernel.body, 0) else None


__all__ = ["BlockView", "LoopView", "Reference", "Schedule"]
