"""What Dynamo asks of a model's modules before each call, asked all at once.

Dynamo guards every attribute, parameter and submodule that it has seen, one by one: some 2,000 questions for
a MobileNet, all over memory, 0.6 ms before each call. Nearly all of them have the same answer as long as the
modules' dicts are untouched (`smelt.runtime.unchanged`): they move to a tree of their own, which is asked
only when something has changed. One guard stands for them in Dynamo's tree.

Which ones: guards on what is reached from a module by its attributes and by items of plain dicts, where the
answer depends on constants, on which object is there, on a dict's keys, or on what a tensor is like. All
others stay. Each question still has Dynamo's answer.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._dynamo import config as dynamo_config
from torch._dynamo.guards import GuardBuilder, GuardManagerWrapper
from torch._dynamo.source import (
    GlobalStateSource,
    LocalSource,
    NNModuleSource,
    is_from_unspecialized_builtin_nn_module_source,
)
from torch._guards import Guard, TracingContext
from torch.fx import GraphModule

from smelt.capture.handed import Handed, Path, hand_modules_over, path_of
from smelt.runtime import probe, unchanged
from smelt.runtime.unchanged import Asked, Tree

FEWEST = 64
"""Guards below which it does not pay."""
NEEDED = ("_cached_guard_managers", "object_aliasing_guard_codes", "add_python_lambda_leaf_guard_to_root")
"""What Dynamo's builder of guards has to have: none of it is public."""
MOST_MODULES = 32
"""How many modules a compiled graph remembers an answer for (equal layers may share one)."""

_CONSTANTS = frozenset(
    (
        *(bool, int, float, complex, str, bytes, type(None)),
        *(torch.dtype, torch.device, torch.layout, torch.memory_format),
    )
)
_OF_CONSTANTS = ("CONSTANT_MATCH", "EQUALS_MATCH", "TYPE_MATCH", "SEQUENCE_LENGTH")
_OF_DICTS = ("TYPE_MATCH", "SEQUENCE_LENGTH", "DICT_KEYS_MATCH", "DICT_CONTAINS", "DICT_NOT_CONTAINS")
_OF_MODULES = ("TYPE_MATCH", "NOT_PRESENT_IN_GENERIC_DICT")
_OF_ALL = ("ID_MATCH", "BUILTIN_MATCH", "CLASS_MATCH", "DUPLICATE_INPUT")
_KINDS = frozenset((*_OF_CONSTANTS, *_OF_DICTS, *_OF_MODULES, *_OF_ALL, "TENSOR_MATCH"))


def ask_modules_at_once(graph_module: GraphModule, call: Callable[..., Any]) -> Callable[..., Any]:
    """Do so for the graph that Dynamo compiles at the moment; a backend calls it. ``call`` takes the graph's
    inputs; what is returned takes what Dynamo's code gives in their place (`smelt.capture.handed`).
    """
    context = TracingContext.try_get()
    known = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13)
    if not known or context is None or dynamo_config.caching_precompile or unchanged.why_not() is not None:
        return call
    guards = context.guards_context.dynamo_guards
    moved = [
        guard
        for guard in guards
        if guard.create_fn_name() in _KINDS and path_of(guard.originating_source) is not None
    ]
    if len(moved) < FEWEST:
        return call
    call, handed = hand_modules_over(graph_module, call)
    probe.start()  # compiles meanwhile, the first time on a machine
    ids = {id(guard) for guard in moved}
    guards.inner = type(guards.inner)(guard for guard in guards.inner if id(guard) not in ids)
    create = functools.partial(_create, sorted(moved, key=Guard.sort_key), handed)
    guards.add(Guard(GlobalStateSource(), create))
    return call


def _create(
    moved: list[Guard], handed: Mapping[NNModuleSource, Handed], builder: GuardBuilder, _: Guard
) -> None:
    """Put these guards where they belong: some with the others, those of modules in a tree of their own."""
    reached = _Reached(builder)
    groups: dict[NNModuleSource, tuple[Tree, list[Guard]]] = {}
    for guard in moved:
        found = reached.covered(guard) if all(hasattr(builder, each) for each in NEEDED) else None
        if found is None:
            guard.create(builder)
            continue
        root, paths = found
        tree, own = groups.setdefault(root, (Tree(), []))
        own.append(guard)
        for path in paths:
            tree.at(path)
    for root, (tree, own) in groups.items():
        apart = _built_apart(builder, own)
        reason: list[str] = [f"what {root.name} holds"]
        local = root.base.local_name if isinstance(root.base, LocalSource) else None
        taken = handed.get(root, Handed(()))
        for path in taken.paths:
            tree.at(path)
        check = _Modules(local, tree, apart, reason, taken)
        builder.get_guard_manager_from_source(root.base).add_lambda_guard(check, reason, None)


def _built_apart(builder: GuardBuilder, guards: Iterable[Guard]) -> GuardManagerWrapper:
    """The guards in a tree of their own."""
    apart = GuardManagerWrapper()
    aliases = len(builder.object_aliasing_guard_codes)
    before = builder.guard_manager, builder._cached_guard_managers
    builder.guard_manager, builder._cached_guard_managers = apart, {}
    try:
        for guard in guards:
            guard.create(builder)
        own = builder.object_aliasing_guard_codes[aliases:]
        del builder.object_aliasing_guard_codes[aliases:]
        if own:
            codes, verbose = zip(*own)
            builder.add_python_lambda_leaf_guard_to_root(list(codes), list(verbose))
    finally:
        builder.guard_manager, builder._cached_guard_managers = before
    return apart


class _Modules:
    """A guard on a module: whether everything below it is as Dynamo has seen it."""

    __slots__ = ("apart", "handed", "known", "local", "patience", "reason", "tree", "waits")

    def __init__(
        self,
        local: str | None,
        tree: Tree,
        apart: GuardManagerWrapper,
        reason: list[str],
        handed: Handed,
    ) -> None:
        """``local``: the name of the variable that the module is in, None for a global one; ``reason`` is
        told why the answer is no; ``handed``: what the graph takes from the module.
        """
        self.local, self.tree, self.apart, self.reason = local, tree, apart, reason
        self.handed = handed
        self.known: dict[int, Asked] = {}
        self.waits, self.patience = 0, 1

    def __call__(self, module: Any) -> bool:
        ask = self.known.get(id(module))
        if ask is not None:
            if ask():
                return True
            del self.known[id(module)]
            self.waits, self.patience = self.patience, 2 * self.patience
        self.handed.forget(module)
        scope = {} if self.local is None else {self.local: module}
        if not self.apart.root.check(scope):
            self.reason[:] = self.apart.root.check_verbose(scope).verbose_code_parts or self.reason
            return False
        if self.waits:
            self.waits -= 1
        elif unchanged.ready():
            self._remember(module)
        return True

    def _remember(self, module: nn.Module) -> None:
        if len(self.known) == MOST_MODULES:
            self.known.clear()
        ask = unchanged.watched(module, self.tree)
        if ask is None:
            self.waits, self.patience = self.patience, 2 * self.patience
        else:
            self.known[id(module)] = ask
            self.handed.remember(module)


@dataclass(frozen=True, slots=True)
class _Place:
    """``value`` is what ``path`` leads to from the module of ``root``."""

    root: NNModuleSource
    path: Path
    value: Any


class _Reached:
    """What is reached from modules, by module and path."""

    def __init__(self, builder: GuardBuilder) -> None:
        self.builder = builder
        self.known: dict[tuple[NNModuleSource, Path], _Place | None] = {}
        self.gradients = torch.is_grad_enabled()

    def covered(self, guard: Guard) -> tuple[NNModuleSource, list[Path]] | None:
        """The module that a guard is about, and the paths on which its answer depends; None where it depends
        on something else too.
        """
        place, kind = self.at(guard.originating_source), guard.create_fn_name()
        if place is None:
            return None
        if kind == "DUPLICATE_INPUT":
            assert isinstance(guard.create_fn, functools.partial)
            other = self.at(guard.create_fn.keywords["source_b"])
            same = other is not None and other.root == place.root
            return (place.root, [place.path, other.path]) if other is not None and same else None
        return (place.root, [place.path]) if self._is_told(kind, place.value, guard) else None

    def _is_told(self, kind: str, value: Any, guard: Guard) -> bool:
        if kind in _OF_ALL:
            return True
        if isinstance(value, nn.Module):
            return kind in _OF_MODULES
        if type(value) is dict:
            return kind in _OF_DICTS
        if kind == "TENSOR_MATCH":
            # Others take part in Dynamo's question whether two tensors are one. Whether a tensor requires a
            # gradient is not watched, and not asked where none is computed.
            alone = type(value) is nn.Parameter or is_from_unspecialized_builtin_nn_module_source(
                guard.originating_source
            )
            return alone and value.dim() <= unchanged.MOST_DIMS and not self.gradients
        return kind in _OF_CONSTANTS and _is_constant(value)

    def at(self, source: Any) -> _Place | None:
        """Where a source is; None where it is not reached from a module by attributes and items alone."""
        found = path_of(source)
        return None if found is None else self._place(*found)

    def _place(self, root: NNModuleSource, path: Path) -> _Place | None:
        if (root, path) not in self.known:
            self.known[root, path] = self._find(root, path)
        return self.known[root, path]

    def _find(self, root: NNModuleSource, path: Path) -> _Place | None:
        if not path:
            value = self.builder.get(root)
            return _Place(root, path, value) if isinstance(value, nn.Module) else None
        base, name = self._place(root, path[:-1]), path[-1]
        if base is None:
            return None
        if isinstance(base.value, nn.Module):
            return _Place(root, path, vars(base.value)[name]) if _is_own(base.value, name) else None
        if type(base.value) is dict and name in base.value:
            return _Place(root, path, base.value[name])
        return None


def _is_own(module: nn.Module, name: str) -> bool:
    """Whether an attribute is in the module's ``__dict__``, and no property of its class comes before it."""
    if name not in vars(module) or type(module).__getattribute__ is not object.__getattribute__:
        return False
    of_classes = (vars(cls)[name] for cls in type(module).__mro__ if name in vars(cls))
    return not any(hasattr(type(each), "__set__") for each in of_classes)


def _is_constant(value: Any) -> bool:
    if type(value) in (tuple, torch.Size):
        return all(map(_is_constant, value))
    return type(value) in _CONSTANTS
