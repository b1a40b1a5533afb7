"""PrimFuncs as relax has them: names of their buffers, equality, and an operator of PyTorch for each."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from sympy import Expr as Size
from sympy import Symbol

from smelt.capture import capture_function
from smelt.config import Config
from smelt.loops.ir import Graph, Pointwise, Reduction
from smelt.lowering.registry import lowers_named
from smelt.lowering.tensor import Tensor
from smelt.nest.ir import Alloc, Block, Kernel, Let, Param, Stage, Stmt, Store
from smelt.nest.printer import print_kernel
from smelt.nest.stages import raised
from smelt.nest.tree import map_exprs, rewritten, walk, with_blocks
from smelt.ops.handler import Handler, current, using
from smelt.pipeline import compile_program
from smelt.records import replace
from smelt.relax.evaluate import Evaluator
from smelt.relax.types import RelaxError, StructInfo, TensorStructInfo
from smelt.script.module import PrimFunc
from smelt.symbolic import as_expr, contiguous_strides


def call_primfunc(func: PrimFunc, args: Sequence[Any], info: StructInfo, evaluator: Evaluator) -> Any:
    """What a PrimFunc makes of tensors: new ones."""
    tensors = [each for each in args if isinstance(each, torch.Tensor)]
    numbers = [each for each in args if not isinstance(each, torch.Tensor)]
    wanted = unbound_sizes(func.kernel)
    if len(numbers) != len(wanted):
        what = f"{func.name} is called with {len(numbers)} numbers"
        names = ", ".join(map(str, wanted)) or "none"
        raise RelaxError("SM1306", what, why=f"the sizes that no tensor tells: {names}")
    if not tensors:  # PyTorch takes an operator of no tensors for one that has a device
        tensors = [torch.full((), 0)]
    return operator_of(func)(*tensors, *([numbers] if numbers else []))


def unbound_sizes(kernel: Kernel) -> list[Symbol]:
    """The sizes that no dimension of a tensor that is read tells."""
    alone = {size for each in kernel.params if not each.written for size in each.shape}
    return [size for size in kernel.sizes if size not in alone]


def same_function(a: PrimFunc, b: PrimFunc) -> bool:
    """Whether two PrimFuncs are the same but for names of buffers."""
    return a.private == b.private and a.attrs == b.attrs and _numbered(a.kernel) == _numbered(b.kernel)


def _numbered(kernel: Kernel) -> Kernel:
    names = [each.name for each in kernel.params]
    names += [each.buffer for each in walk(kernel.body) if isinstance(each, Alloc)]
    return replace(renamed(kernel, {name: f"%{number}" for number, name in enumerate(names)}, {}), name="")


def renamed(kernel: Kernel, names: Mapping[str, str], sizes: Mapping[Any, Any]) -> Kernel:
    """The kernel with other names of buffers, and of sizes."""

    def stmt(each: Stmt) -> list[Stmt] | None:
        if isinstance(each, Let) and each.op == "load" and each.args[0] in names:
            return [replace(each, args=(names[each.args[0]], *each.args[1:]))]
        if isinstance(each, Store) and each.buffer in names:
            return [replace(each, buffer=names[each.buffer])]
        if isinstance(each, Alloc) and each.buffer in names:
            return [replace(each, buffer=names[each.buffer])]
        if isinstance(each, Stage) and each.name in names:
            inner = with_blocks(each, lambda block: rewritten(block, stmt))
            return [replace(inner, name=names[each.name])]
        return None

    def size(expr: Size) -> Size:
        return expr.xreplace(dict(sizes)) if sizes else expr

    def param(each: Param) -> Param:
        shape, strides = tuple(map(size, each.shape)), tuple(map(size, each.strides))
        return replace(each, name=names.get(each.name, each.name), shape=shape, strides=strides)

    body: Block = rewritten(kernel.body, stmt)
    if sizes:
        body = map_exprs(body, size)
    found = tuple(sorted((size(each) for each in kernel.sizes), key=str))
    return replace(kernel, params=tuple(map(param, kernel.params)), body=body, sizes=found)  # type: ignore[arg-type]


# -- one operator of PyTorch for each PrimFunc ---------------------------------------------------------------

_LIBRARY = torch.library.Library("smelt_relax", "FRAGMENT")
_KNOWN: dict[str, torch._ops.OpOverload] = {}


def operator_of(func: PrimFunc) -> torch._ops.OpOverload:
    """The operator that gives what the function writes, for the tensors that it reads.

    Its lowering row splices the function's loops into the program, where they fuse with their neighbours.

    Raises:
        RelaxError: SM1310, loops that somebody has arranged, which are no loop functions.
    """
    kernel = func.kernel
    graph = raised(kernel)
    if isinstance(graph, str):
        remedy = "call the function without a schedule"
        raise RelaxError("SM1310", f"call_tir of {func.name}: {graph}", remedy=remedy)
    digest = hashlib.sha256(print_kernel(kernel).encode()).hexdigest()[:16]
    name = "".join(each if each.isalnum() else "_" for each in func.name)
    if digest not in _KNOWN:
        given = [each for each in kernel.params if not each.written]
        written = [each for each in kernel.params if each.written]
        arguments = ", ".join(f"Tensor x{number}" for number in range(max(len(given), 1)))
        arguments += ", SymInt[] sizes" if unbound_sizes(kernel) else ""
        results = "Tensor" if len(written) == 1 else f"({', '.join('Tensor' for _ in written)})"
        short = f"{name}_{digest}"
        _LIBRARY.define(f"{short}({arguments}) -> {results}")
        call = _Call(kernel, graph)
        _LIBRARY.impl(short, call.fake, "Meta")
        lowers_named(f"smelt_relax::{short}")(call.row)
        _KNOWN[digest] = getattr(torch.ops.smelt_relax, short).default
        _LIBRARY.impl(short, partial(_run, _KNOWN[digest]), "CPU")
    return _KNOWN[digest]


class _Call:
    """What a call of a kernel gives, for tensors and for loops."""

    def __init__(self, kernel: Kernel, graph: Graph) -> None:
        self.kernel, self.graph = kernel, graph
        self.given = [each for each in kernel.params if not each.written]
        self.written = [each for each in kernel.params if each.written]
        self.sizes = unbound_sizes(kernel)

    def _parted(self, args: Sequence[Any]) -> tuple[Sequence[Any], dict[Any, Any]]:
        """Tensors, and the sizes that they do not tell."""
        return (args[:-1], dict(zip(self.sizes, args[-1]))) if self.sizes else (args, {})

    def fake(self, *given: Any) -> Any:
        """Empty results, of the shapes that the arguments' shapes tell."""
        evaluator = Evaluator()
        args, evaluator.sizes = self._parted(given)
        infos = [TensorStructInfo(each.shape, each.dtype) for each in self.given]
        for bind in (False, True):
            for number, (value, info) in enumerate(zip(args, infos)):
                what = f"argument {self.given[number].name} of {self.kernel.name}"
                evaluator.match(value, info, what, bind)
        found = [
            torch.empty([evaluator.size(size) for size in each.shape], dtype=each.dtype, device=_device(args))
            for each in self.written
        ]
        return found[0] if len(found) == 1 else tuple(found)

    def row(self, builder: Any, *given: Any) -> Any:
        """The kernel's loop functions, added to a program."""
        args, numbers = self._parted(given)
        known: dict[str, Tensor] = dict(zip((each.name for each in self.given), args))
        sizes: dict[Any, Any] = {size: as_expr(number) for size, number in numbers.items()}
        for param, value in zip(self.given, args):
            sizes.update((size, have) for size, have in zip(param.shape, value.shape) if size.is_Symbol)
        for node in self.graph.nodes:
            body, (out,) = node.body, node.outputs
            shape = tuple(size.xreplace(sizes) for size in body.shape)  # type: ignore[union-attr]
            inside = partial(_spliced, dict(known), sizes, body.inner_fn)  # type: ignore[union-attr]
            strides = contiguous_strides(shape)
            if isinstance(body, Reduction):
                reduced = tuple(size.xreplace(sizes) for size in body.reduce_shape)
                made = builder.reduction(
                    body.kind, inside, shape=shape, reduce_shape=reduced, dtype=body.dtype
                )
                made = made[0] if isinstance(made, tuple) else made
            else:
                assert isinstance(body, Pointwise)
                made = builder.pointwise(inside, shape=shape, dtype=body.dtype, strides=strides)
            known[str(out)] = made
        found = [known[each.name] for each in self.written]
        return found[0] if len(found) == 1 else tuple(found)


def _device(args: Sequence[torch.Tensor]) -> Any:
    return args[0].device if args else "cpu"


def _spliced(
    known: Mapping[str, Tensor], sizes: Mapping[Any, Any], inner: Callable[..., Any], *index: Any
) -> Any:
    """A loop function whose buffers are tensors of a program, and whose sizes are the program's."""
    with using(_Spliced(current(), known, sizes)):
        return inner(*index)


class _Spliced(Handler):
    def __init__(self, outer: Handler, known: Mapping[str, Tensor], sizes: Mapping[Any, Any]) -> None:
        self.outer, self.known, self.sizes = outer, known, dict(sizes)

    def load(self, buffer: str, index: Sequence[Size]) -> Any:
        with using(self.outer):
            return self.known[buffer].load([each.xreplace(self.sizes) for each in index])

    def elementwise(self, name: str, *args: Any) -> Any:
        return self.outer.elementwise(name, *args)

    def constant(self, value: float | int | bool, dtype: torch.dtype) -> Any:
        return self.outer.constant(value, dtype)

    def index_expr(self, expr: Size, dtype: torch.dtype) -> Any:
        return self.outer.index_expr(expr.xreplace(self.sizes), dtype)

    def to_dtype(self, x: Any, dtype: torch.dtype) -> Any:
        return self.outer.to_dtype(x, dtype)

    def bitcast(self, x: Any, dtype: torch.dtype) -> Any:
        return self.outer.bitcast(x, dtype)

    def masked(self, mask: Any, body: Callable[[], Any], other: float | int | bool) -> Any:
        def inside() -> Any:
            with using(_Spliced(current(), self.known, self.sizes)):
                return body()

        with using(self.outer):
            return self.outer.masked(mask, inside, other)

    def indirect_index(self, x: Any, size: Size, *, wrap: bool = True, check: bool | str = True) -> Size:
        return self.outer.indirect_index(x, size.xreplace(self.sizes), wrap=wrap, check=check)


def _run(operator: torch._ops.OpOverload, *args: Any) -> Any:
    """The operator on real tensors: a program of this one call."""
    tensors = [each.contiguous() for each in args if isinstance(each, torch.Tensor)]
    numbers = args[len(tensors) :]
    key = operator, repr(numbers), tuple((tuple(each.shape), each.dtype) for each in tensors)
    if key not in _PROGRAMS:
        program = capture_function(lambda *given: operator(*given, *numbers), tensors)
        _PROGRAMS[key] = compile_program(program, Config())
    results = _PROGRAMS[key](tensors)
    return results[0] if len(results) == 1 else tuple(results)


_PROGRAMS: dict[Any, Callable[[list[Any]], Sequence[Any]]] = {}
