"""TorchScript's operators in Python: one table of those that PyTorch's dispatcher lacks (numbers, lists,
strings, queries of tensors). All others are called by name through ``torch.ops``.
"""

from __future__ import annotations

import builtins
import math
import re
import warnings
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch

_DTYPES = (
    *("uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "complex32"),
    *("complex64", "complex128", "bool", "qint8", "quint8", "qint32", "bfloat16"),
)
_LATER_DTYPES = (
    *("float8_e5m2", "float8_e4m3fn", "float8_e5m2fnuz", "float8_e4m3fnuz", "uint16", "uint32", "uint64"),
)
DTYPES: dict[int, torch.dtype] = {
    number: getattr(torch, name) for number, name in (*enumerate(_DTYPES), *enumerate(_LATER_DTYPES, 23))
}
"""The dtypes of the numbers in TorchScript's files (``c10::ScalarType``)."""
NUMBERS = {dtype: number for number, dtype in DTYPES.items()}
LAYOUTS = {0: torch.strided, 1: torch.sparse_coo, 2: torch.sparse_csr}
MEMORY_FORMATS = {
    0: torch.contiguous_format,
    1: torch.preserve_format,
    2: torch.channels_last,
    3: torch.channels_last_3d,
}
ENUMERATIONS: dict[str, dict[int, Any]] = {
    "ScalarType": DTYPES,
    "Layout": LAYOUTS,
    "MemoryFormat": MEMORY_FORMATS,
}
"""Types that are numbers in TorchScript and objects in Python."""


def dtype_of(number: int | None) -> torch.dtype | None:
    """The dtype of a TorchScript number."""
    return None if number is None else DTYPES[number]


def layout_of(number: int | None) -> torch.layout | None:
    """The layout of a TorchScript number."""
    return None if number is None else LAYOUTS[number]


def memory_format_of(number: int | None) -> torch.memory_format | None:
    """The memory format of a TorchScript number."""
    return None if number is None else MEMORY_FORMATS[number]


def not_none(value: Any) -> Any:
    """The value of an Optional, which must not be None.

    Raises:
        torch.jit.Error: it is None, with TorchScript's message.
    """
    if value is None:
        raise torch.jit.Error("Unwrapping null optional")
    return value


def copied(value: Any) -> Any:
    """A deep copy of a list or dict, as TorchScript makes it of Python's."""
    if isinstance(value, list):
        return [copied(each) for each in value]
    if isinstance(value, dict):
        return {key: copied(each) for key, each in value.items()}
    return value


NAMES: dict[str, Any] = {
    "torch": torch,
    "math": math,
    "builtins": builtins,
    "warnings": warnings,
    "dtype_of": dtype_of,
    "layout_of": layout_of,
    "memory_format_of": memory_format_of,
    "not_none": not_none,
    "copied": copied,
    "NUMBERS": NUMBERS,
}
"""The globals of generated functions."""

_BINARY = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "floordiv": "//",
    "remainder": "%",
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "pow": "**",
    "__and__": "&",
    "__or__": "|",
    "__xor__": "^",
    "__lshift__": "<<",
    "__rshift__": ">>",
    "__is__": "is",
    "__isnot__": "is not",
}
_MATH = (
    *("sqrt", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh"),
    *("exp", "expm1", "log", "log10", "log1p", "floor", "ceil", "gamma", "lgamma", "erf", "erfc", "degrees"),
    *("radians", "fabs", "isnan", "isinf", "isfinite", "factorial", "atan2", "copysign", "fmod", "gcd"),
)
_METHODS = (
    *("append", "insert", "pop", "remove", "clear", "extend", "copy", "reverse", "index", "count"),
    *("keys", "values", "items", "get", "setdefault", "popitem", "update"),
    *("upper", "lower", "capitalize", "title", "swapcase", "strip", "lstrip", "rstrip", "split", "rsplit"),
    *("splitlines", "join", "startswith", "endswith", "find", "rfind", "replace", "zfill", "center", "ljust"),
    *("rjust", "isdigit", "isalpha", "isalnum", "isspace", "islower", "isupper", "expandtabs", "partition"),
)
_FUNCTIONS = ("len", "str", "ord", "chr", "hash", "hex", "oct", "bin", "any", "all", "list", "dict", "sorted")

PLAIN: dict[str, str] = {
    **{f"aten::{name}": f"{{0}} {sign} {{1}}" for name, sign in _BINARY.items()},
    **{f"aten::{name}": f"math.{name}({{args}})" for name in _MATH},
    **{f"aten::{name}": f"{{0}}.{name}({{rest}})" for name in _METHODS},
    **{f"aten::{name}": f"{name}({{args}})" for name in _FUNCTIONS},
    "aten::neg": "-{0}",
    "aten::__not__": "not {0}",
    "aten::bitwise_not": "~{0}",
    "aten::__contains__": "{1} in {0}",
    "aten::__getitem__": "{0}[{1}]",
    "aten::_set_item": "{0}[{1}] = {2}",
    "aten::Delete": "del {0}[{1}]",
    "aten::slice": "{0}[{1}:{2}:{3}]",
    "aten::sort": "{0}.sort(reverse={1})",
    "aten::add_": "{0} + {1}",
    "aten::mathremainder": "math.remainder({0}, {1})",
    "aten::round": "float(round({0}))",
    "aten::Bool": "bool({0})",
    "aten::Int": "int({0})",
    "aten::Float": "float({0})",
    "aten::Complex": "complex({args})",
    "aten::format": "{0}.format({rest})",
    "aten::__range_length": "len(range({args}))",
    "aten::__derive_index": "{1} + {0} * {2}",
    "aten::_unwrap_optional": "not_none({0})",
    "aten::device": "torch.device({args})",
    "aten::is_scripting": "True",
    "aten::_get_tracing_state": "False",
    "aten::has_torch_function": "False",
    "aten::is_grad_enabled": "torch.is_grad_enabled()",
    "aten::set_grad_enabled": "torch._C._set_grad_enabled({0})",
    "aten::is_autocast_enabled": "torch.is_autocast_enabled('cuda')",
    "aten::is_autocast_cpu_enabled": "torch.is_autocast_enabled('cpu')",
    "aten::warn": "warnings.warn({0}, stacklevel={1})",
    "prim::unchecked_cast": "{0}",
    "prim::unchecked_unwrap_optional": "{0}",
    "prim::min": "min({args})",
    "prim::max": "max({args})",
    "prim::abs": "abs({0})",
    "prim::rangelist": "list(range({0}))",
    "prim::StringIndex": "{0}[{1}]",
    "prim::TupleIndex": "{0}[{1}]",
    "prim::TupleUnpack": "{0}",
    "prim::ListUnpack": "{0}",
    "prim::ListConstruct": "[{args}]",
    "prim::Print": "print({args})",
    "prim::Uninitialized": "None",
}
"""Operators without tensor arguments and results, for all overloads, and those of containers. ``{0}`` … are
the arguments, ``{args}`` all of them, ``{rest}`` all but the first.
"""

EXACT: dict[str, str] = {
    "aten::pow.int": "float({0} ** {1})",
    "aten::log.int_int": "math.log({0}, {1})",
    "aten::len.Tensor": "len({0})",
    "aten::Bool.Tensor": "bool({0})",
    "aten::Int.Tensor": "int({0})",
    "aten::Float.Tensor": "float({0})",
    "aten::Complex.Tensor": "complex({0})",
    "aten::IntImplicit": "{0}.item()",
    "aten::FloatImplicit": "{0}.item()",
    "aten::ComplexImplicit": "{0}.item()",
    "aten::ScalarImplicit": "{0}.item()",
    "aten::item": "{0}.item()",
    "aten::size": "list({0}.shape)",
    "aten::size.int": "{0}.size({1})",
    "aten::stride": "list({0}.stride())",
    "aten::stride.int": "{0}.stride({1})",
    "aten::storage_offset": "{0}.storage_offset()",
    "aten::dim": "{0}.dim()",
    "aten::numel": "{0}.numel()",
    "aten::element_size": "{0}.element_size()",
    "aten::is_floating_point": "{0}.is_floating_point()",
    "aten::is_complex": "{0}.is_complex()",
    "aten::is_signed": "{0}.is_signed()",
    "aten::is_contiguous": "{0}.is_contiguous()",
    "aten::get_device": "{0}.get_device()",
    "aten::tensor": "torch.tensor({args})",
    "aten::tensor.float": "torch.tensor({args})",
    "aten::tensor.int": "torch.tensor({args})",
    "aten::tensor.bool": "torch.tensor({args})",
    "aten::tensor.complex": "torch.tensor({args})",
    "aten::as_tensor": "torch.as_tensor({args})",
    "aten::as_tensor.list": "torch.as_tensor({args})",
    "aten::cpu": "{0}.cpu()",
    "aten::to.prim_Device": "{0}.to(device={1}, dtype=dtype_of({2}), non_blocking={3}, copy={4})",
    "aten::to.prim_dtype": "{0}.to(dtype=dtype_of({1}), non_blocking={2}, copy={3})",
    "aten::to.prim_other": "{0}",
    "prim::tolist": "{0}.tolist()",
    "aten::_convolution": "torch.ops.aten.convolution.default({0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}, {8})",
    "aten::add_.t": "{0}.__iadd__({1})",
    "prim::dtype": "NUMBERS[{0}.dtype]",
    "prim::device": "{0}.device",
    "prim::layout": "torch.ops.prim.layout({0})",
    "prim::shape": "list({0}.shape)",
    "prim::data": "{0}.detach()",
    "prim::requires_grad": "{0}.requires_grad",
    "prim::grad": "{0}.grad",
    "prim::itemsize": "{0}.itemsize",
    "prim::is_cuda": "{0}.is_cuda",
    "prim::is_cpu": "{0}.is_cpu",
    "prim::is_quantized": "{0}.is_quantized",
    "prim::is_nested": "{0}.is_nested",
    "prim::is_sparse": "{0}.is_sparse",
    "prim::is_meta": "{0}.is_meta",
    "prim::name": "{0}.name",
    "prim::type": "{0}.type",
    "prim::index": "{0}.index",
    "prim::mT": "{0}.mT",
    "prim::T": "{0}.T",
    "prim::H": "{0}.H",
}
"""Operators by name and overload, which have priority over `PLAIN`."""

READS = frozenset(
    {
        *("aten::Bool.Tensor", "aten::Int.Tensor", "aten::Float.Tensor", "aten::Complex.Tensor"),
        *("aten::IntImplicit", "aten::FloatImplicit", "aten::ComplexImplicit", "aten::ScalarImplicit"),
        *("aten::item", "aten::equal", "aten::allclose", "aten::is_nonzero", "aten::_local_scalar_dense"),
        *("prim::tolist", "prim::Print", "aten::warn"),
    }
)
"""Operators that read a tensor's data into Python, or print: compiled code ends before them."""

_OPERATORS = re.compile(r"\{(\d+|args|rest)\}")


def template_of(key: str, schema: Any) -> str | None:
    """The Python template of an operator; None if PyTorch's dispatcher has it, or it is unknown."""
    if key in EXACT:
        return EXACT[key]
    if schema is not None and any("Tensor" in str(each.type) for each in _both(schema)):
        return None
    return PLAIN.get(key.split(".")[0])


def _both(schema: Any) -> list[Any]:
    return [*schema.arguments, *schema.returns]


def filled(template: str, args: list[str], kwargs: dict[str, str] | None = None) -> str:
    """A template with its arguments, which are names or literals.

    >>> filled("{0} ** {1}", ["-1", "x"]), filled("{0}.find({rest})", ["x", "a", "b"])
    ('(-1) ** x', 'x.find(a, b)')
    """
    named = [f"{name}={text}" for name, text in (kwargs or {}).items()]

    def argument(match: re.Match[str]) -> str:
        which = match[1]
        if which.isdigit():
            text = args[int(which)]
            return f"({text})" if text.startswith("-") else text
        return ", ".join([*(args if which == "args" else args[1:]), *named])

    return _OPERATORS.sub(argument, template)


@lru_cache(maxsize=4096)
def overload(key: str) -> Any | None:
    """``torch.ops``' operator of that name and overload; None if there is none.

    >>> overload("aten::add.Tensor"), overload("prim::fork") is None
    (<OpOverload(op='aten.add', overload='Tensor')>, True)
    """
    name, _, which = key.partition(".")
    namespace, _, operator = name.partition("::")
    try:
        return getattr(getattr(getattr(torch.ops, namespace), operator), which or "default")
    except (AttributeError, RuntimeError):
        return None


@lru_cache(maxsize=1024)
def function_of(template: str, count: int) -> Callable[..., Any]:
    """A template as a function of its arguments (statements give None)."""
    names = [f"a{place}" for place in range(count)]
    text = filled(template, names)
    statement = text.startswith("del ") or "] = " in text
    body = text if statement else f"return {text}"
    scope = dict(NAMES)
    exec(f"def function({', '.join(names)}): {body}", scope)
    found: Callable[..., Any] = scope["function"]
    return found
