"""The types of a stored plan's fields, as functions that return a value or raise ValueError."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

T = TypeVar("T")

FUNCTIONS = frozenset({"max", "min", "abs", "float", "int", "round"})
"""Functions that a size expression may call."""
_NODES = (
    ast.Expression,
    ast.BinOp,
    ast.UnaryOp,
    ast.Constant,
    ast.Name,
    ast.Call,
    ast.Load,
    ast.operator,
    ast.unaryop,
    ast.Compare,
    ast.cmpop,
    ast.IfExp,
    ast.BoolOp,
    ast.boolop,
)
_ARITHMETIC = re.compile(r"[\w .,+\-*/%()<>=!&|^~]+", re.ASCII)
_DEVICE = re.compile(r"(cpu|cuda)(:\d{1,3})?", re.ASCII)
_TARGET = re.compile(r"\w+(\.\w+)+", re.ASCII)


def names_in(expr: int | str) -> set[str]:
    """The symbols of a size expression.

    >>> sorted(names_in("max(s0, 2) // s1"))
    ['s0', 's1']

    Raises:
        ValueError: the text is something else than arithmetic on one line.
    """
    if isinstance(expr, int) or expr in ("True", "False"):
        return set()
    if expr.isidentifier():
        return {expr}
    if not _ARITHMETIC.fullmatch(expr):
        raise ValueError(f"not a size: {expr!r}")
    try:
        tree = ast.parse(expr.strip(), mode="eval")
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"not a size: {expr!r}") from error
    found: set[str] = set()
    functions = set()
    for node in ast.walk(tree):
        if not isinstance(node, _NODES) or (
            isinstance(node, ast.Constant) and type(node.value) not in (int, bool, float)
        ):
            raise ValueError(f"not a size: {expr!r}")
        if isinstance(node, ast.Call):
            if not isinstance(node.func, ast.Name) or node.func.id not in FUNCTIONS or node.keywords:
                raise ValueError(f"not a size: {expr!r}")
            functions.add(id(node.func))
        elif isinstance(node, ast.Name) and id(node) not in functions:
            found.add(node.id)
    return found


def name(value: Any) -> str:
    """A text."""
    if type(value) is not str:
        raise ValueError(f"not a name: {value!r}")
    return value


def identifier(value: Any) -> str:
    """A name that appears in the generated source.

    >>> identifier("run0")
    'run0'
    """
    if not name(value).isidentifier():
        raise ValueError(f"not an identifier: {value!r}")
    return str(value)


def target(value: Any) -> str:
    """The name of an overload."""
    if not _TARGET.fullmatch(name(value)):
        raise ValueError(f"not an operator: {value!r}")
    return str(value)


def dtype(value: Any) -> str:
    """The name of a dtype."""
    if not isinstance(getattr(torch, name(value), None), torch.dtype):
        raise ValueError(f"not a dtype: {value!r}")
    return str(value)


def device(value: Any) -> str:
    """A device.

    >>> device("cuda:1")
    'cuda:1'
    """
    if not _DEVICE.fullmatch(name(value)):
        raise ValueError(f"not a device: {value!r}")
    return str(value)


def index(value: Any) -> int:
    """The number of an item, or of a dimension (which may be counted from the end)."""
    if type(value) is not int:
        raise ValueError(f"not a number: {value!r}")
    return value


def indices(values: Any) -> tuple[int, ...]:
    """Several `index`es."""
    return each(index, values)


def truth(value: Any) -> bool:
    """True or False."""
    if type(value) is not bool:
        raise ValueError(f"neither true nor false: {value!r}")
    return value


def condition(value: Any) -> str:
    """An expression over symbols, as text."""
    names_in(name(value))
    return str(value)


def size(value: Any) -> int | str:
    """A number, or an expression over symbols."""
    return value if type(value) is int else condition(value)


def sizes(values: Any) -> tuple[int | str, ...]:
    """Several `size`s."""
    return each(size, values)


def error(value: Any) -> tuple[str, str]:
    """The name of an exception (looked up among the built-in ones), and its message."""
    kind, message = fields(name, name)(value)
    return kind, message


def named(value: Any) -> dict[str, Any]:
    """A dictionary whose keys are texts."""
    if type(value) is not dict:
        raise ValueError(f"not a dictionary: {value!r}")
    return {name(key): each for key, each in value.items()}


def each(kind: Callable[[Any], T], values: Any) -> tuple[T, ...]:
    """A list of values of one kind."""
    if type(values) is not list:
        raise ValueError(f"not a list: {values!r}")
    return tuple(kind(value) for value in values)


def fields(*kinds: Callable[[Any], Any]) -> Callable[[Sequence[Any]], Any]:
    """A list with one value of each kind."""

    def read(values: Sequence[Any]) -> Any:
        if type(values) is not list:
            raise ValueError(f"not a list: {values!r}")
        return tuple(kind(value) for kind, value in zip(kinds, values, strict=True))

    return read


def optional(kind: Callable[[Any], T]) -> Callable[[Any], T | None]:
    """A value, or None."""
    return lambda value: None if value is None else kind(value)
