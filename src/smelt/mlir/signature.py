"""The arguments and results of an exported program's function; they are equal in every dialect."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch.fx import Node

from smelt.capture import Program
from smelt.capture.program import Input

Weights = Literal["inline", "external"]
"""The place of parameters, buffers and constants: literals of the module, or the last arguments."""


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of the function, or (in `Signature.literals`) one tensor that is part of the module.

    ``meta``: the FakeTensor, SymInt or number of the capture. ``value``: the tensor, if the program holds it.
    """

    node: Node = field(repr=False)
    source: Input

    @property
    def name(self) -> str:
        """The FX node's name; for tensors of the module, the path (``layer.0.weight``)."""
        return self.source.path or self.source.name

    @property
    def meta(self) -> Any:
        return self.node.meta.get("val")

    @property
    def value(self) -> torch.Tensor | None:
        return self.source.value


@dataclass(frozen=True, slots=True)
class Result:
    """One result: the new value of an argument that the program mutates (``target``), or an output (None).

    ``value``: the FX node (or literal, or None) that the program returns.
    """

    value: Any = field(repr=False)
    target: Argument | None = None


@dataclass(frozen=True, slots=True)
class Signature:
    """``results = main(*arguments)``.

    Arguments: the user's inputs in their order (including numbers, but not those that the capture fixed, see
    `is_passed`; ``places`` are the positions of the arguments among all inputs of the user), then the tensors
    that the program holds and mutates (batch-norm statistics), then, with external weights, all other tensors
    that it holds. Results: the mutated arguments in the program's order, then the user's outputs, as
    ``torch.export`` orders them. ``literals``: the tensors that are constants in the module.
    """

    arguments: tuple[Argument, ...]
    results: tuple[Result, ...]
    literals: tuple[Argument, ...]
    places: tuple[int, ...] = ()

    @property
    def held(self) -> tuple[Argument, ...]:
        """The arguments whose values the program holds; a caller passes them after the user's inputs."""
        return tuple(each for each in self.arguments if each.value is not None)


def is_passed(meta: Any) -> bool:
    """Whether an input with this metadata is an argument: a tensor, or a number that varies between calls.

    None, strings, and numbers that ``torch.export`` has fixed are part of the program.

    >>> is_passed(torch.ones(2)), is_passed(3), is_passed(None)
    (True, False, False)
    """
    return isinstance(meta, (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool))


def signature_of(program: Program, weights: Weights = "inline") -> Signature:
    """The signature of a program in contract form.

    >>> from smelt.capture import capture_function
    >>> signature = signature_of(capture_function(lambda x: x.add_(1), [torch.ones(3)]))
    >>> [each.name for each in signature.arguments], [each.target is not None for each in signature.results]
    (['arg0_1'], [True, False])
    """
    every = {node: Argument(node, each) for node, each in zip(program.placeholders, program.inputs)}
    mutated = dict(program.mutations())
    inputs = [each for each in every.values() if each.value is None]
    places = tuple(place for place, each in enumerate(inputs) if is_passed(each.meta))
    users = [inputs[place] for place in places]
    state = [every[node] for node in every if node in mutated and every[node].value is not None]
    rest = [each for each in every.values() if each.value is not None and each.node not in mutated]
    external = rest if weights == "external" else []
    results = [Result(source, every[target]) for target, source in mutated.items()]
    results += [Result(value) for value in program.outputs]
    literals = tuple(rest) if weights == "inline" else ()
    return Signature((*users, *state, *external), tuple(results), literals, places)
