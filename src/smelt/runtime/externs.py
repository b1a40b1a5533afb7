"""ATen overloads by name: the executor's calls, and the operators that can write into memory of smelt's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from smelt.errors import SmeltError
from smelt.runtime.control import CONTROL

COLLECTIVE = (
    *("_c10d_functional", "_c10d_functional_autograd", "c10d", "c10d_functional"),
    *("_dtensor", "symm_mem"),
)
"""Namespaces of operators that communicate with other processes."""


@dataclass(frozen=True, slots=True)
class Overload:
    """The calling convention and results of an overload.

    ``call``: the callable with the least overhead (control flow takes its bodies first).
    ``returns``: ``"one"`` a single value, ``"none"`` nothing, ``"many"`` a tuple or list.
    ``out``: the name of the output argument of an out variant, else None.
    """

    call: Callable[..., Any]
    returns: str
    out: str | None = None


def resolve(target: str) -> torch._ops.OpOverload:
    """``aten.addmm.default`` → the overload itself.

    Raises:
        SmeltError: SM0403, this torch has no such operator.
    """
    parts = target.split(".")
    try:
        namespace, name = parts[0], parts[1]
        found = getattr(
            getattr(getattr(torch.ops, namespace), name), parts[2] if len(parts) > 2 else "default"
        )
        if not isinstance(found, torch._ops.OpOverload):
            raise AttributeError(f"it is a {type(found).__name__}")
        return found
    except (AttributeError, IndexError) as error:
        raise SmeltError("SM0403", f"this torch has no operator {target}", why=str(error)) from error


@lru_cache(maxsize=1024)
def find_overload(target: str, out: bool = False) -> Overload:
    """The overload ``target``, or its out variant.

    Raises:
        SmeltError: SM0403 there is no such operator, SM0404 it has no out variant.
    """
    if target in CONTROL:
        return Overload(CONTROL[target].run, "many")
    overload = resolve(target)
    name = None
    if out:
        variant = _out_variant(overload)
        if variant is None:
            raise SmeltError("SM0404", f"{target} has no out variant")
        overload, name = variant
    results = overload._schema.returns
    returns = (
        "none" if not results else "one" if len(results) == 1 and not _is_list(results[0].type) else "many"
    )
    # the bound C function: same dispatch as the overload itself, without a Python frame
    return Overload(getattr(overload, "_op", overload), returns, name)


@lru_cache(maxsize=1024)
def has_out_variant(target: str, device: str = "CPU") -> bool:
    """Whether ``ExternStep(target, …, out=True)`` works and writes directly into the given memory.

    True for an operator with one tensor result, an overload with the same arguments and one output argument,
    and a kernel of its own for the ``device`` (the generated ones run the functional one and copy).

    >>> has_out_variant("aten.addmm.default"), has_out_variant("aten.convolution.default")
    (True, False)
    """
    try:
        variant = _out_variant(resolve(target))
    except SmeltError:
        return False
    if variant is None:
        return False
    name = variant[0]._schema.name
    full = f"{name}.{variant[0]._schema.overload_name}".removesuffix(".")
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(full, device))


@lru_cache(maxsize=1024)
def gives_fresh_memory(target: str) -> bool:
    """Whether the operator's results never alias its arguments.

    False for operators that return views, and for compositions of others, whose schema does not tell.

    >>> gives_fresh_memory("aten.convolution.default"), gives_fresh_memory("aten.view.default")
    (True, False)
    """
    try:
        overload = resolve(target)
    except SmeltError:
        return False
    schema = overload._schema
    composed = torch._C._dispatch_has_kernel_for_dispatch_key(overload.name(), "CompositeImplicitAutograd")
    return (
        overload.namespace == "aten"
        and not composed
        and all(each.alias_info is None for each in schema.returns)
    )


@lru_cache(maxsize=4096)
def is_random(target: Any) -> bool:
    """Whether the operator draws from a generator: then it runs exactly once, in order."""
    return isinstance(target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in target.tags


def is_dequantization(target: Any) -> bool:
    """Whether the operator computes the values of quantized weights, which are to be kept nowhere.

    >>> is_dequantization("smelt.dequantize.default"), is_dequantization(torch.ops.aten.mul.Tensor)
    (True, False)
    """
    return str(target) == "smelt.dequantize.default"


def is_collective(target: Any) -> bool:
    """Whether the operator communicates with other processes: all of them make the same calls, in one order.

    >>> is_collective(torch.ops.aten.add.Tensor)
    False
    """
    return isinstance(target, torch._ops.OpOverload) and target.namespace in COLLECTIVE


def is_wait(target: Any) -> bool:
    """Whether the operator waits for a collective's result."""
    return is_collective(target) and target.__name__.partition(".")[0] == "wait_tensor"


@lru_cache(maxsize=4096)
def is_mutating(target: Any) -> bool:
    """Whether the operator's schema writes to an argument."""
    return isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable


def _out_variant(overload: torch._ops.OpOverload) -> tuple[torch._ops.OpOverload, str] | None:
    """The overload of the same operator that takes the same arguments and one tensor to write to."""
    schema = overload._schema
    if (
        len(schema.returns) != 1
        or str(schema.returns[0].type) != "Tensor"
        or schema.returns[0].alias_info is not None
    ):
        return None
    wanted = [(arg.name, str(arg.type)) for arg in schema.arguments]
    packet = overload.overloadpacket
    for name in packet.overloads():
        candidate = getattr(packet, name)
        outs = [arg for arg in candidate._schema.arguments if arg.is_out]
        rest = [(arg.name, str(arg.type)) for arg in candidate._schema.arguments if not arg.is_out]
        if len(outs) == 1 and str(outs[0].type) == "Tensor" and rest == wanted:
            return candidate, outs[0].name
    return None


def _is_list(kind: Any) -> bool:
    return kind.kind() == "ListType"
