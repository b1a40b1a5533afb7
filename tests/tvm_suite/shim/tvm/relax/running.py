"""Programs of relax are the same where they give the same numbers.

An imported module remembers its model, whose results count. Two modules that differ in text are run on the
same random inputs; operators that were left in the one must be left in the other.
"""

from __future__ import annotations

import copy
import os
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import sympy
import torch
from sympy import Symbol
from torch.utils import _pytree as pytree

from smelt import relax
from smelt.errors import SmeltError
from smelt.nest.interpreter import run_kernel
from smelt.relax.evaluate import Evaluator
from smelt.relax.operators import AtenOperator, Operator
from smelt.relax.primfuncs import call_primfunc, tensors_and_sizes, unbound_sizes
from smelt.relax.rewrite import variables
from smelt.relax.types import symbols_of, torch_dtype
from smelt.relax.values import parts_of
from smelt.script import IRModule, PrimFunc, structural_equal
from smelt.symbolic.expr import evaluate_on
from smelt.te.operators import solved
from smelt.tir.check import _steps

ROOM = 4
"""Unknown sizes are multiples of it, so that groups and halves of them are whole."""


MOST_STEPS = 40_000
"""Statements that the interpreter of nests runs; larger functions are compiled."""


def random_tensor(shape: Sequence[int], dtype: Any) -> torch.Tensor:
    """Numbers from -2 to 2; integers are 0 or 1: they may be indices."""
    dtype = dtype if isinstance(dtype, torch.dtype) else torch_dtype(dtype)
    if dtype is torch.bool:
        return torch.rand(list(shape)) < 0.5
    if not dtype.is_floating_point:
        return torch.randint(0, 2, list(shape)).to(dtype)
    return (torch.rand(list(shape), dtype=torch.float64) * 4 - 2).to(dtype)


# -- imported modules ----------------------------------------------------------------------------------------


def remember(mod: IRModule, model: Any, examples: Sequence[Any]) -> IRModule:
    """The module, with the model that it was imported from, arguments for it, and held parameters."""
    mod.origin = copy.deepcopy(model), tuple(examples), list(mod["main"].attrs.get("params", ()))
    return mod


def detach_params(mod: IRModule) -> tuple[IRModule, dict[str, list[torch.Tensor]]]:
    found, params = relax.frontend.detach_params(mod)
    if hasattr(mod, "origin"):
        found.origin = mod.origin
    return found, {name: [each.as_subclass(_Held) for each in held] for name, held in params.items()}


class _Held(torch.Tensor):
    """A tensor whose dtype is a name, as TVM's is."""

    @property
    def dtype(self) -> str:
        return str(super().dtype).removeprefix("torch.")


def as_model(mod: IRModule) -> None:
    """
    Where the model refuses the arguments, the module has to; of numbers that are drawn, or that no one has
    stored, shapes and dtypes count.

    Raises:
        AssertionError: the module gives other numbers than the model it was imported from.
    """
    model, examples, held = mod.origin
    leaves, spec = pytree.tree_flatten(examples)
    refused: Exception | None = None
    for kinds in (torch.is_floating_point, lambda each: True):  # all integers 0 or 1: they may be indices
        given = [
            random_tensor(each.shape, each.dtype) if isinstance(each, torch.Tensor) and kinds(each) else each
            for each in leaves
        ]
        inputs = [_copied(each) for each in given if isinstance(each, torch.Tensor)]
        try:
            with torch.no_grad():
                expected = model(*pytree.tree_unflatten([_copied(each) for each in given], spec))
            break
        except Exception as error:
            refused = error
    else:
        with pytest.raises((SmeltError, type(refused))):
            _run(mod, [*inputs, *held])
        return
    found = _run(mod, [*inputs, *held])
    if _is_arbitrary(mod):
        found, expected = (pytree.tree_map(torch.zeros_like, each) for each in (found, expected))
    close(found, expected)


def _run(mod: IRModule, args: Sequence[Any]) -> Any:
    if os.environ.get("TVM_SUITE_EVALUATE"):  # its bindings one by one: no compiler runs
        return evaluated(mod, "main", args)
    return relax.VirtualMachine(relax.build(mod))["main"](*args)


def _is_arbitrary(mod: IRModule) -> bool:
    """Whether a module draws numbers, or gives memory that nobody has stored into."""
    overloads = [each.overload for each in operators(mod) if isinstance(each, AtenOperator)]
    return any(
        torch.Tag.nondeterministic_seeded in each.tags or "empty" in each.__name__ for each in overloads
    )


def close(ours: Any, theirs: Any) -> None:
    """
    Raises:
        AssertionError: other numbers, shapes or dtypes.
    """
    mine, yours = (
        [each for each in pytree.tree_leaves(value) if each is not None] for value in (ours, theirs)
    )
    assert len(mine) == len(yours), f"{len(mine)} results, not {len(yours)}"
    for one, other in zip(mine, yours):
        other = torch.as_tensor(other)
        wide = other.dtype in (torch.float16, torch.bfloat16)
        bars = {"rtol": 2e-2, "atol": 5e-2} if wide else {"rtol": 2e-5, "atol": 1e-5}
        torch.testing.assert_close(torch.as_tensor(one), other, equal_nan=True, **bars)


# -- two modules ---------------------------------------------------------------------------------------------


def operators(mod: IRModule) -> list[Operator | AtenOperator]:
    """The operators that functions of tensors call."""
    found: list[Operator | AtenOperator] = []

    def look(value: Any) -> None:
        if isinstance(value, relax.Call) and isinstance(value.op, (Operator, AtenOperator)):
            found.append(value.op)
        for each in parts_of(value):
            look(each)

    for function in mod.functions.values():
        if isinstance(function, relax.Function):
            look(function.body)
    return found


def arguments(function: relax.Function) -> list[Any]:
    """Random arguments that a function takes."""
    symbols = list(dict.fromkeys(s for each in function.params for s in symbols_of(each.struct_info)))
    sizes = {each: ROOM * (len(symbols) - place + 1) for place, each in enumerate(symbols)}

    def number(size: Any) -> int:
        return int(sympy.sympify(size).xreplace(sizes))

    def value(info: Any) -> Any:
        if isinstance(info, relax.TupleStructInfo):
            return tuple(value(each) for each in info.fields)
        if isinstance(info, relax.TensorStructInfo) and info.sizes is not None:
            return random_tensor([number(each) for each in info.sizes], info.dtype or "float32")
        if isinstance(info, relax.ShapeStructInfo) and info.values is not None:
            return tuple(number(each) for each in info.values)
        if isinstance(info, relax.PrimStructInfo):
            return 1 if info.value is None else number(info.value)
        raise AssertionError(f"the programs differ in text, and cannot be run on {info}")

    return [value(each.struct_info) for each in function.params]


def same_by_running(one: IRModule, other: IRModule) -> None:
    """
    Raises:
        AssertionError: the functions have other names, leave other operators, or give other numbers.
    """
    mine, yours = (Counter(each.name for each in operators(mod)) for mod in (one, other))
    assert mine == yours, f"operators are left: {dict(mine - yours)}, instead of {dict(yours - mine)}"
    public = [
        sorted(
            v.name_hint for v, f in mod.functions.items() if isinstance(f, relax.Function) and not f.private
        )
        for mod in (one, other)
    ]
    assert public[0] == public[1], f"functions {public[0]}, not {public[1]}"
    assert public[0], "the programs differ in text, and none of their functions can be run"
    for name in public[0]:
        args = arguments(other[name])
        close(*(evaluated(mod, name, pytree.tree_map(_copied, args)) for mod in (one, other)))


def evaluated(mod: IRModule, name: str, args: Sequence[Any]) -> Any:
    """What a function of a module gives; its PrimFuncs are interpreted where that is not too long."""
    functions = {var.name_hint: function for var, function in mod.functions.items()}
    with torch.no_grad():
        return Evaluator(functions, _loops).function(functions[name], args)


def _loops(func: PrimFunc, args: Sequence[Any], info: Any, evaluator: Evaluator) -> Any:
    kernel = func.kernel
    tensors, numbers = tensors_and_sizes(func, args, info, evaluator)
    inputs = [place for place, each in enumerate(kernel.params) if not each.written]
    sizes: dict[Symbol, Any] = dict(zip(unbound_sizes(kernel), numbers))
    if len(inputs) == len(tensors):
        sizes.update(solved(kernel.params, dict(zip(inputs, tensors))))
    if len(inputs) != len(tensors) or _steps(kernel, sizes) > MOST_STEPS:
        return call_primfunc(func, args, info, evaluator)
    given = iter([each.contiguous() for each in tensors])
    results, memory = [], {}
    for param in kernel.params:
        if param.written:
            shape = [int(evaluate_on(each, sizes)) for each in param.shape]
            results.append(torch.zeros(shape, dtype=param.dtype))
        memory[param.name] = results[-1].view(-1) if param.written else next(given).reshape(-1)
    run_kernel(kernel, memory, sizes)
    return results[0] if len(results) == 1 else tuple(results)


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


def knows(one: Any, other: Any) -> bool:
    """Whether these are programs of relax, of which an assertion may run what differs in text."""
    return all(
        (isinstance(each, relax.Expr) and not isinstance(each, relax.Function))
        or hasattr(each, "origin")
        or (isinstance(each, IRModule) and any(isinstance(f, relax.Function) for f in each.values()))
        for each in (one, other)
    )


def assert_same(one: IRModule, other: IRModule) -> None:
    """
    Raises:
        AssertionError: they are not the same program.
    """
    if isinstance(one, relax.Expr):
        assert str(one) == str(other) and variables(one) == variables(other), f"{one} is not {other}"
        return
    imported = [each for each in (one, other) if hasattr(each, "origin")]
    if imported:
        as_model(imported[0])
    elif not structural_equal(one, other):
        same_by_running(one, other)
