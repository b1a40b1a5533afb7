"""Names from outside of a script: Python's values, and functions that are inlined in place of their calls."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

from smelt.errors import SmeltError
from smelt.records import dataclass
from smelt.script.desugar import inlined
from smelt.script.inert import Word
from smelt.script.parse import Source, word_of
from smelt.script.words import DTYPES

UNKNOWN = Word("unknown")
"""Python's value of an expression of the script without one."""


@dataclass(frozen=True, slots=True)
class Macro:
    """A function that is inlined in place of its calls; ``outside``: the values of names in it."""

    function: ast.FunctionDef | ast.Lambda
    outside: Mapping[str, Any] | None = None

    def __call__(self, *args: Any, **options: Any) -> Any:
        raise SmeltError("SM1204", "a macro is called within a script", remedy="under @T.prim_func")

    def at(self, call: ast.Call, spread: Callable[[Sequence[ast.expr]], list[ast.expr]]) -> Any:
        """Its statements and its result, with the arguments of a call.

        Raises:
            TypeError: the arguments are not those of the function.
        """
        parameters = self.function.args
        names = [each.arg for each in (*parameters.posonlyargs, *parameters.args)]
        args = spread(call.args)
        given: dict[str, Any] = dict(zip(names, args))
        options = {str(each.arg): each.value for each in call.keywords}
        known = {*names, *(each.arg for each in parameters.kwonlyargs)}
        if len(args) > len(names) and parameters.vararg is None:
            raise TypeError(f"{len(names)} arguments are taken, {len(args)} are given")
        if parameters.vararg is not None:
            given[parameters.vararg.arg] = args[len(names) :]
        rest = {name: value for name, value in options.items() if name not in known}
        if rest and parameters.kwarg is None:
            raise TypeError(f"there is no argument {next(iter(rest))}")
        if parameters.kwarg is not None:
            given[parameters.kwarg.arg] = rest
        defaults = dict(zip(reversed(names), reversed(parameters.defaults)))
        defaults |= {a.arg: d for a, d in zip(parameters.kwonlyargs, parameters.kw_defaults) if d is not None}
        given = {**defaults, **given, **{name: options[name] for name in options if name in known}}
        if missing := sorted(known - given.keys()):
            raise TypeError(f"the argument {missing[0]} is missing")
        return inlined(self.function, given, self.outside, call)


def macro_of(function: FunctionType) -> Macro | None:
    """The text of a function or a lambda; None if it is unavailable."""
    try:
        tree = _parsed("".join(inspect.findsource(function)[0]))
    except (OSError, TypeError, SyntaxError):
        return None
    closure = inspect.getclosurevars(function)
    outside = {**closure.globals, **closure.nonlocals}
    code = function.__code__
    for node in ast.walk(tree):
        if not isinstance(node, (ast.FunctionDef, ast.Lambda)):
            continue
        first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", ()))])
        names = [each.arg for each in (*node.args.posonlyargs, *node.args.args)]
        same = names == list(code.co_varnames[: code.co_argcount])
        if same and first == code.co_firstlineno and getattr(node, "name", "<lambda>") == code.co_name:
            return Macro(node, outside)
    return None


@lru_cache(maxsize=16)
def _parsed(text: str) -> ast.Module:
    return ast.parse(text)


def python_value(node: ast.AST, names: Mapping[str, Any], source: Source) -> Any:
    """Python's value of an expression: a number, a text, a tuple of these, a function; else UNKNOWN.

    ``names``: the script's names: a tuple for several things, a view for a buffer.
    """
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        found = names.get(node.id, UNKNOWN)
        if node.id in names:
            return found if isinstance(found, (tuple, Macro)) else UNKNOWN
        return source.outside.get(node.id, UNKNOWN)
    if isinstance(node, (ast.Tuple, ast.List)):
        parts: list[Any] = []
        for each in node.elts:
            starred = isinstance(each, ast.Starred)
            found = python_value(each.value if starred else each, names, source)  # type: ignore[attr-defined]
            parts += found if starred and isinstance(found, (tuple, list)) else [found]
        return UNKNOWN if any(part is UNKNOWN for part in parts) else tuple(parts)
    if isinstance(node, ast.Attribute):
        return _attribute(node, names, source)
    if isinstance(node, ast.Subscript):
        whole = python_value(node.value, names, source)
        at = python_value(node.slice, names, source) if isinstance(whole, (tuple, list, dict)) else UNKNOWN
        try:
            return UNKNOWN if at is UNKNOWN else whole[at]
        except (LookupError, TypeError):
            return UNKNOWN
    if isinstance(node, ast.Call) and word_of(node.func) in ("len", "meta_var") and len(node.args) == 1:
        found = python_value(node.args[0], names, source)
        if word_of(node.func) == "meta_var":
            return found
        return len(found) if isinstance(found, (tuple, list, dict)) else UNKNOWN
    return UNKNOWN


def _attribute(node: ast.Attribute, names: Mapping[str, Any], source: Source) -> Any:
    own = names.get(node.value.id) if isinstance(node.value, ast.Name) else None
    if own is not None and hasattr(own, "memory"):
        found = {"shape": own.shape, "dtype": DTYPES[own.dtype]}
        return found.get(node.attr, UNKNOWN)
    whole = python_value(node.value, names, source)
    if isinstance(whole, Word):
        return UNKNOWN
    if isinstance(whole, (ModuleType, SimpleNamespace)) or hasattr(whole, "__dict__"):
        return vars(whole).get(node.attr, UNKNOWN)
    return UNKNOWN


__all__ = ["UNKNOWN", "Macro", "macro_of", "python_value"]
