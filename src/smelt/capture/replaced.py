"""Attributes that a frame sets: state that is another tensor, or another number, at the next call."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch._dynamo.symbolic_convert import InstructionTranslator
from torch.fx import GraphModule

from smelt.capture.handed import Path, path_of


@dataclass(slots=True)
class Replaced:
    """Objects, by the way from a variable to them, and which of their attributes Dynamo's code sets."""

    attributes: dict[tuple[str | None, Path], set[str]] = field(default_factory=dict)

    def below(self, source: Any) -> bool:
        """Whether a source is such an object, or reached through one: something on the way there changes."""
        root, path = path_of(source) or (None, ())
        return any((root, path[:length]) in self.attributes for length in range(len(path) + 1))

    def has(self, source: Any) -> bool:
        """Whether a source is such an attribute."""
        root, path = path_of(source) or (None, ())
        return bool(path) and path[-1] in self.attributes.get((root, path[:-1]), ())


def replaced() -> Replaced:
    """What the frame sets that Dynamo compiles at the moment; a backend calls it."""
    found = Replaced()
    translator = getattr(_current(), "output", None)
    side_effects = getattr(translator, "side_effects", None)
    for variable, attributes in getattr(side_effects, "store_attr_mutations", {}).items():
        place = None if variable.source is None else path_of(variable.source)
        if place is not None:
            found.attributes.setdefault(place, set()).update(attributes)
    return found


def _current() -> Any:
    try:
        return InstructionTranslator.current_tx()
    except AttributeError:  # Dynamo is not at work: somebody calls the backend
        return None


def state_is_no_constant(graph_module: GraphModule) -> None:
    """Take the mark off inputs that Dynamo takes for parameters, because a module has them, and that the
    frame replaces: nothing of theirs is worth keeping for the next call.
    """
    found = replaced()
    for node in graph_module.graph.find_nodes(op="placeholder") if found.attributes else ():
        source = getattr(node.meta.get("grapharg"), "source", None)
        if source is not None and found.has(source):
            node.meta.get("tensor_dict", {}).pop("_dynamo_static_input_type", None)
