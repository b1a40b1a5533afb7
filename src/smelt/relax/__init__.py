"""`smelt.relax`: programs of tensors, written by hand, imported, or read from a script; built and called."""

from smelt.relax import frontend, transform
from smelt.relax.build import Executable, VirtualMachine, build, program_of
from smelt.relax.builder import BlockBuilder
from smelt.relax.operators import op
from smelt.relax.parse import from_source
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
)
from smelt.relax.values import (
    BindingBlock,
    Call,
    Constant,
    DataflowBlock,
    DataflowVar,
    Expr,
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
    VarBinding,
    call_tir,
    const,
    get_shape_of,
)
from smelt.script.module import GlobalVar

Type, TensorType, ShapeType, TupleType = StructInfo, TensorStructInfo, ShapeStructInfo, TupleStructInfo
ObjectType, FuncType, PrimType = ObjectStructInfo, FuncStructInfo, PrimStructInfo


def DynTensorType(ndim: int = -1, dtype: str = "float32") -> TensorStructInfo:  # noqa: N802  (TVM's name)
    """A tensor type with rank and dtype but without sizes."""
    return TensorStructInfo(None, dtype, ndim=ndim)


__all__ = [
    "BindingBlock",
    "BlockBuilder",
    "Call",
    "Constant",
    "DataflowBlock",
    "DataflowVar",
    "DynTensorType",
    "Executable",
    "Expr",
    "ExternFunc",
    "FuncStructInfo",
    "FuncType",
    "Function",
    "GlobalVar",
    "If",
    "MatchCast",
    "ObjectStructInfo",
    "ObjectType",
    "PrimStructInfo",
    "PrimType",
    "PrimValue",
    "RelaxError",
    "SeqExpr",
    "ShapeExpr",
    "ShapeStructInfo",
    "ShapeType",
    "StringImm",
    "StructInfo",
    "TensorStructInfo",
    "TensorType",
    "Tuple",
    "TupleGetItem",
    "TupleStructInfo",
    "TupleType",
    "Type",
    "Var",
    "VarBinding",
    "VirtualMachine",
    "build",
    "call_tir",
    "const",
    "dtype_name",
    "from_source",
    "frontend",
    "get_shape_of",
    "op",
    "program_of",
    "transform",
]
