"""The `ops` protocol: the operations of loop functions. `smelt.ops.table` lists the elementwise operators."""

from smelt.ops.handler import Handler, current, ops, using
from smelt.ops.table import TABLE, OpSpec, Rule, result_dtype

__all__ = ["TABLE", "Handler", "OpSpec", "Rule", "current", "ops", "result_dtype", "using"]
