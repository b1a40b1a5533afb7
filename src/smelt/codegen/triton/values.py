"""Values in Triton: blocks of two dimensions, of which either may be 1."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from smelt.errors import Unsupported
from smelt.ops import TABLE, Handler
from smelt.ops.table import result_dtype
from smelt.records import dataclass
from smelt.symbolic import Expr

TYPES = {
    torch.float32: "tl.float32",
    torch.float64: "tl.float64",
    torch.float16: "tl.float16",
    torch.bfloat16: "tl.bfloat16",
    torch.int8: "tl.int8",
    torch.int16: "tl.int16",
    torch.int32: "tl.int32",
    torch.int64: "tl.int64",
    torch.uint8: "tl.uint8",
    torch.bool: "tl.int1",
}
LOW = (torch.float16, torch.bfloat16)

_SIGNS = {"add": "+", "sub": "-", "mul": "*", "bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^"}
_SIGNS |= {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "logical_xor": "!="}
_SIGNS |= {"logical_and": "&", "logical_or": "|"}
_TEXTS = {name: f"({{0}} {sign} {{1}})" for name, sign in _SIGNS.items()} | {
    "neg": "(-{0})",
    "abs": "tl.abs({0})",
    "logical_not": "({0} == 0)",
    "maximum": "maximum({0}, {1})",
    "minimum": "minimum({0}, {1})",
    "where": "tl.where({0}, {1}, {2})",
    "isnan": "({0} != {0})",
    "isinf": '(tl.abs({0}) == float("inf"))',
    "exp": "tl.exp({0})",
    "exp2": "tl.exp2({0})",
    "log": "tl.log({0})",
    "log2": "tl.log2({0})",
    "sin": "tl.sin({0})",
    "cos": "tl.cos({0})",
    "erf": "tl.erf({0})",
    "floor": "tl.floor({0})",
    "ceil": "tl.ceil({0})",
    "round": "libdevice.rint({0})",
    "reciprocal": "(1.0 / {0})",
    "sign": "sign({0})",
    "signbit": "(libdevice.signbit({0}) != 0)",
    "sigmoid": "(1.0 / (1.0 + tl.exp(-{0})))",
    "ndtr": "(0.5 * libdevice.erfc(-0.70710678118654752440 * {0}))",
    "fmax": "tl.where({0} != {0}, {1}, tl.where({1} != {1}, {0}, tl.maximum({0}, {1})))",
    "fmin": "tl.where({0} != {0}, {1}, tl.where({1} != {1}, {0}, tl.minimum({0}, {1})))",
    "digamma": "digamma({0})",
    "philox": "philox({0}, {1}, {2})",
    "int_pow": "int_pow({0}, {1})",
    "fma": "tl.fma({0}, {1}, {2})",
}
_ONE = "expm1 log10 log1p tan asin acos atan sinh cosh tanh asinh acosh atanh erfc erfinv lgamma trunc"
_TWO = "pow atan2 hypot copysign nextafter"
_TEXTS |= {name: f"libdevice.{name}({{0}})" for name in _ONE.split()}
_TEXTS |= {name: f"libdevice.{name}({{0}}, {{1}})" for name in _TWO.split()}


@dataclass(frozen=True, slots=True)
class Value:
    """The text of a value, and its dtype."""

    text: str
    dtype: torch.dtype


class Values(Handler):
    """Prints the expression of each value. ``load``, ``place`` and ``masked`` belong to the kernel.
    ``shape``: that of constants.
    """

    def __init__(self, index: Callable[[Expr], str], shape: Sequence[int] = (1, 1)) -> None:
        self.index, self.shape = index, shape

    def elementwise(self, name: str, *args: Value) -> Value:
        dtype = result_dtype(TABLE[name], [arg.dtype for arg in args])
        operand = args[-1].dtype
        texts = [arg.text for arg in args]
        if operand in LOW and name != "where":
            texts = [f"{text}.to(tl.float32)" for text in texts]
        text = self._text(name, operand).format(*texts)
        if operand in LOW and name != "where" and dtype is operand:
            text = f"{text}.to({TYPES[dtype]})"
        return Value(text, dtype)

    def _text(self, name: str, dtype: torch.dtype) -> str:
        whole = not dtype.is_floating_point
        bits = torch.iinfo(dtype).bits if whole and dtype is not torch.bool else 0
        if name in ("fmod", "remainder", "floordiv", "truediv", "truncdiv"):
            return _division(name, dtype)
        if name in ("lshift", "rshift"):
            return f"shift_{'left' if name == 'lshift' else 'right'}({{0}}, {{1}}, {bits})"
        if name == "bitwise_not":
            return "({0} == 0)" if dtype is torch.bool else "(~{0})"
        if name == "sqrt":
            return "tl.sqrt_rn({0})" if dtype is not torch.float64 else "tl.sqrt({0})"
        if name == "rsqrt":
            return f"(1.0 / {self._text('sqrt', dtype)})"
        if name in ("maximum", "minimum") and dtype is torch.bool:
            return "({0} | {1})" if name == "maximum" else "({0} & {1})"
        if name not in _TEXTS:
            raise Unsupported(f"Triton has no {name}")
        return _TEXTS[name]

    def constant(
        self, value: float | int | bool, dtype: torch.dtype, shape: Sequence[int] | None = None
    ) -> Value:
        """A block of equal numbers."""
        shape = self.shape if shape is None else shape
        number = repr(float(value)) if dtype.is_floating_point else repr(int(value))
        if number in ("inf", "-inf", "nan"):
            number = f'float("{number}")'
        return Value(f"tl.full({list(shape)}, {number}, {among(dtype)})", dtype)

    def index_expr(self, expr: Expr, dtype: torch.dtype) -> Value:
        return Value(f"({self.index(expr)}).to({among(dtype)})", dtype)

    def to_dtype(self, x: Value, dtype: torch.dtype) -> Value:
        if dtype is torch.bool:  # the interpreter compares bfloat16's bits
            return Value(f"({x.text}{'.to(tl.float32)' if x.dtype in LOW else ''} != 0)", dtype)
        return Value(f"{x.text}.to({among(dtype)})", dtype)

    def bitcast(self, x: Value, dtype: torch.dtype) -> Value:
        return Value(f"{x.text}.to({among(dtype)}, bitcast=True)", dtype)


def _division(name: str, dtype: torch.dtype) -> str:
    if name == "truediv":
        return "({0} / {1})" if dtype is torch.float64 else "tl.div_rn({0}, {1})"
    if name == "truncdiv":
        return "({0} // {1})"
    if name == "fmod":
        return "libdevice.fmod({0}, {1})" if dtype.is_floating_point else "({0} % {1})"
    whole = not dtype.is_floating_point
    return {
        "remainder": "floor_mod" if whole else "remainder",
        "floordiv": "floor_div" if whole else "floordiv",
    }[name] + "({0}, {1})"


def among(dtype: torch.dtype) -> str:
    """Triton's name of a dtype.

    Raises:
        Unsupported: there is none.
    """
    if dtype not in TYPES:
        raise Unsupported(f"Triton has no {dtype}")
    return TYPES[dtype]
