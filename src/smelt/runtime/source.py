"""A plan as the straight-line Python source of one function, and the bindings of its names."""

from __future__ import annotations

import keyword
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from smelt.errors import Problem, VerificationError
from smelt.runtime.control import CONTROL
from smelt.runtime.externs import find_overload
from smelt.runtime.plan import (
    AllocStep,
    CheckStep,
    ExternStep,
    FreeStep,
    NativeStep,
    Plan,
    Ref,
    Size,
    SizeRef,
    SizeStep,
    Step,
    TensorSpec,
    ViewRef,
)
from smelt.runtime.plan_schema import FUNCTIONS, names_in
from smelt.runtime.recycle import SMALLEST

_TAKEN = FUNCTIONS | {"call", "args"}


@dataclass(frozen=True, slots=True)
class ArenaView:
    """A tensor that is kept with an arena: ``offset`` in bytes, texts in the names of the generated
    source.
    """

    dtype: str
    shape: str
    strides: str
    offset: str


@dataclass(slots=True)
class Source:
    """The text of ``call(args)`` and of its helpers, and the bindings of its global names.

    ``natives``: name → (function, number of pointers, number of sizes); ``externs``: name → (target, out);
    ``literals``: name → value; ``constants``: name → constant's name; ``pointers``: name → constant's name;
    ``errors``: for each native step the exceptions of its checks; ``bodies``: name → plans of control flow,
    to be bound to a tuple of their executors.
    """

    text: str = ""
    natives: dict[str, tuple[str, int, int]] = field(default_factory=dict)
    externs: dict[str, tuple[str, bool]] = field(default_factory=dict)
    literals: dict[str, Any] = field(default_factory=dict)
    constants: dict[str, str] = field(default_factory=dict)
    pointers: dict[str, str] = field(default_factory=dict)
    errors: list[tuple[tuple[str, str], ...]] = field(default_factory=list)
    bodies: dict[str, tuple[Plan, ...]] = field(default_factory=dict)
    has_arena: bool = False


def write_source(plan: Plan) -> Source:
    """Writes the source of a plan.

    Raises:
        VerificationError: SM0405 with every inconsistency of the plan.
    """
    return _Writer(plan).write()


class _Writer:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.source = Source()
        self.lines: list[str] = []
        self.problems: list[Problem] = []
        self.place = "inputs"
        self.symbols: set[str] = set()
        self.alive: set[str] = set()
        self.pythons: dict[str, str] = {}
        self.taken = set(plan.symbols)
        self.sizes: dict[str, str] = {}
        self.pointers: dict[str, str] = {}
        self.arena = {item.spec.name: item for item in plan.arena}
        self.arena_views: list[ArenaView] = []
        self.arena_names: dict[tuple[str, ...], str] = {}
        self.arena_symbols: set[str] = set()
        self.specs: dict[str, TensorSpec] = {}
        self.returned: set[Ref | ViewRef] = set()
        self.uses: dict[str, int] = {}
        self.launched = plan.device is not None
        self.read = set(_referred(plan.outputs))
        for step in plan.steps:
            if isinstance(step, NativeStep):
                for name in step.buffers:
                    self.uses[name] = self.uses.get(name, 0) + 1
            elif isinstance(step, ExternStep):
                self.read.update(_referred([step.args, step.kwargs]))

    # -- the whole

    def write(self) -> Source:
        plan = self.plan
        for name in plan.constants:
            self.source.constants[self.define(name)] = name
        self.begin()
        for number, step in enumerate(plan.steps):
            self.place = f"step {number}"
            self.step(step)
        self.place = "outputs"
        results = [self.output(value) for value in plan.outputs]
        self.lines.append(f"return ({', '.join(results)}{',' if len(results) == 1 else ''})")
        if self.problems:
            raise VerificationError("SM0405", "plan", self.problems)
        self.source.text = self.assemble()
        return self.source

    def begin(self) -> None:
        plan = self.plan
        names = []
        for name in plan.inputs:
            if name is None:
                names.append("_")
            elif name in plan.symbols:
                names.append(self.symbol(name))
            else:
                names.append(self.define(name))
        if names:
            self.lines.append(f"{', '.join(names)}{',' if len(names) == 1 else ''} = args")
        self.lines.append("args.clear()")
        if any(isinstance(step, NativeStep) for step in self.plan.steps):
            self.lines += ["if _profiler._is_profiler_enabled:", "    _watch()"]
        if "_" in names:
            self.lines.append("del _")
        if self.launched and any(isinstance(step, NativeStep) for step in plan.steps):
            self.lines.append("_stream = _current_stream()")
        for symbol, tensor, dim in plan.shape_symbols:
            known = self.pythons.get(tensor)
            if known is None:
                self.problem(f"the size {symbol} is to come from {tensor}, which is no input")
                continue
            self.lines.append(f"{self.symbol(symbol)} = {known}.shape[{dim}]")
        for spec in plan.lazy:
            python = self.tensor(spec.name)
            self.lines.append(f"if {python}.is_conj() or {python}.is_neg():")
            self.lines.append(f"    {python} = {python}.resolve_conj().resolve_neg()")
            self.specs[spec.name] = spec
            self.lay_out(spec, "an input")
        for spec in plan.layouts:
            if spec.name not in self.alive:
                self.problem(f"the layout of {spec.name} is given, which is no input")
                continue
            self.specs[spec.name] = spec
            self.lay_out(spec, "an operand")

    def assemble(self) -> str:
        """Combines the parts: the arena is acquired where it is first needed, and always released."""
        body = self.lines
        source = self.source
        head: list[str] = []
        functions: list[str] = []
        if self.needs_no_grad():
            head += ["if _grad_enabled():", "    with _no_grad():", "        return call(args)"]
        if source.has_arena:
            at = body.index(_ACQUIRE)
            key_names = sorted(self.arena_symbols)
            key = f"({', '.join(key_names)},)" if key_names else ""
            held = [f"_arena = _acquire({key})"]
            inner = ["_base = _arena.address"] if any("(_base" in line for line in body) else []
            names = list(self.arena_names.values())
            if names:
                each = f"{', '.join(names)}{',' if len(names) == 1 else ''}"
                inner.append(f"{each} = _tensors(_arena{', ' if key else ''}{key})")
            inner += body[at + 1 :]
            body = [*body[:at], *held, "try:", *_indent(inner), "finally:", "    _release(_arena)"]
            functions = self.arena_functions(key or "_")
        return "\n".join(["def call(args):", *_indent([*head, *body]), *functions, ""])

    def arena_functions(self, key: str) -> list[str]:
        unpack = [] if key == "_" else [f"{key} = _key"]
        lines = [
            "",
            "",
            "def _arena_bytes(_key):",
            *_indent([*unpack, f"return {self.text(self.plan.arena_bytes)}"]),
        ]
        if not self.arena_views:
            return lines
        views = [
            f"_tensor_at(_storage, _start + {view.offset}, {self.literal(getattr(torch, view.dtype))}, "
            f"{view.shape}, {view.strides}),"
            for view in self.arena_views
        ]
        body = [*unpack, "return (", *_indent(views), ")"]
        return [*lines, "", "", "def _arena_tensors(_storage, _start, _key):", *_indent(body)]

    def needs_no_grad(self) -> bool:
        """Whether gradients must be disabled: AOTAutograd has made the derivative already."""
        return bool(self.source.externs) or any("_view(" in line for line in self.lines)

    # -- names

    def python(self, name: str) -> str:
        """The Python identifier for a tensor's name."""
        known = self.pythons.get(name)
        if known is not None:
            return known
        chosen = re.sub(r"\W", "_", name)
        if (
            not chosen.isidentifier()
            or keyword.iskeyword(chosen)
            or chosen in _TAKEN
            or chosen.startswith("_")
        ):
            chosen = f"v{chosen}"
        while chosen in self.taken:
            chosen += "_"
        self.taken.add(chosen)
        self.pythons[name] = chosen
        return chosen

    def define(self, name: str) -> str:
        if name in self.alive:
            self.problem(f"{name} is defined twice")
        self.alive.add(name)
        self.pointers.pop(name, None)
        return self.python(name)

    def symbol(self, name: str) -> str:
        if not name.isidentifier() or keyword.iskeyword(name) or name in _TAKEN or name.startswith("_"):
            self.problem(f"{name!r} cannot be a symbol's name")
        self.symbols.add(name)
        return name

    def tensor(self, name: str) -> str:
        """A reference to a tensor that exists at this point."""
        if name in self.alive:
            return self.python(name)
        if name in self.arena:
            item = self.arena[name]
            spec = item.spec
            return self.arena_tensor(spec.dtype, spec.shape, spec.strides, item.offset, self.python(name))
        self.problem(f"{name} is used but not there")
        return self.python(name)

    def problem(self, what: str) -> None:
        self.problems.append(Problem(what, self.place))

    def literal(self, value: Any) -> str:
        if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
            name = "_" + str(value).removeprefix("torch.")
        elif isinstance(value, torch.device):
            name = "_device_" + re.sub(r"\W", "_", str(value))
        else:
            name = f"_literal{len(self.source.literals)}"
        self.source.literals[name] = value
        return name

    # -- sizes

    def check(self, size: Size) -> set[str]:
        try:
            names = names_in(size)
        except ValueError as error:
            self.problem(str(error))
            return set()
        for name in sorted(names - self.symbols):
            self.problem(f"symbol {name} in {size!r} has no value yet")
        return names

    def text(self, size: Size) -> str:
        """A size without a name of its own."""
        return str(size) if isinstance(size, int) else f"({size})" if not size.isidentifier() else size

    def size(self, size: Size) -> str:
        """A size as a name or number; an expression is computed once, before the line being written."""
        if isinstance(size, int):
            return str(int(size))
        if size in self.sizes:
            return self.sizes[size]
        names = self.check(size)
        if size.isidentifier() or not names:
            return size
        chosen = f"_size{len(self.sizes)}"
        self.lines.append(f"{chosen} = {size}")
        self.sizes[size] = chosen
        return chosen

    def shape(self, sizes: Iterable[Size]) -> str:
        texts = [self.size(size) for size in sizes]
        return f"({', '.join(texts)}{',' if len(texts) == 1 else ''})"

    # -- the arena

    def use_arena(self) -> None:
        if not self.source.has_arena:
            self.source.has_arena = True
            self.arena_symbols |= self.check(self.plan.arena_bytes)
            for item in self.plan.arena:
                for size in (*item.spec.shape, *item.spec.strides, item.offset):
                    self.arena_symbols |= self.check(size)
            self.lines.append(_ACQUIRE)

    def arena_tensor(
        self,
        dtype: str,
        shape: tuple[Size, ...],
        strides: tuple[Size, ...],
        offset: Size,
        name: str | None = None,
    ) -> str:
        """A tensor over the arena, built once and kept with it."""
        self.use_arena()

        def plain(sizes: tuple[Size, ...]) -> str:
            return "(" + "".join(f"{self.text(size)}, " for size in sizes) + ")"

        key = (dtype, plain(shape), plain(strides), self.text(offset))
        if key in self.arena_names:
            return self.arena_names[key]
        for size in (*shape, *strides, offset):
            self.arena_symbols |= self.check(size)
        self.arena_views.append(ArenaView(dtype, key[1], key[2], key[3]))
        self.arena_names[key] = name or f"_view{len(self.arena_names)}"
        return self.arena_names[key]

    # -- steps

    def step(self, step: Step) -> None:
        if isinstance(step, AllocStep):
            made = self.fresh(step.spec)
            self.lines.append(f"{self.define(step.spec.name)} = {made}")
            self.specs[step.spec.name] = step.spec
        elif isinstance(step, NativeStep):
            self.native(step)
        elif isinstance(step, ExternStep):
            self.extern(step)
        elif isinstance(step, SizeStep):
            self.check(step.value)
            self.lines.append(f"{self.symbol(step.symbol)} = {step.value}")
        elif isinstance(step, CheckStep):
            self.check(step.condition)
            number = len(self.source.errors)
            self.source.errors.append((step.error,))
            self.lines.append(f"if not ({step.condition}):")
            self.lines.append(f"    _fail({number}, 1)")
        elif isinstance(step, FreeStep):
            self.free(step)

    def fresh(self, spec: TensorSpec) -> str:
        dtype = self.literal(getattr(torch, spec.dtype))
        size = math.prod(s for s in spec.shape if isinstance(s, int)) * getattr(torch, spec.dtype).itemsize
        known = all(isinstance(s, int) for s in spec.shape)
        make = "_empty" if known and size < SMALLEST else "_large"
        return f"{make}({self.shape(spec.shape)}, {self.shape(spec.strides)}, {dtype})"

    def native(self, step: NativeStep) -> None:
        base = "0"
        if self.plan.arena_bytes != 0 or self.arena:
            self.use_arena()
            base = "_base"
        arguments = [base, *(self.pointer(name) for name in step.buffers)]
        arguments += [self.size(size) for size in step.sizes]
        arguments += ["_stream"] * self.launched
        name = f"_{step.function}"
        self.source.natives[name] = (step.function, len(step.buffers), len(step.sizes) + self.launched)
        number = len(self.source.errors)
        self.source.errors.append(step.errors)
        self.lines.append(f"if _status := {name}({', '.join(arguments)}):")
        self.lines.append(f"    _fail({number}, _status)")

    def pointer(self, name: str) -> str:
        if name in self.arena:
            offset = self.arena[name].offset
            return f"_base + {self.size(offset)}"
        if name in self.pointers and name in self.alive:
            return self.pointers[name]
        python = self.tensor(name)
        if name in self.plan.constants:
            chosen = f"_p_{python}"
            self.source.pointers[chosen] = name
        elif self.uses[name] > 1:
            chosen = f"_p_{python}"
            self.lines.append(f"{chosen} = {python}.data_ptr()")
        else:
            return f"{python}.data_ptr()"
        self.pointers[name] = chosen
        return chosen

    def extern(self, step: ExternStep) -> None:
        overload = find_overload(step.target, step.out)
        name = "_" + re.sub(r"\W", "_", step.target.removesuffix(".default")) + ("_out" if step.out else "")
        self.source.externs[name] = (step.target, step.out)
        arguments = [self.value(arg) for arg in step.args]
        if step.target in CONTROL:
            bodies = f"_bodies{len(self.source.bodies)}"
            self.source.bodies[bodies] = step.bodies
            arguments.insert(0, bodies)
        elif step.bodies:
            self.problem(f"{step.target} takes no bodies")
        plain = {key: self.value(arg) for key, arg in step.kwargs.items()}
        if step.out:
            if len(step.outputs) != 1 or step.outputs[0] is None:
                self.problem(f"{step.target} with out=True needs one output")
                return
            assert overload.out is not None
            plain[overload.out] = self.tensor(step.outputs[0])
        arguments += [f"{key}={text}" for key, text in plain.items() if not keyword.iskeyword(key)]
        odd = [f"{key!r}: {text}" for key, text in plain.items() if keyword.iskeyword(key)]
        arguments += [f"**{{{', '.join(odd)}}}"] if odd else []
        call = f"{name}({', '.join(arguments)})"
        if step.out:
            self.lines.append(call)
        elif step.symbol is not None:
            self.lines.append(f"{self.symbol(step.symbol)} = {call}")
        else:
            self.bind(step, overload.returns, call)

    def bind(self, step: ExternStep, returns: str, call: str) -> None:
        numbers = {output: symbol for symbol, output, dim in step.sizes if dim is None}
        if all(name is None for name in step.outputs) and not numbers:
            self.lines.append(call)
            return
        if returns == "none" or (returns == "one" and len(step.outputs) != 1):
            self.problem(f"{step.target} gives {returns} result, not {len(step.outputs)}")
        names = ["_" if name is None else self.define(name) for name in step.outputs]
        for output, number in numbers.items():
            names[output] = self.symbol(number)
        comma = "," if returns == "many" and len(names) == 1 else ""
        self.lines.append(f"{', '.join(names)}{comma} = {call}")
        if "_" in names:
            self.lines.append("del _")
        for symbol, output, dim in step.sizes:
            if dim is not None:
                self.lines.append(f"{self.symbol(symbol)} = {names[output]}.shape[{dim}]")
                spec = step.specs[output] if output < len(step.specs) else None
                if spec is not None and spec.shape[dim] != symbol:  # tracing has found it out later
                    message = f"Runtime assertion failed for expression Eq({symbol}, {spec.shape[dim]})"
                    self.step(CheckStep(f"{symbol} == {spec.shape[dim]}", ("RuntimeError", message)))
        for name, spec in zip(step.outputs, step.specs):
            if name is not None and spec is not None and (name in self.read or name in self.uses):
                self.specs[name] = spec
                self.lay_out(replace(spec, name=name), step.target, returns == "many")

    def lay_out(self, spec: TensorSpec, target: str, may_be_missing: bool = False) -> None:
        """Copies the tensor into the layout that later steps need, unless it has it."""
        python, shape, strides = self.python(spec.name), self.shape(spec.shape), self.shape(spec.strides)
        dtype = self.literal(getattr(torch, spec.dtype))
        same = f"{python}.stride() == {strides} and {python}.shape == {shape}"
        same += f" and {python}.dtype is {dtype}"
        if may_be_missing:
            same = f"{python} is not None and {same}"
        self.lines.append(f"if not ({same}):")
        self.lines.append(f"    {python} = _laid_out({python}, {shape}, {strides}, {dtype}, {target!r})")

    def free(self, step: FreeStep) -> None:
        names = []
        for name in step.names:
            if name in self.arena or name in self.plan.constants:
                continue
            names.append(self.tensor(name))
            self.alive.discard(name)
        if names:
            self.lines.append(f"del {', '.join(names)}")

    # -- values

    def value(self, value: Any) -> str:
        """An argument of an extern call."""
        if isinstance(value, Ref):
            return self.tensor(value.name)
        if isinstance(value, ViewRef):
            return self.view(value)
        if isinstance(value, SizeRef):
            return self.size(value.expr)
        if value is None or isinstance(value, (bool, int, str)):
            return repr(value)
        if isinstance(value, float) and math.isfinite(value):
            return repr(value)
        if isinstance(value, list):
            return f"[{', '.join(self.value(item) for item in value)}]"
        if isinstance(value, tuple):
            return f"({''.join(self.value(item) + ', ' for item in value)})"
        if isinstance(value, (float, complex, torch.dtype, torch.layout, torch.memory_format, torch.device)):
            return self.literal(value)
        self.problem(f"a plan cannot hold a {type(value).__name__}")
        return "None"

    def view(self, view: ViewRef, output: bool = False) -> str:
        item = self.arena.get(view.name)
        if item is not None and not output:
            itemsize = getattr(torch, item.spec.dtype).itemsize
            offset: Size = f"{self.text(item.offset)} + {self.text(view.offset)}*{itemsize}"
            if isinstance(item.offset, int) and isinstance(view.offset, int):
                offset = item.offset + view.offset * itemsize
            return self.arena_tensor(item.spec.dtype, view.shape, view.strides, offset)
        name = self.tensor(view.name)
        if view.dtype is not None:
            return self.reinterpreted(name, view)
        returned = output and (Ref(view.name) in self.returned or view in self.returned)
        shape, strides, offset_text = self.shape(view.shape), self.shape(view.strides), self.size(view.offset)
        made = f"_view({name}, {shape}, {strides}, {offset_text})"
        if returned:  # another tensor on the same memory
            return made
        spec = self.specs.get(view.name)
        if (
            spec is not None
            and offset_text == "0"
            and (spec.shape, spec.strides) == (view.shape, view.strides)
        ):
            return name
        if spec is None and offset_text == "0":
            return f"({name} if {name}.stride() == {strides} and {name}.shape == {shape} else {made})"
        return made

    def reinterpreted(self, name: str, view: ViewRef) -> str:
        """Complex numbers as pairs of real ones, or the reverse."""
        assert view.dtype is not None
        if not view.dtype.startswith("complex"):
            shape, strides = self.shape(view.shape), self.shape(view.strides)
            return f"_view(_as_real({name}), {shape}, {strides}, {self.size(view.offset)})"
        shape, strides = self.shape((*view.shape, 2)), self.shape((*map(self.twice, view.strides), 1))
        return f"_as_complex(_view({name}, {shape}, {strides}, {self.size(self.twice(view.offset))}))"

    def twice(self, size: Size) -> Size:
        return 2 * size if isinstance(size, int) else f"{self.text(size)}*2"

    def output(self, value: Any) -> str:
        if isinstance(value, (Ref, ViewRef)):
            if value.name in self.arena and value.name not in self.alive:
                self.problem(f"output {value.name} lies in the arena, which the next call overwrites")
            text = self.tensor(value.name) if isinstance(value, Ref) else self.view(value, output=True)
            self.returned.add(value)
            return text
        return self.value(value)


_ACQUIRE = "# acquire the arena"


def _referred(value: Any) -> Iterator[str]:
    """The tensors in the arguments of a call."""
    if isinstance(value, (Ref, ViewRef)):
        yield value.name
    elif isinstance(value, (list, tuple, dict)):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _referred(each)


def _indent(lines: Iterable[str]) -> Iterator[str]:
    return ("    " + line if line else line for line in lines)
