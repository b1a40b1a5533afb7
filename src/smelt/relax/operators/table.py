"""The table of relax operators: TVM's name, the arguments, and the PyTorch implementation.

Most operators are one ATen overload; the others are functions of tensors, written in ATen calls, which
tracing inlines. Printer, parser, builder and importers all read this table.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch

from smelt.errors import describe
from smelt.relax.types import RelaxError
from smelt.relax.values import Call, PrimValue, ShapeExpr, Tuple, convert
from smelt.tir.maps import IndexMap

aten = torch.ops.aten

_SHAPES = ("shape", "size")
"""Arguments that are shapes, also if they are given as lists."""


_WEAK = ("add", "subtract", "multiply")
"""Tensor overloads that also take numbers."""


class Operator:
    """One operator. Parameters before ``/`` are values of the program, the others attributes.

    ``legal``: the name of its PrimFunc in `LegalizeOps`. ``numbers``: constants without dimensions are passed
    as Python numbers.
    """

    def __init__(
        self,
        short: str,
        signature: inspect.Signature,
        define: Callable[..., Any],
        legal: str | None = None,
        numbers: bool = False,
    ) -> None:
        self.short, self.signature, self.define, self.numbers = short, signature, define, numbers
        self.__name__ = short.rsplit(".", 1)[-1]
        self.legal = legal or self.__name__
        kinds = [(each.name, each.kind) for each in signature.parameters.values()]
        self.arguments = [name for name, kind in kinds if kind is inspect.Parameter.POSITIONAL_ONLY]
        self.by_name = signature.replace(
            parameters=[
                each.replace(kind=inspect.Parameter.POSITIONAL_OR_KEYWORD)
                for each in signature.parameters.values()
            ]
        )

    @property
    def name(self) -> str:
        return f"relax.{self.short}"

    @property
    def text(self) -> str:
        """The operator's text in a script."""
        return f"R.{self.short}"

    def __call__(self, *args: Any, **kwargs: Any) -> Call:
        """The call; its struct info is inferred when it is emitted."""
        try:
            bound = self.by_name.bind(*args, **kwargs)
        except TypeError as error:
            remedy = f"its arguments are {_arguments(self.by_name)}"
            raise RelaxError("SM1304", f"{self.name}: {error}", remedy=remedy) from error
        bound.apply_defaults()
        values = dict(bound.arguments)
        given = [values.pop(name) for name in self.arguments]
        if "fill_value" in self.arguments and values.get("dtype") is None and len(given) > 1:
            values["dtype"] = getattr(given[0], "dtype", None) or getattr(given[1], "dtype", None)
        if "index_map" in values:
            values["index_map"] = IndexMap.of(values["index_map"], given[0].struct_info.ndim)
        values = {name: _plain(each) for name, each in values.items()}
        for place, name in enumerate(self.arguments):
            if name in _SHAPES and isinstance(given[place], (list, tuple, Tuple)):
                given[place] = ShapeExpr(_plain(given[place]))
        while given and given[-1] is None:
            given.pop()
        return Call(self, [None if each is None else convert(each) for each in given], values)

    def run(self, *args: Any, **attrs: Any) -> Any:
        """The operator on tensors; for Python numbers, the overload that takes them."""
        if isinstance(self.define, torch._ops.OpOverload) and self.short not in _WEAK:
            number = [not isinstance(each, torch.Tensor) for each in args]
            if number == [False, True] and "Scalar" in self.define.overloadpacket.overloads():
                return self.define.overloadpacket.Scalar(*args)
            tensor = next((each for each in args if isinstance(each, torch.Tensor)), None)
            if any(number) and tensor is not None:
                args = tuple(
                    torch.full([], each, dtype=tensor.dtype) if is_number else each
                    for each, is_number in zip(args, number)
                )
        return self.define(*args, **attrs)

    def __repr__(self) -> str:
        return self.name


def _plain(value: Any) -> Any:
    """An attribute in the form in which a script writes values: ``(3, 3)`` is a list of numbers."""
    if isinstance(value, (list, tuple, Tuple)):
        return [_plain(each) for each in getattr(value, "fields", value)]
    return value.value if isinstance(value, PrimValue) else value


def _arguments(signature: inspect.Signature) -> str:
    return ", ".join(
        each.name if each.default is each.empty else f"{each.name}={each.default!r}"
        for each in signature.parameters.values()
    )


class AtenOperator:
    """An ATen overload without a relax name: it is printed as ``R.aten.name.overload``."""

    def __init__(self, overload: torch._ops.OpOverload) -> None:
        self.overload = overload
        self.legal = overload.overloadpacket.__name__.strip("_")

    @property
    def name(self) -> str:
        return str(self.overload)

    @property
    def text(self) -> str:
        namespace = self.overload.namespace
        return f"R.{namespace}.{self.overload.__name__}"

    def __call__(self, *args: Any, **kwargs: Any) -> Call:
        return Call(self, args, kwargs)

    def run(self, *args: Any, **attrs: Any) -> Any:
        return self.overload(*args, **attrs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AtenOperator) and self.overload is other.overload

    def __hash__(self) -> int:
        return hash(self.overload)


OPERATORS: dict[str, Operator] = {}
"""Name without ``relax.`` → operator: ``add``, ``nn.relu``."""

COMPOSED: dict[str, Callable[..., Any]] = {}
"""Functions that create several calls: ``linear``."""


def operator(
    short: str, legal: str | None = None, numbers: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function of tensors; its signature is the operator's."""

    def add(define: Callable[..., Any]) -> Callable[..., Any]:
        assert short not in OPERATORS, f"{short} is in the table already"
        OPERATORS[short] = Operator(short, inspect.signature(define), define, legal, numbers)
        return define

    return add


def composed(short: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function of expressions that creates several calls."""

    def add(define: Callable[..., Any]) -> Callable[..., Any]:
        COMPOSED[short] = define
        return define

    return add


OVERLOADS: dict[torch._ops.OpOverload, Operator] = {}
"""ATen overload → the operator that does the same on the same arguments."""


def one_to_one(rows: str) -> None:
    """Register rows ``name(arguments) = overload``, one per line."""
    for row in rows.strip().splitlines():
        left, _, right = (part.strip() for part in row.partition("="))
        short, _, arguments = left.rstrip(")").partition("(")
        packet, _, overload_name = right.partition(".")
        overload = getattr(getattr(aten, packet), overload_name or "default")
        parameters = [
            inspect.Parameter(each.strip(), inspect.Parameter.POSITIONAL_ONLY)
            for each in arguments.split(",")
        ]
        found = Operator(short, inspect.Signature(parameters), overload, numbers=True)
        assert short not in OPERATORS, f"{short} is in the table already"
        OPERATORS[short] = found
        OVERLOADS.setdefault(overload, found)


def overload_of(path: str) -> torch._ops.OpOverload:
    """The overload named ``aten.name.overload``.

    Raises:
        RelaxError: SM1304, there is none.
    """
    found: Any = torch.ops
    try:
        for part in path.split("."):
            found = getattr(found, part)
        if isinstance(found, torch._ops.OpOverloadPacket):
            found = getattr(found, found.overloads()[0])
    except (AttributeError, RuntimeError) as error:
        raise RelaxError("SM1304", f"no operator {path}", why=describe(error)) from error
    if not isinstance(found, torch._ops.OpOverload):
        raise RelaxError("SM1304", f"{path} is no operator", remedy="name it as torch.ops does")
    return found


class Namespace:
    """Operators by attribute: ``relax.op.nn.relu``; ``op.aten.…`` are ATen's overloads."""

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        full = f"{self._prefix}{name}"
        if full in COMPOSED:
            return COMPOSED[full]
        if full in OPERATORS:
            return OPERATORS[full]
        if full == "call_tir":
            from smelt.relax.values import call_tir

            return call_tir
        if full == "aten" or any(each.startswith(f"{full}.") for each in OPERATORS):
            return Namespace(f"{full}.")
        if full.startswith("aten."):
            return AtenOperator(overload_of(full))
        import difflib

        near = difflib.get_close_matches(full, OPERATORS, 1)
        remedy = f"did you mean {near[0]}?" if near else "relax.op.aten has every operator of ATen"
        raise NoOperatorError("SM1304", f"no operator relax.{full}", remedy=remedy)

    def __dir__(self) -> Sequence[str]:
        names = [
            each.removeprefix(self._prefix)
            for each in (*OPERATORS, *COMPOSED)
            if each.startswith(self._prefix)
        ]
        return sorted({each.split(".")[0] for each in names})


class NoOperatorError(RelaxError, AttributeError):
    """An operator that the table lacks."""
