"""PrimFuncs in relax: names of their buffers, calls on tensors."""

from __future__ import annotations

import string
from collections.abc import Collection, Sequence
from typing import Any

import torch
from sympy import Symbol

from smelt.nest.ir import Kernel
from smelt.relax.evaluate import Evaluator
from smelt.relax.types import RelaxError, StructInfo
from smelt.relax.values import Var
from smelt.script.module import PrimFunc
from smelt.te.operators import as_torch


def argument_name(value: Any, number: int, taken: Collection[str]) -> str:
    """The name of a PrimFunc's argument: the variable's, or the ``number``-th letter."""
    letter = string.ascii_uppercase[number] if number < 26 else f"tensor_input_{number}"
    return free_name(value.name_hint if isinstance(value, Var) else letter, taken)


def free_name(name: str, taken: Collection[str]) -> str:
    """The name, with ``_1`` as often as needed (as in TVM).

    >>> free_name("x", {"x", "x_1"})
    'x_1_1'
    """
    while name in taken:
        name = f"{name}_1"
    return name


def call_primfunc(func: PrimFunc, args: Sequence[Any], info: StructInfo, evaluator: Evaluator) -> Any:
    """New tensors computed by a PrimFunc. Numbers are the sizes that no tensor determines."""
    tensors, numbers = tensors_and_sizes(func, args, info, evaluator)
    operator = as_torch(func)
    told = dict(zip(unbound_sizes(func.kernel), numbers))
    return operator(*tensors, *(told[size] for size in operator.signature.sizes))


def tensors_and_sizes(
    func: PrimFunc, args: Sequence[Any], info: StructInfo, evaluator: Evaluator
) -> tuple[list[torch.Tensor], list[Any]]:
    """The values of buffers (numbers for buffers of one element), and the sizes that no tensor determines.

    The sizes are numbers among the arguments, or else sizes of the results.

    Raises:
        RelaxError: SM1306, a size is undetermined.
    """
    tensors: list[torch.Tensor] = []
    numbers: list[Any] = []
    buffers = [each for each in func.kernel.params if not each.written]
    for each in args:
        param = buffers[len(tensors)] if len(tensors) < len(buffers) else None
        if isinstance(each, torch.Tensor):
            tensors.append(each)
        elif param is not None and not param.shape and not isinstance(each, torch.SymInt):
            tensors.append(torch.full([], each, dtype=param.dtype))
        else:
            numbers.append(each)
    wanted = unbound_sizes(func.kernel)
    if not numbers:
        results = [each for each in func.kernel.params if each.written]
        known = {
            size: dim
            for param, each in zip(results, getattr(info, "fields", [info]))
            for size, dim in zip(param.shape, getattr(each, "sizes", None) or ())
        }
        numbers = [evaluator.size(known[each]) for each in wanted if each in known]
    if len(numbers) != len(wanted):
        what = f"{func.name} is called with {len(numbers)} numbers"
        names = ", ".join(map(str, wanted)) or "none"
        raise RelaxError("SM1306", what, why=f"the sizes that no tensor tells: {names}")
    return tensors, numbers


def unbound_sizes(kernel: Kernel) -> list[Symbol]:
    """The sizes that no dimension of a read tensor determines; parameters come first."""
    alone = {size for each in kernel.params if not each.written for size in each.shape}
    given = [size for _, size in sorted(kernel.scalars)]
    return [*given, *(size for size in kernel.sizes if size not in alone and size not in given)]
