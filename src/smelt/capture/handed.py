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
    DictGetItemSource,
    GlobalSource,
    LocalSource,
    NNModuleSource,
    UnspecializedParamBufferSource,
)
from torch._dynamo.variables.builder import GraphArg
from torch._guards import Source
from torch.fx import GraphModule

from smelt.runtime.watch import picker

Path = tuple[Any, ...]
"""Names of attributes, and of items of dicts, from a module on."""


def path_of(source: Any) -> tuple[NNModuleSource, Path] | None:
    """The module in a variable from which a source is reached by attributes and items alone, and how."""
    names: list[Any] = []
    while not isinstance(source, (LocalSource, GlobalSource)):
        if isinstance(source, NNModuleSource):
            if isinstance(source.base, (LocalSource, GlobalSource)):
                return source, tuple(reversed(names))
        elif type(source) in (AttrSource, UnspecializedParamBufferSource):
            names.append(source.member)
        elif type(source) is DictGetItemSource and not isinstance(source.index, Source):
            names.append(source.index)
        else:
            return None
        source = source.base
    return None


class Handed:
    """The tensors at ``paths`` below a module, by module."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = tuple(paths)
        self._known: dict[int, _Known] = {}

    def remember(self, module: nn.Module) -> None:
        """From now on somebody sees when ``module`` changes, and calls `forget`."""
        number = id(module)

        def gone(alive: weakref.ref[nn.Module]) -> None:
            if number in self._known and self._known[number].alive is alive:
                del self._known[number]

        self._known[number] = _Known(weakref.ref(module, gone))

    def forget(self, module: nn.Module) -> None:
        """``module`` may have changed."""
        self._known.pop(id(module), None)

    def of(self, module: nn.Module) -> tuple[torch.Tensor, ...]:
        """The tensors of ``module``."""
        known = self._known.get(id(module))
        if known is not None and known.tensors is not None:
            return known.tensors
        found = tuple(_reached(module, path) for path in self.paths)
        if known is not None:
            known.tensors = found
        return found


@dataclass(slots=True)
class _Known:
    """A module's tensors, once they were asked for; only as long as the module lives."""

    alive: weakref.ref[nn.Module]
    tensors: tuple[torch.Tensor, ...] | None = None


def _reached(value: Any, path: Path) -> Any:
    for name in path:
        value = value[name] if type(value) is dict else getattr(value, name)
    return value


class _Nothing(GraphArg):
    """An argument of a graph for which Dynamo's code gives None."""

    def reconstruct(self, codegen: Any) -> None:
        codegen.append_output(codegen.create_load_const(None))

    def reconstruct_pycode(self, codegen: Any) -> str:
        return "None"


def hand_modules_over(
    graph_module: GraphModule, call: Callable[..., Any]
) -> tuple[Callable[..., Any], dict[NNModuleSource, Handed]]:
    """Have Dynamo's code give modules instead of their tensors, when it is written after the backend's work;
    ``call``, which takes the graph's inputs, for such arguments, and what is handed over by module.
    """
    nodes = graph_module.graph.find_nodes(op="placeholder")
    found: dict[NNModuleSource, list[tuple[int, Path]]] = {}
    for position, node in enumerate(nodes):
        arg = node.meta.get("grapharg")
        reached = path_of(arg.source) if type(arg) is GraphArg and not arg.pass_arg_as_tensor else None
        if reached is not None:
            found.setdefault(reached[0], []).append((position, reached[1]))
    if not found:
        return call, {}
    handed = {root: Handed([path for _, path in places]) for root, places in found.items()}
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
