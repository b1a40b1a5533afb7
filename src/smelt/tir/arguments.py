"""Checks the arguments of a schedule's methods against their signatures, with errors that name them."""

from __future__ import annotations

import inspect
from collections import abc
from collections.abc import Callable, Mapping
from functools import lru_cache, wraps
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from smelt.nest.primitives.common import ScheduleError
from smelt.tir.references import ExprRV

Class = TypeVar("Class", bound=type)

WORDS = {int: "an integer", float: "a number", str: "a name", bool: "True or False"}


def checked(cls: Class) -> Class:
    """Makes the public methods of a class check their arguments first.

    Raises (the methods):
        ScheduleError: SM1011, an argument does not fit the signature.
    """
    for name, method in inspect.getmembers(cls, inspect.isfunction):
        if not name.startswith("_"):
            setattr(cls, name, _checked(method))
    return cls


def _checked(method: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(method)
    kinds = {name: each.kind for name, each in signature.parameters.items()}

    @wraps(method)
    def call(*args: Any, **given: Any) -> Any:
        hints = _hints(method)
        for name, value in signature.bind(*args, **given).arguments.items():
            hint = hints.get(name, Any)
            for each in value if kinds[name] is inspect.Parameter.VAR_POSITIONAL else (value,):
                if not _fits(each, hint):
                    what = f"{method.__name__}({name}={_shown(each)})"
                    raise ScheduleError(what, f"{_words(hint)} is wanted", code="SM1011")
        return method(*args, **given)

    return call


@lru_cache(maxsize=256)
def _hints(method: Callable[..., Any]) -> Mapping[str, Any]:
    return get_type_hints(method)


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value fits a type hint; hints other than plain data are left to the method."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(_fits(value, each) for each in args)
    if origin is abc.Callable:
        return callable(value)
    if origin is abc.Sequence:
        return isinstance(value, (list, tuple)) and all(_fits(each, args[0]) for each in value)
    if hint is None or hint is type(None):
        return value is None
    if hint is int:
        return hasattr(value, "__index__") or isinstance(value, ExprRV)
    if hint is float:
        return hasattr(value, "__float__")
    if hint is str:
        return isinstance(value, str) or hasattr(value, "name")
    return hint is not bool or isinstance(value, int)


def _words(hint: Any) -> str:
    parts = [each for each in get_args(hint) if each is not type(None)]
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(dict.fromkeys(map(_words, parts)))
    if get_origin(hint) is not None:
        return "a function" if get_origin(hint) is abc.Callable else "a list"
    return WORDS.get(hint, f"a {getattr(hint, '__name__', 'value').removesuffix('RV').lower()}")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 40 else type(value).__name__


__all__ = ["checked"]
