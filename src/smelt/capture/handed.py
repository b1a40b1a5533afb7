"""What a graph takes from a module, taken once.

Before each call Dynamo's code gets one parameter after the other by its name, from dict to dict: 0.14 ms for
MobileNetV2 and 0.25 ms for MiniLM, whose weights have thrown all of these out of the caches. Here it hands
the module over instead. The tensors below it are remembered for as long as the guard on the module has seen
no change (`smelt.capture.guards`), and got by name again after that.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._dynamo.source import (
    AttrSource,
    CellContentsSource,
    ClosureSource,
    CodeSource,
    DefaultsSource,
    DictGetItemSource,
    GenericAttrSource,
    GetItemSource,
    GlobalSource,
    LocalSource,
    NNModuleSource,
    TypeDictSource,
    TypeMROSource,
    TypeSource,
    UnspecializedParamBufferSource,
)
from torch._dynamo.variables.builder import GraphArg
from torch._guards import Source
from torch.fx import GraphModule

from smelt.runtime.unchanged import Step
from smelt.runtime.watch import picker

Path = tuple[Any, ...]
"""What a `smelt.runtime.unchanged.Tree` calls the parts on the way from one object to another."""

_OF_MEMBERS = (AttrSource, CellContentsSource, GenericAttrSource, UnspecializedParamBufferSource)
_SAME_PLACE = (TypeDictSource, TypeMROSource)
_NAMED = {TypeSource: Step.TYPE, CodeSource: "__code__", ClosureSource: "__closure__"}


def path_of(source: Any) -> tuple[str | None, Path] | None:
    """The local variable from which a source is reached, None for the globals, and the way from there; None
    where there is no such way.
    """
    steps: list[Any] = []
    while type(source) is not LocalSource:
        if type(source) is GlobalSource:
            return None, (source.global_name, *reversed(steps))
        if type(source) in _OF_MEMBERS:
            steps.append(source.member)
        elif type(source) in (DictGetItemSource, GetItemSource):
            if isinstance(source.index, Source) or getattr(source, "index_is_slice", False):
                return None
            steps.append(source.index)
        elif type(source) is DefaultsSource:
            steps += source.idx_key, source.field
        elif type(source) in _NAMED:
            steps.append(_NAMED[type(source)])
        elif not (isinstance(source, NNModuleSource) or type(source) in _SAME_PLACE):
            return None
        source = source.base
    return source.local_name, tuple(reversed(steps))


@dataclass(frozen=True, slots=True)
class Part:
    """A step from an object to another one: an attribute, or a dict's item. Dicts may be of any class."""

    name: Any
    is_item: bool

    def of(self, value: Any) -> Any:
        return value[self.name] if self.is_item else getattr(value, self.name)


def _module_of(source: Any) -> tuple[LocalSource | GlobalSource, tuple[Part, ...]] | None:
    """The variable with the module that a source is reached from by attributes and items of dicts alone, and
    the way from there.
    """
    parts: list[Part] = []
    while True:
        if type(source) in (AttrSource, UnspecializedParamBufferSource):
            parts.append(Part(source.member, False))
        elif type(source) is DictGetItemSource and not isinstance(source.index, Source):
            parts.append(Part(source.index, True))
        elif not isinstance(source, NNModuleSource):
            return None
        elif isinstance(source.base, (LocalSource, GlobalSource)):
            return source.base, tuple(reversed(parts))
        source = source.base


class Handed:
    """The tensors below a module at the ends of these ways, by module."""

    def __init__(self, ways: Sequence[tuple[Part, ...]]) -> None:
        self._ways = tuple(ways)
        self._known: dict[int, _Known] = {}

    @property
    def paths(self) -> tuple[Path, ...]:
        """The ways as a `smelt.runtime.unchanged.Tree` has them."""
        return tuple(tuple(part.name for part in way) for way in self._ways)

    def remember(self, module: nn.Module) -> None:
        """From now on somebody sees when ``module`` changes, and calls `forget`."""
        number = id(module)

        def gone(alive: weakref.ref[nn.Module]) -> None:
            if number in self._known and self._known[number].alive is alive:
                del self._known[number]

        self._known[number] = _Known(weakref.ref(module, gone))

    def forget(self, module: nn.Module | None) -> None:
        """``module`` may have changed (None: it is gone)."""
        self._known.pop(id(module), None)

    def of(self, module: nn.Module) -> tuple[torch.Tensor, ...]:
        """The tensors of ``module``."""
        known = self._known.get(id(module))
        if known is not None and known.tensors is not None:
            return known.tensors
        found = tuple(_reached(module, way) for way in self._ways)
        if known is not None:
            known.tensors = found
        return found


@dataclass(slots=True)
class _Known:
    """A module's tensors, once they were asked for; only as long as the module lives."""

    alive: weakref.ref[nn.Module]
    tensors: tuple[torch.Tensor, ...] | None = None


def _reached(value: Any, way: tuple[Part, ...]) -> Any:
    for part in way:
        value = part.of(value)
    return value


class _Nothing(GraphArg):
    """An argument of a graph for which Dynamo's code gives None."""

    def reconstruct(self, codegen: Any) -> None:
        codegen.append_output(codegen.create_load_const(None))

    def reconstruct_pycode(self, codegen: Any) -> str:
        return "None"


def hand_modules_over(
    graph_module: GraphModule, call: Callable[..., Any], changing: Callable[[Any], bool]
) -> tuple[Callable[..., Any], dict[LocalSource | GlobalSource, Handed]]:
    """Have Dynamo's code give modules instead of their tensors, when it is written after the backend's work;
    ``call``, which takes the graph's inputs, for such arguments, and what is handed over by module. Tensors
    whose source is ``changing`` are given as before.
    """
    nodes = graph_module.graph.find_nodes(op="placeholder")
    found: dict[LocalSource | GlobalSource, list[tuple[int, tuple[Part, ...]]]] = {}
    for position, node in enumerate(nodes):
        arg = node.meta.get("grapharg")
        if type(arg) is not GraphArg or arg.pass_arg_as_tensor or changing(arg.source):
            continue
        reached = _module_of(arg.source)
        if reached is not None:
            module, way = reached
            found.setdefault(module, []).append((position, way))
    if not found:
        return call, {}
    handed = {root: Handed([way for _, way in places]) for root, places in found.items()}
    taken = [position for places in found.values() for position, _ in places]
    for position in taken:
        nodes[position].meta["grapharg"] = _Nothing(None, None, False, None, False)
    modules = {root: places[0][0] for root, places in found.items()}
    for root, position in modules.items():
        nodes[position].meta["grapharg"] = GraphArg(root, None, False, None, False)
    behind = {position: len(nodes) + number for number, position in enumerate(taken)}
    pick = picker([behind.get(position, position) for position in range(len(nodes))])
    sources = [(position, handed[root]) for root, position in modules.items()]

    def with_modules(*args: Any) -> Any:
        if not isinstance(args[taken[0]], nn.Module):
            return call(*args)  # somebody tries the graph out (`torch._dynamo.config.verify_correctness`)
        tensors = [tensor for position, each in sources for tensor in each.of(args[position])]
        return call(*pick((*args, *tensors)))

    return with_modules, handed
