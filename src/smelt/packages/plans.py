"""A plan as a C function: `run` of one instruction set."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from sympy import Symbol, sympify

from smelt.packages.callers.library import ALIGNMENT
from smelt.packages.problems import READ_NUMBER, SEED
from smelt.packages.signature import Signature
from smelt.packages.sizes import size_text
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
    TensorSpec,
    ViewRef,
)
from smelt.runtime.plan_schema import names_in
from smelt.runtime.trampoline import MOST_ARGUMENTS

INTEGERS = {"int64": "int64_t", "int32": "int32_t", "int16": "int16_t", "int8": "int8_t"}
INTEGERS |= {"uint8": "uint8_t", "bool": "uint8_t"}
"""The type in C of a number that is read, by dtype."""


def program_text(
    plan: Plan,
    signature: Signature,
    weights: Mapping[int | str, int],
    level: str,
    identifier: str,
    scratch: Sequence[Size],
    errors: dict[str, int],
) -> str:
    """The C file of a plan: the smelt_program ``identifier`` of an instruction set.

    ``weights``: the number of the weight that an input of the program (by position) or a constant (by name)
    is. ``scratch``: bytes of scratch memory of each kernel. ``errors``: message → number, from 1; new ones
    are added.
    """
    return _Writer(plan, signature, weights, level, identifier, scratch, errors).written()


@dataclass(slots=True)
class _Writer:
    plan: Plan
    signature: Signature
    weights: Mapping[int | str, int]
    level: str
    identifier: str
    scratch: Sequence[Size]
    errors: dict[str, int]
    lines: list[str] = field(default_factory=list)
    used: dict[int, int] = field(default_factory=dict)
    at: dict[str, str] = field(default_factory=dict)
    specs: dict[str, TensorSpec] = field(default_factory=dict)
    functions: dict[str, NativeStep] = field(default_factory=dict)
    symbols: set[str] = field(default_factory=set)
    late: set[str] = field(default_factory=set)
    spaces: list[str] = field(default_factory=list)
    used_symbols: frozenset[str] = frozenset()

    def written(self) -> str:
        self.used_symbols = used_symbols(self.plan)
        self.bind()
        self.place_outputs()
        for step in self.plan.steps:
            if isinstance(step, AllocStep):
                self.alloc(step.spec)
            elif isinstance(step, NativeStep):
                self.native(step)
            elif isinstance(step, SizeStep):
                self.size(step)
            elif isinstance(step, CheckStep):
                number = self.error(step.error[1])
                self.lines.append(f"if (!({size_text(step.condition)})) return {number};")
            elif isinstance(step, ExternStep):
                self.number(step)
            else:
                assert isinstance(step, FreeStep), step
        self.copy_outputs()
        return self.text()

    # -- where tensors are

    def bind(self) -> None:
        by_position = {each.position: number for number, each in enumerate(self.signature.inputs)}
        for position, name in enumerate(self.plan.inputs):
            if name is None:
                continue
            number = by_position.get(position)
            if number is not None and name in self.plan.symbols:
                continue  # a number: it is one of the sizes
            self.at[name] = self.weight(position) if number is None else f"inputs[{number}]"
        for name in self.plan.constants:
            self.at[name] = self.weight(name)
        for item in self.plan.arena:
            self.at[item.spec.name] = f"(arena + {size_text(item.offset)})"
        known = {each.symbol for each in self.signature.sizes}
        for symbol, tensor, dim in self.plan.shape_symbols:
            if symbol not in known:
                self.derive(symbol, tensor, dim)

    def derive(self, symbol: str, tensor: str, dim: int) -> None:
        """A size of an input that is no symbol of the signature."""
        for position, name in enumerate(self.plan.inputs):
            if name == tensor:
                (value,) = [each for each in self.signature.inputs if each.position == position]
                self.define(symbol, value.shape[dim])

    def define(self, symbol: str, value: Size) -> None:
        self.symbols.add(symbol)
        self.lines.append(f"const int64_t {symbol} = {size_text(value)};")

    def size(self, step: SizeStep) -> None:
        if not self.late.isdisjoint(names_in(step.value)):
            self.late.add(step.symbol)
            self.lines.append(f"int64_t {step.symbol} = {size_text(step.value)};")
        elif step.symbol not in {each.symbol for each in self.signature.sizes}:
            self.define(step.symbol, step.value)

    def weight(self, key: int | str) -> str:
        return f"weights[{self.used.setdefault(self.weights[key], len(self.used))}]"

    def place_outputs(self) -> None:
        """Tensors that a run makes and returns lie in the caller's memory."""
        made = {step.spec.name: step.spec for step in self.plan.steps if isinstance(step, AllocStep)}
        for number, output in enumerate(self.signature.outputs):
            value = self.plan.outputs[output.position]
            if not isinstance(value, (Ref, ViewRef)) or value.name in self.at or value.name not in made:
                continue
            spec = made[value.name]
            shape, strides = (
                (value.shape, value.strides) if isinstance(value, ViewRef) else (spec.shape, spec.strides)
            )
            whole = isinstance(value, Ref) or (value.offset == 0 and _numbers(shape) == _numbers(spec.shape))
            if whole and _is_contiguous(shape, strides) and _is_contiguous(spec.shape, spec.strides):
                self.at[value.name] = f"outputs[{number}]"
            self.specs[value.name] = spec

    def alloc(self, spec: TensorSpec) -> None:
        self.specs[spec.name] = spec
        if spec.name in self.at:
            return
        count = size_text(_span(spec))
        self.at[spec.name] = self.space(f"smelt_rounded({count} * {_itemsize(spec.dtype)})")

    def space(self, size: str) -> str:
        """A new piece of the workspace, of so many bytes."""
        self.spaces.append(size)
        return f"(arena + own{len(self.spaces) - 1})"

    # -- steps

    def native(self, step: NativeStep) -> None:
        self.functions[step.function] = step
        arguments = [f"(void*)({self.at[name]})" for name in step.buffers]
        sizes = [size_text(size) for size in step.sizes]
        if 1 + len(arguments) + len(sizes) > MOST_ARGUMENTS:
            values = ", ".join(
                ["(int64_t)(intptr_t)arena", *(f"(int64_t)(intptr_t){each}" for each in arguments), *sizes]
            )
            self.lines.append("{")
            self.lines.append(f"  const int64_t values[] = {{{values}}};")
            self.call(step, "values", "  ")
            self.lines.append("}")
        else:
            self.call(step, ", ".join(["arena", *arguments, *sizes]))

    def call(self, step: NativeStep, arguments: str, indent: str = "") -> None:
        if not step.errors:
            self.lines.append(f"{indent}{step.function}({arguments});")
            return
        first = [self.error(message) for _, message in step.errors]
        table = ", ".join(map(str, first))
        self.lines.append(f"{indent}{{")
        self.lines.append(f"{indent}  static const int numbers[] = {{0, {table}}};")
        self.lines.append(f"{indent}  const int64_t error = {step.function}({arguments});")
        self.lines.append(f"{indent}  if (error) return numbers[error];")
        self.lines.append(f"{indent}}}")

    def number(self, step: ExternStep) -> None:
        """The seed, or a number that is read from a tensor; other calls of ATen are refused before."""
        if step.target == SEED:
            (seed,) = [at for at, each in enumerate(self.signature.inputs) if each.position < 0]
            place = self.space(str(ALIGNMENT))  # a copy: kernels reuse the memory of what nothing reads later
            self.lines.append(f"*(int64_t*){place} = *(const int64_t*)inputs[{seed}];")
            self.at[str(step.outputs[0])] = place
            return
        assert step.target == READ_NUMBER and step.symbol is not None, step
        if step.symbol not in self.used_symbols:
            return  # kernels read the tensor themselves
        (source,) = step.args
        self.late.add(step.symbol)
        kind = INTEGERS[self.dtype_of(source.name)]
        place = f"(const {kind}*)({self.at[source.name]})"
        offset = source.offset if isinstance(source, ViewRef) else 0
        self.lines.append(f"int64_t {step.symbol} = ({place})[{size_text(offset)}];")

    def dtype_of(self, name: str) -> str:
        """The dtype of a tensor that a number is read from."""
        if name in self.specs:
            return self.specs[name].dtype
        found = {item.spec.name: item.spec.dtype for item in self.plan.arena}
        for each in self.signature.inputs:
            if each.position >= 0:
                found.setdefault(str(self.plan.inputs[each.position]), str(each.dtype).removeprefix("torch."))
        return found[name]

    def error(self, message: str) -> int:
        return self.errors.setdefault(message, len(self.errors) + 1)

    def copy_outputs(self) -> None:
        """Outputs that are no tensors of their own: inputs, weights, views, numbers, one tensor twice."""
        for number, output in enumerate(self.signature.outputs):
            value = self.plan.outputs[output.position]
            if isinstance(value, SizeRef):
                self.lines.append(f"*(int64_t*)outputs[{number}] = {size_text(value.expr)};")
            elif isinstance(value, int):
                self.lines.append(f"*(int64_t*)outputs[{number}] = {size_text(value)};")
            elif self.at[value.name] != f"outputs[{number}]":
                self.copy(number, value)

    def copy(self, number: int, value: Ref | ViewRef) -> None:
        output = self.signature.outputs[number]
        size = output.dtype.itemsize
        source = f"(const char*)({self.at[value.name]})"
        shape: Sequence[Size] = output.shape
        if isinstance(value, ViewRef):
            shape, strides = value.shape, value.strides
            itemsize = size
            source += f" + {size_text(value.offset)} * {itemsize}"
        elif value.name in self.specs:
            shape, strides = self.specs[value.name].shape, self.specs[value.name].strides
        else:
            strides = _contiguous(shape)
        if _is_contiguous(shape, strides):
            count = " * ".join([*(size_text(each) for each in shape), str(size)])
            self.lines.append(f"memmove(outputs[{number}], {source}, (size_t)({count}));")
            return
        rank = len(shape)
        self.lines.append("{")
        self.lines.append(f"  const int64_t shape[] = {{{', '.join(map(size_text, shape))}}};")
        self.lines.append(f"  const int64_t strides[] = {{{', '.join(map(size_text, strides))}}};")
        self.lines.append(f"  smelt_copy(outputs[{number}], {source}, {rank}, shape, strides, {size});")
        self.lines.append("}")

    # -- the file

    def text(self) -> str:
        arena = f"smelt_rounded({size_text(self.plan.arena_bytes)})"
        own, ends = [], [arena]
        for number, space in enumerate(self.spaces):
            own.append(f"const int64_t own{number} = {' + '.join(ends)};")
            ends = [f"own{number}", space]
        total = " + ".join(ends)
        sizes = [
            f"const int64_t {each.symbol} = sizes[{at}];" for at, each in enumerate(self.signature.sizes)
        ]
        unused = [f"(void){each.symbol};" for each in self.signature.sizes] or ["(void)sizes;"]
        derived = [line for line in self.lines if line.startswith("const int64_t ")]
        unused += [f"(void){symbol};" for symbol in sorted(self.symbols)]
        head = [*sizes, *derived, *unused]
        rest = [line for line in self.lines if line not in derived]
        scratch = "INT64_C(0)"
        for each in dict.fromkeys(self.scratch):
            scratch = f"smelt_most({scratch}, {size_text(each)})"
        table = ", ".join(map(str, self.used))
        body = [
            f"/* The program for {self.level}: sizes, memory, and the order of kernels. */",
            '#include "smelt_program.h"',
            "",
            *(self.prototype(step) for step in self.functions.values()),
            "",
            *_function("static int64_t arena_bytes(const int64_t* sizes)", [*head, *own, f"return {total};"]),
            *_function("static int64_t scratch_bytes(const int64_t* sizes)", [*head, f"return {scratch};"]),
            *_function(
                "static int run(const void* const* weights, const int64_t* sizes, void* const* inputs, "
                "void* const* outputs, char* arena)",
                [*head, *own, "(void)weights; (void)inputs; (void)outputs; (void)arena;", *rest, "return 0;"],
            ),
            f"static const int32_t weights_used[] = {{{table or '0'}}};",
            "",
            f"const smelt_program {self.identifier} = {{",
            f'  "{self.level}", {len(self.used)}, weights_used, arena_bytes, scratch_bytes, run',
            "};",
            "",
        ]
        return "\n".join(body)

    def prototype(self, step: NativeStep) -> str:
        arguments = ["char* arena", *(["void*"] * len(step.buffers)), *(["int64_t"] * len(step.sizes))]
        if len(arguments) > MOST_ARGUMENTS:
            arguments = ["const int64_t* values"]
        return f"int64_t {step.function}({', '.join(arguments)});"


def used_symbols(plan: Plan) -> frozenset[str]:
    """The symbols that steps and outputs of a plan use."""
    sizes: list[Size] = []
    for step in plan.steps:
        if isinstance(step, AllocStep):
            sizes += [*step.spec.shape, *step.spec.strides]
        elif isinstance(step, NativeStep):
            sizes += step.sizes
        elif isinstance(step, SizeStep):
            sizes.append(step.value)
        elif isinstance(step, CheckStep):
            sizes.append(step.condition)
    for value in plan.outputs:
        if isinstance(value, SizeRef):
            sizes.append(value.expr)
        elif isinstance(value, ViewRef):
            sizes += [*value.shape, *value.strides, value.offset]
    return frozenset(name for size in sizes for name in names_in(size))


def _function(head: str, lines: Sequence[str]) -> Iterator[str]:
    yield f"{head} {{"
    yield from (f"  {line}" for line in lines)
    yield "}"
    yield ""


def _itemsize(dtype: str) -> int:
    return int(getattr(torch, dtype).itemsize)


def _span(spec: TensorSpec) -> Size:
    """Elements from the first to the last of a tensor."""
    parts = [f"({size} - 1)*({stride})" for size, stride in zip(spec.shape, spec.strides)]
    return " + ".join(["1", *parts])


def _contiguous(shape: Sequence[Size]) -> tuple[Size, ...]:
    strides: list[Size] = []
    step: Size = 1
    for size in reversed(shape):
        strides.insert(0, step)
        step = size * step if isinstance(size, int) and isinstance(step, int) else f"({size})*({step})"
    return tuple(strides)


def _is_contiguous(shape: Sequence[Size], strides: Sequence[Size]) -> bool:
    wanted = _contiguous(shape)
    pairs = zip(shape, map(_simple, strides), map(_simple, wanted))
    return all(size == 1 or have == want for size, have, want in pairs)


def _numbers(shape: Sequence[Size]) -> str:
    total: Size = 1
    for size in shape:
        total = f"({total})*({size})"
    return _simple(total)


def _simple(size: Size) -> str:
    """A text that is equal for equal products of sizes."""
    if isinstance(size, int):
        return str(size)
    names = {name: Symbol(name, integer=True, nonnegative=True) for name in names_in(size)}
    return str(sympify(size, locals=names).expand())
