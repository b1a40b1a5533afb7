"""The user's function of loops as a PyTorch operator: by itself, and in programs that smelt compiles.

The operator is functional: buffers that the function only fills are its results, all others its arguments; a
buffer that it reads and writes is both. Numbers that no argument's shape determines are additional arguments
at the end. An unscheduled function becomes loop functions among those around it; a scheduled one runs as
written.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import sympy
import torch
from sympy import Expr, Symbol

from smelt.contract.outside import add_row
from smelt.errors import SmeltError
from smelt.loops.ir import Pointwise, Reduction, StridedView
from smelt.lowering.builder import Builder
from smelt.lowering.tensor import Tensor
from smelt.nest.initialization import hoist_initialization
from smelt.nest.inside import Bound, check_bounds, open_bounds
from smelt.nest.interpreter import run_kernel
from smelt.nest.ir import AxisKind, Block, For, Kernel, Let, LoopKind, Param, Stage, Store
from smelt.nest.regions import found_accesses
from smelt.nest.stages import Fresh, names_of, raised
from smelt.nest.tree import (
    accesses,
    loops,
    map_exprs,
    rewritten,
    stages,
    trip_count,
    with_blocks,
    with_variables,
    without_guards,
)
from smelt.records import dataclass, replace
from smelt.script.module import PrimFunc
from smelt.symbolic.affine import expand, replaced
from smelt.symbolic.expr import evaluate_on
from smelt.symbolic.solving import solve_sizes
from smelt.te.gradients import gradient_of, refusal
from smelt.te.products import products_of

NAMESPACE = "smelt_te"
"""The namespace of operators without a name of their own."""


@dataclass(frozen=True, slots=True)
class Signature:
    """The roles of a function's parameters: positions of arguments, of results, of both.

    ``sizes`` that no argument determines are arguments after the others.
    """

    arguments: tuple[int, ...]
    results: tuple[int, ...]
    both: tuple[int, ...]
    sizes: tuple[Symbol, ...]


def signature(func: PrimFunc) -> Signature:
    """The buffers of a function that are arguments and those that are results.

    A buffer is both if a part of it may be read, or may stay unwritten, as far as the function shows, or as
    it was before its schedule.
    """
    kernel, shown = func.kernel, [func.kernel]
    if func.unscheduled is not None and func.unscheduled.params == kernel.params:
        shown.append(func.unscheduled)
    made: list[int] = []
    both: list[int] = []
    for position, param in enumerate(kernel.params):
        if param.written:
            (made if any(fills(each, param) for each in shown) else both).append(position)
    given = tuple(place for place, param in enumerate(kernel.params) if not param.written or place in both)
    told = {
        found.symbol for found in solve_sizes([(str(place), kernel.params[place].shape) for place in given])
    }
    sizes = tuple(size for size in kernel.sizes if size not in told)
    return Signature(given, tuple(sorted([*made, *both])), tuple(both), sizes)


def fills(kernel: Kernel, param: Param) -> bool:
    """Whether a kernel provably stores all of a parameter before it reads any of it.

    A stage fills a buffer if it stores at its own spatial axes, these span the buffer, and it runs
    everywhere: loops and conditions around a stage iterate over its axes, each once. Consecutive stages fill
    rows: later ones may read earlier rows.
    """
    if not next((is_store for name, _, is_store in accesses(kernel.body) if name == param.name), False):
        return False
    row: Expr = sympy.Integer(0)
    ahead: set[Expr] = set()
    """The loops over rows that read earlier rows and come before the stage that fills them."""
    for stage in stages(kernel.body):
        inside = [*(found_accesses(stage.init) if stage.init else ()), *found_accesses(stage.body)]
        touched = [(each.index, each.is_store) for each in inside if each.buffer == param.name]
        if not touched:
            continue
        first = stage.axes[0] if stage.axes else None
        if not any(is_store for _, is_store in touched) and first and first.kind is AxisKind.OPAQUE:
            if row == 0 or first.begin != row or not all(_before(i, (first.var,)) for i, _ in touched):
                return False
            ahead.add(first.value)
            continue
        always = without_guards(stage.init or stage.body)
        begun = [each for each in found_accesses(always) if each.is_store]
        plain = [each.index for each in begun if each.buffer == param.name and each.mode is None]
        ends = [_end_of_rows(stage, index, row, param.shape) for index in plain]
        end = next((each for each in ends if each is not None), None)
        if end is None or not (
            row == 0 or all(_before(i, plain[0]) for i, is_store in touched if not is_store)
        ):
            return False
        if not param.shape or end == param.shape[0]:
            return True
        row = end
    return False


def _end_of_rows(stage: Stage, index: Sequence[Expr], row: Expr, shape: Sequence[Expr]) -> Expr | None:
    """The row up to which a stage fills a buffer, from a row on; None if it may not."""
    axes = {axis.var: axis for axis in stage.axes}
    found = [axes.get(e) for e in index if isinstance(e, Symbol)]
    if len(set(index)) != len(index) or len(found) != len(index) or None in found:
        return None
    if any(a is None or a.begin != 0 or a.extent != size for a, size in zip(found[1:], shape[1:])):
        return None
    if not found or found[0] is None:
        return row
    return expand(row + found[0].extent) if found[0].begin == row else None


def _before(index: Sequence[Expr], of: Sequence[Expr]) -> bool:
    back = expand(of[0] - index[0])
    return bool(back.is_Integer and back > 0)


def digest_of_kernel(kernel: Kernel) -> str:
    """The sha256 (hex) of a kernel's computation and schedule."""
    return hashlib.sha256(repr(replace(kernel, name="", origins=())).encode()).hexdigest()


class Operator:
    """A PyTorch operator that computes a function of loops: call it with tensors."""

    def __init__(self, name: str, func: PrimFunc, schedule: Any = None, gradient: Any = None) -> None:
        self.name, self.prim_func, self.gradient = name, func, gradient
        self._schedule: Any = None
        self.signature = signature(func)
        self._library = self._define()
        namespace, _, own = name.partition("::")
        self.overload = getattr(getattr(torch.ops, namespace), own).default
        self.schedule = schedule

    @property
    def schedule(self) -> Any:
        """The function's schedule; None: smelt's own."""
        return self._schedule

    @schedule.setter
    def schedule(self, schedule: Any) -> None:
        kernel = self.prim_func.kernel if schedule is None else kernel_of(schedule)
        if schedule is not None and self.name.startswith(f"{NAMESPACE}::"):
            what = f"{self.name} is the operator of all who have this function"
            raise SmeltError("SM1041", what, remedy="te.as_torch(schedule), or te.operator with a name")
        if [(p.name, p.dtype, p.shape) for p in kernel.params] != [
            (p.name, p.dtype, p.shape) for p in self.prim_func.kernel.params
        ]:
            what = f"the schedule is not one of {self.prim_func.name}"
            raise SmeltError("SM1041", what, why="its function has other parameters")
        self._schedule = schedule
        add_row(self.overload, partial(_row, kernel, self.signature), digest_of_kernel(kernel))

    @property
    def kernel(self) -> Kernel:
        """The kernel that runs, with its schedule."""
        return self.prim_func.kernel if self._schedule is None else kernel_of(self._schedule)

    def __call__(self, *args: torch.Tensor) -> Any:
        return self.overload(*args)

    def _define(self) -> torch.library.Library:
        namespace, _, own = self.name.partition("::")
        if not own or not own.isidentifier() or not namespace.isidentifier():
            remedy = 'a name is like "mine::te_relu"'
            raise SmeltError("SM1042", f"{self.name!r} is no name of an operator", remedy=remedy)
        if hasattr(getattr(torch.ops, namespace), own):
            raise SmeltError(
                "SM1042", f"there is an operator {self.name} already", remedy="choose another name"
            )
        params = self.prim_func.kernel.params
        names = [f"Tensor {_identifier(params[p].name)}" for p in self.signature.arguments]
        given = ", ".join([*names, *(f"SymInt size_{_identifier(s.name)}" for s in self.signature.sizes)])
        count = len(self.signature.results)
        made = "Tensor" if count == 1 else f"({', '.join(['Tensor'] * count)})"
        library = torch.library.Library(namespace, "FRAGMENT")
        library.define(f"{own}({given}) -> {made}", tags=(torch.Tag.pt2_compliant_tag,))
        key = "CPU" if self.signature.arguments else "CompositeExplicitAutograd"
        torch.library.impl(library, own, key)(self._run)
        torch.library.register_fake(self.name, self._fake, lib=library)
        keep, back = partial(_keep, self), partial(_back, self)
        torch.library.register_autograd(self.name, back, setup_context=keep, lib=library)
        return library

    @cached_property
    def backward(self) -> Operator:
        """The operator of the gradients; derived unless it was given. Its arguments are this one's and a
        gradient for each result, its results a gradient for each floating argument.

        Raises:
            SmeltError: SM1047 none can be derived.
        """
        if self.gradient is not None:
            return as_torch(self.gradient)
        if self.signature.both:
            raise refusal(self.prim_func.kernel, "it reads what it writes")
        return as_torch(gradient_of(self.prim_func.kernel))

    def _fake(self, *args: Any) -> Any:
        params = self.prim_func.kernel.params
        given, sizes = self.parted(args)
        empty = args[0].new_empty if given else torch.empty
        found = [
            empty([evaluate_on(e, sizes) for e in params[p].shape], dtype=params[p].dtype)
            for p in self.signature.results
        ]
        return found[0] if len(found) == 1 else tuple(found)

    def parted(self, args: Sequence[Any]) -> tuple[dict[int, torch.Tensor], dict[Symbol, Any]]:
        """The tensors among an operator's arguments, by the positions of their parameters; and all sizes."""
        sign = self.signature
        given = dict(zip(sign.arguments, args))
        told = dict(zip(sign.sizes, args[len(sign.arguments) :]))
        return given, self.sizes_of(given, told)

    @cached_property
    def bounds(self) -> tuple[Bound, ...]:
        """The indices for which sizes decide whether they are inside their buffers."""
        return open_bounds(self.prim_func.kernel)

    def sizes_of(self, given: Mapping[int, Any], told: Mapping[Symbol, Any]) -> dict[Symbol, Any]:
        """All sizes of a call, from tensors by positions of their parameters and the explicit ``told``.

        Raises:
            SmeltError: SM1044 a rank, a size or a dtype differs from the parameter's; SM1048 an index is
            outside its buffer.
        """
        sizes = solved(self.prim_func.kernel.params, given, told)
        check_bounds(self.prim_func.kernel, self.bounds, sizes)
        return sizes

    def _run(self, *args: Any) -> Any:
        from smelt.te.building import built

        params = self.prim_func.kernel.params
        given, sizes = self.parted(args)
        for place in self.signature.results:
            if place in self.signature.both:
                given[place] = given[place].clone()
            else:
                shape = [evaluate_on(e, sizes) for e in params[place].shape]
                given[place] = torch.empty(shape, dtype=params[place].dtype)
        called: list[Any] = [given[place] for place in range(len(params))]
        for place, size in sorted(self.kernel.scalars, key=lambda each: each[0]):
            called.insert(place, sizes[size])
        built(self)(*called)
        found = [given[place] for place in self.signature.results]
        return found[0] if len(found) == 1 else tuple(found)


def _identifier(name: str) -> str:
    return name if name.isidentifier() else "".join(c if c.isalnum() else "_" for c in name)


def _keep(op: Operator, ctx: Any, inputs: Sequence[torch.Tensor], output: Any) -> None:
    ctx.save_for_backward(*(each for each in inputs if isinstance(each, torch.Tensor)))
    ctx.told = dict(zip(op.signature.sizes, inputs[len(op.signature.arguments) :]))
    outputs = output if isinstance(output, tuple) else (output,)
    ctx.like = [(each.shape, each.dtype) for each in outputs]


def _back(op: Operator, ctx: Any, *upstream: torch.Tensor | None) -> Any:
    given = ctx.saved_tensors
    filled = [
        given[0].new_zeros(shape, dtype=dtype) if g is None else g
        for g, (shape, dtype) in zip(upstream, ctx.like)
    ]
    found = op.backward(*given, *filled, *(ctx.told[size] for size in op.backward.signature.sizes))
    left = iter(found if isinstance(found, (tuple, list)) else (found,))
    gradients = tuple(next(left) if x.dtype.is_floating_point else None for x in given)
    gradients += (None,) * len(ctx.told)
    return gradients[0] if len(gradients) == 1 else gradients


def operator(name: str, func: PrimFunc, schedule: Any = None, gradient: Any = None) -> Operator:
    """A PyTorch operator that computes a function of loops: ``operator("mine::te_relu", func)``.

    Its arguments are the buffers that the function reads, its results the filled ones, in order; unknown
    sizes are those of the arguments. Inside ``torch.compile(backend="smelt")`` an unscheduled function is
    fused with what is around it; with a ``schedule`` (also set later, by ``op.schedule = …``) it is one
    kernel, run as written. ``gradient``: the function of its gradients, from its arguments and a gradient for
    each result to one for each floating argument; None: it is derived on demand.

    Raises:
        SmeltError: SM1041 a schedule of another function, SM1042 the name is invalid or taken.
    """
    return Operator(name, func, schedule, gradient)


_anonymous: dict[str, Operator] = {}
"""Operators without a name of their own, by their generated name."""


def as_torch(func: PrimFunc | Any) -> Operator:
    """`operator` with a generated name: equal functions with equal arguments are one operator."""
    func = function_of(func)
    both = map(str, signature(func).both)
    own = "_".join([_identifier(func.name), digest_of_kernel(func.kernel)[:16], *both])
    name = f"{NAMESPACE}::{own}"
    if name not in _anonymous:
        _anonymous[name] = Operator(name, PrimFunc(func.kernel, unscheduled=func.unscheduled))
    return _anonymous[name]


def kernel_of(thing: Any) -> Kernel:
    """The kernel of `function_of`."""
    return thing if isinstance(thing, Kernel) else function_of(thing).kernel


def function_of(thing: Any) -> PrimFunc:
    """A PrimFunc; that of a Schedule, of a module with one function, of a kernel.

    Raises:
        SmeltError: SM1043 it has none, or several.
    """
    if isinstance(thing, Kernel):
        return PrimFunc(thing)
    if isinstance(thing, PrimFunc):
        return thing
    module = getattr(thing, "mod", thing)
    functions = getattr(module, "functions", None)
    if functions is not None:
        found = [each for each in functions.values() if isinstance(each, PrimFunc)]
        if len(found) == 1 == len(functions):
            return found[0]
        names = ", ".join(str(name) for name in functions)
        raise SmeltError("SM1043", f"a module of {len(functions)} functions ({names}), one is wanted")
    raise SmeltError("SM1043", f"{type(thing).__name__} is no function of loops")


# -- sizes ---------------------------------------------------------------------------------------------------


def solved(
    params: Sequence[Param], given: Mapping[int, Any], told: Mapping[Symbol, Any] | None = None
) -> dict[Symbol, Any]:
    """The sizes of a kernel, from tensors by positions of its parameters, and the explicit sizes ``told``.

    Raises:
        SmeltError: SM1044 a rank, a size or a dtype differs from the parameter's.
    """
    for place, tensor in given.items():
        param = params[place]
        if tensor.dim() != len(param.shape):
            what = f"{param.name} has {len(param.shape)} dimensions, given are {tensor.dim()}"
            raise SmeltError("SM1044", what)
        if tensor.dtype != param.dtype:
            raise SmeltError("SM1044", f"{param.name} is {param.dtype}, given is {tensor.dtype}")
    names = {str(place): params[place].shape for place in given}
    sizes: dict[Symbol, Any] = dict(told or {})
    for found in solve_sizes(list(names.items()), sizes.keys()):
        value = given[int(found.tensor)].shape[found.dim]
        sizes[found.symbol] = evaluate_on(found.value, {**sizes, found.size: value})
    for place, tensor in given.items():
        for dim, (size, have) in enumerate(zip(params[place].shape, tensor.shape)):
            wanted = evaluate_on(size, sizes)
            if wanted != have:
                what = f"dimension {dim} of {params[place].name} is {wanted}, given is {have}"
                raise SmeltError("SM1044", what)
    return sizes


# -- as loop functions, or as a kernel -----------------------------------------------------------------------


def _row(kernel: Kernel, sign: Signature, ctx: Builder, *args: Any) -> Any:
    """The operator's lowering row: loop functions of an unscheduled function, else the kernel itself."""
    given: dict[int, Tensor] = dict(zip(sign.arguments, args))
    named = [(str(place), kernel.params[place].shape) for place in given]
    sizes: dict[Symbol, Expr] = dict(zip(sign.sizes, map(sympy.sympify, args[len(given) :])))
    for found in solve_sizes(named, sizes.keys()):
        size = given[int(found.tensor)].shape[found.dim]
        sizes[found.symbol] = replaced(found.value, {**sizes, found.size: size})
    fitted = with_sizes(kernel, sizes)
    results = (
        None if sign.both else _spliced(ctx, fitted, {fitted.params[p].name: x for p, x in given.items()})
    )
    if isinstance(results, list):
        return results[0] if len(results) == 1 else tuple(results)
    begun = with_sizes(
        hoist_initialization(kernel, 1), sizes
    )  # before a size of 0 removes its loops' conditions
    plain = without_notes(without_both(begun, sign))
    run = partial(_interpret, plain)
    wanted = [(fitted.params[p].dtype, fitted.params[p].shape) for p in sign.results]
    found_tensors = ctx.native(plain, [given[p] for p in sign.arguments], wanted, run)
    return found_tensors[0] if len(found_tensors) == 1 else found_tensors


def _interpret(kernel: Kernel, memory: Mapping[str, torch.Tensor], sizes: Mapping[Symbol, int]) -> None:
    run_kernel(kernel, memory, sizes)


def with_sizes(kernel: Kernel, sizes: Mapping[Symbol, Expr]) -> Kernel:
    """The kernel at given sizes: numbers, or size expressions of the enclosing graph.

    Loops without iterations are removed.
    """
    if not sizes:
        return kernel
    left = {symbol for size in sizes.values() for symbol in size.free_symbols}
    fresh = Fresh(names_of(kernel) | {symbol.name for symbol in left})
    mapping: dict[Symbol, Expr] = dict(sizes)
    own = [loop.var for loop in loops(kernel.body)]
    own += [axis.var for stage in stages(kernel.body) for axis in stage.axes]
    taken = {symbol.name for symbol in left}
    mapping.update((var, fresh(f"{var.name}_own")) for var in own if var.name in taken)

    def sized(expr: Expr) -> Expr:
        try:
            return replaced(expr, mapping)
        except ZeroDivisionError:  # in a loop over no elements
            return sympy.Integer(0)

    def fitted(exprs: Sequence[Expr]) -> tuple[Expr, ...]:
        return tuple(map(sized, exprs))

    params = tuple(replace(p, shape=fitted(p.shape), strides=fitted(p.strides)) for p in kernel.params)
    body = map_exprs(with_variables(kernel.body, mapping), sized)
    body = rewritten(
        body, lambda stmt: [] if isinstance(stmt, For) and trip_count(stmt).is_nonpositive else None
    )
    return replace(kernel, params=params, body=body, sizes=tuple(sorted(left, key=str)), scalars=())


def without_both(kernel: Kernel, sign: Signature) -> Kernel:
    """The kernel with an operator's parameters: arguments, then results. In-out buffers are copied first."""
    params = kernel.params
    given: list[Param] = []
    copies: list[For] = []
    for place in sign.arguments:
        param = params[place]
        if place in sign.both:
            source = replace(param, name=f"{param.name}_before", written=False)
            given.append(source)
            copies.append(_copy(source, param))
        else:
            given.append(param)
    made = [params[place] for place in sign.results]
    return replace(kernel, params=(*given, *made), body=Block((*copies, *kernel.body.stmts)))


def without_notes(kernel: Kernel) -> Kernel:
    """The kernel without annotations of loops and stages, which have no effect, but on a GPU's lanes."""

    def plain(block: Block) -> Block:
        stmts = (
            replace(stmt, notes=())
            if isinstance(stmt, Stage) or (isinstance(stmt, For) and stmt.thread is None)
            else stmt
            for stmt in block.stmts
        )
        return Block(tuple(with_blocks(stmt, plain) for stmt in stmts))

    return replace(kernel, body=plain(kernel.body))


def _copy(source: Param, target: Param) -> For:
    fresh = Fresh()
    index = tuple(fresh(f"{target.name}_c{dim}") for dim in range(len(target.shape)))
    value = f"{target.name}_before_value"
    body = Block((Let(value, target.dtype, "load", (source.name, index)), Store(target.name, index, value)))
    around = list(zip(index, target.shape)) or [(fresh(f"{target.name}_c"), sympy.Integer(1))]
    kind = LoopKind.VECTOR
    for var, size in reversed(around):
        body = Block((For(var, sympy.Integer(0), size, body, kind),))
        kind = LoopKind.SERIAL
    (nest,) = body.nested
    assert isinstance(nest, For)
    return nest


def _spliced(ctx: Builder, kernel: Kernel, given: Mapping[str, Tensor]) -> list[Tensor] | str:
    """The loop functions of a kernel, added to a graph: its results in order, or the reason of a refusal."""
    tensors = dict(given)
    graph = raised(kernel, lambda name, index: tensors[name].load(index))
    if isinstance(graph, str):
        return graph
    products = products_of(kernel)
    for node in graph.nodes:
        (out,) = node.outputs
        assert out is not None
        body = node.body
        if out in products:
            tensors[out] = products[out].add(ctx, tensors)
        elif isinstance(body, Pointwise):
            tensors[out] = ctx.pointwise(body.inner_fn, shape=body.shape, dtype=body.dtype)
        else:
            assert isinstance(body, Reduction)
            shapes = {"shape": body.shape, "reduce_shape": body.reduce_shape}
            (tensors[out],) = ctx.reduction(body.kind, body.inner_fn, dtype=body.dtype, **shapes)
    return [tensors[out.buffer] for out in graph.outputs if isinstance(out, StridedView)]
