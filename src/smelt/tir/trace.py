"""The trace of a schedule: it prints as Python text, converts to JSON and back, and can be replayed."""

from __future__ import annotations

import json
import keyword
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from smelt.nest.primitives.common import ScheduleError
from smelt.nest.scopes import unique_name
from smelt.records import dataclass, field
from smelt.tir.maps import IndexMap
from smelt.tir.references import BlockRV, ExprRV, LoopRV, Reference

MAP, TUPLE = "$map", "$tuple"
"""The JSON tags of an index map and a tuple."""

DecisionProvider = Callable[["Instruction", Sequence[Any], Mapping[str, Any], Any], Any]


@dataclass(frozen=True, slots=True, eq=False)
class Instruction:
    """A call of a method of a schedule: its arguments, and the returned references."""

    kind: str
    args: tuple[Any, ...] = ()
    given: Mapping[str, Any] = field(default_factory=dict)
    outputs: tuple[Reference, ...] = ()
    several: bool = False


class Trace:
    """The steps of a schedule in order, and the drawn numbers.

    ``str(trace)`` is a Python function that repeats them; ``trace.apply_to_schedule`` does as well.
    """

    def __init__(
        self, insts: Sequence[Instruction] = (), decisions: Mapping[Instruction, Any] | None = None
    ) -> None:
        self.insts = list(insts)
        self.decisions: dict[Instruction, Any] = dict(decisions or {})

    def get_decision(self, inst: Instruction) -> Any:
        return self.decisions.get(inst)

    def append(self, inst: Instruction, decision: Any = None) -> None:
        self.insts.append(inst)
        if decision is not None:
            self.decisions[inst] = decision

    def pop(self) -> Instruction | None:
        """Removes the last step."""
        if not self.insts:
            return None
        self.decisions.pop(self.insts[-1], None)
        return self.insts.pop()

    def copy(self) -> Trace:
        return Trace(self.insts, self.decisions)

    def with_decision(self, inst: Instruction, decision: Any, remove_postproc: bool = False) -> Trace:
        """The trace with another decision of a drawn number."""
        kept = self._kept(remove_postproc)
        known = {each: value for each, value in self.decisions.items() if each in kept}
        return Trace(kept, {**known, inst: decision})

    def _kept(self, remove_postproc: bool) -> list[Instruction]:
        for number, inst in enumerate(self.insts):
            if remove_postproc and inst.kind == "enter_postproc":
                return self.insts[:number]
        return list(self.insts)

    def simplified(self, remove_postproc: bool) -> Trace:
        """The trace without lookups whose results are unused."""
        kept: list[Instruction] = []
        used: set[int] = set()
        for inst in reversed(self._kept(remove_postproc)):
            if inst.kind in LOOKUPS and used.isdisjoint(map(id, inst.outputs)):
                continue
            used |= {id(each) for each in _references((inst.args, dict(inst.given)))}
            kept.append(inst)
        kept.reverse()
        return Trace(kept, {each: value for each, value in self.decisions.items() if each in kept})

    # -- running it again --------------------------------------------------------------------------------

    def apply_to_schedule(
        self, sch: Any, remove_postproc: bool = False, decision_provider: DecisionProvider | None = None
    ) -> None:
        """Applies the steps to another schedule.

        Raises:
            ScheduleError: a step is not possible on it.
        """
        meant: dict[int, Any] = {}
        for inst in self._kept(remove_postproc):
            args = _mapped(inst.args, meant)
            given = _mapped(dict(inst.given), meant)
            decision = self.decisions.get(inst)
            if decision_provider is not None and inst.kind in SAMPLES:
                decision = decision_provider(inst, args, given, decision)
            if decision is not None:
                given["decision"] = decision
            _run(sch, inst.kind, args, given, inst.outputs, meant)

    # -- text --------------------------------------------------------------------------------------------

    def as_python(self, remove_postproc: bool = False) -> list[str]:
        """The steps as lines of Python, on a schedule called ``sch``."""
        names = _Names()
        return [self._line(inst, names, self.decisions.get(inst)) for inst in self._kept(remove_postproc)]

    @staticmethod
    def _line(inst: Instruction, names: _Names, decision: Any) -> str:
        given = dict(inst.given)
        if decision is not None:
            given["decision"] = decision
        shown = [names.text(arg) for arg in inst.args]
        shown += [f"{key}={names.text(value)}" for key, value in given.items()]
        made = ", ".join(names.new(each) for each in inst.outputs)
        if inst.several and len(inst.outputs) == 1:
            made += ","
        return f"{f'{made} = ' if made else ''}sch.{inst.kind}({', '.join(shown)})"

    def program(self, name: str = "schedule") -> str:
        """A Python function of a schedule that repeats all steps."""
        lines = self.as_python() or ["pass"]
        return "\n".join([f"def {name}(sch):", *(f"    {line}" for line in lines)]) + "\n"

    def __str__(self) -> str:
        lines = self.as_python() or ["pass"]
        head = ["# from smelt import tir", "def apply_trace(sch: tir.Schedule) -> None:"]
        return "\n".join([*head, *("  " + line for line in lines)])

    def show(self, **ignored: Any) -> None:
        """Prints the text."""
        del ignored
        print(self)

    # -- JSON --------------------------------------------------------------------------------------------

    def as_json(self, remove_postproc: bool = False) -> list[Any]:
        """Steps and decisions as JSON data; references are names after a ``$``.

        Raises:
            ScheduleError: SM1009, an argument that JSON cannot hold.
        """
        names, steps, decisions = _Names(), [], []
        for number, inst in enumerate(self._kept(remove_postproc)):
            args = [names.plain(arg) for arg in inst.args]
            given = {key: names.plain(value) for key, value in inst.given.items()}
            made = [names.new(each) for each in inst.outputs]
            steps.append([inst.kind, args, given, made])
            if inst in self.decisions:
                decisions.append([number, self.decisions[inst]])
        try:
            found: list[Any] = json.loads(json.dumps([steps, decisions]))
        except TypeError as error:
            why = f"JSON cannot hold it: {error}"
            raise ScheduleError("trace.as_json()", why, code="SM1009", remedy="as_python()") from error
        return found

    @staticmethod
    def apply_json_to_schedule(json_obj: Any, sch: Any) -> None:
        """Applies the JSON of `as_json` to a schedule.

        Raises:
            ScheduleError: SM1009, it is no trace; or a step is not possible.
        """
        try:
            steps, decided = json.loads(json_obj) if isinstance(json_obj, str) else json_obj
            decisions = dict(decided)
            parsed = [(str(kind), list(args), dict(given), list(made)) for kind, args, given, made in steps]
        except (TypeError, ValueError) as error:
            raise ScheduleError("apply_json_to_schedule", "this is no trace", code="SM1009") from error
        known: dict[str, Any] = {}
        for number, (kind, args, given, made) in enumerate(parsed):
            if number in decisions:
                given["decision"] = decisions[number]
            found = _call(sch, kind, _named(args, known), _named(given, known))
            results = found if isinstance(found, (list, tuple)) else [found]
            known.update(zip(made, results))


LOOKUPS = {
    "get_block",
    "get_loops",
    "get_child_blocks",
    "get_producers",
    "get_consumers",
    "get_output_blocks",
}
SAMPLES = {
    "sample_categorical",
    "sample_perfect_tile",
    "sample_partitioned_tile",
    "sample_compute_location",
}


def _run(
    sch: Any,
    kind: str,
    args: Sequence[Any],
    given: Mapping[str, Any],
    outputs: Sequence[Reference],
    meant: dict[int, Any],
) -> None:
    found = _call(sch, kind, args, given)
    results = list(found) if isinstance(found, (list, tuple)) else [found] if outputs else []
    if len(results) != len(outputs):
        why = f"it gives {len(results)} references, the trace has {len(outputs)}"
        raise ScheduleError(f"apply_to_schedule: {kind}", why, code="SM1009")
    meant.update({id(old): new for old, new in zip(outputs, results)})


def _call(sch: Any, kind: str, args: Sequence[Any], given: Mapping[str, Any]) -> Any:
    method = None if kind.startswith("_") else getattr(type(sch), kind, None)
    if method is None:
        raise ScheduleError("apply_to_schedule", f"a schedule has no method {kind}", code="SM1009")
    return method(sch, *args, **given)


def _references(value: Any) -> list[Reference]:
    if isinstance(value, Reference):
        return [value]
    if isinstance(value, (list, tuple)):
        return [found for each in value for found in _references(each)]
    if isinstance(value, dict):
        return [found for each in value.values() for found in _references(each)]
    return []


def _mapped(value: Any, meant: Mapping[int, Any]) -> Any:
    """An argument with references mapped to those of the other schedule."""
    if isinstance(value, Reference):
        if id(value) not in meant:
            raise ScheduleError("apply_to_schedule", f"no step before made {value!r}", code="SM1009")
        return meant[id(value)]
    if isinstance(value, (list, tuple)):
        return type(value)(_mapped(each, meant) for each in value)
    if isinstance(value, dict):
        return {key: _mapped(each, meant) for key, each in value.items()}
    return value


def _named(value: Any, known: Mapping[str, Any]) -> Any:
    """A JSON argument with names replaced by references."""
    if isinstance(value, str) and value.startswith("$"):
        return known.get(value[1:], value[1:])
    if isinstance(value, list):
        return [_named(each, known) for each in value]
    if isinstance(value, dict):
        if list(value) == [TUPLE]:
            return tuple(_named(each, known) for each in value[TUPLE])
        if list(value) == [MAP]:
            try:
                return IndexMap.read(value[MAP])
            except ValueError as error:
                raise ScheduleError("apply_json_to_schedule", str(error), code="SM1009") from error
        return {key: _named(each, known) for key, each in value.items()}
    return value


class _Names:
    """Python names for references: the names of their targets, if free."""

    def __init__(self) -> None:
        self.names: dict[int, str] = {}
        self.used = {"sch"}

    def new(self, reference: Reference) -> str:
        name = re.sub(r"\W", "_", reference.hint)
        if not name or name[0].isdigit() or keyword.iskeyword(name):
            name = f"{reference.prefix}{len(self.names)}"
        name = unique_name(name, self.used)
        self.used.add(name)
        self.names[id(reference)] = name
        return name

    def text(self, value: Any) -> str:
        if isinstance(value, Reference):
            return self.names.get(id(value)) or self.new(value)
        if isinstance(value, list):
            return f"[{', '.join(map(self.text, value))}]"
        if isinstance(value, tuple):
            return f"({', '.join(map(self.text, value))}{',' if len(value) == 1 else ''})"
        if isinstance(value, dict):
            return f"{{{', '.join(f'{key!r}: {self.text(each)}' for key, each in value.items())}}}"
        return repr(value)

    def plain(self, value: Any) -> Any:
        if isinstance(value, Reference):
            return f"${self.text(value)}"
        if isinstance(value, str):
            return f"${value}" if value.startswith("$") else value
        if isinstance(value, IndexMap):
            return {MAP: value.text}
        if isinstance(value, (list, tuple)):
            made = [self.plain(each) for each in value]
            return {TUPLE: made} if isinstance(value, tuple) else made
        if isinstance(value, dict):
            return {key: self.plain(each) for key, each in value.items()}
        return value


__all__ = ["BlockRV", "ExprRV", "Instruction", "LoopRV", "Trace"]
