"""A digest of everything but parameters and buffers that the trace of a module depends on.

That is: the classes of its modules, their plain attributes and configurations, hooks, and the code that
``forward`` reaches: methods by their names, functions and registries by the globals of the functions that use
them, closures. Of packages whose version is part of a key anyway (``torch``) only names count.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

_PLAIN = (
    *(type(None), bool, int, float, complex, str, bytes, range, slice, type(...)),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size),
)
_VERSIONED = ("builtins", "torch", "smelt")
"""Packages of classes whose code is not looked at: their version is part of every key."""
_UNREAD = frozenset(
    {
        *("_parameters", "_buffers", "_modules"),
        *("_name_or_path", "name_or_path", "_commit_hash", "_original_object_hash"),  # of transformers
    }
)
"""Attributes that are written otherwise, or say where a model is from."""
_HOOKS = frozenset(name for name in vars(nn.Module()) if "_hooks" in name)
"""Attributes that hold a module's hooks, or say something of them."""
_ENTRIES = ("forward", "__call__", "__getattr__")
"""The methods of a module that its caller reaches."""
_REACHED = (
    *(types.FunctionType, types.MethodType, type, functools.partial, property, Mapping),
    *(list, tuple, classmethod, staticmethod, functools._lru_cache_wrapper),
)
"""What is looked at when code reaches it by a name."""
_MOST = 100_000
"""Limit on the values that are looked at."""


class _UnknownError(Exception):
    """A value of a kind that has no digest."""


def identity_of(module: nn.Module) -> str | None:
    """The digest, equal in all processes; None if an attribute or a closure holds what has none.

    >>> identity_of(nn.Linear(2, 2)) == identity_of(nn.Linear(2, 2)) != identity_of(nn.Tanh())
    True
    """
    writer = _Writer(module)
    try:
        writer.write(module)
        writer.write(_state_of_torch())
    except (_UnknownError, RecursionError):
        return None
    return writer.digest.hexdigest()


def _state_of_torch() -> tuple[Any, ...]:
    """The settings of this process that a trace depends on."""
    backends = torch.backends
    return (
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu"),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_float32_matmul_precision(),
        backends.mkldnn.enabled,
        backends.cuda.flash_sdp_enabled(),
        backends.cuda.mem_efficient_sdp_enabled(),
        backends.cuda.math_sdp_enabled(),
    )


class _Writer:
    """``names``: those that code seen so far uses; a class's method counts once its name is among them."""

    def __init__(self, module: nn.Module) -> None:
        bases = {base for each in module.modules() for base in type(each).__mro__}
        self.followed = {_package(base.__module__) for base in bases}.difference(_VERSIONED)
        """The packages whose code is looked at."""
        self.digest = hashlib.sha256()
        self.held = {id(each) for each in (*module.parameters(), *module.buffers())}
        self.seen: dict[int, int] = {}
        self.alive: list[Any] = []  # so that no address is used twice
        self.within = 0
        """The number of functions that the value at hand was reached through; 0: it is an attribute's."""
        self.versions: set[str] = set()
        self.names: set[str] = set(_ENTRIES)
        self.classes: list[type] = []
        self.done: set[tuple[type, str]] = set()

    def text(self, *parts: object) -> None:
        self.digest.update(repr(parts).encode())

    def write(self, value: Any) -> None:
        """Adds a value and all that it reaches."""
        self.value(value)
        before = -1
        self.within = 1
        while before != len(self.done):  # methods name other methods
            before = len(self.done)
            for kind in list(self.classes):
                self.methods(kind)

    def value(self, value: Any) -> None:
        kind = type(value)
        if isinstance(value, enum.Enum):
            self.text(kind.__qualname__, value.name)
        elif kind in _PLAIN:
            self.text(kind.__name__, value)
        elif id(value) in self.held:
            self.text("held")
        elif id(value) in self.seen:
            self.text("seen", self.seen[id(value)])
        else:
            if len(self.alive) > _MOST:
                raise _UnknownError("too many values")
            self.seen[id(value)] = len(self.seen)
            self.alive.append(value)
            self.thing(value)

    def thing(self, value: Any) -> None:
        if isinstance(value, Tensor):
            self.tensor(value)
        elif isinstance(value, type):
            self.kind(value)
        elif isinstance(value, nn.Module):
            self.module(value)
        elif isinstance(value, types.FunctionType):
            self.function(value)
        elif isinstance(value, types.MethodType):
            self.text("method")
            self.value(value.__func__)
            self.value(value.__self__)
        elif isinstance(value, functools.partial):
            self.text("partial")
            self.value((value.func, value.args, value.keywords))
        elif isinstance(value, (classmethod, staticmethod, functools._lru_cache_wrapper)):
            self.value(value.__wrapped__)
        elif isinstance(value, property):
            self.value((value.fget, value.fset))
        elif isinstance(value, (list, tuple)):
            self.text(type(value).__name__, len(value))
            for each in value:
                self.value(each)
        elif isinstance(value, (set, frozenset)):
            self.text("set", sorted(map(repr, value)))
            if any(type(each) not in _PLAIN for each in value):
                raise _UnknownError(value)
        elif isinstance(value, Mapping):
            self.text("mapping", len(value))
            for name, each in value.items():
                self.value(name)
                self.value(each)
        elif isinstance(
            value, (types.BuiltinFunctionType, torch._ops.OpOverload, torch._ops.OpOverloadPacket)
        ):
            self.text(
                "builtin", str(getattr(value, "__module__", "")), str(getattr(value, "__name__", value))
            )
        elif isinstance(value, types.ModuleType):
            self.text("module", value.__name__)
        elif hasattr(value, "__dict__") and not hasattr(value, "__slots__"):
            self.text("object")
            self.value(type(value))
            self.value({name: each for name, each in vars(value).items() if name not in _UNREAD})
        else:
            raise _UnknownError(value)

    def tensor(self, tensor: Tensor) -> None:
        """A tensor that is no parameter or buffer becomes a constant of the program: its contents count."""
        if type(tensor) not in (Tensor, nn.Parameter) or tensor.layout is not torch.strided:
            raise _UnknownError(tensor)
        self.text("tensor", tensor.dtype, tuple(tensor.shape), tensor.stride(), str(tensor.device))
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        self.digest.update(flat.view(torch.uint8).numpy().data if flat.numel() else b"")

    def module(self, module: nn.Module) -> None:
        self.value(type(module))
        hooks = {name: each for name, each in vars(module).items() if name in _HOOKS and each}
        numbers = {key: n for n, key in enumerate(sorted({key for each in hooks.values() for key in each}))}
        for name, each in vars(module).items():
            if name in hooks:  # by numbers that count all hooks of the process
                self.text(name)
                self.value({numbers[key]: hook for key, hook in each.items()})
            elif name not in _UNREAD and name not in _HOOKS:
                self.text(name)
                self.value(each)
        for held in (module._parameters, module._buffers):
            forms = ((n, t.dtype, tuple(t.shape), t.stride()) for n, t in held.items() if t is not None)
            self.text(list(forms))
        for name, inner in module._modules.items():
            self.text(name)
            self.value(inner)

    def kind(self, kind: type) -> None:
        self.text("class", kind.__module__, kind.__qualname__)
        for base in kind.__mro__:
            if self.follows(base.__module__) and base not in self.classes:
                self.text("base", base.__module__, base.__qualname__)
                self.classes.append(base)

    def methods(self, kind: type) -> None:
        """Adds the methods, and plain attributes, of a class whose names are in use."""
        for name, each in vars(kind).items():
            if name in self.names and (kind, name) not in self.done:
                self.done.add((kind, name))
                self.text(kind.__qualname__, name)
                self.reached(each)

    def function(self, function: types.FunctionType) -> None:
        self.text("function", function.__module__, function.__qualname__)
        if not self.follows(function.__module__ or "") and function.__closure__ is None:
            return
        self.code(function.__code__)
        self.value((function.__defaults__, function.__kwdefaults__))
        for cell in function.__closure__ or ():
            try:
                self.value(cell.cell_contents)
            except ValueError:
                self.text("empty")
        names = dict.fromkeys(_names(function.__code__))
        self.names.update(names)
        self.within += 1
        try:
            for name in names:
                if name in function.__globals__:
                    self.text(name)
                    self.reached(function.__globals__[name], names)
        finally:
            self.within -= 1

    def follows(self, module: str) -> bool:
        """Whether the code of a module is looked at; if not, its package's version is added."""
        package = _package(module)
        if not self.within and package not in _VERSIONED:
            self.followed.add(package)
        if package in self.followed:
            return True
        if package not in self.versions:
            self.versions.add(package)
            self.text(package, str(getattr(sys.modules.get(package), "__version__", "")))
        return False

    def reached(self, value: Any, names: Mapping[str, Any] = types.MappingProxyType({})) -> None:
        """Adds what code reaches by a name: of a module the functions whose ``names`` it uses; of an object,
        such as a logger, only its class.
        """
        if isinstance(value, types.ModuleType):
            if self.follows(value.__name__):
                for name in names:
                    if isinstance(found := getattr(value, name, None), types.FunctionType):
                        self.value(found)
        elif isinstance(value, (*_PLAIN, *_REACHED)):
            try:
                self.value(value)
            except _UnknownError:
                self.text("unknown")
        else:
            self.text(type(value).__module__, type(value).__qualname__)

    def code(self, code: types.CodeType) -> None:
        self.digest.update(code.co_code)
        self.text(code.co_names, code.co_varnames, code.co_flags)
        for each in code.co_consts:
            if isinstance(each, types.CodeType):
                self.code(each)
            elif isinstance(each, frozenset):
                self.text(sorted(map(repr, each)))
            else:
                self.text(each)


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield from _names(each)


def _package(module: str) -> str:
    return module.partition(".")[0]
