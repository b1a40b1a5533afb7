"""What the callers of a package are written from: the tensors and sizes of its ``model.json``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Tensor:
    """An input, state or output. ``number``: in the C interface. ``shape``: numbers, names of sizes, or texts
    for dimensions that are computed from sizes. ``initial``: the library knows the state's first value.
    ``order``: the dimensions from the outermost in memory; C++, Rust and Fortran have only None, C order.
    """

    name: str
    number: int
    dtype: str
    shape: tuple[int | str, ...]
    state: bool = False
    initial: bool = False
    order: tuple[int, ...] | None = None

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def plain(self) -> str:
        """The name for texts and comments of any language.

        >>> Tensor("a */b", 0, "float32", ()).plain
        'a_b'
        """
        return re.sub(r"[^\w.]+", "_", self.name, flags=re.ASCII)

    @property
    def shape_text(self) -> str:
        """The shape for people.

        >>> Tensor("x", 0, "float32", ("batch", 8)).shape_text
        '[batch, 8]'
        """
        return f"[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class Size:
    """A symbolic size. ``example``: a value that the README's examples use."""

    name: str
    least: int
    most: int
    example: int


@dataclass(frozen=True, slots=True)
class Interface:
    """A model as callers see it. ``tensors``: inputs and states in the order of the C interface."""

    name: str
    tensors: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    sizes: tuple[Size, ...]
    targets: tuple[str, ...] = ()

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The inputs that are only read."""
        return tuple(tensor for tensor in self.tensors if not tensor.state)

    @property
    def states(self) -> tuple[Tensor, ...]:
        return tuple(tensor for tensor in self.tensors if tensor.state)

    def example_shape(self, tensor: Tensor) -> list[int]:
        """A shape that the model takes, from the sizes' examples."""
        sizes = {size.name: size.example for size in self.sizes}
        return [d if isinstance(d, int) else sizes.get(d, 1) for d in tensor.shape]


def interface_of(model: Mapping[str, Any]) -> Interface:
    """The interface in the data of a ``model.json``."""

    def tensors(rows: Iterable[Mapping[str, Any]]) -> tuple[Tensor, ...]:
        return tuple(
            Tensor(
                row["name"],
                number,
                row["dtype"],
                tuple(row["shape"]),
                bool(row.get("state")),
                bool(row.get("initial")),
                tuple(row["order"]) if row.get("order") else None,
            )
            for number, row in enumerate(rows)
        )

    sizes = tuple(
        Size(
            row["name"], row["least"], row["most"], row.get("example", min(max(row["least"], 2), row["most"]))
        )
        for row in model["sizes"]
    )
    return Interface(
        model["name"],
        tensors(model["inputs"]),
        tensors(model["outputs"]),
        sizes,
        tuple(model.get("targets", ())),
    )


def identifiers(
    names: Iterable[str],
    reserved: Iterable[str] = (),
    *,
    prefix: str = "tensor",
    fold: bool = False,
    longest: int = 200,
) -> list[str]:
    """Names that a language takes, all different: for words of the language with ``_`` at the end.

    ``fold``: the language does not tell capitals from small letters.

    >>> identifiers(["input.ids", "for", "x", "x", "0"], {"for"}, prefix="input")
    ['input_ids', 'for_', 'x', 'x_2', 'input_0']
    """
    folded = str.lower if fold else str
    reserved = set(map(folded, reserved))
    taken: set[str] = set()
    made = []
    for name in names:
        plain = re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_")
        if not plain or not plain[0].isalpha():
            plain = f"{prefix}_{plain}" if plain else prefix
        plain = plain[: longest - 6].rstrip("_")
        if folded(plain) in reserved:
            plain += "_"
        number, unique = 1, plain
        while folded(unique) in taken:
            number += 1
            unique = f"{plain.rstrip('_')}_{number}"
        taken.add(folded(unique))
        made.append(unique)
    return made
