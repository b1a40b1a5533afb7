"""Expressions of the script: indices are SymPy expressions, values instructions, conditions either."""

from __future__ import annotations

import ast
from collections import ChainMap
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

import sympy
import torch
from sympy import Expr, Integer, Symbol
from sympy.logic.boolalg import Boolean
from torch.utils._sympy.functions import FloorDiv, Max, Min, Mod

from smelt.errors import SmeltError
from smelt.nest.ir import Block, Let, Masked, Stmt
from smelt.nest.stages import Fresh
from smelt.ops import TABLE, Rule, result_dtype
from smelt.records import dataclass
from smelt.script.desugar import DERIVED, at, chosen, derived
from smelt.script.inert import Word
from smelt.script.outside import UNKNOWN, Macro, macro_of, python_value
from smelt.script.parse import Source, literal, near, word_of
from smelt.script.views import Buffer
from smelt.script.words import INFIX, NAMED_DTYPES, OPERATORS


@dataclass(frozen=True, slots=True)
class Index:
    """An integer known without data; ``dtype`` if the script gives it.

    ``parts``: the operator and operands it was written as, which it becomes as a value if a dtype was given.
    """

    expr: Expr
    dtype: torch.dtype | None = None
    word: str = ""
    parts: tuple[Found, ...] = ()


@dataclass(frozen=True, slots=True)
class Number:
    """A number with a fraction whose dtype is open."""

    value: float


@dataclass(frozen=True, slots=True)
class Condition:
    """A truth value known without data, and the operator and operands it was written as."""

    condition: Boolean
    word: str = ""
    parts: tuple[Found, ...] = ()


@dataclass(frozen=True, slots=True)
class Value:
    """The name of a value, and its dtype."""

    name: str
    dtype: torch.dtype


Found = Index | Number | Condition | Value

_BINARY: dict[type[ast.AST], str] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "truediv",
    ast.FloorDiv: "floordiv",
    ast.Mod: "remainder",
    ast.Pow: "pow",
    ast.LShift: "lshift",
    ast.RShift: "rshift",
    ast.BitAnd: "bitwise_and",
    ast.BitOr: "bitwise_or",
    ast.BitXor: "bitwise_xor",
    ast.Lt: "lt",
    ast.LtE: "le",
    ast.Gt: "gt",
    ast.GtE: "ge",
    ast.Eq: "eq",
    ast.NotEq: "ne",
}
_COMPARED = {
    "lt": sympy.StrictLessThan,
    "le": sympy.LessThan,
    "gt": sympy.StrictGreaterThan,
    "ge": sympy.GreaterThan,
    "eq": sympy.Eq,
    "ne": sympy.Ne,
}
_DIVISIONS = {
    "floordiv": "floordiv",
    "floormod": "remainder",
    "indexdiv": "floordiv",
    "indexmod": "remainder",
    "truncdiv": "truncdiv",
    "truncmod": "fmod",
    "Div": "truncdiv",
    "FloorDiv": "floordiv",
    "FloorMod": "remainder",
}
_LIMITS = ("min_value", "max_value", "infinity")
_WORDS = {
    **_DIVISIONS,
    "Max": "maximum",
    "Min": "minimum",
    "Add": "add",
    "Sub": "sub",
    "Mul": "mul",
    "EQ": "eq",
    "NE": "ne",
    "LT": "lt",
    "LE": "le",
    "GT": "gt",
    "GE": "ge",
    "And": "logical_and",
    "Or": "logical_or",
    "all": "logical_and",
    "any": "logical_or",
    "fabs": "abs",
    "power": "pow",
    "shift_left": "lshift",
    "shift_right": "rshift",
    "nearbyint": "round",
    **OPERATORS,
}
"""TVM's names of functions → operators."""
_OWN = (
    *("Cast", "Let", "bind", "cast", "if_then_else", "likely", "meta_var", "reinterpret"),
    *("popcount", "smelt_index", "smelt_lookup", "smelt_read"),
)
_FOREIGN = ("call_", "cuda", "ptx_", "tvm_", "mma_", "address_of", "llvm_", "vscale", "wmma", "nvshmem")
"""Prefixes of words for code outside of the script: C functions, GPU instructions."""


def words() -> list[str]:
    """The words of expressions."""
    return [*_WORDS, *TABLE, *NAMED_DTYPES, *_OWN, *_LIMITS, *DERIVED]


class Reader:
    """Reads expressions and appends the instructions that compute them to ``stmts``.

    ``names``: the values of names, a tuple for several things; ``scalars``: the names of buffers without
    dimensions. ``inline`` inserts a function's statements in place of its call, and returns its result.
    """

    def __init__(self, source: Source, fresh: Fresh) -> None:
        self.source, self.fresh = source, fresh
        self.names: dict[str, Found | Macro | tuple[Any, ...]] = {}
        self.buffers: dict[str, Buffer] = {}
        self.scalars: set[str] = set()
        self.inline: Callable[[Macro, ast.Call], ast.expr | None] = lambda macro, node: None
        self.stmts: list[Stmt] = []
        self.count = 0

    # -- expressions by the wanted kind --------------------------------------------------------------------

    def index(self, node: ast.AST) -> Expr:
        """An index: an integer known without data, or a position read from data."""
        found = self.read(node)
        if isinstance(found, Index):
            return found.expr
        if isinstance(found, Value) and not found.dtype.is_floating_point and found.dtype is not torch.bool:
            return self._position(found, sympy.Integer(2**31 - 1), False, False)
        raise self.source.error("SM1204", "an index is an integer", node)

    def condition(self, node: ast.AST) -> Condition | Value:
        """A truth value, of sizes and loops or of data."""
        found = self.read(node)
        if isinstance(found, (Condition, Value)):
            return found
        raise self.source.error("SM1204", "a condition is wanted here", node)

    def truth(self, node: ast.AST) -> Symbol:
        """A truth value read from data, as an index: 0 or 1."""
        return self._position(self.cast(self._truth(node), torch.int64), Integer(2), False, False)

    def check(self, node: ast.AST, error: str) -> None:
        """An assertion as a bounds check: the position is 0 if it holds, and the size is 1."""
        wrong = self._apply("logical_not", [self._truth(node)], node)
        self._position(self.cast(wrong, torch.int64), Integer(1), False, error)

    def _truth(self, node: ast.AST) -> Value:
        value = self.value(self.read(node), None, node)
        if value.dtype is not torch.bool:
            raise self.source.error("SM1204", "a condition is wanted here", node)
        return value

    def value(self, found: Found, dtype: torch.dtype | None, node: ast.AST) -> Value:
        """An expression as a value; an open dtype becomes ``dtype`` (if that is None, int32 or float32)."""
        if isinstance(found, Value):
            return found
        if isinstance(found, Number):
            kind = dtype if dtype is not None and dtype.is_floating_point else torch.float32
            return self._let("constant", (found.value,), kind)
        if isinstance(found, Condition):
            kinds = [each.dtype for each in found.parts if isinstance(each, Index) and each.dtype]
            kind = kinds[0] if kinds else torch.int64
            return self._apply(found.word, [self.value(each, kind, node) for each in found.parts], node)
        if found.parts and found.dtype is not None:
            kind = found.dtype
            return self._apply(found.word, [self.value(each, kind, node) for each in found.parts], node)
        kind = found.dtype or dtype or torch.int32
        if found.expr.is_Integer:
            number = int(found.expr)
            if kind is torch.bool:
                return self._let("constant", (bool(number),), kind)
            return self._let("constant", (float(number) if kind.is_floating_point else number,), kind)
        return self._let("index_expr", (found.expr,), kind)

    def cast(self, value: Value, dtype: torch.dtype) -> Value:
        return self._let("to_dtype", (value.name,), dtype)

    def place(self, node: ast.Subscript) -> tuple[str, tuple[Expr, ...]]:
        """The memory of a buffer's element, and the index in it."""
        buffer = self.buffer(node.value)
        parts = self.spread(node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice])
        if len(parts) != len(buffer.shape):
            what = f"{ast.unparse(node.value)} has {len(buffer.shape)} dimensions"
            raise self.source.error("SM1206", f"{what}, {len(parts)} indices are given", node)
        return buffer.memory, buffer.place(tuple(self.index(part) for part in parts))

    def buffer(self, node: ast.AST) -> Buffer:
        """The buffer with this name."""
        found = self.python(node)
        name = word_of(node)
        if isinstance(found, Buffer):
            return found
        if name not in self.buffers or not isinstance(node, ast.Name):
            what = f"there is no buffer {name or ast.unparse(node)}"
            raise self.source.error("SM1205", what, node, remedy=near(name, self.buffers))
        return self.buffers[name]

    def spread(self, nodes: Sequence[ast.expr]) -> list[ast.expr]:
        """Expressions, with starred ones expanded: ``*A.shape``."""
        found: list[ast.expr] = []
        for node in nodes:
            starred = isinstance(node, ast.Starred)
            inner = node.value if isinstance(node, ast.Starred) else node
            if isinstance(inner, (ast.Tuple, ast.List)):
                found += self.spread(inner.elts)
                continue
            value = self.python(inner)
            several = isinstance(value, (tuple, list))
            if starred and not several:
                raise self.source.error("SM1204", f"{ast.unparse(inner)} is not several things", node)
            found += [at(ast.Constant(each), node) for each in value] if several else [node]
        return found

    def python(self, node: ast.AST) -> Any:
        """Python's value of an expression, UNKNOWN if it has none."""
        return python_value(node, ChainMap(self.names, self.buffers), self.source)  # type: ignore[arg-type]

    def macro(self, node: ast.AST) -> Macro | None:
        """The function whose body replaces a call, or None."""
        found = self.python(node)
        if not isinstance(found, FunctionType) or isinstance(node, ast.Attribute):
            return found if isinstance(found, Macro) else None
        return None if str(found.__module__).startswith("smelt.") else macro_of(found)

    def unknown(self, word: str, node: ast.AST) -> SmeltError:
        if word.startswith(_FOREIGN):
            what = f"{word} is code that the script does not hold"
            return self.source.error("SM1204", what, node, remedy="write it as loops")
        remedy = near(word, words())
        return self.source.error("SM1203", f"no such word: {word or ast.unparse(node)}", node, remedy=remedy)

    # -- reading -----------------------------------------------------------------------------------------

    def read(self, node: ast.AST, dtype: torch.dtype | None = None) -> Found:
        """Read an expression; ``dtype`` is the dtype wanted for open numbers in it."""
        if isinstance(node, ast.Constant):
            return self._constant(node)
        if isinstance(node, ast.Name) and node.id in self.names:
            return self._known(self.names[node.id], node, dtype)
        if isinstance(node, ast.Name) and node.id in self.scalars:
            return self._let("load", (node.id, ()), self.buffers[node.id].dtype)
        if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)):
            value = self.python(node)
            if value is not UNKNOWN and not isinstance(value, Buffer):
                return self._known(value, node, dtype)
        if isinstance(node, ast.Name):
            known = [*self.names, *self.buffers]
            what = f"{node.id} is {'a buffer' if node.id in self.buffers else 'not defined here'}"
            raise self.source.error("SM1205", what, node, remedy=near(node.id, known))
        if isinstance(node, ast.IfExp):
            return self.read(chosen(node), dtype)
        if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
            return self._binary(_BINARY[type(node.op)], node.left, node.right, node, dtype)
        if isinstance(node, ast.Compare) and all(type(each) in _BINARY for each in node.ops):
            sides = [self.read(each) for each in (node.left, *node.comparators)]
            pairs = zip(node.ops, sides, sides[1:])
            parts = [self._combined(_BINARY[type(op)], pair, node, None) for op, *pair in pairs]
            return parts[0] if len(parts) == 1 else self._combined_all("logical_and", parts, node)
        if isinstance(node, ast.BoolOp):
            word = "logical_and" if isinstance(node.op, ast.And) else "logical_or"
            return self._combined_all(word, [self.read(each) for each in node.values], node)
        if isinstance(node, ast.UnaryOp):
            return self._unary(node, dtype)
        if isinstance(node, ast.Subscript):
            return self._let("load", self.place(node), self.buffer(node.value).dtype)
        if isinstance(node, ast.Call):
            return self._call(node, dtype)
        raise self.source.error("SM1204", f"no expression: {ast.unparse(node)}", node)

    def _combined_all(self, word: str, parts: Sequence[Found], node: ast.AST) -> Found:
        found, *others = parts
        for each in others:
            found = self._combined(word, [found, each], node, None)
        return found

    def _known(self, value: Any, node: ast.AST, dtype: torch.dtype | None) -> Found:
        """A Python value in the form of the script's values."""
        if isinstance(value, Word):
            return self.read(at(ast.parse(str(value), mode="eval").body, node), dtype)
        if isinstance(value, Expr):
            return Index(value)
        return self._constant(at(ast.Constant(value), node))

    def _constant(self, node: ast.Constant) -> Found:
        value = node.value
        if isinstance(value, (Index, Number, Condition, Value)):
            return value
        if isinstance(value, (Word, Expr)):
            return self._known(value, node, None)
        if isinstance(value, bool):
            return Index(Integer(int(value)), torch.bool)
        if isinstance(value, int):
            return Index(Integer(value))
        if isinstance(value, float):
            return Number(value)
        raise self.source.error("SM1204", f"{ast.unparse(node)} is no number", node)

    def _unary(self, node: ast.UnaryOp, dtype: torch.dtype | None) -> Found:
        found = self.read(node.operand, dtype)
        if isinstance(node.op, ast.Not):
            return self._combined("logical_not", [found], node, None)
        if isinstance(node.op, ast.UAdd):
            return found
        if isinstance(node.op, ast.Invert):
            return self._combined("bitwise_not", [found], node, dtype)
        if isinstance(found, Index):
            return Index(-found.expr, found.dtype)
        return (
            Number(-found.value) if isinstance(found, Number) else self._combined("neg", [found], node, dtype)
        )

    def _binary(
        self, word: str, left: ast.AST, right: ast.AST, node: ast.AST, dtype: torch.dtype | None
    ) -> Found:
        return self._combined(word, [self.read(left, dtype), self.read(right, dtype)], node, dtype)

    def _combined(self, word: str, found: Sequence[Found], node: ast.AST, dtype: torch.dtype | None) -> Found:
        """An operator on operands: on indices an index, else an instruction."""
        if all(isinstance(each, Index) for each in found):
            index = self._on_indices(word, [each.expr for each in found], node)  # type: ignore[union-attr]
            if word in _COMPARED:  # a Symbol is a Boolean, too
                return Condition(index, word, tuple(found))
            if index is not None:
                kinds = {each.dtype for each in found} - {None}  # type: ignore[union-attr]
                return Index(index, kinds.pop() if len(kinds) == 1 else None, word, tuple(found))
        if word.startswith("logical_") and all(isinstance(each, Condition) for each in found):
            logic = {"logical_and": sympy.And, "logical_or": sympy.Or, "logical_not": sympy.Not}[word]
            made = logic(*(each.condition for each in found))  # type: ignore[union-attr]
            return Condition(made, word, tuple(found))
        known = next((each.dtype for each in found if isinstance(each, Value)), None)
        said = next((each.dtype for each in found if isinstance(each, Index) and each.dtype), None)
        kind = known or said or dtype
        if known is None and word in TABLE and TABLE[word].rule is Rule.FLOAT:
            kind = kind if kind is not None and kind.is_floating_point else torch.float32
        return self._apply(word, [self.value(each, kind, node) for each in found], node)

    def _on_indices(self, word: str, exprs: Sequence[Expr], node: ast.AST) -> Any:
        if word in _COMPARED:
            return sympy.sympify(_COMPARED[word](*exprs))
        if word == "add":
            return exprs[0] + exprs[1]
        if word == "sub":
            return exprs[0] - exprs[1]
        if word == "mul":
            return exprs[0] * exprs[1]
        if word in ("floordiv", "remainder", "truncdiv", "fmod"):
            if exprs[1] == 0:
                raise self.source.error("SM1204", "a division by 0", node)
            if word in ("truncdiv", "fmod") and not all(each.is_nonnegative for each in exprs):
                return None  # this rounds towards 0, unlike indices
            return (FloorDiv if word in ("floordiv", "truncdiv") else Mod)(*exprs)
        if word in ("maximum", "minimum"):
            return (Max if word == "maximum" else Min)(*exprs)
        return None

    def _apply(self, word: str, values: Sequence[Value], node: ast.AST) -> Value:
        if word not in TABLE:
            raise self.unknown(word, node)
        try:
            dtype = result_dtype(TABLE[word], [value.dtype for value in values])
        except TypeError as error:
            remedy = 'T.Cast("float32", x) makes a value one of another dtype'
            raise self.source.error("SM1207", str(error), node, remedy=remedy) from None
        return self._let(word, tuple(value.name for value in values), dtype)

    def _call(self, node: ast.Call, dtype: torch.dtype | None) -> Found:
        word = word_of(node.func)
        macro = self.macro(node.func)
        value = self.python(node) if macro is None else UNKNOWN
        if value is not UNKNOWN:
            return self._known(value, node, dtype)
        if macro is not None:
            result = self.inline(macro, node)
            if result is None:
                raise self.source.error("SM1204", f"{word} returns nothing", node)
            return self.read(result, dtype)
        if word.startswith(_FOREIGN):
            raise self.unknown(word, node)
        if word == "Let":
            return self._where(node, dtype)
        if word in NAMED_DTYPES and len(node.args) == 1:
            return self._typed(NAMED_DTYPES[word], node.args[0])
        if word in ("Cast", "cast"):
            first, second = node.args
            if not isinstance(first, ast.Constant):
                first, second = second, first
            return self._cast(self.dtype(first), self.read(second), second)
        if word == "const" and len(node.args) == 2:
            return self._cast(self.dtype(node.args[1]), self.read(node.args[0]), node.args[0])
        if word == "reinterpret":
            kind = self.dtype(node.args[0])
            source = self.value(self.read(node.args[1]), None, node)
            return source if source.dtype == kind else self._let("bitcast", (source.name,), kind)
        if word in _LIMITS:
            number, kind = self._limit(word, node)
            return self._let("constant", (number,), kind)
        if word in ("likely", "bind", "meta_var"):
            return self.read(node.args[0], dtype)
        if word == "if_then_else":
            return self._chosen(node, dtype)
        if word == "smelt_index":
            value = self.value(self.read(node.args[0]), torch.int64, node)
            flags = [literal(arg, self.source) for arg in node.args[2:]]
            return Index(self._position(value, self.index(node.args[1]), *flags))
        if word == "smelt_lookup":
            looked_up = [self.value(self.read(arg), None, node) for arg in node.args]
            return self._let("lookup", tuple(each.name for each in looked_up), looked_up[0].dtype)
        if word == "smelt_read":
            return self._read(node)
        if word == "popcount" and len(node.args) == 1:
            counted: Any = self.value(self.read(node.args[0]), None, node)
            bits = " + ".join(f"((x >> {bit}) & 1)" for bit in range(8 * counted.dtype.itemsize))
            return self.read(derived(bits, [at(ast.Constant(counted), node)], node))
        if word in DERIVED:
            return self.read(derived(DERIVED[word], node.args, node), dtype)
        found = [self.read(arg, dtype) for arg in node.args]
        operator = _WORDS.get(word, word)
        if operator == "where" and found and isinstance(found[0], (Condition, Value)):
            return self._selected(found, node, dtype)
        if operator not in TABLE and operator not in INFIX:
            raise self.unknown(word, node)
        if operator in ("logical_and", "logical_or") and len(found) != 2:
            return self._combined_all(operator, found, node)
        return self._combined(operator, found, node, dtype)

    def dtype(self, node: ast.AST) -> torch.dtype:
        """A dtype, by its name."""
        name = self.python(node)
        name = word_of(node) if name is UNKNOWN else str(name).removeprefix("torch.")
        if name not in NAMED_DTYPES:
            raise self.source.error("SM1204", f"{name!r} is no dtype", node, remedy=near(name, NAMED_DTYPES))
        return NAMED_DTYPES[name]

    def _where(self, node: ast.Call, dtype: torch.dtype | None) -> Found:
        """``T.Let(x + 1, where={x: 1})``."""
        given = next((each.value for each in node.keywords if each.arg == "where"), None)
        if not isinstance(given, ast.Dict):
            raise self.source.error("SM1204", "T.Let without values", node, remedy="where={x: 1}")
        around = dict(self.names)
        found = {word_of(name): self.read(value) for name, value in zip(given.keys, given.values) if name}
        self.names.update(found)
        result = self.read(node.args[0], dtype)
        self.names = around
        return result

    def _limit(self, word: str, node: ast.Call) -> tuple[float | int, torch.dtype]:
        """The finite minimum or maximum of a dtype, or infinity."""
        name = str(literal(node.args[0], self.source))
        if name not in NAMED_DTYPES or NAMED_DTYPES[name] is torch.bool:
            raise self.source.error(
                "SM1204", f"{name!r} has no limits", node, remedy=near(name, NAMED_DTYPES)
            )
        dtype = NAMED_DTYPES[name]
        if word == "infinity":
            return float("inf"), dtype
        limits = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
        return limits.min if word == "min_value" else limits.max, dtype

    def _selected(self, found: Sequence[Found], node: ast.Call, dtype: torch.dtype | None) -> Value:
        kind = next((each.dtype for each in found[1:] if isinstance(each, Value)), dtype)
        return self._apply("where", [self.value(each, kind, node) for each in found], node)

    def _typed(self, dtype: torch.dtype, node: ast.AST) -> Found:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return self._let("constant", (float(node.value),), dtype)
        found = self.read(node)
        if isinstance(found, Index) and not dtype.is_floating_point:
            return Index(found.expr, dtype)
        if isinstance(found, Number) or (isinstance(found, Index) and found.expr.is_Integer):
            number = found.value if isinstance(found, Number) else int(found.expr)
            return self._let("constant", (float(number),), dtype)
        return self._cast(dtype, found, node)

    def _cast(self, dtype: torch.dtype, found: Found, node: ast.AST) -> Value:
        if isinstance(found, Index) and found.dtype not in (None, dtype):
            return self.cast(self.value(found, None, node), dtype)
        if isinstance(found, Index) and found.dtype is None and not found.expr.is_Integer:
            return self._let("index_expr", (found.expr,), dtype)
        if isinstance(found, (Index, Number)):
            return self.value(found, dtype, node)
        return self.cast(self.value(found, None, node), dtype)

    def _chosen(self, node: ast.Call, dtype: torch.dtype | None) -> Value:
        """``T.if_then_else``: only the chosen side is evaluated."""
        condition = self.condition(node.args[0])
        mask = self.value(condition, None, node)
        other = node.args[2]
        number = self._plain_number(other)
        if number is not None:
            return self._masked(mask, node.args[1], number, dtype)
        opposite = self._apply("logical_not", [mask], node)
        one = self._masked(mask, node.args[1], 0, dtype)
        two = self._masked(opposite, other, 0, one.dtype)
        kind = torch.promote_types(one.dtype, two.dtype)
        sides = [each if each.dtype is kind else self.cast(each, kind) for each in (one, two)]
        return self._apply("where", [mask, *sides], node)

    def _plain_number(self, node: ast.AST) -> float | int | bool | None:
        if isinstance(node, ast.Call) and word_of(node.func) in _LIMITS:
            return self._limit(word_of(node.func), node)[0]
        try:
            value = literal(node, self.source)
        except SmeltError:
            return None
        if isinstance(value, str):
            return float(value)
        return value if isinstance(value, (bool, int, float)) else None

    def _masked(
        self, mask: Value, node: ast.AST, other: float | int | bool, dtype: torch.dtype | None
    ) -> Value:
        around, self.stmts = self.stmts, []
        result = self.value(self.read(node, dtype), dtype, node)
        body, self.stmts = Block(tuple(self.stmts)), around
        kind = result.dtype
        fitted = bool(other) if kind is torch.bool else float(other) if kind.is_floating_point else int(other)
        name = self._name()
        self.stmts.append(Masked(name, kind, mask.name, body, result.name, fitted))
        return Value(name, kind)

    def _read(self, node: ast.Call) -> Value:
        name = word_of(node.args[0])
        declared = next((s for s in reversed(self.stmts) if getattr(s, "name", None) == name), None)
        dtype = getattr(declared, "dtype", torch.float32)
        return self._let("read", (name, int(literal(node.args[1], self.source))), dtype)

    def _position(self, value: Value, size: Expr, *flags: Any) -> Symbol:
        symbol = self.fresh("position")
        name = self._name()
        self.stmts.append(Let(name, torch.int64, "indirect_index", (value.name, size, *flags), symbol))
        return symbol

    def _let(self, op: str, args: tuple[Any, ...], dtype: torch.dtype) -> Value:
        name = self._name()
        self.stmts.append(Let(name, dtype, op, args))
        return Value(name, dtype)

    def _name(self) -> str:
        self.count += 1
        return f"v{self.count}"
