"""Operations that are statements: calls of functions of loops (`extern`), and sequential steps (`scan`)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

import torch
from sympy import Expr, Symbol

from smelt.errors import SmeltError
from smelt.nest.ir import Alloc, AxisKind, Block, For, Kernel, Stage, Stmt
from smelt.nest.primitives.common import renewed
from smelt.nest.scopes import stage_names, with_names
from smelt.nest.stages import Fresh, names_of
from smelt.nest.tree import local_buffers, rewritten, substitute
from smelt.records import replace
from smelt.script.module import PrimFunc
from smelt.symbolic import contiguous_strides
from smelt.symbolic.affine import expand, replaced
from smelt.symbolic.solving import solve_sizes
from smelt.te import check
from smelt.te.dtypes import NAMES, kind_of
from smelt.te.errors import refusal, refuse
from smelt.te.operators import Operator, function_of, signature, with_sizes
from smelt.te.tensor import ComputeOp, Operation, Tensor, placeholder


class ScanOp(Operation):
    """Sequential steps: an ``update`` of each state, from earlier rows."""

    init: tuple[Tensor, ...]
    update: tuple[Tensor, ...]
    states: tuple[Tensor, ...]


class ExternOp(Operation):
    """Results of a call of a function of loops, which ``function`` creates for input and output tensors."""

    function: Callable[[list[Tensor], list[Tensor]], Any]


def scan(
    init: Any, update: Any, state_placeholder: Any, inputs: Any = None, name: str = "scan", **options: Any
) -> Any:
    """The states of a recurrence: tensors of the shapes of ``state_placeholder``, one for each.

    The first rows are those of ``init``; ``update`` computes each later row from earlier rows of the
    placeholders. Rows are computed in order.

    >>> from smelt import te
    >>> X, S = te.placeholder((8,), name="X"), te.placeholder((8,), name="S")
    >>> first = te.compute((1,), lambda t: X[t])
    >>> sums = te.scan(first, te.compute((8,), lambda t: S[t - 1] + X[t]), S)
    >>> print(te.create_prim_func([X, sums]).script().strip().splitlines()[-1].strip())
    scan[v_t] = scan[v_t - 1] + X[v_t]

    Raises:
        SmeltError: SM1111, other shapes; from `create_prim_func`, a step that is no computation of the rows
            before; SM1101, a row may be outside of its tensor.
    """
    del options, inputs
    op = ScanOp()
    op.init, op.update, op.states = (tuple(_listed(each)) for each in (init, update, state_placeholder))
    _made(op, name, (), [(state.sizes, state.kind) for state in op.states])
    if not len(op.init) == len(op.update) == len(op.states):
        _no_scan(op, "it has as many first rows and steps as states")
    for first, step, state in zip(op.init, op.update, op.states):
        fits = step.sizes == state.sizes and first.sizes[1:] == state.sizes[1:] and state.sizes
        if not fits or not first.kind == step.kind == state.kind:
            _no_scan(op, f"{first.name}, {step.name} and {state.name} differ in more than rows")
    op.open = _open_step(op)
    read = [*op.init, *(each for step in op.update for each in step.op.input_tensors)]
    op.input_tensors = tuple(each for each in read if not any(each is state for state in op.states))
    return op.outputs[0] if len(op.states) == 1 else list(op.outputs)


def _no_scan(op: ScanOp, why: str) -> NoReturn:
    refuse("SM1111", f"{op.name}: te.scan", why=why, remedy=_STEP)


_STEP = "te.compute each step from the rows before it: S[t - 1, i]"


def _open_step(op: ScanOp) -> SmeltError | None:
    """The error to raise when a function is made of the steps, or None."""
    states = {id(state) for state in op.states}
    for first, step in zip(op.init, op.update):
        why = None
        if not isinstance(step.op, ComputeOp) or step.op.num_outputs > 1:
            why = f"{step.name} is no te.compute of one tensor"
        elif any(id(each) in states for each in [first, *_below(step.op.input_tensors, states)]):
            why = f"{step.name} reads a tensor that is made of the states, or its first rows are"
        elif found := check.stepped(step.op, states, first.sizes[0]):
            return found
        if why is not None:
            return refusal("SM1111", f"{op.name}: te.scan", why=why, remedy=_STEP)
    return None


def _below(tensors: Sequence[Tensor], states: Collection[int]) -> list[Tensor]:
    """All tensors that the tensors are computed from, but for states among ``tensors`` themselves."""
    open_, found = [each for each in tensors if id(each) not in states], dict[int, Tensor]()
    while open_:
        for each in open_.pop().op.input_tensors:
            if id(each) not in found:
                found[id(each)] = each
                open_.append(each)
    return list(found.values())


def steps_of(op: ScanOp, nests: Sequence[Stmt], name: Callable[[str], str]) -> list[Stmt]:
    """The nests of a scan: nests that store first rows, then nests of steps, the latter in one loop."""
    count = len(op.states)
    firsts = [
        _each_stage(nest, lambda stage: replace(stage, name=name(f"{stage.name}_init")))
        for nest in nests[:count]
    ]
    loops: list[For] = []
    bodies: list[Stmt] = []
    for before, nest in zip(nests, nests[count:]):
        assert isinstance(before, For) and isinstance(nest, For)
        loops.append(replace(nest, begin=before.end))
        inside = substitute(nest.body, {nest.var: loops[0].var}).stmts
        bodies += [_each_stage(stmt, partial(_in_order, loops[-1])) for stmt in inside]
    return [*firsts, replace(loops[0], body=Block(tuple(bodies)))]


def _in_order(loop: For, stage: Stage) -> Stage:
    rows, *others = stage.axes
    rows = replace(rows, kind=AxisKind.OPAQUE, begin=loop.begin, extent=expand(loop.end - loop.begin))
    return replace(stage, axes=(rows, *others))


def _each_stage(stmt: Stmt, change: Callable[[Stage], Stage]) -> Stmt:
    (changed,) = rewritten(
        Block((stmt,)), lambda each: (change(each),) if isinstance(each, Stage) else None
    ).stmts
    return changed


def extern(
    shape: Any,
    inputs: Sequence[Tensor],
    fcompute: Callable[[list[Tensor], list[Tensor]], Any],
    name: str = "extern",
    dtype: Any = None,
    **options: Any,
) -> Any:
    """The results of a function of loops on tensors; several results for several shapes.

    ``fcompute(ins, outs)`` is called when a function is made of the result. It returns a PrimFunc, a
    schedule, or an operator (`as_torch`) that reads ``ins`` and fills ``outs``, each in order. Its statements
    are inlined in that function.

    >>> from smelt import te
    >>> X = te.placeholder((te.var("n"),), name="X")
    >>> double = te.create_prim_func([X, te.compute(X.shape, lambda i: X[i] * 2, name="Y")])
    >>> A = te.placeholder((8,), name="A")
    >>> B = te.extern((8,), [A], lambda ins, outs: double, name="B")
    >>> print(te.create_prim_func([A, B]).script().strip().splitlines()[-1].strip())
    B[v_i] = A[v_i] * T.float32(2.0)

    Raises:
        SmeltError: SM1103, the dtype is not known; SM1111, from `create_prim_func`: ``fcompute`` gives no
            function of loops, or one of other buffers.
    """
    del options
    shapes = list(shape) if isinstance(shape, (list, tuple)) else [shape]
    several = bool(shapes) and isinstance(shapes[0], (list, tuple))
    wanted = shapes if several else [tuple(shapes)]
    if dtype is None and len({each.kind for each in inputs}) != 1:
        refuse(
            "SM1103", f"{name}: the dtype of te.extern", remedy="dtype=…: its inputs have not one in common"
        )
    kinds = [kind_of(each) for each in _listed(dtype if dtype is not None else inputs[0].kind)]
    kinds = kinds * len(wanted) if len(kinds) == 1 else kinds
    sizes = [placeholder(each, name=name).sizes for each in wanted]
    outputs = _extern(name, inputs, list(zip(sizes, kinds)), fcompute)
    return list(outputs) if several else outputs[0]


def extern_primfunc(
    input_tensors: Sequence[Tensor], primfunc: Any, name: str = "extern", **options: Any
) -> Any:
    """The results of a function of loops on tensors: a tensor for each buffer that it fills.

    Raises:
        SmeltError: SM1111, its inputs are not ``input_tensors``.
    """
    del options
    func = _function(name, primfunc)
    fitted = _fitted(name, func, [each.sizes for each in input_tensors])
    made = [(fitted.params[place].shape, fitted.params[place].dtype) for place in signature(func).results]
    outputs = _extern(name, input_tensors, made, lambda ins, outs: primfunc)
    return list(outputs) if len(outputs) > 1 else outputs[0]


def _extern(
    name: str,
    inputs: Sequence[Tensor],
    made: Sequence[tuple[tuple[Expr, ...], torch.dtype]],
    function: Callable[[list[Tensor], list[Tensor]], Any],
) -> tuple[Tensor, ...]:
    op = ExternOp()
    op.function = function
    return _made(op, name, tuple(inputs), made).outputs


def statements_of(
    op: ExternOp,
    around: Kernel,
    names: Mapping[int, str],
    symbols: Mapping[Symbol, Expr],
    name: Callable[[str], str],
) -> tuple[list[Alloc], list[Stmt]]:
    """The memory and the statements of a call, with the names of the enclosing kernel.

    ``names`` of buffers, by their tensors; ``name`` creates a name for the others.
    """
    func = _function(op.name, op.function(list(op.input_tensors), list(op.outputs)))
    sign = signature(func)
    if len(sign.results) != len(op.outputs):
        _other(op.name, f"{func.name} fills {len(sign.results)} buffers, not {len(op.outputs)}")

    def sizes(tensors: Sequence[Tensor]) -> list[tuple[Expr, ...]]:
        return [tuple(replaced(size, symbols) for size in tensor.sizes) for tensor in tensors]

    fitted = _fitted(op.name, func, sizes(op.input_tensors))
    tensors = (*op.input_tensors, *op.outputs)
    places = (*sign.arguments, *sign.results)
    for place, tensor, shape in zip(places, tensors, sizes(tensors)):
        param = fitted.params[place]
        same = len(param.shape) == len(shape) and all(expand(a - b) == 0 for a, b in zip(param.shape, shape))
        if not same or param.dtype != tensor.kind or param.strides != contiguous_strides(param.shape):
            have = f"{names[id(tensor)]}, {NAMES[tensor.kind]} of {shape}"
            _other(
                op.name, f"{func.name}'s {param.name}, {NAMES[param.dtype]} of {param.shape}, is no {have}"
            )
    called = {fitted.params[place].name: names[id(tensor)] for place, tensor in zip(places, tensors)}
    blocks = {each: called.get(each) or name(each) for each in sorted(stage_names(fitted))}
    called |= {each: blocks.get(each) or name(each) for each in sorted(local_buffers(fitted.body))}
    fresh = Fresh(names_of(around) | names_of(fitted))
    body = with_names(fitted, called, {}, blocks).body
    allocs = [each for each in body.stmts if isinstance(each, Alloc)]
    rest: Sequence[Stmt] = [each for each in body.stmts if not isinstance(each, Alloc)]
    if not all(isinstance(each, (For, Stage)) for each in rest):
        rest = [Stage(name(op.name), (), Block(tuple(rest)))]
    return allocs, [stmt for each in rest for stmt in renewed(each, fresh).stmts]


def _function(name: str, thing: Any) -> PrimFunc:
    """The function that the called object computes, with its schedule."""
    try:
        if isinstance(thing, Operator):
            return replace(thing.prim_func, kernel=thing.kernel, unscheduled=thing.prim_func.kernel)
        return function_of(thing)
    except SmeltError as error:
        why = f"{error.what}; there are no packed functions"
        raise refusal("SM1111", f"{name}: te.extern", why=why, remedy=_REMEDY) from None


_REMEDY = "fcompute gives a function: te.create_prim_func, smelt.script, te.as_torch"


def _fitted(name: str, func: PrimFunc, shapes: Sequence[tuple[Expr, ...]]) -> Kernel:
    """The kernel of a function at the sizes of its inputs."""
    kernel, sign = func.kernel, signature(func)
    if sign.both:
        both = ", ".join(kernel.params[place].name for place in sign.both)
        _other(name, f"nothing shows that {kernel.name} fills {both} before it reads that")
    if len(sign.arguments) != len(shapes):
        _other(name, f"{kernel.name} reads {len(sign.arguments)} buffers, not {len(shapes)}")
    if sign.sizes:
        _other(name, f"no buffer that {kernel.name} reads tells {', '.join(map(str, sign.sizes))}")
    params = [kernel.params[place] for place in sign.arguments]
    for param, shape in zip(params, shapes):
        if len(param.shape) != len(shape):
            _other(name, f"{kernel.name}'s {param.name} has {len(param.shape)} dimensions, not {len(shape)}")
    told: dict[Symbol, Expr] = {}
    for found in solve_sizes([(str(number), param.shape) for number, param in enumerate(params)]):
        size = shapes[int(found.tensor)][found.dim]
        told[found.symbol] = replaced(found.value, {**told, found.size: size})
    return with_sizes(kernel, told)


def _other(name: str, why: str) -> None:
    refuse(
        "SM1111", f"{name}: te.extern", why=why, remedy="a function of these inputs, which fills the results"
    )


def call_packed(name: str, *args: Any) -> NoReturn:
    """Always refused.

    Raises:
        SmeltError: SM1111, always.
    """
    del args
    refuse("SM1111", f"call_packed({name!r})", why="there are no packed functions", remedy=_REMEDY)


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _made(
    op: Operation,
    name: str,
    read: tuple[Tensor, ...],
    outputs: Sequence[tuple[tuple[Expr, ...], torch.dtype]],
) -> Operation:
    op.name, op.attrs, op.input_tensors = name, {}, read
    op.outputs = tuple(
        Tensor(op, number, sizes, kind, torch.int32) for number, (sizes, kind) in enumerate(outputs)
    )
    return op


__all__ = [
    "ExternOp",
    "ScanOp",
    "call_packed",
    "extern",
    "extern_primfunc",
    "scan",
    "statements_of",
    "steps_of",
]
