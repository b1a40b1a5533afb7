"""``tvm.te``."""

from smelt.te import *
from smelt.te import (
    ComputeOp,
    IterVar,
    PlaceholderOp,
    Tensor,
    all,
    any,
    argmax,
    argmin,
    comm_reducer,
    compute,
    create_prim_func,
    extern,
    extern_primfunc,
    max,
    min,
    placeholder,
    prod,
    reduce_axis,
    scan,
    size_var,
    sum,
    tag,
    tag_scope,
    tensor,
    var,
)

__all__ = [
    *("ComputeOp", "IterVar", "PlaceholderOp", "Tensor", "all", "any", "argmax", "argmin", "comm_reducer"),
    *("compute", "create_prim_func", "extern", "extern_primfunc", "max", "min", "placeholder", "prod"),
    *("reduce_axis", "scan", "size_var", "sum", "tag", "tag_scope", "tensor", "var"),
]
