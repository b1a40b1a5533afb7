"""The state of a function besides its arguments: modules and optimizers."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import CodeType, FunctionType, MethodType
from typing import Any

from torch import nn
from torch.optim import Optimizer


@dataclass(slots=True)
class State:
    """Name → module or optimizer; no module is part of another one."""

    modules: dict[str, nn.Module] = field(default_factory=dict)
    optimizers: dict[str, Optimizer] = field(default_factory=dict)


def state_of(function: Callable[..., Any]) -> State:
    """The modules and optimizers that a function can reach: its closure, its globals, its own object, and
    those of the user functions that it calls.

    An ``nn.Module`` is its own module (with the name ""); its optimizers are attributes of its modules.

    >>> layer = nn.Linear(2, 2)
    >>> list(state_of(lambda x: layer(x) + 1).modules)
    ['layer']
    """
    found = State()
    if isinstance(function, nn.Module):
        found.modules[""] = function
        for path, module in function.named_modules():
            for name, value in vars(module).items():
                if isinstance(value, Optimizer):
                    found.optimizers[f"{path}.{name}" if path else name] = value
        return found
    seen: set[int] = set()
    for name, value in _reachable(function):
        _add(found, name, value, seen)
    inner = {id(part) for each in found.modules.values() for part in each.modules() if part is not each}
    found.modules = {name: each for name, each in found.modules.items() if id(each) not in inner}
    return found


def _add(found: State, name: str, value: Any, seen: set[int]) -> None:
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, nn.Module):
        found.modules[name.replace(".", "_")] = value
    elif isinstance(value, Optimizer):
        found.optimizers[name] = value
    elif isinstance(value, (list, tuple)):
        for place, each in enumerate(value):
            _add(found, f"{name}_{place}", each, seen)
    elif isinstance(value, dict):
        for key, each in value.items():
            _add(found, f"{name}_{key}", each, seen)
    elif isinstance(value, (FunctionType, MethodType, functools.partial)) and not _is_torchs(value):
        for inner_name, inner in _reachable(value):
            _add(found, inner_name, inner, seen)


def _is_torchs(value: Any) -> bool:
    return (getattr(value, "__module__", None) or "").split(".")[0] == "torch"


def _reachable(function: Any) -> Iterator[tuple[str, Any]]:
    """Name and value of everything that a function's code can name, except its arguments."""
    if isinstance(function, functools.partial):
        yield from _reachable(function.func)
        yield from ((f"arg{place}", each) for place, each in enumerate(function.args))
        yield from function.keywords.items()
        return
    if isinstance(function, MethodType):
        own = function.__self__
        yield from (
            (("self", own),) if isinstance(own, nn.Module) else vars(own).items() if _has_vars(own) else ()
        )
        function = function.__func__
    elif not isinstance(function, FunctionType):
        if _has_vars(function):
            yield from vars(function).items()
        call = vars(type(function)).get("__call__")
        if not isinstance(call, FunctionType):
            return
        function = call
    function = inspect.unwrap(function)
    if not isinstance(function, FunctionType):
        return
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not bound yet
            continue
    for name, value in (function.__kwdefaults__ or {}).items():
        yield name, value
    yield from ((f"default{place}", each) for place, each in enumerate(function.__defaults__ or ()))
    for name in sorted(_names(function.__code__)):
        if name in function.__globals__:
            yield name, function.__globals__[name]


def _names(code: CodeType) -> set[str]:
    """The names that a code object, and those inside it, look up."""
    inner = [_names(each) for each in code.co_consts if isinstance(each, CodeType)]
    return set(code.co_names).union(*inner)


def _has_vars(value: Any) -> bool:
    return hasattr(value, "__dict__") and not isinstance(value, type)
