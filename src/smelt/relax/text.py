"""Relax functions as TVMScript: ``@R.function def main(x: R.Tensor((2, 3), dtype="float32")) -> …``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from sympy import Expr as Size

from smelt.nest.scopes import unique_name
from smelt.relax.types import (
    FuncStructInfo,
    PrimStructInfo,
    ShapeStructInfo,
    StructInfo,
    TensorStructInfo,
    TupleStructInfo,
    plain,
    symbols_of,
)
from smelt.relax.values import (
    CALL_TIR,
    Call,
    Constant,
    DataflowBlock,
    DataflowVar,
    ExternFunc,
    Function,
    If,
    MatchCast,
    PrimValue,
    SeqExpr,
    ShapeExpr,
    StringImm,
    Tuple,
    TupleGetItem,
    Var,
)
from smelt.script.module import GlobalVar, PrimFunc
from smelt.tir.maps import IndexMap

_INDENT = "    "


def _tuple(parts: Sequence[str]) -> str:
    return f"({parts[0]},)" if len(parts) == 1 else f"({', '.join(parts)})"


def _size(size: Any, quoted: bool = False) -> str:
    if quoted and isinstance(size, Size) and size.free_symbols:
        return f'"{size}"'
    return str(plain(size))


def annotation(info: StructInfo, quoted: bool = False) -> str:
    """The text of struct info. ``quoted``: size variables are texts, as in a signature.

    >>> import sympy
    >>> annotation(TensorStructInfo((2, sympy.Symbol("n")), "float32"), quoted=True)
    'R.Tensor((2, "n"), dtype="float32")'
    """
    if isinstance(info, TensorStructInfo):
        parts = []
        if info.sizes is not None:
            parts.append(_tuple([_size(each, quoted) for each in info.sizes]))
        if info.dtype is not None:
            parts.append(f'dtype="{info.dtype}"')
        if info.sizes is None and info.ndim >= 0:
            parts.append(f"ndim={info.ndim}")
        return f"R.Tensor({', '.join(parts)})" if parts else "R.Tensor"
    if isinstance(info, ShapeStructInfo):
        if info.values is None:
            return f"R.Shape(ndim={info.ndim})"
        return f"R.Shape([{', '.join(_size(each, quoted) for each in info.values)}])"
    if isinstance(info, PrimStructInfo):
        if isinstance(info.value, Size):
            return f"R.Prim(value={_size(info.value, quoted)})"
        return f'R.Prim("{info.dtype}")'
    if isinstance(info, TupleStructInfo):
        inner = ", ".join(annotation(each, quoted) for each in info.fields)
        return f"R.Tuple({inner})" if inner else "R.Tuple"
    if isinstance(info, FuncStructInfo):
        params = _tuple([annotation(each, quoted) for each in info.params]) if info.params else "()"
        return f"R.Callable({params}, {annotation(info.ret, quoted)}, True)"
    return "R.Object"


class Printer:
    """Prints the functions of one module: constants are numbered, names are unique in each function."""

    def __init__(self, module: str = "Module", constants: list[Constant] | None = None) -> None:
        self.module = module
        self.constants = [] if constants is None else constants
        self.names: dict[Var, str] = {}
        self.uses_module = False
        self.canonical = False

    def function(self, function: Function, name: str) -> list[str]:
        """The lines of one function, with its decorator."""
        self.names, self.uses_module = {}, False
        params = ", ".join(
            f"{self._name(each)}: {annotation(each.struct_info, quoted=True)}" for each in function.params
        )
        body = [*self._bindings(function.body), f"return {self.value(function.body.body)}"]
        result = annotation(function.ret_struct_info, quoted=True)
        head = []
        attrs = {key: value for key, value in function.attrs.items() if key != "global_symbol"}
        if attrs:
            head.append(f"R.func_attr({_literal_dict(attrs)})")
        infos = [each.struct_info for each in function.params]
        infos += [info for binding in all_bindings(function.body) for info in _infos(binding)]
        used = sorted({str(symbol) for info in infos for symbol in symbols_of(info)})
        head += [f"{symbol} = T.int64()" for symbol in used]
        if self.uses_module:
            head.append(f"cls = {self.module}")
        marks = ["private=True"] if function.private else []
        marks += [] if function.is_pure else ["pure=False"]
        decorator = f"@R.function({', '.join(marks)})" if marks else "@R.function"
        return [
            decorator,
            f"def {name}({params}) -> {result}:",
            *[_INDENT + line for line in (*head, *body)],
        ]

    def _bindings(self, body: SeqExpr) -> list[str]:
        lines = []
        for block in body.blocks:
            inner = [line for binding in block.bindings for line in self._binding(binding)]
            if not isinstance(block, DataflowBlock):
                lines += inner
                continue
            outputs = [self._name(b.var) for b in block.bindings if not isinstance(b.var, DataflowVar)]
            inner.append(f"R.output({', '.join(outputs)})")
            lines += ["with R.dataflow():", *[_INDENT + line for line in inner]]
        return lines

    def _branch(self, body: SeqExpr, name: str) -> list[str]:
        """The lines of a branch, whose value is bound to the name."""
        last = list(body.bindings)[-1:]
        if last and last[0].var is body.body:
            self.names[last[0].var] = name
            lines = self._bindings(body)
        else:
            lines = [*self._bindings(body), f"{name} = {self.value(body.body)}"]
        return [_INDENT + line for line in lines]

    def _binding(self, binding: Any) -> list[str]:
        if isinstance(binding.value, If):
            value, name = binding.value, self._name(binding.var)
            then, other = (self._branch(each, name) for each in (value.true_branch, value.false_branch))
            return [f"if {self.value(value.cond)}:", *then, "else:", *other]
        return [self._line(binding)]

    def _line(self, binding: Any) -> str:
        value = self.value(binding.value)
        name = self._name(binding.var)
        if isinstance(binding, MatchCast):
            info = annotation(binding.struct_info)
            return f"{name}: {info} = R.match_cast({value}, {info})"
        if isinstance(binding.value, Call) and binding.value.op is CALL_TIR:
            return f"{name} = {value}"
        return f"{name}: {annotation(binding.var.struct_info)} = {value}"

    def _name(self, var: Var) -> str:
        if var not in self.names:
            base = f"v{len(self.names)}" if self.canonical else _identifier(var.name_hint)
            self.names[var] = unique_name(base, self.names.values())
        return self.names[var]

    # -- expressions -----------------------------------------------------------------------------------------

    def value(self, value: Any) -> str:
        """An expression, or a plain value in a call."""
        if isinstance(value, Var):
            return self._name(value)
        if isinstance(value, Constant):
            return self._constant(value)
        if isinstance(value, ShapeExpr):
            return f"R.shape([{', '.join(_size(each) for each in value.values)}])"
        if isinstance(value, PrimValue):
            return f"R.prim_value({_number(value.value)})"
        if isinstance(value, StringImm):
            return "R.null_value()" if value.value is None else f"R.str({_quoted(value.value)})"
        if isinstance(value, Tuple):
            return _tuple([self.value(each) for each in value.fields]) if value.fields else "R.tuple()"
        if isinstance(value, TupleGetItem):
            return f"{self.value(value.tuple_value)}[{value.index}]"
        if isinstance(value, Call):
            return self._call(value)
        if isinstance(value, GlobalVar):
            self.uses_module = True
            return f"cls.{value.name_hint}"
        if isinstance(value, ExternFunc):
            return f"R.ExternFunc({_quoted(value.global_symbol)})"
        if isinstance(value, SeqExpr):
            return self.value(value.body)
        if isinstance(value, list):
            return f"[{', '.join(self.value(each) for each in value)}]"
        if isinstance(value, tuple):
            return f"[{', '.join(self.value(each) for each in value)}]"
        return value.text if isinstance(value, IndexMap) else literal(value)

    def _constant(self, value: Constant) -> str:
        if value.data.dim() == 0 and not value.data.dtype.is_complex:
            return f'R.const({_number(value.number)}, "{value.dtype}")'
        places = [number for number, other in enumerate(self.constants) if other is value]
        number = places[0] if places else len(self.constants)
        if not places:
            self.constants.append(value)
        return f'metadata["relax.expr.Constant"][{number}]'

    def _call(self, call: Call) -> str:
        if call.op is CALL_TIR:
            var, args, *more = call.args
            parts = [self.value(var), self.value(args)]
            info = call.sinfo_args[0]
            if isinstance(info, TupleStructInfo):
                out = f"[{', '.join(annotation(each) for each in info.fields)}]"
            else:
                out = annotation(info)
            parts.append(f"out_sinfo={out}")
            parts += [f"tir_vars={self.value(each)}" for each in more]
            return f"R.call_tir({', '.join(parts)})"
        parts = [self.value(each) for each in call.args]
        parts += [f"{key}={self.value(value)}" for key, value in call.attrs.items()]
        if isinstance(call.op, (GlobalVar, Var)):
            return f"{self.value(call.op)}({', '.join(parts)})"
        if isinstance(call.op, ExternFunc):
            infos = f"sinfo_args=({', '.join(annotation(each) for each in call.sinfo_args)},)"
            named = [_quoted(call.op.global_symbol), *parts, *([infos] if call.sinfo_args else [])]
            return f"R.call_packed({', '.join(named)})"
        return f"{call.op.text}({', '.join(parts)})"


def all_bindings(body: SeqExpr) -> Iterator[Any]:
    """The bindings of a body, including those in branches."""
    for binding in body.bindings:
        yield binding
        if isinstance(binding.value, If):
            yield from all_bindings(binding.value.true_branch)
            yield from all_bindings(binding.value.false_branch)


def _infos(binding: Any) -> list[StructInfo]:
    if isinstance(binding, MatchCast):
        return [binding.struct_info]
    value = binding.value
    found = [binding.var.struct_info, *getattr(value, "sinfo_args", ())]
    if isinstance(value, Call):
        found += [each.struct_info for each in value.args if isinstance(each, ShapeExpr)]
    return found


def _identifier(name: str) -> str:
    made = "".join(each if each.isalnum() or each == "_" else "_" for each in name)
    return made if made and not made[0].isdigit() else f"v{made}"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _number(value: Any) -> str:
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return f'float("{value}")'
    return str(plain(value))


def literal(value: Any) -> str:
    """The text of a plain value in a call."""
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, torch.dtype):
        return f"R.dtype({_quoted(str(value).removeprefix('torch.'))})"
    if isinstance(value, (torch.layout, torch.device, torch.memory_format)):
        return f"R.str({_quoted(str(value))})"
    if isinstance(value, Mapping):
        return _literal_dict(value)
    if isinstance(value, (bool, type(None))):
        return str(value)
    return _number(value)


def _literal_dict(values: Mapping[str, Any]) -> str:
    inner = []
    for key, value in values.items():
        shown = f"[{', '.join(map(literal, value))}]" if isinstance(value, (list, tuple)) else literal(value)
        inner.append(f"{_quoted(key)}: {shown}")
    return "{" + ", ".join(inner) + "}"


def expression(value: Any) -> str:
    """The text of one expression, or of one function."""
    if isinstance(value, Function):
        return "\n".join(Printer().function(value, value.attrs.get("global_symbol", "main")))
    return Printer().value(value)


def function_lines(
    function: Function, name: str, module: str = "Module", constants: list[Constant] | None = None
) -> list[str]:
    """The lines of a function in a module; ``constants``, those met so far, is extended."""
    return Printer(module, constants).function(function, name)


def function_text(function: Function, name: str | None = None, **options: Any) -> str:
    """The text of a single function."""
    name = name or function.attrs.get("global_symbol", "main")
    return "\n".join(["# from smelt.script import relax as R", "", *function_lines(function, name)]) + "\n"


def canonical(function: Function) -> tuple[str, list[torch.Tensor]]:
    """A text that is equal for functions that differ only in names, and its constants."""
    printer = Printer()
    printer.canonical = True
    attrs = {key: value for key, value in function.attrs.items() if key not in ("global_symbol", "params")}
    marked = function.changed(attrs={**attrs, "global_symbol": "f"} if not function.private else attrs)
    lines = printer.function(marked, "f")
    return "\n".join(lines), [each.data for each in printer.constants]


def same_function(a: Function, b: Function) -> bool:
    """Whether two functions are equal except for names."""
    (first, left), (second, right) = canonical(a), canonical(b)
    return first == second and all(
        x.dtype == y.dtype and x.shape == y.shape and torch.equal(x, y)
        for x, y in zip(left, right, strict=True)
    )


__all__ = ["PrimFunc", "Printer", "annotation", "canonical", "expression", "function_lines", "function_text"]
