"""Functions rewritten: values for variables, dead bindings dropped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from smelt.relax.types import RelaxError
from smelt.relax.values import (
    BindingBlock,
    Call,
    DataflowBlock,
    DataflowVar,
    Expr,
    Function,
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
    """An expression with variables replaced by values; unchanged parts stay the same objects."""
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
    """The bindings that the value depends on; match_cast stays, because it checks."""
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


def check_scopes(function: Function, name: str, *, blocks: bool = True) -> None:
    """Check that every variable is a parameter, or bound before its use. Dataflow variables may only be used
    in dataflow blocks, with ``blocks`` each in its own.

    Raises:
        RelaxError: SM1302, with the variable's name.
    """

    def look(value: Any, known: set[Var]) -> None:
        if isinstance(value, If):
            look(value.cond, known)
            for branch in (value.true_branch, value.false_branch):
                inside(branch, set(known))
            return
        for var in variables(value) - known:
            hidden = isinstance(var, DataflowVar)
            why = "it is seen in its dataflow block alone" if hidden else "it is no parameter, nor bound"
            remedy = "use the result of emit_output" if hidden else f"add it to params: [{var.name_hint}]"
            what = f"{'Malformed AST: ' if hidden else ''}variable {var.name_hint} in function {name!r}"
            raise RelaxError("SM1302", what, why=why, remedy=remedy)

    def inside(body: SeqExpr, known: set[Var]) -> None:
        hidden: set[Var] = set()
        for block in body.blocks:
            if not blocks and isinstance(block, DataflowBlock):
                known |= hidden
            for binding in block.bindings:
                look(binding.value, known)
                known.add(binding.var)
            hidden |= {each.var for each in block.bindings if isinstance(each.var, DataflowVar)}
            known -= hidden
        look(body.body, known)

    inside(function.body, set(function.params))
