"""`smelt.compile(function, capture=…)`: compilation of graphs that are captured in another way than by
Dynamo.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from smelt.capture.torch_export import export_function
from smelt.errors import SmeltError, describe

Compile = Callable[[Any], Any]

WAYS = ("dynamo", "export", "symbolic", "trace", "script", "make_fx")


def compile_captured(
    function: Callable[..., Any], way: str, dynamic: bool | None, compile: Compile
) -> Callable[..., Any]:
    """``function``, captured in this way and compiled at the first call with arguments of a kind.

    Arguments are of one kind if they have equal dtypes, sizes, ``requires_grad`` and plain values.
    ``compile`` takes a module, TorchScript or an exported program. With ``dynamic``, ``export`` has symbols
    for all sizes.

    Raises:
        SmeltError: SM0107 there is no such way; at a call: SM0108 the way refuses the function.
    """
    if way not in WAYS:
        raise SmeltError("SM0107", f"capture {way!r}", remedy="ways: " + ", ".join(WAYS))
    known: dict[Hashable, Callable[..., Any]] = {}

    @functools.wraps(function, updated=())
    def call(*args: Any, **kwargs: Any) -> Any:
        kind = _kind((args, kwargs))
        found = known.get(kind)
        if found is None:
            try:
                graph = _captured(function, way, args, kwargs, bool(dynamic))
            except Exception as error:
                raise SmeltError(
                    "SM0108",
                    f"{way} refuses {getattr(function, '__name__', type(function).__name__)}",
                    why=describe(error),
                    remedy="smelt.capture.compare shows which way takes it",
                ) from error
            found = known[kind] = compile(graph)
        return found(*args, **kwargs)

    return call


def _captured(
    function: Callable[..., Any], way: str, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic: bool
) -> Any:
    if way == "symbolic":
        return torch.fx.symbolic_trace(function)
    if way == "script":
        return torch.jit.script(function)
    if way == "export":
        return export_function(function, args, kwargs, dynamic)
    if kwargs:
        raise TypeError(f"{way} takes no arguments by name ({', '.join(kwargs)})")
    if way == "trace":
        return torch.jit.trace(function, args, check_trace=False)
    return make_fx(function)(*args)


def _kind(arguments: Any) -> Hashable:
    leaves, spec = pytree.tree_flatten(arguments)
    found: list[Hashable] = [str(spec), torch.is_grad_enabled()]
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            found.append((leaf.dtype, tuple(leaf.shape), tuple(leaf.stride()), leaf.requires_grad))
        else:
            found.append((type(leaf), repr(leaf)))
    return tuple(found)
