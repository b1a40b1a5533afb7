"""Size expressions as C."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping

from smelt.errors import SmeltError
from smelt.runtime.plan import Size
from smelt.runtime.plan_schema import names_in

_OPERATORS: dict[type[ast.AST], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.BitAnd: "&",
    ast.BitOr: "|",
    ast.BitXor: "^",
    ast.LShift: "<<",
    ast.RShift: ">>",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.And: "&&",
    ast.Or: "||",
    ast.USub: "-",
    ast.UAdd: "+",
    ast.Not: "!",
    ast.Invert: "~",
}


def size_text(size: Size, names: Mapping[str, str] | None = None) -> str:
    """A size expression (`smelt.runtime.plan`) as C over 64-bit integers; Python's quotients round down.

    ``names``: symbol → its text in C; None: the symbol's own name.

    >>> size_text("max(s0, 2)//3 + s1%4", {"s0": "n"})
    '(smelt_quotient(smelt_most(n, INT64_C(2)), INT64_C(3)) + smelt_rest(s1, INT64_C(4)))'

    Raises:
        SmeltError: SM1402, an expression with floating numbers.
    """
    if isinstance(size, int):
        return f"INT64_C({int(size)})" if size >= 0 else f"(-INT64_C({-size}))"
    names_in(size)  # arithmetic only
    tree = ast.parse(size.strip(), mode="eval").body
    return _Printer(names or {}, size).text(tree)


class _Printer:
    def __init__(self, names: Mapping[str, str], whole: str) -> None:
        self.names, self.whole = names, whole

    def refuse(self) -> SmeltError:
        why = "C computes sizes as 64-bit integers"
        return SmeltError("SM1402", f"a package cannot compute the size {self.whole}", why=why)

    def text(self, node: ast.AST) -> str:
        if isinstance(node, ast.Constant):
            if type(node.value) is bool:
                return str(int(node.value))
            if type(node.value) is not int:
                raise self.refuse()
            return f"INT64_C({node.value})"
        if isinstance(node, ast.Name):
            return self.names.get(node.id, node.id)
        if isinstance(node, ast.UnaryOp):
            return f"({_OPERATORS[type(node.op)]}{self.text(node.operand)})"
        if isinstance(node, ast.BinOp):
            return self.binary(node)
        if isinstance(node, ast.BoolOp):
            joint = f" {_OPERATORS[type(node.op)]} "
            return f"({joint.join(self.text(value) for value in node.values)})"
        if isinstance(node, ast.Compare):
            return self.compared(node)
        if isinstance(node, ast.IfExp):
            parts = (self.text(each) for each in (node.test, node.body, node.orelse))
            return "({} ? {} : {})".format(*parts)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            return self.called(node.func.id, [self.text(each) for each in node.args])
        raise self.refuse()

    def binary(self, node: ast.BinOp) -> str:
        left, right = self.text(node.left), self.text(node.right)
        if isinstance(node.op, ast.FloorDiv):
            return f"smelt_quotient({left}, {right})"
        if isinstance(node.op, ast.Mod):
            return f"smelt_rest({left}, {right})"
        if isinstance(node.op, ast.Pow) and isinstance(node.right, ast.Constant):
            power = node.right.value
            if type(power) is int and 0 < power < 16:
                return "(" + "*".join([left] * power) + ")"
        if type(node.op) not in _OPERATORS:
            raise self.refuse()
        return f"({left} {_OPERATORS[type(node.op)]} {right})"

    def compared(self, node: ast.Compare) -> str:
        values = [self.text(each) for each in (node.left, *node.comparators)]
        pairs = zip(values, node.ops, values[1:])
        parts = [f"{left} {_OPERATORS[type(op)]} {right}" for left, op, right in pairs]
        return f"({' && '.join(parts)})"

    def called(self, function: str, args: list[str]) -> str:
        several: dict[str, str] = {"max": "smelt_most", "min": "smelt_least"}
        if function in several:
            text = args[0]
            for each in args[1:]:
                text = f"{several[function]}({text}, {each})"
            return text
        alone: dict[str, Callable[[str], str]] = {
            "abs": lambda x: f"smelt_most({x}, -({x}))",
            "int": lambda x: x,
            "round": lambda x: x,
        }
        if function in alone and len(args) == 1:
            return alone[function](args[0])
        raise self.refuse()
