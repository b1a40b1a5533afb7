"""Arguments and options that several commands have."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any

import typer

from smelt.errors import SmeltError


class Quantized(str, Enum):
    """The formats of ``--quantize``."""

    INT8 = "int8"
    INT4 = "int4"
    Q8_0 = "q8_0"
    Q4_0 = "q4_0"
    Q4_1 = "q4_1"


class Activations(str, Enum):
    """The formats of ``--activations``."""

    INT8 = "int8"


SPEC_HELP = "module:factory or file.py:factory; the factory returns (model, args, kwargs)."

Spec = Annotated[str, typer.Argument(metavar="SPEC", help=SPEC_HELP, show_default=False)]
Train = Annotated[bool, typer.Option("--train", help="A training step: forward, loss, backward, SGD.")]
Dynamic = Annotated[
    bool | None,
    typer.Option("--dynamic/--static", help="Compile for all sizes, or for these; unset: torch decides."),
]
Option = Annotated[
    list[str] | None,
    typer.Option(
        "--option", "-o", metavar="NAME=VALUE", help="A compile option, such as fusion=false; repeatable."
    ),
]


def options_of(pairs: list[str] | None) -> dict[str, Any]:
    """``["fusion=false", "parallel_grain=1"]`` as a dictionary; smelt itself checks names and types."""
    options: dict[str, Any] = {}
    for pair in pairs or ():
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise SmeltError("SM0908", f"--option {pair!r} is not NAME=VALUE")
        options[name.replace("-", "_")] = _value(text)
    return options


def _value(text: str) -> object:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    return int(text) if text.lstrip("-").isdigit() else text
