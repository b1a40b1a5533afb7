"""What Dynamo asks of a program's modules and globals before each call, asked all at once.

Dynamo guards every attribute, parameter, submodule and function that it has seen, one by one: some 2,000
questions for a MobileNet, all over memory, 0.6 ms before each call. Nearly all of them have the same answer
as long as the dicts and classes on the way are untouched (`smelt.runtime.unchanged`): they move to trees of
their own, which are asked only when something has changed. One guard stands for each of these trees.

Which ones: guards on what is reached from a module, a function or the globals by attributes, items and
classes, where the answer depends on constants, on which object is there, on what an object has, or on what a
tensor is like. All others stay. Each question still has Dynamo's answer. Attributes of a class that has a
``__getattribute__`` of its own count as untouched as long as object and class are: Dynamo has traced through
it, and what else it read has guards.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

import torch
from torch import nn
from torch._dynamo import config as dynamo_config
from torch._dynamo.eval_frame import innermost_fn
from torch._dynamo.guards import GuardBuilder, GuardManagerWrapper
from torch._dynamo.source import (
    GlobalSource,
    GlobalStateSource,
    LocalSource,
    TypeDictSource,
    is_from_unspecialized_builtin_nn_module_source,
)
from torch._guards import Guard, TracingContext
from torch.fx import GraphModule

from smelt.capture.handed import Handed, Path, hand_modules_over, path_of
from smelt.capture.replaced import replaced
from smelt.runtime import unchanged
from smelt.runtime.unchanged import Asked, Step, Tree

FEWEST = 64
"""Guards below which it does not pay."""
FEWEST_OF_ONE = 16
"""Guards below one variable for which a tree of their own does not pay."""
NEEDED = ("_cached_guard_managers", "object_aliasing_guard_codes", "add_python_lambda_leaf_guard_to_root")
"""What Dynamo's builder of guards has to have: none of it is public."""
MOST_SUBJECTS = 32
"""How many modules a compiled graph remembers an answer for (equal layers may share one)."""

_CONSTANTS = frozenset(
    (
        *(bool, int, float, complex, str, bytes, type(None), CodeType),
        *(torch.dtype, torch.device, torch.layout, torch.memory_format),
    )
)
KNOWN = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13)
"""Whether this Dynamo is one that is known here from within."""

_TRUSTING = ("skip_tensor_guards_with_matching_dict_tags", "use_recursive_dict_tags_for_guards")
"""Settings by which Dynamo before 2.13 asks nothing as long as no dict has changed: what becomes of
``weight.data = …`` with other strides or another dtype, or of another class, would go unseen."""

_OF_CONSTANTS = ("CONSTANT_MATCH", "EQUALS_MATCH", "TYPE_MATCH", "SEQUENCE_LENGTH")
_OF_TUPLES = ("TYPE_MATCH", "SEQUENCE_LENGTH")
_OF_DICTS = ("TYPE_MATCH", "SEQUENCE_LENGTH", "DICT_KEYS_MATCH", "DICT_CONTAINS", "DICT_NOT_CONTAINS")
_OF_OBJECTS = ("TYPE_MATCH", "NOT_PRESENT_IN_GENERIC_DICT", "HASATTR")
_OF_IDENTITY = (
    *("ID_MATCH", "BUILTIN_MATCH", "CLASS_MATCH", "MODULE_MATCH", "FUNCTION_MATCH", "DUPLICATE_INPUT"),
)
_KINDS = frozenset(
    (*_OF_CONSTANTS, *_OF_TUPLES, *_OF_DICTS, *_OF_OBJECTS, *_OF_IDENTITY, "CLOSURE_MATCH", "TENSOR_MATCH")
)


def ask_modules_at_once(graph_module: GraphModule, call: Callable[..., Any]) -> Callable[..., Any]:
    """Do so for the graph that Dynamo compiles at the moment; a backend calls it. ``call`` takes the graph's
    inputs; what is returned takes what Dynamo's code gives in their place (`smelt.capture.handed`).
    """
    if not KNOWN:
        for name in _TRUSTING:
            setattr(dynamo_config, name, False)
    context = TracingContext.try_get()
    if not KNOWN or context is None or dynamo_config.caching_precompile or unchanged.why_not() is not None:
        return call
    guards, changing = context.guards_context.dynamo_guards, replaced()
    moved = [
        guard
        for guard in guards
        if guard.create_fn_name() in _KINDS
        and path_of(guard.originating_source) is not None
        and not changing.below(guard.originating_source)
    ]
    if len(moved) < FEWEST:
        return call
    call, handed = hand_modules_over(
        graph_module, innermost_fn(call), changing.below
    )  # Dynamo says itself not to trace it
    ids = {id(guard) for guard in moved}
    guards.inner = type(guards.inner)(guard for guard in guards.inner if id(guard) not in ids)
    create = functools.partial(_create, sorted(moved, key=Guard.sort_key), handed)
    guards.add(Guard(GlobalStateSource(), create))
    return call


def _create(
    moved: list[Guard],
    handed: Mapping[LocalSource | GlobalSource, Handed],
    builder: GuardBuilder,
    _: Guard,
) -> None:
    """Put these guards where they belong: some with the others, those of modules in a tree of their own."""
    reached = _Reached(builder)
    groups: dict[str | None, _Group] = {}
    for guard in moved:
        found = reached.covered(guard) if all(hasattr(builder, each) for each in NEEDED) else None
        if found is None:
            guard.create(builder)
            continue
        root, paths = found
        group = groups.setdefault(root, _Group([], []))
        group.guards.append(guard)
        group.paths += paths
    for root, group in groups.items():
        if len(group.guards) < FEWEST_OF_ONE:
            for guard in group.guards:
                guard.create(builder)
            continue
        tree = Tree()
        for path in group.paths:
            tree.at(path)
        taken = []
        for module, each in handed.items():
            local, way = path_of(module) or (None, ())
            if local == root:
                taken.append((way, each))
                for path in each.paths:
                    tree.at((*way, *path))
        where = GlobalSource(group.paths[0][0]) if root is None else LocalSource(root)
        reason = [f"what {'the globals' if root is None else where.name} hold"]
        scope = builder.scope["G"] if root is None else root
        check = _Watched(scope, tree, _built_apart(builder, group.guards), reason, taken)
        builder.get_guard_manager_from_source(where).add_lambda_guard(check, reason, None)


@dataclass(slots=True)
class _Group:
    """Guards below one variable, or below the globals, and what their answers depend on."""

    guards: list[Guard]
    paths: list[Path]


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


class _Watched:
    """A guard on an object: whether everything below it is as Dynamo has seen it."""

    __slots__ = ("apart", "handed", "known", "patience", "reason", "scope", "told", "tree", "waits")

    def __init__(
        self,
        scope: str | dict[str, Any],
        tree: Tree,
        apart: GuardManagerWrapper,
        reason: list[str],
        handed: list[tuple[Path, Handed]],
    ) -> None:
        """``scope``: the name of the variable that the object is in, or the globals, which are asked then
        instead of what the guard is given; ``reason`` is told why the answer is no; ``handed``: what the
        graph takes from the modules on these paths.
        """
        self.scope, self.tree, self.apart, self.reason = scope, tree, apart, reason
        self.handed = handed
        self.known: dict[int, Asked] = {}
        self.told: dict[int, list[tuple[Handed, weakref.ref[nn.Module]]]] = {}
        self.waits, self.patience = 0, 1

    def __call__(self, given: Any) -> bool:
        subject = given if type(self.scope) is str else self.scope
        ask = self.known.get(id(subject))
        if ask is not None:
            if ask():
                return True
            del self.known[id(subject)]
            self.waits, self.patience = self.patience, 2 * self.patience
        for taken, module in self.told.pop(id(subject), ()):
            taken.forget(module())
        scope = {self.scope: subject} if isinstance(self.scope, str) else {}
        if not self.apart.root.check(scope):
            self.reason[:] = self.apart.root.check_verbose(scope).verbose_code_parts or self.reason
            return False
        if self.waits:
            self.waits -= 1
        elif unchanged.ready():
            self._remember(subject)
        return True

    def _remember(self, subject: Any) -> None:
        if len(self.known) == MOST_SUBJECTS:
            self.known.clear()
        ask = unchanged.watched((subject, self.tree))
        if ask is None:
            self.waits, self.patience = self.patience, 2 * self.patience
        else:
            self.known[id(subject)] = ask
            modules = [
                (taken, functools.reduce(unchanged.part_of, way, subject)) for way, taken in self.handed
            ]
            for taken, module in modules:
                taken.remember(module)
            self.told[id(subject)] = [(taken, weakref.ref(module)) for taken, module in modules]


class _Reached:
    """What is reached from variables, by variable and path."""

    def __init__(self, builder: GuardBuilder) -> None:
        self.builder = builder
        self.known: dict[tuple[str | None, Path], Any] = {}
        self.gradients = torch.is_grad_enabled()

    def covered(self, guard: Guard) -> tuple[str | None, list[Path]] | None:
        """The variable that a guard is about, and the paths its answer depends on; None where it depends on
        something else too.
        """
        found, kind = path_of(guard.originating_source), guard.create_fn_name()
        if found is None:
            return None
        root, path = found
        source = guard.originating_source
        if self.at(root, path) is not self.builder.get(
            source.base if type(source) is TypeDictSource else source
        ):
            return None
        if kind == "DUPLICATE_INPUT":
            assert isinstance(guard.create_fn, functools.partial)
            other = path_of(guard.create_fn.keywords["source_b"])
            if other is None or other[0] != root or self.at(*other) is _UNKNOWN:
                return None
            return root, [path, other[1]]
        told = self._told(kind, self.at(root, path), guard)
        return None if told is None else (root, [(*path, *more) for more in told])

    def _told(self, kind: str, value: Any, guard: Guard) -> list[Path] | None:
        """The paths from ``value`` on that its guard's answer depends on."""
        itself: list[Path] = [()]
        if kind in _OF_IDENTITY:
            return itself
        if kind == "CLOSURE_MATCH":
            return [("__code__",)] if type(value) is FunctionType else itself
        if kind == "TENSOR_MATCH":
            # Others take part in Dynamo's question whether two tensors are one. Whether a tensor requires a
            # gradient is not watched, and not asked where none is computed.
            alone = type(value) is nn.Parameter or is_from_unspecialized_builtin_nn_module_source(
                guard.originating_source
            )
            known = alone and value.dim() <= unchanged.MOST_DIMS and not self.gradients
            return itself if known else None
        if kind == "HASATTR" and not _has_plainly(value, guard):
            return None
        if isinstance(value, nn.Module):
            lookup = [("_parameters",), ("_buffers",), ("_modules",), (Step.TYPE,)]
            return itself + (lookup if kind == "HASATTR" else []) if kind in _OF_OBJECTS else None
        if _is_constant(value):
            return itself if kind in _OF_CONSTANTS else None
        if type(value) is tuple:
            return itself if kind in _OF_TUPLES else None
        if type(value) is dict or type(guard.originating_source) is TypeDictSource:
            return itself if kind in _OF_DICTS else None
        return itself if kind in _OF_OBJECTS and hasattr(value, "__dict__") and _is_plain(value) else None

    def at(self, root: str | None, path: Path) -> Any:
        """What is there; `_UNKNOWN` where nobody could see that it changes."""
        if (root, path) not in self.known:
            self.known[root, path] = self._find(root, path)
        return self.known[root, path]

    def _find(self, root: str | None, path: Path) -> Any:
        if not path:
            value = self.builder.scope["G"] if root is None else self.builder.get(LocalSource(root))
            return value if root is None or isinstance(value, (nn.Module, FunctionType)) else _UNKNOWN
        base = self.at(root, path[:-1])
        if base is _UNKNOWN:
            return _UNKNOWN
        if isinstance(base, nn.Module) and type(base).__getattribute__ is not object.__getattribute__:
            return _UNKNOWN
        try:
            return unchanged.part_of(base, path[-1])
        except unchanged.Unwatchable:
            return _UNKNOWN


_UNKNOWN = object()


def _is_plain(value: Any) -> bool:
    """Whether it is an object with attributes, none of the things that are compared in other ways."""
    return not isinstance(value, (type, FunctionType, torch.Tensor))


def _has_plainly(value: Any, guard: Guard) -> bool:
    """Whether an object has an attribute only if it, or its class, holds it (for modules, also if one of its
    three dicts does).
    """
    assert isinstance(guard.create_fn, functools.partial)
    getter = getattr(type(value), "__getattr__", None)
    if getter is not (nn.Module.__getattr__ if isinstance(value, nn.Module) else None):
        return False
    of_class = inspect.getattr_static(type(value), guard.create_fn.keywords["attr"], None)
    return _is_plain(value) and not hasattr(type(of_class), "__get__")


def _is_constant(value: Any) -> bool:
    if type(value) in (tuple, torch.Size):
        return all(map(_is_constant, value))
    return type(value) in _CONSTANTS
