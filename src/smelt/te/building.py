"""`smelt.build`: the user's function of loops as a callable that fills the buffers passed to it."""

from __future__ import annotations

import operator as python
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from sympy import Symbol
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from smelt.capture import Program
from smelt.capture.program import Input
from smelt.config import Config
from smelt.errors import SmeltError
from smelt.nest.inside import Bound
from smelt.nest.ir import Kernel, Param
from smelt.nest.tree import loops, named
from smelt.pipeline import Compiled, compile_program
from smelt.pipeline.targets import CodeTarget
from smelt.pipeline.triton import absent_target, gpu_target
from smelt.symbolic.expr import evaluate_on
from smelt.te.operators import Operator, as_torch, digest_of_kernel

_SEEN = (64, 48, 96, 80, 112, 56, 72, 88, 104, 120)
"""Hints for unknown sizes while compiling: typical and all different.

If a shape is empty with them (an image smaller than its kernel), or an index is out of range, the sizes of
the first call are used.
"""

MOST_SEEN = 256


class Built:
    """A compiled function of loops.

    Call it with a tensor (or a NumPy array) for each parameter, in order; it fills those that the function
    writes, in place. ``target``: a GPU; None for this machine's CPU.
    """

    def __init__(self, operator: Operator, target: CodeTarget | None = None) -> None:
        self.operator, self.target = operator, target
        self.device: torch.device = getattr(target, "device", torch.device("cpu"))
        self.kernel = operator.kernel
        for loop in loops(self.kernel.body) if target is None else ():
            if loop.thread is not None:
                what = f"{named(loop)} of {self.kernel.name} is bound to {loop.thread}"
                remedy = 'smelt.build(…, target="cuda"); parallel and vectorize say the same of a CPU'
                raise SmeltError("SM1045", what, why="it is built for a CPU", remedy=remedy)
        self.made: dict[tuple[tuple[Symbol, int], ...], Compiled] = {}
        self.seen: dict[Any, Compiled] = {}
        """Compiled functions by dtype and layout of the arguments, for arguments that need no check."""

    def __call__(self, *args: Any) -> None:
        try:
            lie = tuple([(a.dtype, a.shape, a.is_contiguous(), a.is_cpu, a.requires_grad) for a in args])
            found = self.seen.get(lie)
        except AttributeError:
            lie, found = None, None
        if found is not None:
            found(list(args))
            return
        tensors, sizes = self._parted(args)
        given = [each if each.is_contiguous() else each.contiguous() for each in tensors]
        compiled = self._compiled(sizes)
        numbers = [sizes[size] for size in self.operator.signature.sizes if sizes[size] > 1]
        compiled([*given, *numbers])
        for tensor, used, param in zip(tensors, given, self.kernel.params):
            if param.written and used is not tensor:
                tensor.copy_(used)
        plain = lie is not None and not self.operator.signature.sizes
        if plain and all(a is b for a, b in zip(args, given)) and len(self.seen) < MOST_SEEN:
            self.seen[lie] = compiled

    def begin(self, *args: Any) -> None:
        """Start the C++ compilation that a call with these buffers needs."""
        self._compiled(self._parted(args)[1])

    def _parted(self, args: Sequence[Any]) -> tuple[list[torch.Tensor], dict[Symbol, int]]:
        """The tensors among the arguments, and all sizes."""
        params, numbers = self.kernel.params, dict(self.kernel.scalars)
        if len(args) != len(params) + len(numbers):
            names = ", ".join(parameter_names(self.kernel))
            what = f"{self.kernel.name} takes {len(params) + len(numbers)} buffers ({names}), not {len(args)}"
            raise SmeltError("SM1044", what)
        told = {symbol: _number(args[place], symbol) for place, symbol in numbers.items()}
        buffers = [arg for place, arg in enumerate(args) if place not in numbers]
        tensors = [_tensor(arg, param, self.device) for arg, param in zip(buffers, params)]
        return tensors, self.operator.sizes_of(dict(enumerate(tensors)), told)

    def _compiled(self, sizes: Mapping[Symbol, int]) -> Compiled:
        """The compiled function for these sizes; all sizes of at least 2 share one (as in PyTorch)."""
        known = {symbol: size for symbol, size in sizes.items() if size < 2}
        key = tuple(known.items())
        if key not in self.made:
            program = program_of(self.operator, known, sizes, self.device)
            self.made[key] = compile_program(program, Config(strict=True), target=self.target)
        return self.made[key]


def parameter_names(kernel: Kernel) -> list[str]:
    """The names of a kernel's parameters in the order of a call: buffers and numbers."""
    names = [param.name for param in kernel.params]
    for place, symbol in sorted(kernel.scalars):
        names.insert(place, symbol.name)
    return names


def _number(arg: Any, symbol: Symbol) -> int:
    try:
        value = arg.__index__()
    except (AttributeError, TypeError):
        raise SmeltError("SM1044", f"{symbol} wants an integer, not {type(arg).__name__}") from None
    if value < 0:
        raise SmeltError("SM1044", f"{symbol} is {value}", why="indices are made of it: it is not negative")
    return int(value)


def _tensor(arg: Any, param: Param, device: torch.device) -> torch.Tensor:
    if isinstance(arg, torch.Tensor):
        if arg.layout is not torch.strided or arg.device.type != device.type:
            what = f"{param.name} is {arg.layout} on {arg.device}"
            where = "this machine's CPU" if device.type == "cpu" else str(device)
            raise SmeltError("SM1044", what, why=f"kernels are for {where}")
        return arg.detach() if arg.requires_grad else arg
    if isinstance(arg, (bool, int, float)) and not param.shape:
        return torch.tensor(arg, dtype=param.dtype, device=device)
    if hasattr(arg, "__array__") and device.type == "cpu":
        return torch.from_numpy(arg)
    raise SmeltError("SM1044", f"{param.name} wants a tensor or an array, not {type(arg).__name__}")


def program_of(
    operator: Operator, known: Mapping[Symbol, int], first: Mapping[Symbol, int], device: torch.device
) -> Program:
    """A program with one call of the operator that stores its results in the buffers passed for them.

    ``known``: constant sizes; ``first``: all sizes of the first call.
    """
    kernel, sign = operator.kernel, operator.signature
    examples, sizes = _examples(kernel, operator.bounds, known, first, device)
    graph = Graph()
    places = []
    for position, example in enumerate(examples):
        node = graph.placeholder(f"b{position}")
        node.meta["val"] = example
        places.append(node)
    numbers: list[Any] = []
    inputs = [Input(f"b{position}", "user") for position in range(len(examples))]
    for symbol in sign.sizes:
        if symbol in known:
            numbers.append(known[symbol])
            continue
        inputs.append(Input(f"size_{len(numbers)}", "size"))
        numbers.append(graph.placeholder(inputs[-1].name))
        numbers[-1].meta["val"] = sizes[symbol]
    call = graph.call_function(operator.overload, (*(places[p] for p in sign.arguments), *numbers))
    call.meta["where"] = None
    with examples[0].fake_mode:
        call.meta["val"] = operator.overload(
            *(examples[p] for p in sign.arguments), *(sizes[symbol] for symbol in sign.sizes)
        )
    results = [call] if len(sign.results) == 1 else [_item(graph, call, n) for n in range(len(sign.results))]
    for position, result in zip(sign.results, results):
        stored = graph.call_function(torch.ops.aten.copy_.default, (places[position], result))
        stored.meta["val"] = examples[position]
    graph.output(())
    module = GraphModule(torch.nn.Module(), graph)
    return Program(module, "inference", tuple(inputs), (), kernel.name)


def _item(graph: Graph, call: Node, number: int) -> Node:
    node = graph.call_function(python.getitem, (call, number))
    node.meta["val"] = call.meta["val"][number]
    return node


def _examples(
    kernel: Kernel,
    bounds: Sequence[Bound],
    known: Mapping[Symbol, int],
    first: Mapping[Symbol, int],
    device: torch.device,
) -> tuple[list[Any], dict[Symbol, Any]]:
    """A FakeTensor for each parameter (equal unknown sizes share a symbol), and the sizes' examples."""
    mode = FakeTensorMode(shape_env=ShapeEnv())
    unknown = [symbol for symbol in kernel.sizes if symbol not in known]
    seen = [_SEEN[number % len(_SEEN)] + number // len(_SEEN) for number in range(len(unknown))]
    typical = {**known, **dict(zip(unknown, seen))}
    empty = any(evaluate_on(each, typical) < 1 for param in kernel.params for each in param.shape)
    if empty or any(bound.why_outside(typical) for bound in bounds):
        seen = [first[symbol] for symbol in unknown]
    context: Any = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC] * len(unknown))
    of_sizes = mode.from_tensor(torch.empty(seen, device="meta"), symbolic_context=context)
    sizes: dict[Symbol, Any] = {**known, **dict(zip(unknown, of_sizes.shape))}
    with mode:
        return [
            torch.empty([evaluate_on(each, sizes) for each in param.shape], dtype=param.dtype, device=device)
            for param in kernel.params
        ], sizes


_built: dict[tuple[str, str], Built] = {}

_last: dict[str, tuple[Kernel, Built]] = {}
"""The last kernel of each operator: a call with the same one computes no digest."""


def built(operator: Operator) -> Built:
    """The compiled function of an operator, by its current schedule."""
    kernel = operator.kernel
    last = _last.get(operator.name)
    if last is None or last[0] is not kernel:
        key = operator.name, digest_of_kernel(kernel)
        if key not in _built:
            _built[key] = Built(operator)
        last = _last[operator.name] = kernel, _built[key]
    return last[1]


class Library:
    """The compiled functions of a module, by name: ``lib["main"](a, b)``; a single one is callable."""

    def __init__(self, functions: Mapping[str, Callable[..., None]]) -> None:
        self.functions = dict(functions)

    def __getitem__(self, name: str) -> Callable[..., None]:
        try:
            return self.functions[name]
        except KeyError:
            raise SmeltError(
                "SM1043", f"there is no function {name!r}", why=", ".join(self.functions)
            ) from None

    def __call__(self, *args: Any) -> None:
        if len(self.functions) != 1:
            names = ", ".join(self.functions)
            raise SmeltError("SM1043", f"which of {names}?", remedy='lib["main"](…)')
        next(iter(self.functions.values()))(*args)


def build(thing: Any, target: Any = "llvm") -> Library:
    """Compile a function of loops (`PrimFunc`), a `Schedule` or a module of functions.

    ``target``: ``"llvm"`` or ``"cpu"``, this machine; ``"cuda"``, its GPU, by Triton; ``"sm90"`` (or another
    architecture), a GPU that is not there, to look at the code; or a `smelt.pipeline.targets.CodeTarget`. The
    compiler runs at the first call, unless the cache has its result.

    Raises:
        SmeltError: SM1043 ``thing`` is no function of loops, SM1045 a loop is bound to a thread of a GPU and
        the target is a CPU, SM1046 there is no such target.
    """
    machine = _target(target)
    functions = getattr(getattr(thing, "mod", thing), "functions", None)
    made = [as_torch(each) for each in ([thing] if functions is None else functions.values())]
    operators = {each.kernel.name: each for each in made}
    if machine is None:
        return Library({name: built(each) for name, each in operators.items()})
    return Library({name: Built(each, machine) for name, each in operators.items()})


def _target(target: Any) -> CodeTarget | None:
    """The target that is meant; None for this machine's CPU."""
    if hasattr(target, "machine") and hasattr(target, "build"):
        found: CodeTarget = target
        return found
    kind = str(getattr(target, "kind", target)).split()[0]
    if kind in ("llvm", "cpu", "c"):
        return None
    if kind == "cuda" and torch.cuda.is_available():
        return gpu_target(torch.device("cuda", torch.cuda.current_device()))
    if kind.startswith(("sm", "gfx")):
        return absent_target(kind)
    why = "there is no CUDA device here" if kind == "cuda" else "kernels are built for a CPU or for CUDA"
    raise SmeltError("SM1046", f"no target {target!r}", why=why, remedy='"llvm", "cuda" or "sm90"')


__all__ = ["Built", "Library", "build", "built"]
