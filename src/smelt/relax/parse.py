"""The parser of relax scripts: ``@R.function def main(…)`` → `Function`.

The text is never executed, but functions from outside that it names, of operators or of te, are called.
"""

from __future__ import annotations

import ast
import inspect
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
from sympy import Expr as Size
from sympy import Symbol

from smelt.relax.infer import infer
from smelt.relax.operators import COMPOSED, OPERATORS, AtenOperator, Operator, op, overload_of
from smelt.relax.parse_calls import CALLS, ScriptError, arguments, keywords
from smelt.relax.types import PrimStructInfo, RelaxError, StructInfo, size_of
from smelt.relax.values import (
    BindingBlock,
    Call,
    Constant,
    DataflowBlock,
    DataflowVar,
    Expr,
    Function,
    If,
    MatchCast,
    PrimValue,
    SeqExpr,
    StringImm,
    Tuple,
    TupleGetItem,
    Var,
    VarBinding,
    const,
)
from smelt.relax.words import INFOS
from smelt.script import parse
from smelt.script.module import GlobalVar
from smelt.te.index import Idx
from smelt.tir.maps import IndexMap

_ARITHMETIC: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


def function_of(
    node: ast.FunctionDef,
    module: str = "Module",
    functions: dict[str, Any] | None = None,
    constants: Sequence[Any] = (),
    values: Mapping[str, Any] | None = None,
) -> Function:
    """The function of a definition.

    ``module``: the module's name inside of it; ``functions``: those defined before; ``constants``: the
    tensors for ``metadata["relax.expr.Constant"][n]``; ``values``: the values of other names: numbers, texts,
    expressions and operators.

    Raises:
        RelaxError: SM1309, with the line, the column and the error there.

    >>> text = 'def main(x: R.Tensor((2, 3), dtype="float32")):\\n    return R.add(x, x)'
    >>> print(function_of(ast.parse(text).body[0]).ret_struct_info)
    R.Tensor((2, 3), dtype="float32")
    """
    return Parser(module, {} if functions is None else functions, constants, values or {}).function(node)


_constants: ContextVar[Sequence[Any]] = ContextVar("constants", default=())


def from_source(text: Any, constants: Sequence[Any] = ()) -> Any:
    """`smelt.script.from_source`, with the tensors for ``metadata["relax.expr.Constant"][n]``."""
    token = _constants.set(constants)
    try:
        return parse.from_source(text)
    finally:
        _constants.reset(token)


def _of_script(node: ast.FunctionDef, source: parse.Source, known: dict[str, Any]) -> Function:
    """A function in a script; errors show its line."""
    try:
        return function_of(node, "Module", known, _constants.get(), source.outside)
    except ScriptError as error:
        assert error.node is not None
        raise source.error("SM1309", error.what, error.node, why=error.why, remedy=error.remedy) from error


parse.FUNCTIONS["function"] = _of_script


class Parser:
    def __init__(
        self, module: str, functions: dict[str, Any], constants: Sequence[Any], values: Mapping[str, Any]
    ) -> None:
        self.modules, self.functions, self.constants = {module, "cls"}, functions, constants
        self.values = values
        self.vars: dict[str, Any] = {}
        self.sizes: dict[str, Symbol] = {}
        self.attrs: dict[str, Any] = {}
        self.blocks: list[BindingBlock] = []
        self.outputs: set[str] = set()
        self.count = 0
        self.known: dict[int, Constant] = {}

    # -- functions and statements ----------------------------------------------------------------------------

    def function(self, node: ast.FunctionDef) -> Function:
        private, pure = False, True
        for mark in node.decorator_list:
            for keyword in getattr(mark, "keywords", ()):
                private |= keyword.arg == "private" and self.literal(keyword.value) is True
                pure &= not (keyword.arg == "pure" and self.literal(keyword.value) is False)
        params = []
        for each in node.args.args:
            if each.annotation is None:
                raise self.error(
                    each, f"parameter {each.arg} has no annotation", f"write {each.arg}: R.Tensor(…)"
                )
            params.append(Var(each.arg, self.info(each.annotation)))
            self.vars[each.arg] = params[-1]
        if not private:
            self.attrs["global_symbol"] = node.name
        result = None
        for stmt in node.body:
            if result is not None:
                raise self.error(stmt, "a statement after return", "return once, at the end")
            result = self._statement(stmt)
        if result is None:
            raise self.error(node, f"function {node.name} returns nothing", "end it with return")
        value = self.leaf(result, node)
        body = SeqExpr([block for block in self.blocks if block.bindings], value)
        returns = None if node.returns is None else self.info(node.returns)
        inferred = body.body.struct_info
        if returns is not None and not returns.is_base_of(inferred):
            inferred = returns
        return Function(params, body, inferred, pure, self.attrs)

    def _statement(self, stmt: ast.stmt) -> Any:
        """Parse a statement; the result is the value of a return."""
        if isinstance(stmt, ast.Return):
            if stmt.value is None:
                raise self.error(stmt, "a return of nothing", "return a variable")
            return self.value(stmt.value)
        if isinstance(stmt, ast.With):
            self._dataflow(stmt)
        elif isinstance(stmt, ast.AnnAssign):
            if stmt.value is None:
                raise self.error(stmt, "a variable without value", "bind it")
            self._assign(stmt.target, stmt.value, self.info(stmt.annotation))
        elif isinstance(stmt, ast.Assign):
            if len(stmt.targets) != 1:
                raise self.error(stmt, "two variables for one value", "bind one after the other")
            self._assign(stmt.targets[0], stmt.value, None)
        elif isinstance(stmt, ast.Expr) and isinstance(stmt.value, ast.Constant):
            pass  # a docstring
        elif isinstance(stmt, ast.Expr) and self._name(stmt.value) == "R.func_attr":
            self.attrs.update(self.literal(stmt.value.args[0]))  # type: ignore[attr-defined]
        elif isinstance(stmt, ast.Expr) and self._name(stmt.value) == "R.func_ret_struct_info":
            pass
        elif isinstance(stmt, ast.If):
            self._if(stmt)
        elif not isinstance(stmt, (ast.Pass, ast.Nonlocal, ast.Global)):
            what = f"a {type(stmt).__name__.lower()} statement"
            raise self.error(stmt, f"{what} in a relax function", "bind variables, and return one")
        return None

    def _if(self, stmt: ast.If) -> None:
        """``if x: … else: …``; both branches end by binding the same variable."""
        if isinstance(self._block, DataflowBlock):
            raise self.error(stmt, "an if in a dataflow block", "put it after the block")
        condition = self.leaf(self.value(stmt.test), stmt.test)
        branches = [self._branch(stmts, stmt) for stmts in (stmt.body, stmt.orelse)]
        (name, then), (other, otherwise) = branches
        if name != other:
            what = f"one branch ends with {name}, the other with {other}"
            raise self.error(stmt, what, "bind one variable at the end of both")
        value = If(condition, then, otherwise)
        self._bind(name, VarBinding(Var(name, self._inferred(value, stmt)), value))

    def _branch(self, stmts: list[ast.stmt], node: ast.AST) -> tuple[str, SeqExpr]:
        """The last name that a branch binds, and its bindings as an expression."""
        blocks, known, self.blocks = self.blocks, dict(self.vars), []
        for stmt in stmts:
            if isinstance(stmt, ast.Return):
                raise self.error(stmt, "a return in a branch", "bind a variable, and return after the if")
            self._statement(stmt)
        found = [block for block in self.blocks if block.bindings]
        self.blocks, self.vars = blocks, known
        if not found:
            raise self.error(node, "a branch that binds nothing", "write both, ended by the same variable")
        last = found[-1].bindings[-1].var
        return last.name_hint, SeqExpr(found, last)

    def _dataflow(self, stmt: ast.With) -> None:
        if self._name(stmt.items[0].context_expr) != "R.dataflow":
            raise self.error(stmt, "a with that is no R.dataflow()", "write: with R.dataflow():")
        outputs: set[str] = set()
        for each in stmt.body:
            if isinstance(each, ast.Expr) and self._name(each.value) == "R.output":
                outputs |= {arg.id for arg in each.value.args if isinstance(arg, ast.Name)}  # type: ignore[attr-defined]
        block = DataflowBlock()
        self.blocks.append(block)
        self.outputs = outputs
        for each in stmt.body:
            if isinstance(each, ast.Expr) and self._name(each.value) == "R.output":
                continue
            if isinstance(each, ast.Return):
                raise self.error(each, "a return in a dataflow block", "return after it")
            self._statement(each)
        missing = outputs - {binding.var.name_hint for binding in block.bindings}
        if missing:
            raise self.error(
                stmt, f"R.output of {sorted(missing)[0]}, which the block does not bind", "bind it"
            )
        self.blocks.append(BindingBlock())
        self.outputs = set()
        self.vars = {name: value for name, value in self.vars.items() if not isinstance(value, DataflowVar)}

    @property
    def _block(self) -> BindingBlock:
        if not self.blocks:
            self.blocks.append(BindingBlock())
        return self.blocks[-1]

    def _assign(self, target: ast.expr, node: ast.expr, info: StructInfo | None) -> None:
        if (
            isinstance(target, ast.Tuple)
            and isinstance(node, ast.Tuple)
            and len(target.elts) == len(node.elts)
        ):
            for one, each in zip(target.elts, node.elts):
                self._assign(one, each, None)
            return
        if not isinstance(target, ast.Name):
            raise self.error(target, "only variables can be bound", "take elements by x[0]")
        name = target.id
        if isinstance(node, ast.Name) and self._is_module(node.id, name):
            self.modules.add(name)
            return
        if self._name(node) in ("T.int64", "T.var", "T.int32") and not arguments(node):
            self.sizes.setdefault(name, _variable(name))
            return
        if self._name(node) in ("I.meta_var", "T.meta_var"):
            self.vars[name] = self.value(arguments(node)[0])
            return
        if self._name(node) == "R.match_cast":
            assert isinstance(node, ast.Call)
            value, cast = self.leaf(self.value(node.args[0]), node), self.info(node.args[1])
            self._bind(name, MatchCast(self._var(name, cast), value, cast))
            return
        value = self.value(node)
        if isinstance(value, Size):
            value = PrimValue(value)
        value = self._normal(value, node)
        found = self._inferred(value, node)
        if info is not None and not found.is_base_of(info) and not info.is_base_of(found):
            raise self.error(node, f"{name} is {found}, not {info}", "mend the annotation")
        if info is not None and found.is_base_of(info):
            found = info
        self._bind(name, VarBinding(self._var(name, found), value))

    def _is_module(self, name: str, target: str) -> bool:
        """Whether a name is the module's: ``cls = Module``."""
        if name in self.vars or name in self.sizes or _usable(self.values.get(name)):
            return False
        return name in self.modules or target == "cls" or name[:1].isupper()

    def _var(self, name: str, info: StructInfo) -> Var:
        inside = isinstance(self._block, DataflowBlock) and name not in self.outputs
        return DataflowVar(name, info) if inside else Var(name, info)

    def _bind(self, name: str, binding: Any) -> None:
        self._block.bindings.append(binding)
        self.vars[name] = binding.var

    def _inferred(self, value: Any, node: ast.AST) -> StructInfo:
        try:
            if value.struct_info_ is None:
                value.struct_info_ = infer(value, self.functions)
            found: StructInfo = value.struct_info
            return found
        except RelaxError as error:
            if error.code == "SM1309":
                raise
            raise self.error(node, str(error.what), error.why or error.remedy) from error

    def _normal(self, value: Any, node: ast.AST) -> Any:
        """The value with calls inside of it bound to variables of their own."""
        if isinstance(value, Call):
            args = [self.leaf(each, node) for each in value.args]
            return Call(value.op, args, value.attrs, value.sinfo_args)
        if isinstance(value, Tuple):
            return Tuple([self.leaf(each, node) for each in value.fields])
        return value

    def leaf(self, value: Any, node: ast.AST) -> Any:
        value = self._normal(value, node)
        if not isinstance(value, Call) and not (isinstance(value, TupleGetItem)):
            return value
        name = f"{'lv' if isinstance(self._block, DataflowBlock) else 'gv'}_{self.count}"
        self.count += 1
        var = self._var(name, self._inferred(value, node))
        self._block.bindings.append(VarBinding(var, value))
        return var

    # -- expressions -----------------------------------------------------------------------------------------

    def value(self, node: ast.expr) -> Any:
        """An expression; plain numbers, texts and lists stay unchanged."""
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            return self._variable(node)
        if isinstance(node, (ast.Tuple, ast.List)):
            found = [self.value(each) for each in node.elts]
            if isinstance(node, ast.Tuple):
                return Tuple([PrimValue(each) if isinstance(each, Size) else each for each in found])
            return found
        if isinstance(node, ast.Dict):
            return self.literal(node)
        if isinstance(node, ast.JoinedStr):
            parts = [each.value if isinstance(each, ast.FormattedValue) else each for each in node.values]
            return "".join(str(self.value(each)) for each in parts)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -self.value(node.operand)
        if isinstance(node, ast.BinOp):
            return self._binary(node, node.op, node.left, node.right)
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            return self._binary(node, node.ops[0], node.left, node.comparators[0])
        if isinstance(node, ast.Subscript):
            return self._subscript(node)
        if isinstance(node, ast.Attribute):
            return self._attribute(node)
        if isinstance(node, ast.Lambda):
            return IndexMap.read(ast.unparse(node))
        if isinstance(node, ast.Call):
            return self._call(node)
        raise self.error(
            node, f"a {type(node).__name__.lower()} in a relax function", "write calls and variables"
        )

    def _variable(self, node: ast.Name) -> Any:
        if node.id in self.vars:
            return self.vars[node.id]
        if node.id in self.sizes:
            return self.sizes[node.id]
        if _usable(self.values.get(node.id)):
            return _plain(self.values[node.id])
        if node.id in self.functions:
            return GlobalVar(node.id)
        remedy = parse.near(node.id, [*self.vars, *self.sizes]) or "bind it first"
        raise self.error(node, f"{node.id} is not bound here", remedy)

    def _binary(self, node: ast.expr, sign: Any, left: ast.expr, right: ast.expr) -> Any:
        if type(sign) not in _ARITHMETIC:
            raise self.error(node, f"{type(sign).__name__} is no operator of relax", "call R.… by its name")
        found = _ARITHMETIC[type(sign)](self.value(left), self.value(right))
        return size_of(found) if isinstance(found, Size) else found

    def _subscript(self, node: ast.Subscript) -> Any:
        inner = node.value
        if isinstance(inner, ast.Subscript) and self._name(inner.value) == "metadata":
            number = self.literal(node.slice)
            if not number < len(self.constants):
                raise self.error(
                    node, f"constant {number} is not in the text", "relax.from_source(text, constants=[…])"
                )
            if number not in self.known:
                self.known[number] = const(self.constants[number])
            return self.known[number]
        value = self.value(inner)
        index = self.literal(node.slice)
        if isinstance(value, (list, tuple)):
            return value[index]
        return TupleGetItem(self.leaf(value, node), index)

    def _attribute(self, node: ast.Attribute) -> Any:
        path = self._name(node)
        head, _, rest = path.partition(".")
        called = head in self.modules or (rest in self.functions and head not in self.vars)
        if called and rest and "." not in rest:
            return GlobalVar(rest)
        if path.startswith("R."):
            return self._operator(path.removeprefix("R."), node)
        found = self.values.get(head)
        for part in rest.split("."):
            found = getattr(found, part, None)
        if _usable(found):
            return _plain(found)
        raise self.error(node, f"{path} is not known", "write R.…, cls.… or a variable")

    def _operator(self, short: str, node: ast.AST) -> Any:
        if short in OPERATORS:
            return OPERATORS[short]
        if short in COMPOSED:
            return COMPOSED[short]
        try:
            if short.startswith("aten.") or short.count(".") >= 2:
                return AtenOperator(overload_of(short))
            found: Any = op
            for part in short.split("."):
                found = getattr(found, part)
            return found
        except RelaxError as error:
            raise self.error(node, error.what, error.remedy) from error

    def _call(self, node: ast.Call) -> Any:
        name = self._name(node.func)
        make = CALLS.get(name)
        if make is not None:
            return make(self, node)
        if name.startswith("T."):
            return self._number(name, node)
        called = self.value(node.func)
        own = not isinstance(called, _FUNCTIONS) or called in COMPOSED.values()
        read = self.value if own else self.literal
        args = [read(each) for each in node.args]
        attrs = {str(keyword.arg): read(keyword.value) for keyword in node.keywords}
        infos = attrs.pop("sinfo_args", ()) or attrs.pop("ty_args", ())
        try:
            if isinstance(called, (GlobalVar, Var)):
                return Call(called, args, attrs, infos if isinstance(infos, (list, tuple)) else [infos])
            return called(*args, **attrs)
        except (RelaxError, TypeError) as error:
            raise self.error(
                node, getattr(error, "what", str(error)), getattr(error, "remedy", None)
            ) from error

    def _number(self, name: str, node: ast.Call) -> Any:
        args = [self.value(each) for each in node.args]
        if name in ("T.min", "T.max") and len(args) == 2:
            from torch.utils._sympy.functions import Max, Min

            return (Max if name == "T.max" else Min)(*args)
        if len(args) == 1 and isinstance(getattr(torch, name.removeprefix("T."), None), torch.dtype):
            return float(args[0]) if isinstance(args[0], str) else args[0]
        if name in ("T.IntImm", "T.FloatImm") and len(args) == 2:
            return args[1]
        raise self.error(
            node, f"{name} of {len(args)} arguments in a relax function", "write numbers and variables"
        )

    def literal(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Dict):
            return {self.literal(k): self.literal(v) for k, v in zip(node.keys, node.values) if k is not None}
        if isinstance(node, (ast.List, ast.Tuple)):
            return [self.literal(each) for each in node.elts]
        value = self.value(node)
        return value.value if isinstance(value, (PrimValue, StringImm)) else value

    # -- struct info -----------------------------------------------------------------------------------------

    def info(self, node: ast.expr) -> StructInfo:
        """An annotation: ``R.Tensor((2, "n"), dtype="float32")``."""
        name = self._name(node)
        if name.startswith("T.") and isinstance(getattr(torch, name[2:], None), torch.dtype):
            return PrimStructInfo(name[2:])
        found = self.values.get(name)
        if isinstance(found, StructInfo):
            return found
        # a Python name may be a word's alias: Kind = R.Tensor
        known = name.startswith("R.")
        make = INFOS.get(name[2:]) if known else next((e for e in INFOS.values() if e == found), None)
        if make is None:
            raise self.error(node, f"{name or 'this'} is no annotation", "write R.Tensor(shape, dtype)")
        named = {key: self._part(each, key == "value") for key, each in keywords(node).items()}
        args = [self._part(each) for each in arguments(node)]
        try:
            inspect.signature(make).bind(*args, **named)
            return make(*args, **named)
        except (TypeError, RelaxError) as error:
            what = getattr(error, "what", f"{name}: {error}")
            raise self.error(node, what, getattr(error, "remedy", None)) from error

    def _part(self, node: ast.expr, is_size: bool = False) -> Any:
        """A part of an annotation: annotations, lists of them or of sizes, plain values."""
        name = self._name(node)
        if name != "R.prim_value" and name.startswith("R." if is_size else ("R.", "T.")):
            return self.info(node)
        if isinstance(node, (ast.Tuple, ast.List)):
            return [self._part(each, True) for each in node.elts]
        return self.size(node) if is_size else self.literal(node)

    def shape(self, node: ast.expr) -> list[Any]:
        if not isinstance(node, (ast.Tuple, ast.List)):
            raise self.error(node, "a shape is a tuple or a list", "write (2, 3)")
        return [self.size(each) for each in node.elts]

    def size(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            try:
                inner = ast.parse(node.value, mode="eval").body
            except SyntaxError as error:
                what = f"{node.value!r} is no size"
                raise self.error(node, what, 'write "n", or an expression of such') from error
            for each in ast.walk(inner):
                if isinstance(each, ast.Name) and each.id != "T":
                    self.sizes.setdefault(each.id, _variable(each.id))
            ast.copy_location(inner, node)
            return self.value(inner)
        value = self.value(node)
        return value.value if isinstance(value, PrimValue) else value

    # -- helpers ---------------------------------------------------------------------------------------------

    def _name(self, node: ast.AST) -> str:
        """A dotted name, for a call that of its function; "" for other nodes."""
        if isinstance(node, ast.Call):
            return self._name(node.func)
        if isinstance(node, ast.Name):
            return node.id
        if isinstance(node, ast.Attribute):
            head = self._name(node.value)
            path = f"{head}.{node.attr}" if head else ""
            return re.sub(r"^(relax|rx|R)\.(op\.)?", "R.", path)
        return ""

    def error(self, node: ast.AST, what: str, remedy: str | None = None) -> ScriptError:
        line, column = getattr(node, "lineno", 0), getattr(node, "col_offset", 0)
        error = ScriptError("SM1309", what, where=f"line {line}, column {column + 1}", remedy=remedy)
        error.node = node
        return error


_FUNCTIONS = (FunctionType, BuiltinFunctionType)


def _usable(value: Any) -> bool:
    """Whether a script may use this value from outside."""
    kinds = (bool, int, float, str, torch.dtype, Size, Expr, Idx, Operator, AtenOperator, *_FUNCTIONS)
    if isinstance(value, (list, tuple)):
        return all(_usable(each) for each in value)
    return isinstance(value, kinds)


def _plain(value: Any) -> Any:
    """A value from outside in the form of the script's own values."""
    if isinstance(value, (list, tuple)):
        return type(value)(_plain(each) for each in value)
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    return value.expr if isinstance(value, Idx) else value


def size_in(text: str) -> Size:
    """The size written in a text: ``"n * 2"``."""
    found: Size = size_of(Parser("", {}, (), {}).size(ast.Constant(text)))
    return found


def _variable(name: str) -> Symbol:
    return Symbol(name, integer=True, nonnegative=True)


__all__ = ["Parser", "ScriptError", "from_source", "function_of", "size_in"]
