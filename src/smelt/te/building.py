"""`smelt.build`: a person's function of loops as something to call, which fills the buffers it is given."""

from __future__ import annotations

import operator as python
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
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
from smelt.nest.ir import Kernel, Param
from smelt.nest.tree import loops
from smelt.pipeline import Compiled, compile_program
from smelt.te.operators import Operator, as_torch, kernel_of, size_at, solved

_SEEN = (64, 48, 96, 80, 112, 56, 72, 88, 104, 120)
"""What unknown sizes are while compiling: typical ones, all different."""

MOST_SEEN = 256


class Built:
    """A compiled function of loops. Call it with a tensor (or a NumPy array) for each parameter, in order; it
    fills those that the function writes, in place.
    """

    def __init__(self, operator: Operator) -> None:
        self.operator = operator
        self.kernel = operator.kernel
        for loop in loops(self.kernel.body):
            if loop.thread is not None:
                what = f"{loop.label or loop.var} of {self.kernel.name} is bound to {loop.thread}"
                remedy = "parallel and vectorize say the same of a CPU"
                raise SmeltError("SM1045", what, why="there is no GPU target yet", remedy=remedy)
        self.made: dict[tuple[int, ...] | None, Compiled] = {}
        self.seen: dict[Any, Compiled] = {}
        """What runs for tensors that lie so: those that need no look at."""
        self.symbols = tuple(self.kernel.sizes)

    def __call__(self, *args: Any) -> None:
        try:
            lie = tuple([(a.dtype, a.shape, a.is_contiguous(), a.is_cpu, a.requires_grad) for a in args])
            found = self.seen.get(lie)
        except AttributeError:
            lie, found = None, None
        if found is not None:
            found(list(args))
            return
        tensors = self._tensors(args)
        given = [each if each.is_contiguous() else each.contiguous() for each in tensors]
        compiled = self._compiled(solved(self.kernel.params, dict(enumerate(tensors))))
        compiled(list(given))
        for tensor, used, param in zip(tensors, given, self.kernel.params):
            if param.written and used is not tensor:
                tensor.copy_(used)
        if lie is not None and all(a is b for a, b in zip(args, given)) and len(self.seen) < MOST_SEEN:
            self.seen[lie] = compiled

    def begin(self, *args: Any) -> None:
        """Let the C++ compiler begin with what a call with such buffers needs."""
        self._compiled(solved(self.kernel.params, dict(enumerate(self._tensors(args)))))

    def _tensors(self, args: Sequence[Any]) -> list[torch.Tensor]:
        params = self.kernel.params
        if len(args) != len(params):
            names = ", ".join(param.name for param in params)
            raise SmeltError(
                "SM1044", f"{self.kernel.name} takes {len(params)} buffers ({names}), not {len(args)}"
            )
        return [_tensor(arg, param) for arg, param in zip(args, params)]

    def _compiled(self, sizes: Mapping[Symbol, int]) -> Compiled:
        """What runs at these sizes: one for all of at least 2, of which PyTorch's symbols are."""
        key = None if all(size > 1 for size in sizes.values()) else tuple(sizes[s] for s in self.symbols)
        if key not in self.made:
            known = {} if key is None else dict(zip(self.symbols, key))
            self.made[key] = compile_program(_program(self.operator, known), Config())
        return self.made[key]


def _tensor(arg: Any, param: Param) -> torch.Tensor:
    if isinstance(arg, torch.Tensor):
        if arg.layout is not torch.strided or not arg.is_cpu:
            what = f"{param.name} is {arg.layout} on {arg.device}"
            raise SmeltError("SM1044", what, why="kernels are for this machine's CPU")
        return arg.detach() if arg.requires_grad else arg
    if isinstance(arg, (bool, int, float)) and not param.shape:
        return torch.tensor(arg, dtype=param.dtype)
    if hasattr(arg, "__array__"):
        return torch.from_numpy(arg)
    raise SmeltError("SM1044", f"{param.name} wants a tensor or an array, not {type(arg).__name__}")


def _program(operator: Operator, known: Mapping[Symbol, int]) -> Program:
    """One call of the operator, its results stored in the buffers that are given for them."""
    kernel, sign = operator.kernel, operator.signature
    examples = _examples(kernel, known)
    graph = Graph()
    places = []
    for position, example in enumerate(examples):
        node = graph.placeholder(f"b{position}")
        node.meta["val"] = example
        places.append(node)
    call = graph.call_function(operator.overload, tuple(places[p] for p in sign.arguments))
    call.meta["where"] = None
    with examples[0].fake_mode:
        call.meta["val"] = operator.overload(*(examples[p] for p in sign.arguments))
    results = [call] if len(sign.results) == 1 else [_item(graph, call, n) for n in range(len(sign.results))]
    for position, result in zip(sign.results, results):
        stored = graph.call_function(torch.ops.aten.copy_.default, (places[position], result))
        stored.meta["val"] = examples[position]
    graph.output(())
    module = GraphModule(torch.nn.Module(), graph)
    inputs = tuple(Input(f"b{position}", "user") for position in range(len(examples)))
    return Program(module, "inference", inputs, (), kernel.name)


def _item(graph: Graph, call: Node, number: int) -> Node:
    node = graph.call_function(python.getitem, (call, number))
    node.meta["val"] = call.meta["val"][number]
    return node


def _examples(kernel: Kernel, known: Mapping[Symbol, int]) -> list[Any]:
    """A FakeTensor for each parameter; a size that is not known is one symbol wherever it stands."""
    mode = FakeTensorMode(shape_env=ShapeEnv())
    unknown = [symbol for symbol in kernel.sizes if symbol not in known]
    seen = [_SEEN[number % len(_SEEN)] + number // len(_SEEN) for number in range(len(unknown))]
    context: Any = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC] * len(unknown))
    of_sizes = mode.from_tensor(torch.empty(seen, device="meta"), symbolic_context=context)
    sizes: dict[Symbol, Any] = {**known, **dict(zip(unknown, of_sizes.shape))}
    with mode:
        return [
            torch.empty([size_at(each, sizes) for each in param.shape], dtype=param.dtype)
            for param in kernel.params
        ]


@lru_cache(maxsize=4096)
def _built(operator: Operator, kernel: Kernel) -> Built:
    del kernel
    return Built(operator)


def built(operator: Operator) -> Built:
    """The compiled function of an operator, by the schedule that it has now."""
    return _built(operator, operator.kernel)


class Library:
    """The compiled functions of a module, by name: ``lib["main"](a, b)``; of one function itself to call."""

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

    ``target``: ``"llvm"`` or ``"cpu"``, the machine that this runs on. The C++ compiler runs at the first
    call, or what it made is found in the cache.

    Raises:
        SmeltError: SM1043 that is no function of loops, SM1045 a loop is bound to a thread of a GPU, SM1046
        another target.
    """
    kind = str(getattr(target, "kind", target)).split()[0]
    if kind not in ("llvm", "cpu", "c"):
        raise SmeltError("SM1046", f"no target {target!r}", why="kernels are built for this machine's CPU")
    functions = getattr(getattr(thing, "mod", thing), "functions", None)
    kernels: Sequence[Kernel]
    kernels = [kernel_of(thing)] if functions is None else [kernel_of(each) for each in functions.values()]
    return Library({kernel.name: built(as_torch(kernel)) for kernel in kernels})


__all__ = ["Built", "Library", "build", "built"]
