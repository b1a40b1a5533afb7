"""The core of a schedule: functions, references, and the trace.

The public methods are in `smelt.tir.loops` and `smelt.tir.places`.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Mapping, Sequence, Set
from functools import lru_cache
from typing import Any

from sympy import Expr, Symbol

from smelt.nest.ir import Block, For, Kernel, Stage
from smelt.nest.primitives.common import ScheduleError, is_asked_for
from smelt.nest.scopes import consumers, members, place_of, place_of_stage, producers, writes
from smelt.nest.tree import blocks_of, named, walk
from smelt.nest.verify import find_problems
from smelt.records import dataclass, replace
from smelt.script.module import GlobalVar, IRModule, PrimFunc
from smelt.tir.check import check_step
from smelt.tir.errors import unknown
from smelt.tir.references import BlockRV, BlockView, ExprRV, LoopRV, LoopView, Reference
from smelt.tir.trace import Instruction, Trace

ROOT = "root"


@dataclass(frozen=True, slots=True)
class _Referent:
    """The target of a reference: a function, and in it a loop's variable or a stage's name; or a number."""

    function: str
    what: Symbol | str | int
    label: str


@lru_cache(maxsize=256)
def _defaults(method: Callable[..., Any]) -> Mapping[str, Any]:
    """The default of each parameter of a method."""
    return {name: each.default for name, each in inspect.signature(method).parameters.items()}


class _Parts:
    """The loops and the stages of a function, by variable and by name."""

    def __init__(self, body: Block) -> None:
        self.body = body
        self.loops: dict[Symbol, For] = {}
        self.stages: dict[str, list[Stage]] = {}
        for stmt in walk(body):
            if type(stmt) is For:
                self.loops[stmt.var] = stmt
            elif type(stmt) is Stage:
                self.stages.setdefault(stmt.name, []).append(stmt)
        self.names: frozenset[Symbol | str] = frozenset((*self.loops, *self.stages))

    def find(self, what: Symbol | str) -> For | Stage | None:
        return self.loops.get(what) if isinstance(what, Symbol) else self.stages.get(what, [None])[0]


class Core:
    """Functions under schedule, references to their parts, and the trace."""

    def __init__(self, mod: PrimFunc | IRModule, check: bool, seed: int | None) -> None:
        if isinstance(mod, PrimFunc):
            mod = IRModule({"main": mod})
        self._functions: dict[str, Any] = {var.name_hint: function for var, function in mod.items()}
        self._attrs = dict(mod.attrs)
        self._check = check
        self._referents: dict[Reference, _Referent] = {}
        self._gone: dict[Reference, str] = {}
        self._random = random.Random(seed)
        self._trace = Trace()
        self._last_parts: _Parts | None = None
        self._given = dict(self._functions)
        self._after: list[tuple[Instruction, str, PrimFunc]] = []
        """Each step that changed a function, the function's name, and the function after it."""
        self._working_on: str | None = None
        ours = [name for name, function in self._functions.items() if isinstance(function, PrimFunc)]
        if "main" in ours or len(ours) == 1:
            self._working_on = "main" if "main" in ours else ours[0]

    # -- functions ---------------------------------------------------------------------------------------

    @property
    def mod(self) -> IRModule:
        """The current module."""
        return IRModule(self._functions, self._attrs)

    @property
    def func(self) -> PrimFunc:
        """The current state of the function that is worked on."""
        found: PrimFunc = self._functions[self._name()]
        return found

    @property
    def func_working_on(self) -> GlobalVar | None:
        return None if self._working_on is None else GlobalVar(self._working_on)

    @property
    def trace(self) -> Trace:
        """The steps so far."""
        return self._trace

    @property
    def state(self) -> Core:
        return self

    @property
    def steps(self) -> Sequence[tuple[Instruction | None, IRModule]]:
        """Each step that changed the module, and the module after it; first None and the module as given."""
        functions = dict(self._given)
        found: list[tuple[Instruction | None, IRModule]] = [(None, IRModule(functions, self._attrs))]
        for inst, name, function in self._after:
            functions[name] = function
            found.append((inst, IRModule(functions, self._attrs)))
        return found

    def work_on(self, func_name: str) -> None:
        """Selects the function in which stages are looked for.

        Raises:
            ScheduleError: SM1001, there is no such function.
        """
        names = [name for name, function in self._functions.items() if isinstance(function, PrimFunc)]
        if func_name not in names:
            raise unknown("function", func_name, names)
        self._working_on = func_name
        self._record("work_on", {"func_name": func_name})

    def _name(self) -> str:
        if self._working_on is None:
            names = ", ".join(self._functions)
            raise ValueError(
                f"the schedule does not know which function to be working on; work_on one of {names}"
            )
        return self._working_on

    @property
    def _kernel(self) -> Kernel:  # type: ignore[override]
        return self.func.kernel

    # -- references --------------------------------------------------------------------------------------

    def _referent(self, reference: Any, kind: type[Reference]) -> _Referent:
        wanted = {BlockRV: "block", LoopRV: "loop", ExprRV: "number"}[kind]  # type: ignore[index]
        if not isinstance(reference, kind):
            given = type(reference).__name__
            raise ScheduleError(f"{reference!r}", f"a {wanted} is wanted, this is {given}", code="SM1011")
        if reference in self._gone:
            why = f"the {wanted} {reference.hint} is gone: {self._gone[reference]}"
            raise ScheduleError(
                f"{reference!r}", why, code="SM1002", remedy="get it again, or take what came back"
            )
        referent = self._referents.get(reference)
        if referent is None:
            raise IndexError(f"{reference!r} is no {wanted} of this schedule")
        return referent

    def _stage_name(self, block: BlockRV | str) -> str:
        """The stage name of a reference or a name."""
        if isinstance(block, str):
            return self._known(block)
        referent = self._referent(block, BlockRV)
        self._working_on = referent.function
        assert isinstance(referent.what, str)
        return referent.what

    def _known(self, name: str) -> str:
        found = self._parts(self._kernel.body).stages
        if name != ROOT and name not in found:
            raise unknown("block", name, found)
        if len(found.get(name, ())) > 1:
            why = f"there are {len(found[name])} blocks of that name"
            raise ScheduleError(
                f"get_block({name!r})", why, code="SM1001", remedy="get_child_blocks of a loop"
            )
        return name

    def _loop_var(self, loop: LoopRV) -> Symbol:
        """The loop variable of a reference."""
        referent = self._referent(loop, LoopRV)
        self._working_on = referent.function
        assert isinstance(referent.what, Symbol)
        return referent.what

    def _target(self, target: Reference | str) -> Symbol | str:
        """The loop variable or stage name of a reference."""
        return self._loop_var(target) if isinstance(target, LoopRV) else self._stage_name(target)  # type: ignore[arg-type]

    def _number(self, value: Any) -> Any:
        """A number, an expression or None; drawn numbers are resolved."""
        if isinstance(value, ExprRV):
            return self._referent(value, ExprRV).what
        if value is None or isinstance(value, Expr):
            return value
        if hasattr(value, "expr") and isinstance(value.expr, Expr):
            return value.expr
        try:
            return int(value)
        except (TypeError, ValueError) as error:
            raise ScheduleError(f"{value!r}", "a number is wanted", code="SM1011") from error

    def _new(self, what: Symbol | str | int, label: str) -> Any:
        if isinstance(what, (Symbol, str)):
            reference: Reference = (LoopRV if isinstance(what, Symbol) else BlockRV)(label)
        else:
            reference = ExprRV(label, what)
        self._referents[reference] = _Referent(self._working_on or "", what, label)
        return reference

    def _refer(self, made: Sequence[Symbol | str]) -> list[Any]:
        found = self._parts(self._kernel.body).loops if made else {}
        return [self._new(each, named(found[each]) if isinstance(each, Symbol) else each) for each in made]

    def _parts(self, body: Block) -> _Parts:
        """The parts of a function; those of the last one asked for are kept."""
        if self._last_parts is None or self._last_parts.body is not body:
            self._last_parts = _Parts(body)
        return self._last_parts

    # -- steps -------------------------------------------------------------------------------------------

    def _step(
        self,
        kernel: Kernel,
        method: str,
        given: Mapping[str, Any],
        made: Sequence[Symbol | str] = (),
        *,
        spread: str = "",
        several: bool = False,
        renamed: Mapping[str, str] | None = None,
    ) -> list[Any]:
        """Replaces the kernel, records the call, and makes references to ``made``.

        ``spread``: the argument that is passed as ``*loops``; ``several``: a list is returned; ``renamed``:
        stages with new names.

        Raises:
            ScheduleError: SM1008, illegal nesting of loops: a parallel one in a vector.
        """
        before = self.func
        names = self._parts(before.kernel.body).names
        problems = find_problems(kernel)
        if problems and not find_problems(before.kernel):
            raise ScheduleError(method, problems[0].what, code="SM1008")
        if self._check:
            check_step(method, before.kernel, kernel)
        unscheduled = before.unscheduled or before.kernel
        self._functions[self._name()] = replace(before, kernel=kernel, unscheduled=unscheduled)
        for old, new in (renamed or {}).items():
            for reference, referent in self._referents.items():
                if referent.what == old and referent.function == self._working_on:
                    self._referents[reference] = replace(referent, what=new)
        references = self._refer(made)
        self._record(method, given, references, spread=spread, several=several)
        self._after.append((self._trace.insts[-1], self._name(), self.func))
        self._forget(method, names - self._parts(self._kernel.body).names)
        return references

    def _forget(self, method: str, gone: Set[Symbol | str]) -> None:
        """Invalidates the references to loops and stages that no longer exist."""
        for reference, referent in list(self._referents.items()) if gone else ():
            if referent.function == self._working_on and referent.what in gone:
                del self._referents[reference]
                self._gone[reference] = f"{method} took it away"

    def _record(
        self,
        method: str,
        given: Mapping[str, Any],
        outputs: Sequence[Reference] = (),
        *,
        spread: str = "",
        several: bool = False,
        decision: Any = None,
    ) -> None:
        """The record of a call, without arguments that have their default."""
        usual = _defaults(getattr(type(self), method))
        args: list[Any] = list(given[spread]) if spread else []
        options: dict[str, Any] = {}
        for number, (name, value) in enumerate(given.items()):
            if name == spread:
                continue
            if not spread and number == 0:
                args.append(value)
            elif name not in usual or not (usual[name] is value or usual[name] == value):
                options[name] = list(value) if isinstance(value, tuple) and name == "factors" else value
        several = several or len(outputs) > 1
        self._trace.append(Instruction(method, tuple(args), options, tuple(outputs), several), decision)

    # -- looking things up -------------------------------------------------------------------------------

    def get_block(self, name: str, func_name: str | None = None) -> BlockRV:
        """The stage of that name.

        Raises:
            ScheduleError: SM1001, there is no such stage, or more than one.
        """
        if func_name is not None:
            if not isinstance(self._functions.get(func_name), PrimFunc):
                raise unknown("function", func_name, self._functions)
            self._working_on = func_name
        elif self._working_on is None:
            self._name()
        made = self._new(self._known(name), name)
        several = sum(isinstance(each, PrimFunc) for each in self._functions.values()) > 1
        given = {"name": name, "func_name": self._working_on if several else None}
        self._record("get_block", given, [made])
        return made  # type: ignore[no-any-return]

    def get_sblock(self, name: str, func_name: str | None = None) -> BlockRV:
        """`get_block`, by its newer name."""
        return self.get_block(name, func_name)

    def get_loops(self, block: BlockRV | str) -> list[LoopRV]:
        """The loops around a stage within its scope, the outermost first."""
        name = self._stage_name(block)
        place = place_of_stage(self._kernel, name)
        found = [] if place is None else [loop.var for loop in place.loops]
        made = self._refer(found)
        self._record("get_loops", {"block": block}, made, several=True)
        return made

    def get_child_blocks(self, block_or_loop: BlockRV | LoopRV | str) -> list[BlockRV]:
        """The outermost stages in a stage or a loop."""
        target = self._target(block_or_loop)
        if target == ROOT:
            found = members(self._kernel.body)
        else:
            place = place_of(self._kernel.body, lambda stmt: is_asked_for(stmt, target))
            assert place is not None
            found = [stage for block in blocks_of(place.stmt) for stage in members(block)]
        return self._stages("get_child_blocks", {"block_or_loop": block_or_loop}, found)

    def get_producers(self, block: BlockRV | str) -> list[BlockRV]:
        """The stages of the same scope that write an input of a stage."""
        place = place_of_stage(self._kernel, self._stage_name(block))
        return self._stages(
            "get_producers", {"block": block}, producers(self._kernel, place) if place else []
        )

    def get_consumers(self, block: BlockRV | str) -> list[BlockRV]:
        """The stages of the same scope that read an output of a stage."""
        place = place_of_stage(self._kernel, self._stage_name(block))
        return self._stages(
            "get_consumers", {"block": block}, consumers(self._kernel, place) if place else []
        )

    def get_output_blocks(self, scope_block: BlockRV | str = ROOT) -> list[BlockRV]:
        """The stages in a stage, also nested ones, that write parameters of the function."""
        name = self._stage_name(scope_block)
        place = None if name == ROOT else place_of_stage(self._kernel, name)
        body = self._kernel.body if place is None else place.stmt.body  # type: ignore[union-attr]
        outputs = {param.name for param in self._kernel.params}
        found = [
            stmt for stmt in walk(body) if isinstance(stmt, Stage) and not outputs.isdisjoint(writes(stmt))
        ]
        return self._stages("get_output_blocks", {"scope_block": scope_block}, found)

    def _stages(self, method: str, given: Mapping[str, Any], found: Sequence[Stage]) -> list[BlockRV]:
        made = self._refer([stage.name for stage in found])
        self._record(method, given, made, several=True)
        return made

    def get(self, reference: Reference) -> Any:
        """The current state of a reference's target: a `BlockView`, a `LoopView`, or a number."""
        if isinstance(reference, ExprRV):
            return self._referent(reference, ExprRV).what
        if isinstance(reference, LoopRV):
            referent = self._referent(reference, LoopRV)
        else:
            referent = self._referent(reference, BlockRV)
        body = self._functions[referent.function].kernel.body
        if referent.what == ROOT:
            return BlockView(Stage(ROOT, (), body))
        found = self._parts(body).find(referent.what)  # type: ignore[arg-type]
        if found is None:
            raise IndexError(f"{reference!r} is gone")
        return LoopView(found) if isinstance(found, For) else BlockView(found)

    def get_sref(self, reference: Reference | BlockView | LoopView) -> Any:
        """`get`, by TVM's name."""
        return self.get(reference) if isinstance(reference, Reference) else reference

    def remove_rv(self, rand_var: Reference) -> None:
        """Drops a reference."""
        if self._referents.pop(rand_var, None) is None:
            raise IndexError(f"{rand_var!r} is no reference of this schedule")

    def copy(self) -> Any:
        """A copy of the schedule; references are valid in both."""
        made = type(self).__new__(type(self))
        made.__dict__.update(self.__dict__)
        made._functions, made._referents = dict(self._functions), dict(self._referents)
        made._gone, made._trace, made._after = dict(self._gone), self._trace.copy(), list(self._after)
        made._random = random.Random()
        made._random.setstate(self._random.getstate())
        return made

    def seed(self, seed: int) -> None:
        """Seeds the draws of ``sample_…``; -1 for an arbitrary seed."""
        self._random = random.Random(None if seed == -1 else seed)

    def fork_seed(self) -> int:
        """A seed for another schedule."""
        return self._random.randint(1, 2**31 - 1)
