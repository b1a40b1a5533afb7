"""Operations of TVM's that may be written, and of which smelt makes no function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from sympy import Expr

from smelt.te.dtypes import kind_of
from smelt.te.errors import refusal, refuse
from smelt.te.tensor import Operation, Tensor, placeholder


class ScanOp(Operation):
    """Steps that go one after the other, each from the state before."""


class ExternOp(Operation):
    """Results of a call of something outside."""


def scan(
    init: Any, update: Any, state_placeholder: Any, inputs: Any = None, name: str = "scan", **options: Any
) -> Any:
    """The states of a recurrence: tensors of the shapes of ``state_placeholder``.

    No function is made of them (SM1111): a stage goes through its axes in any order.
    """
    del options
    states = _listed(state_placeholder)
    read = (*_listed(init), *_listed(update), *_listed(inputs if inputs is not None else ()))
    why = "the steps of a scan go one after the other; a stage's axes go in any order"
    op = _made(ScanOp(), name, read, [(state.sizes, state.kind) for state in states])
    op.open = refusal("SM1111", f"{name}: te.scan", why=why, remedy="topi.cumsum and its like")
    return op.outputs[0] if len(states) == 1 else list(op.outputs)


def extern(
    shape: Any,
    inputs: Sequence[Tensor],
    fcompute: Any,
    name: str = "extern",
    dtype: Any = None,
    **options: Any,
) -> Any:
    """What something outside computes of tensors; several results for several shapes.

    No function is made of them (SM1111), so ``fcompute`` is not called: there are no packed functions.
    """
    del fcompute, options
    shapes = list(shape) if isinstance(shape, (list, tuple)) else [shape]
    several = bool(shapes) and isinstance(shapes[0], (list, tuple))
    wanted = shapes if several else [tuple(shapes)]
    if dtype is None and len({each.kind for each in inputs}) != 1:
        refuse(
            "SM1103", f"{name}: the dtype of te.extern", remedy="dtype=…: its inputs have not one in common"
        )
    kinds = [kind_of(each) for each in _listed(dtype if dtype is not None else inputs[0].kind)]
    kinds = kinds * len(wanted) if len(kinds) == 1 else kinds
    why = "there are no packed functions, and no builder of statements in te"
    sizes = [placeholder(each, name=name).sizes for each in wanted]
    op = _made(ExternOp(), name, tuple(inputs), list(zip(sizes, kinds)))
    op.open = refusal(
        "SM1111", f"{name}: te.extern", why=why, remedy="te.compute, or a function in smelt.script"
    )
    return list(op.outputs) if several else op.outputs[0]


def extern_primfunc(*args: Any, **options: Any) -> NoReturn:
    """Refused.

    Raises:
        SmeltError: SM1111, always.
    """
    why = "a function of loops is no tensor expression"
    refuse("SM1111", "te.extern_primfunc", why=why, remedy="relax.call_tir")


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


__all__ = ["ExternOp", "ScanOp", "extern", "extern_primfunc", "scan"]
