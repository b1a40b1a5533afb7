"""Expressions of a relax function: variables, constants, calls, tuples; blocks of bindings; functions.

A function is a list of bindings, each of which corresponds to a node of an FX graph of ATen calls (see
`smelt.relax.program`). The names are TVM's, current ones and those of 2024.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from sympy import Expr as Size

from smelt.records import dataclass, field
from smelt.relax.types import (
    FuncStructInfo,
    ObjectStructInfo,
    PrimStructInfo,
    RelaxError,
    ShapeStructInfo,
    StructInfo,
    TensorStructInfo,
    TupleStructInfo,
    dtype_name,
    size_of,
    torch_dtype,
)
from smelt.script.module import GlobalVar, show


class Expr:
    """A value of a relax function. Operators create calls: ``x + y`` is ``relax.op.add(x, y)``.

    ``struct_info`` (also ``ty``): its struct info, None before normalization.
    """

    struct_info_: StructInfo | None

    @property
    def struct_info(self) -> StructInfo:
        if self.struct_info_ is None:
            from smelt.relax.infer import infer

            self.struct_info_ = infer(self)
        return self.struct_info_

    @property
    def ty(self) -> StructInfo:
        return self.struct_info

    @property
    def shape(self) -> Any:
        """The sizes of a tensor, as a ShapeExpr."""
        return getattr(self.struct_info, "shape", None)

    @property
    def dtype(self) -> str | None:
        return getattr(self.struct_info, "dtype", None)

    def same_as(self, other: Any) -> bool:
        return self is other

    def astype(self, dtype: str) -> Expr:
        return _call("astype", self, dtype=dtype)

    def __neg__(self) -> Expr:
        return _call("negative", self)

    def __add__(self, other: Any) -> Expr:
        return _call("add", self, other)

    def __radd__(self, other: Any) -> Expr:
        return _call("add", other, self)

    def __sub__(self, other: Any) -> Expr:
        return _call("subtract", self, other)

    def __rsub__(self, other: Any) -> Expr:
        return _call("subtract", other, self)

    def __mul__(self, other: Any) -> Expr:
        return _call("multiply", self, other)

    def __rmul__(self, other: Any) -> Expr:
        return _call("multiply", other, self)

    def __truediv__(self, other: Any) -> Expr:
        return _call("divide", self, other)

    def __rtruediv__(self, other: Any) -> Expr:
        return _call("divide", other, self)

    def __floordiv__(self, other: Any) -> Expr:
        return _call("floor_divide", self, other)

    def __mod__(self, other: Any) -> Expr:
        return _call("mod", self, other)

    def __pow__(self, other: Any) -> Expr:
        return _call("power", self, other)

    def __lt__(self, other: Any) -> Expr:
        return _call("less", self, other)

    def __gt__(self, other: Any) -> Expr:
        return _call("greater", self, other)

    def __le__(self, other: Any) -> Expr:
        return _call("less_equal", self, other)

    def __ge__(self, other: Any) -> Expr:
        return _call("greater_equal", self, other)

    def __getitem__(self, index: int) -> Expr:
        info = self.struct_info
        if isinstance(info, TupleStructInfo) and not -len(info.fields) <= index < len(info.fields):
            raise IndexError(f"element {index} of a tuple of {len(info.fields)}")
        if not isinstance(info, (TupleStructInfo, ObjectStructInfo)):
            raise RelaxError("SM1304", f"{self} is no tuple", remedy="take parts of tensors by strided_slice")
        return TupleGetItem(self, index)

    def __iter__(self) -> Iterator[Expr]:
        info = self.struct_info
        if not isinstance(info, TupleStructInfo):
            raise TypeError(f"{self} is no tuple")
        return (TupleGetItem(self, index) for index in range(len(info.fields)))

    def __str__(self) -> str:
        from smelt.relax.text import expression

        return expression(self)


def _call(name: str, *args: Any, **attrs: Any) -> Expr:
    from smelt.relax.operators import OPERATORS

    tensor = next(each for each in args if isinstance(each, Expr))
    made: Expr = OPERATORS[name](*[_like(each, tensor) for each in args], **attrs)
    return made


def _like(value: Any, tensor: Expr) -> Any:
    """A number next to a tensor becomes a constant of the tensor's dtype."""
    return const(value, tensor.dtype) if isinstance(value, (bool, int, float)) else value


class Var(Expr):
    """A variable: a parameter, or the name of a binding."""

    def __init__(self, name_hint: str, struct_info: StructInfo | None = None, span: Any = None) -> None:
        self.name_hint = name_hint
        self.struct_info_ = ObjectStructInfo() if struct_info is None else struct_info

    @property
    def name(self) -> str:
        return self.name_hint

    @property
    def vid(self) -> Var:
        return self

    def __repr__(self) -> str:
        return self.name_hint


class DataflowVar(Var):
    """A variable that is not visible outside of its dataflow block."""


class Constant(Expr):
    """A tensor constant: ``data`` (a torch tensor, which has ``numpy()``).

    ``number``: its value, if it has no dimensions.
    """

    def __init__(self, data: torch.Tensor, struct_info: StructInfo | None = None) -> None:
        self.data = data
        self.number = data.item() if data.dim() == 0 else None
        self.struct_info_ = TensorStructInfo(tuple(data.shape), data.dtype)

    @property
    def value(self) -> torch.Tensor:
        return self.data


def const(value: Any, dtype: Any = None) -> Constant:
    """A constant: a number, a list, an array or a tensor. ``dtype``: its name, or a ``DynTensorType``.

    A Python float is float32, an int is int32, as in TVM. Arrays are not copied.

    >>> const(1.5).struct_info == TensorStructInfo((), "float32")
    True
    """
    name = dtype_name(dtype)
    if name is None and isinstance(value, (bool, int, float)):
        name = {bool: "bool", int: "int32", float: "float32"}[type(value)]
    wanted = None if name is None else torch_dtype(name)
    if isinstance(value, torch.Tensor):
        data = value.detach() if wanted is None else value.detach().to(wanted)
    else:
        data = torch.as_tensor(
            getattr(value, "data", value) if isinstance(value, Constant) else value, dtype=wanted
        )
    return Constant(data)


class ShapeExpr(Expr):
    """A shape given by its sizes, which may contain variables."""

    def __init__(self, values: Iterable[Any]) -> None:
        self.values = tuple(size_of(each) for each in values)
        self.struct_info_ = ShapeStructInfo(self.values)

    def __getitem__(self, index: Any) -> Any:
        return self.values[index]

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values)

    def __eq__(self, other: object) -> bool:
        return (
            list(self.values) == list(other)
            if isinstance(other, (ShapeExpr, tuple, list))
            else NotImplemented
        )

    def __hash__(self) -> int:
        return hash(self.values)


class PrimValue(Expr):
    """A number that is no tensor."""

    def __init__(self, value: Any) -> None:
        self.value = value if isinstance(value, (bool, float)) else size_of(value)
        kinds = {bool: "bool", float: "float64"}
        self.struct_info_ = PrimStructInfo(kinds.get(type(self.value), "int64"), self.value)


class StringImm(Expr):
    """A text; the value None means no value at all."""

    def __init__(self, value: str | None) -> None:
        self.value = value
        self.struct_info_ = ObjectStructInfo()


class Tuple(Expr):
    """Several values as one."""

    def __init__(self, fields: Iterable[Any]) -> None:
        self.fields = tuple(convert(each) for each in fields)
        self.struct_info_ = None

    def __getitem__(self, index: int) -> Expr:
        return self.fields[index]

    def __iter__(self) -> Iterator[Expr]:
        return iter(self.fields)

    def __len__(self) -> int:
        return len(self.fields)


class TupleGetItem(Expr):
    """An element of a tuple."""

    def __init__(self, tuple_value: Expr, index: int) -> None:
        self.tuple_value, self.index = tuple_value, index
        info = tuple_value.struct_info
        self.struct_info_ = info.fields[index] if isinstance(info, TupleStructInfo) else ObjectStructInfo()


class ExternFunc(Expr):
    """A function known by name only: programs that call it cannot be compiled."""

    def __init__(self, global_symbol: str, struct_info: StructInfo | None = None) -> None:
        self.global_symbol = global_symbol
        self.struct_info_ = struct_info or ObjectStructInfo()


class Attrs(dict[str, Any]):
    """A call's attributes, by key or as properties."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


class Call(Expr):
    """``op(*args, **attrs)``. ``op``: an operator, a function of the module, or `CALL_TIR`.

    ``sinfo_args``: the struct info of the result of a call_tir, or of a call of an unknown function.
    """

    def __init__(
        self,
        op: Any,
        args: Sequence[Any],
        attrs: Mapping[str, Any] | None = None,
        sinfo_args: Sequence[StructInfo] = (),
    ) -> None:
        self.op = op
        self.args = tuple(args)
        self.attrs = Attrs(attrs or {})
        self.sinfo_args = tuple(sinfo_args)
        self.struct_info_ = None

    @property
    def ty_args(self) -> tuple[StructInfo, ...]:
        return self.sinfo_args


@dataclass(frozen=True, slots=True)
class _Named:
    name: str


CALL_TIR = _Named("relax.call_tir")
"""The operator of calls of a PrimFunc: ``Call(CALL_TIR, (var, Tuple(args)), sinfo_args=(out,))``."""


def call_tir(gvar: GlobalVar, args: Any, out_sinfo: Any = None, tir_vars: Any = None, **named: Any) -> Call:
    """A call of a PrimFunc; its results are new tensors of ``out_sinfo`` (also ``out_ty``), one or a list."""
    out = named.pop("out_ty", out_sinfo)
    if named or out is None:
        what = f"call_tir({', '.join(named) or 'no out_sinfo'})"
        raise RelaxError("SM1304", what, remedy="give gvar, args and out_sinfo")
    if not isinstance(args, Tuple):
        args = Tuple(args if isinstance(args, (tuple, list)) else [args])
    info = TupleStructInfo(out) if isinstance(out, (tuple, list)) and len(out) != 1 else out
    info = info[0] if isinstance(info, (tuple, list)) else info
    more = () if tir_vars is None else (convert(tir_vars),)
    return Call(CALL_TIR, (gvar, args, *more), sinfo_args=(info,))


def convert(value: Any) -> Any:
    """A Python value as an expression: numbers, texts, nested lists and tuples, te placeholders."""
    if isinstance(value, (Expr, GlobalVar)):
        return value
    if isinstance(value, (list, tuple)):
        return Tuple(value)
    if value is None or isinstance(value, str):
        return StringImm(value)
    if isinstance(value, (bool, int, float, Size)) or isinstance(getattr(value, "expr", None), Size):
        return PrimValue(value)
    if isinstance(value, torch.Tensor) or type(value).__module__ == "numpy":
        return const(value)
    raise RelaxError("SM1304", f"a {type(value).__name__} is no relax value", remedy="wrap it in relax.const")


@dataclass(eq=False)
class VarBinding:
    """``var = value``."""

    var: Var
    value: Any


@dataclass(eq=False)
class MatchCast:
    """``var = match_cast(value, struct_info)``: checked at run time."""

    var: Var
    value: Any
    struct_info: StructInfo

    @property
    def ty(self) -> StructInfo:
        return self.struct_info


Binding = VarBinding | MatchCast


@dataclass(eq=False)
class BindingBlock:
    """Bindings in order."""

    bindings: list[Binding] = field(default_factory=list)


@dataclass(eq=False)
class DataflowBlock(BindingBlock):
    """Bindings without effects; its DataflowVars are not visible outside."""


class SeqExpr(Expr):
    """Blocks of bindings, and the result value."""

    def __init__(self, blocks: Iterable[BindingBlock], body: Any) -> None:
        self.blocks, self.body = list(blocks), convert(body)
        self.struct_info_ = None

    @property
    def bindings(self) -> Iterator[Binding]:
        return (binding for block in self.blocks for binding in block.bindings)


class If(Expr):
    """A conditional: a tensor of one element selects the branch. Variables of a branch are local."""

    def __init__(self, cond: Any, true_branch: Any, false_branch: Any, span: Any = None) -> None:
        self.cond = convert(cond)
        self.true_branch, self.false_branch = (
            each if isinstance(each, SeqExpr) else SeqExpr([], each) for each in (true_branch, false_branch)
        )
        self.struct_info_ = None


class Function(Expr):
    """A function of tensors. ``captured``: the imported program, while the function is unchanged."""

    def __init__(
        self,
        params: Iterable[Var],
        body: Any,
        ret_struct_info: StructInfo | None = None,
        is_pure: bool = True,
        attrs: Mapping[str, Any] | None = None,
        captured: Any = None,
    ) -> None:
        self.params = list(params)
        self.body = body if isinstance(body, SeqExpr) else SeqExpr([], body)
        self.ret_struct_info = ret_struct_info or self.body.body.struct_info
        self.is_pure = is_pure
        self.attrs = dict(attrs or {})
        self.captured = captured
        self.struct_info_ = FuncStructInfo([each.struct_info for each in self.params], self.ret_struct_info)

    @property
    def private(self) -> bool:
        return "global_symbol" not in self.attrs

    @property
    def ret_ty(self) -> StructInfo:
        return self.ret_struct_info

    def with_attr(self, key: str | Mapping[str, Any], value: Any = None) -> Function:
        """The function with one more attribute, or several from a mapping."""
        added = {key: value} if isinstance(key, str) else dict(key)
        return self.changed(attrs={**self.attrs, **added}, captured=self.captured)

    def without_attr(self, key: str) -> Function:
        kept = {name: value for name, value in self.attrs.items() if name != key}
        return self.changed(attrs=kept, captured=self.captured)

    def changed(self, **changes: Any) -> Function:
        """The function with some parts changed; it no longer has the captured program."""
        parts = {
            name: getattr(self, name) for name in ("params", "body", "ret_struct_info", "is_pure", "attrs")
        }
        return Function(**{**parts, **changes})

    def bind_params(self, values: Mapping[Any, Any]) -> Function:
        """The function with values for some parameters, given by variable or name."""
        from smelt.relax.rewrite import substituted

        by_name = {each.name_hint: each for each in self.params}
        found = {
            by_name[key] if isinstance(key, str) else key: convert(value) for key, value in values.items()
        }
        params = [each for each in self.params if each not in found]
        return self.changed(params=params, body=substituted(self.body, found))

    def __eq__(self, other: object) -> bool:
        from smelt.relax.text import same_function

        return self is other or (isinstance(other, Function) and same_function(self, other))

    def __hash__(self) -> int:
        return hash((len(self.params), self.is_pure, self.private))

    def script_lines(self, name: str, dialect: str = "tvm") -> list[str]:
        """The lines of its text, under this name, not indented."""
        from smelt.relax.text import function_lines

        return function_lines(self, name)

    def canonical_lines(self) -> list[str]:
        """Lines that are equal for functions that differ only in names."""
        from smelt.relax.text import canonical

        text, constants = canonical(self)
        return [*text.splitlines(), *(f"constant {digest(each)}" for each in constants)]

    def script(self, **options: Any) -> str:
        from smelt.relax.text import function_text

        return function_text(self, **options)

    def show(self, **options: Any) -> None:
        """Print the text, in colours on a terminal."""
        show(self.script(**options))


def digest(tensor: torch.Tensor) -> str:
    """The sha256 (hex) of a tensor's contents."""
    data = tensor.detach().cpu().contiguous()
    raw = data.reshape(-1).view(torch.uint8).numpy().tobytes()
    return hashlib.sha256(f"{data.dtype} {tuple(data.shape)}".encode() + raw).hexdigest()


def get_shape_of(expr: Expr) -> Any:
    """The ShapeExpr of a tensor."""
    return expr.shape


def parts_of(value: Any) -> Iterable[Any]:
    """The parts of an expression, or of a plain value: one level."""
    if isinstance(value, Tuple):
        return value.fields
    if isinstance(value, TupleGetItem):
        return (value.tuple_value,)
    if isinstance(value, Call):
        return (value.op, *value.args, *value.attrs.values())
    if isinstance(value, If):
        return (value.cond, value.true_branch, value.false_branch)
    if isinstance(value, SeqExpr):
        return (*(binding.value for binding in value.bindings), value.body)
    return value if isinstance(value, (list, tuple)) else ()
