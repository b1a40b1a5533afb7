"""Functions rewritten: values for variables, dead bindings dropped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from smelt.relax.values import (
    BindingBlock,
    Call,
    Expr,
    If,
    MatchCast,
    SeqExpr,
    Tuple,
    TupleGetItem,
    Var,
    VarBinding,
    parts_of,
)
from smelt.script.module import GlobalVar


def substituted(value: Any, values: Mapping[Any, Any]) -> Any:
    """An expression with other values for variables; what does not change is the same object."""
    if isinstance(value, (Var, GlobalVar)):
        return values.get(value, value)
    if isinstance(value, SeqExpr):
        blocks = [type(block)([_binding(each, values) for each in block.bindings]) for block in value.blocks]
        return SeqExpr(blocks, substituted(value.body, values))
    if isinstance(value, Tuple):
        fields = [substituted(each, values) for each in value.fields]
        return value if all(a is b for a, b in zip(fields, value.fields)) else Tuple(fields)
    if isinstance(value, TupleGetItem):
        inner = substituted(value.tuple_value, values)
        return value if inner is value.tuple_value else TupleGetItem(inner, value.index)
    if isinstance(value, If):
        parts = (substituted(each, values) for each in (value.cond, value.true_branch, value.false_branch))
        return as_known(If(*parts), value)
    if isinstance(value, Call):
        args = [substituted(each, values) for each in value.args]
        attrs = {key: substituted(each, values) for key, each in value.attrs.items()}
        same = value.op not in values if isinstance(value.op, GlobalVar) else True
        same = same and all(a is b for a, b in zip(args, value.args))
        if same and all(attrs[k] is value.attrs[k] for k in attrs):
            return value
        called = values.get(value.op, value.op) if isinstance(value.op, (Var, GlobalVar)) else value.op
        return as_known(Call(called, args, attrs, value.sinfo_args), value)
    if isinstance(value, (list, tuple)):
        found = [substituted(each, values) for each in value]
        return value if all(a is b for a, b in zip(found, value)) else type(value)(found)
    return value


def as_known(made: Expr, value: Expr) -> Expr:
    made.struct_info_ = value.struct_info_
    return made


def _binding(binding: Any, values: Mapping[Any, Any]) -> Any:
    value = substituted(binding.value, values)
    if isinstance(binding, MatchCast):
        return MatchCast(binding.var, value, binding.struct_info)
    return VarBinding(binding.var, value)


def variables(value: Any) -> set[Var]:
    """The variables in an expression."""
    if isinstance(value, Var):
        return {value}
    return {var for each in parts_of(value) for var in variables(each)}


def without_dead(body: SeqExpr) -> SeqExpr:
    """The bindings that the value depends on; match_cast stays, it checks."""
    used = variables(body.body)
    blocks: list[BindingBlock] = []
    for block in reversed(body.blocks):
        kept: list[Any] = []
        for binding in reversed(block.bindings):
            if isinstance(binding, MatchCast) or binding.var in used:
                kept.append(binding)
                used |= variables(binding.value)
        if kept:
            blocks.append(type(block)(kept[::-1]))
    return SeqExpr(blocks[::-1], body.body)
