"""Parsers of single words of a relax script: ``R.call_tir``, ``R.const``, ``R.shape`` and others."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from smelt.relax.builder import BlockBuilder
from smelt.relax.types import RelaxError
from smelt.relax.values import Call, ExternFunc, PrimValue, ShapeExpr, StringImm, Tuple, call_tir, const
from smelt.script.module import GlobalVar, IRModule

if TYPE_CHECKING:
    from smelt.relax.parse import Parser


class ScriptError(RelaxError):
    """An invalid relax script. ``node``: the place of the error."""

    node: ast.AST | None = None


def arguments(node: ast.expr) -> list[ast.expr]:
    return list(node.args) if isinstance(node, ast.Call) else []


def keywords(node: ast.expr) -> dict[str, ast.expr]:
    return {each.arg: each.value for each in node.keywords if each.arg} if isinstance(node, ast.Call) else {}


def _call_tir(parser: Parser, node: ast.Call) -> Any:
    named = keywords(node)
    args = list(node.args)
    func = parser.value(args[0])
    if not isinstance(func, GlobalVar):
        raise parser.error(args[0], "call_tir calls a function of the module", "write cls.name")
    out = named.get("out_sinfo", named.get("out_ty", args[2] if len(args) > 2 else None))
    if out is None:
        raise parser.error(
            node, "call_tir without out_sinfo", 'add out_sinfo=R.Tensor((2, 3), dtype="float32")'
        )
    infos = (
        [parser.info(each) for each in out.elts]
        if isinstance(out, (ast.List, ast.Tuple))
        else parser.info(out)
    )
    more = parser.value(named["tir_vars"]) if "tir_vars" in named else None
    values = parser.value(args[1])
    return call_tir(func, parser.leaf(values, node), infos, more)


def _emit_te(parser: Parser, node: ast.Call) -> Any:
    """Call a te function from outside of the script; its PrimFunc joins the module."""
    named = {str(each.arg): parser.literal(each.value) for each in node.keywords}
    made = parser.value(node.args[0])
    if not callable(made):
        raise parser.error(node, "emit_te of no function", "name a te function")
    builder = BlockBuilder(IRModule(parser.functions))
    call = builder.call_te(made, *[parser.value(each) for each in node.args[1:]], **named)
    parser.functions.update({str(var): each for var, each in builder.get().items()})
    return call


def _const(parser: Parser, node: ast.Call) -> Any:
    args = [parser.literal(each) for each in node.args]
    dtype = keywords(node).get("dtype")
    return const(args[0], args[1] if len(args) > 1 else None if dtype is None else parser.literal(dtype))


def _dtype(parser: Parser, node: ast.Call) -> Any:
    return getattr(torch, parser.literal(node.args[0]))


_TORCH = {str(each): each for each in (torch.strided, torch.contiguous_format, torch.preserve_format)}


def _text(parser: Parser, node: ast.Call) -> Any:
    value = parser.literal(node.args[0])
    if value in _TORCH:
        return _TORCH[value]
    return torch.device("cpu") if value == "cpu" else StringImm(value)


def _packed(parser: Parser, node: ast.Call) -> Any:
    name, *args = node.args
    named = keywords(node)
    infos = named.get("sinfo_args", named.get("ty_args", named.get("out_sinfo", named.get("out_ty"))))
    if infos is None and parser._name(node) == "R.call_dps_packed":
        *args, infos = args
    listed = infos.elts if isinstance(infos, (ast.Tuple, ast.List)) else [infos] if infos is not None else []
    function = ExternFunc(parser.literal(name))
    return Call(function, [parser.value(each) for each in args], {}, [parser.info(each) for each in listed])


CALLS: dict[str, Callable[[Parser, ast.Call], Any]] = {
    "R.call_tir": _call_tir,
    "R.const": _const,
    "R.emit_te": _emit_te,
    "R.shape": lambda parser, node: ShapeExpr(parser.shape(node.args[0])),
    "R.prim_value": lambda parser, node: PrimValue(parser.literal(node.args[0])),
    "R.str": _text,
    "R.dtype": _dtype,
    "R.tuple": lambda parser, node: Tuple([parser.value(each) for each in node.args]),
    "R.null_value": lambda parser, node: StringImm(None),
    "R.ExternFunc": lambda parser, node: ExternFunc(parser.literal(node.args[0])),
    "R.call_packed": _packed,
    "R.call_pure_packed": _packed,
    "R.call_dps_packed": _packed,
    "float": lambda parser, node: float(parser.literal(node.args[0])),
}

__all__ = ["CALLS", "ScriptError", "arguments", "keywords"]
