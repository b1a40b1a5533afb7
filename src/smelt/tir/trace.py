"""What was done to a program, as steps that can be read, kept and done again."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from smelt.errors import SmeltError
from smelt.records import dataclass, field


class Reference:
    """What a schedule hands out for a loop or a block: it stays the same thing through later steps."""

    __slots__ = ("label",)

    def __init__(self, label: str) -> None:
        self.label = label

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.label})"


class BlockRV(Reference):
    """A block of a program."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class LoopRV(Reference):
    """A loop of a program."""

    __slots__ = ("var",)

    def __init__(self, var: Any, label: str) -> None:
        super().__init__(label)
        self.var = var


class ExprRV(Reference):
    """A number that was drawn."""

    __slots__ = ("value",)

    def __init__(self, value: int, label: str) -> None:
        super().__init__(label)
        self.value = value

    def __int__(self) -> int:
        return self.value


@dataclass(frozen=True, slots=True)
class Step:
    """``results = schedule.method(**arguments)``; ``many``: a list of them, even where there is one."""

    method: str
    arguments: Mapping[str, Any]
    results: tuple[Reference, ...] = ()
    many: bool = False
    decision: Any = None


@dataclass(slots=True)
class Trace:
    """The steps of a schedule, in order. Its text is a Python program."""

    steps: list[Step] = field(default_factory=list)

    @property
    def insts(self) -> list[Step]:
        return list(self.steps)

    def append(self, step: Step) -> None:
        self.steps.append(step)

    def apply_to_schedule(
        self, sch: Any, remove_postproc: bool = False, decision_provider: Any = None
    ) -> None:
        """Do all steps again, on another schedule."""
        del remove_postproc, decision_provider
        known: dict[int, Reference] = {}
        for step in self.steps:
            arguments = {key: _moved(value, known) for key, value in step.arguments.items()}
            if step.decision is not None:
                arguments["decision"] = step.decision
            made = _done(sch, step.method, arguments)
            results = [made] if isinstance(made, Reference) else list(made or ())
            for old, new in zip(step.results, results):
                known[id(old)] = new

    def as_python(self) -> list[str]:
        """One line for each step."""
        names = _Names()
        return [_line(step, names) for step in self.steps]

    def program(self, name: str = "schedule") -> str:
        """A Python function of the schedule that does it all."""
        lines = self.as_python() or ["pass"]
        return "\n".join([f"def {name}(sch):", *(f"    {line}" for line in lines)]) + "\n"

    def __str__(self) -> str:
        return "# from smelt import tir\n" + self.program("apply_trace").replace(
            "(sch):", "(sch: tir.Schedule) -> None:"
        )

    def show(self, **options: Any) -> None:
        """Print the program."""
        del options
        print(self)

    def as_json(self) -> str:
        """The steps as JSON text; `from_json` reads it."""
        names = _Names()
        return json.dumps([_as_data(step, names) for step in self.steps])

    @staticmethod
    def apply_json_to_schedule(text: str, sch: Any) -> None:
        """Do the steps of a JSON text on a schedule."""
        known: dict[str, Any] = {}
        for each in json.loads(text):
            arguments = {key: _from_data(value, known) for key, value in each["arguments"].items()}
            made = _done(sch, each["method"], arguments)
            results = [made] if isinstance(made, Reference) else list(made or ())
            known.update(zip(each["results"], results))

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[Step]:
        return iter(self.steps)


class _Names:
    """A name for each reference, made of what it is called."""

    def __init__(self) -> None:
        self.found: dict[int, str] = {}
        self.taken = {"sch"}

    def __call__(self, reference: Reference) -> str:
        if id(reference) not in self.found:
            label = "".join(c if c.isalnum() else "_" for c in reference.label) or "x"
            label = label if label.isidentifier() else f"x{label}"
            name, number = label, 0
            while name in self.taken:
                number += 1
                name = f"{label}_{number}"
            self.taken.add(name)
            self.found[id(reference)] = name
        return self.found[id(reference)]


_PLAIN = {"name", "block", "loop", "factors", "target", "block_or_loop", "ann_key", "ann_val"}
_STAR = {"fuse": "loops", "reorder": "ordered_loops"}


def _done(sch: Any, method: str, arguments: dict[str, Any]) -> Any:
    """Call a method; what it takes one after another comes so."""
    several = arguments.pop(_STAR[method]) if method in _STAR else ()
    return getattr(sch, method)(*several, **arguments)


def _line(step: Step, names: _Names) -> str:
    star = _STAR.get(step.method)
    parts = []
    for number, (key, value) in enumerate(step.arguments.items()):
        if key == star:
            parts += [_text(each, names) for each in value]
        elif number == 0 or key == "loop":
            parts.append(_text(value, names))
        else:
            parts.append(f"{key}={_text(value, names)}")
    if step.decision is not None:
        parts.append(f"decision={step.decision!r}")
    call = f"sch.{step.method}({', '.join(parts)})"
    if not step.results:
        return call
    made = ", ".join(names(each) for each in step.results)
    return f"{made}{',' if step.many and len(step.results) == 1 else ''} = {call}"


def _text(value: Any, names: _Names) -> str:
    if isinstance(value, Reference):
        return names(value)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_text(each, names) for each in value)}]"
    return repr(value)


def _moved(value: Any, known: Mapping[int, Reference]) -> Any:
    if isinstance(value, Reference):
        return known.get(id(value), value)
    if isinstance(value, (list, tuple)):
        return [_moved(each, known) for each in value]
    return value


def _as_data(step: Step, names: _Names) -> dict[str, Any]:
    def data(value: Any) -> Any:
        if isinstance(value, Reference):
            return {"reference": names(value)}
        if isinstance(value, (list, tuple)):
            return [data(each) for each in value]
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        raise SmeltError("SM1010", f"a trace with {type(value).__name__} {value} has no JSON text")

    arguments = {key: data(value) for key, value in step.arguments.items()}
    if step.decision is not None:
        arguments["decision"] = data(step.decision)
    return {"method": step.method, "arguments": arguments, "results": [names(each) for each in step.results]}


def _from_data(value: Any, known: Mapping[str, Any]) -> Any:
    if isinstance(value, dict):
        return known[value["reference"]]
    if isinstance(value, list):
        return [_from_data(each, known) for each in value]
    return value


__all__ = ["BlockRV", "ExprRV", "LoopRV", "Reference", "Step", "Trace"]
