"""Index maps: functions of an index, with their text in a trace."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

from smelt.nest.primitives import layouts
from smelt.records import dataclass, field
from smelt.symbolic import loop_var
from smelt.symbolic.text import python_text


@dataclass(frozen=True, slots=True)
class IndexMap:
    """An index map in a trace: a function and its text."""

    function: Callable[..., Any] = field(compare=False)
    text: str

    def __call__(self, *index: Any, **last: Any) -> Any:
        return self.function(*index, **last)

    def __repr__(self) -> str:
        return self.text

    @staticmethod
    def of(function: Callable[..., Any], dimensions: int) -> Callable[..., Any]:
        """The function with its text over ``i0, i1, …``; the function itself if it takes another number of
        indices.

        >>> IndexMap.of(lambda i, j: (i // 16, j, i % 16), 2)
        lambda i0, i1: (i0//16, i1, i0%16)
        """
        names = [f"i{dim}" for dim in range(dimensions)]
        try:
            made = layouts.mapped(function, [loop_var(name) for name in names])
        except TypeError:
            return function
        text = ", ".join(map(python_text, made))
        return IndexMap(function, f"lambda {', '.join(names)}: ({text}{',' if len(made) == 1 else ''})")

    @staticmethod
    def read(text: str) -> IndexMap:
        """The map of a text; it is parsed, never run.

        >>> IndexMap.read("lambda i, j: (i//16, j, i%16)")(35, 2)
        [2, 2, 3]

        Raises:
            ValueError: the text is no index map.
        """
        try:
            tree = ast.parse(text, mode="eval").body
        except SyntaxError as error:
            raise ValueError(f"{text!r} is no index map") from error
        if not isinstance(tree, ast.Lambda):
            raise ValueError(f"{text!r} is no index map")
        names = [arg.arg for arg in tree.args.args]
        made = tree.body.elts if isinstance(tree.body, (ast.Tuple, ast.List)) else [tree.body]
        found = IndexMap(lambda *index: [_value(each, dict(zip(names, index))) for each in made], text)
        found(*(1 for _ in names))
        return found


_SIGNS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def _value(node: ast.AST, known: Mapping[str, Any]) -> Any:
    """The value of an expression of numbers and names."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.Name) and node.id in known:
        return known[node.id]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand, known)
    if isinstance(node, ast.BinOp) and type(node.op) in _SIGNS:
        return _SIGNS[type(node.op)](_value(node.left, known), _value(node.right, known))
    raise ValueError(f"{ast.unparse(node)} is no index")
