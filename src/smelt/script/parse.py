"""The parser: TVMScript → kernels and modules. The source is read, never run."""

from __future__ import annotations

import ast
import difflib
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from types import FrameType
from typing import Any

import torch

from smelt.errors import SmeltError
from smelt.records import dataclass, field, replace
from smelt.script.inert import Word
from smelt.script.module import IRModule, PrimFunc
from smelt.script.words import NAMED_DTYPES

FUNCTIONS: dict[str, Callable[[ast.FunctionDef, Source, dict[str, Any]], Any]] = {}
"""Parsers of functions by decorator: ``prim_func`` here, ``function`` (relax) once relax is imported.

A parser gets the function, the source and the names known in its module, which it may extend.
"""


@dataclass(frozen=True, slots=True)
class Source:
    """A text with its place for messages: ``name``, first line number and indentation are those of its file.

    ``outside``: the values of names outside of it; numbers, texts and dtypes may be used.
    """

    text: str
    name: str = "<script>"
    first: int = 1
    indent: int = 0
    outside: Mapping[str, Any] = field(default_factory=dict)

    def excerpt(self, node: ast.AST) -> Iterator[str]:
        """The marked lines of a place; several lines have their numbers."""
        line, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
        lines = self.text.splitlines()
        last = min(getattr(node, "end_lineno", None) or line, len(lines))
        end = getattr(node, "end_col_offset", None)
        shown = lines[line - 1 : last]
        margin = min((len(each) - len(each.lstrip()) for each in shown if each.strip()), default=0)
        for number, text in enumerate(shown, line):
            begin = column if number == line else len(text) - len(text.lstrip())
            stop = (end if number == last else None) or (len(text) if last > line else column + 1)
            head = f"{self.first + number - 1:4} | " if last > line else ""
            yield f"{head}{text[margin:]}"
            yield " " * (len(head) + begin - margin) + "^" * max(stop - begin, 1)

    def error(self, code: str, what: str, node: ast.AST, **more: str | None) -> SmeltError:
        """An error at a place of the text: file, line, column, the line itself."""
        line, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
        where = f"{self.name}:{self.first + line - 1}:{self.indent + column + 1}"
        marked = "\n       ".join(self.excerpt(node))
        why = more.get("why")
        return SmeltError(
            code,
            what,
            where=where,
            why=f"{why}\n       {marked}" if why else marked,
            remedy=more.get("remedy"),
        )


def from_source(text: Any, outside: Mapping[str, Any] | None = None) -> Any:
    """The program in a text, a function or a class. It is a PrimFunc (or a relax function) if there is a
    single one, else an IRModule. ``outside``: the values of other names in it.

    Raises:
        SmeltError: SM1202 not Python, SM1203 to SM1207 invalid script, with line and column.
    """
    source = replace(_source_of(text), outside=outside or {})
    try:
        tree = ast.parse(source.text)
    except SyntaxError as error:
        node = ast.Pass(lineno=error.lineno or 1, col_offset=(error.offset or 1) - 1)
        raise source.error("SM1202", f"no Python: {error.msg}", node) from None
    found = [stmt for stmt in tree.body if isinstance(stmt, (ast.ClassDef, ast.FunctionDef))]
    if not found:
        remedy = "a class under @I.ir_module, or functions under @T.prim_func"
        raise source.error("SM1202", "no function", tree.body[0] if tree.body else ast.Pass(), remedy=remedy)
    if len(found) == 1 and isinstance(found[0], ast.FunctionDef):
        return _function(found[0], source, {})
    module = IRModule()
    for stmt in found:
        if isinstance(stmt, ast.ClassDef):
            _fill(module, stmt, source)
        else:
            module[stmt.name] = _function(stmt, source, {})
    return module


def _source_of(thing: Any) -> Source:
    if isinstance(thing, str):
        return Source(textwrap.dedent(thing))
    try:
        lines, first = inspect.getsourcelines(thing)
    except (OSError, TypeError) as error:
        what = f"the source of {getattr(thing, '__name__', thing)!r} is not to be had"
        raise SmeltError("SM1202", what, why=str(error), remedy="give the text") from None
    text = "".join(lines)
    indent = len(text) - len(text.lstrip(" "))
    return Source(textwrap.dedent(text), inspect.getsourcefile(thing) or "<script>", first, indent)


def _fill(module: IRModule, stmt: ast.ClassDef, source: Source) -> None:
    """Parse the functions of a class; called functions come first."""
    functions = [each for each in stmt.body if isinstance(each, ast.FunctionDef)]
    known: dict[str, Any] = {}
    for each in stmt.body:
        call = each.value if isinstance(each, ast.Expr) else None
        if isinstance(call, ast.Call) and word_of(call.func) == "module_attrs":
            module.attrs.update(literal(call.args[0], source))
    for own in (True, False):
        for each in functions:
            if (_decorator(each, source) == "prim_func") is own:
                known[each.name] = _function(each, source, known)
    for name in dict.fromkeys([*(each.name for each in functions), *known]):
        module[name] = known[name]


def _decorator(function: ast.FunctionDef, source: Source) -> str:
    words = [word_of(d.func if isinstance(d, ast.Call) else d) for d in function.decorator_list]
    found = next((word for word in words if word in ("prim_func", "function")), None)
    if found is None:
        remedy = "@T.prim_func for loops, @R.function for a program of operators"
        raise source.error(
            "SM1203", f"{function.name} has no decorator that says what it is", function, remedy=remedy
        )
    return found


def _function(function: ast.FunctionDef, source: Source, known: dict[str, Any]) -> Any:
    word = _decorator(function, source)
    if word not in FUNCTIONS:
        import_module("smelt.relax" if word == "function" else "smelt.script.parse_nest")
    return FUNCTIONS[word](function, source, known)


def is_private(function: ast.FunctionDef) -> bool:
    """Whether its decorator declares it private."""
    return any(
        keyword.arg == "private" and isinstance(keyword.value, ast.Constant) and bool(keyword.value.value)
        for each in function.decorator_list
        if isinstance(each, ast.Call)
        for keyword in each.keywords
    )


def word_of(node: ast.AST) -> str:
    """The last word of a dotted name, ``remap`` of ``T.axis.remap``; "" for other nodes."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def literal(node: ast.AST, source: Source) -> Any:
    """A literal: numbers, strings, lists, dictionaries, and these within ``T.bool(…)`` and the like."""
    typed = isinstance(node, ast.Call) and word_of(node.func) in NAMED_DTYPES
    if isinstance(node, ast.Call) and typed and len(node.args) == 1:
        return literal(node.args[0], source)
    if isinstance(node, ast.Dict):
        keys = [literal(key, source) if key is not None else None for key in node.keys]
        return dict(zip(keys, (literal(value, source) for value in node.values)))
    if isinstance(node, (ast.List, ast.Tuple)):
        found = [literal(each, source) for each in node.elts]
        return found if isinstance(node, ast.List) else tuple(found)
    named = source.outside.get(node.id) if isinstance(node, ast.Name) else None
    if isinstance(named, (int, float, str, torch.dtype, Word)):
        return str(named).removeprefix("torch.") if isinstance(named, torch.dtype) else named
    if isinstance(node, ast.Call) and word_of(node.func) == "target":
        return Word(ast.unparse(node))
    try:
        return ast.literal_eval(node)  # type: ignore[arg-type]
    except ValueError:
        raise source.error("SM1204", "a literal is wanted here", node) from None


def near(word: str, words: Any) -> str | None:
    """``did you mean …``, if there is a similar word."""
    found = difflib.get_close_matches(word, list(words), n=1)
    return f"did you mean {found[0]!r}?" if found else None


def prim_func(function: Any = None, /, **options: Any) -> Any:
    """``@T.prim_func``: the PrimFunc in a Python function's text. The function is never called."""
    del options
    outside = _outside(sys._getframe(1))
    if function is None:
        return lambda function: _prim_func_of(function, outside)
    return _prim_func_of(function, outside)


def _prim_func_of(function: Any, outside: Mapping[str, Any]) -> PrimFunc:
    if not inspect.isfunction(function):
        return function  # type: ignore[no-any-return]
    found = from_source(function, {**function.__globals__, **outside})
    assert isinstance(found, PrimFunc)
    return found


def macro(function: Any = None, /, **options: Any) -> Any:
    """``@T.inline``, ``@T.macro``: a function that is inlined in place of its calls."""
    from smelt.script.outside import macro_of

    del options
    if function is None:
        return macro
    found = macro_of(function) if inspect.isfunction(function) else None
    if found is None:
        name = getattr(function, "__name__", function)
        what = f"the source of {name!r} is not to be had"
        raise SmeltError("SM1202", what, remedy="@T.inline on a function")
    return found


def ir_module(cls: Any = None, /, **options: Any) -> Any:
    """``@I.ir_module``: the module in a class's text."""
    del options
    outside = _outside(sys._getframe(1))
    if cls is None:
        return lambda cls: from_source(cls, outside)
    return from_source(cls, outside)


def _outside(frame: FrameType | None) -> Mapping[str, Any]:
    """The names that are visible at a decorator, including those of enclosing functions."""
    found: dict[str, Any] = dict(frame.f_globals) if frame else {}
    around: list[Mapping[str, Any]] = []
    file = frame.f_code.co_filename if frame else ""
    while frame is not None and frame.f_code.co_filename == file:
        around.append(frame.f_locals)
        frame = frame.f_back
    for names in reversed(around):
        found.update(names)
    return found
