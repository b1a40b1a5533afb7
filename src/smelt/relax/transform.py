"""Passes over modules: `LegalizeOps()(mod)`. A pass is a function of modules; `Sequential` chains them.

TVM's passes for fusion, memory planning and layout have no counterpart here: smelt's compiler does that when
a module is built.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from smelt.relax.builder import BlockBuilder
from smelt.relax.evaluate import Evaluator
from smelt.relax.legalize import legalized
from smelt.relax.operators import AtenOperator, Operator
from smelt.relax.rewrite import as_known, substituted, variables, without_dead
from smelt.relax.types import RelaxError, TensorStructInfo
from smelt.relax.values import (
    CALL_TIR,
    BindingBlock,
    Call,
    Constant,
    Function,
    If,
    SeqExpr,
    Tuple,
    Var,
    VarBinding,
    const,
    parts_of,
)
from smelt.script.module import GlobalVar, IRModule

Customize = Callable[[BlockBuilder, Call], Any]


class Pass:
    """A function of modules. It does not change its argument."""

    def __init__(self, name: str, run: Callable[[IRModule], IRModule]) -> None:
        self.name, self.run = name, run

    def __call__(self, mod: IRModule) -> IRModule:
        if not isinstance(mod, IRModule):
            what = f"{self.name} takes a module, not a {type(mod).__name__}"
            raise RelaxError("SM1306", what, remedy="give what bb.get() returns")
        return self.run(mod)

    def __repr__(self) -> str:
        return self.name


def Sequential(passes: Iterable[Callable[[IRModule], IRModule]], **ignored: Any) -> Pass:  # noqa: N802
    """Passes one after the other."""
    each = list(passes)

    def run(mod: IRModule) -> IRModule:
        for one in each:
            mod = one(mod)
        return mod

    return Pass("Sequential", run)


def module_pass(function: Any = None, **ignored: Any) -> Any:
    """A function ``(mod, context) -> mod`` as a pass."""
    if function is None:
        return lambda function: module_pass(function)
    return Pass(getattr(function, "__name__", "module_pass"), lambda mod: function(mod, None))


def function_pass(function: Any = None, **ignored: Any) -> Any:
    """A function ``(func, mod, context) -> func`` as a pass over the functions of tensors."""
    if function is None:
        return lambda function: function_pass(function)
    return _on_functions(
        getattr(function, "__name__", "function_pass"), lambda f, mod: function(f, mod, None)
    )


def _on_functions(name: str, rewrite: Callable[[Function, IRModule], Any]) -> Pass:
    def run(mod: IRModule) -> IRModule:
        found = IRModule(mod.functions)
        found.attrs.update(mod.attrs)
        for var, function in mod.functions.items():
            if isinstance(function, Function):
                found[var] = rewrite(function, mod)
        return found

    return Pass(name, run)


def LegalizeOps(  # noqa: N802
    customize_map: Mapping[str, Customize] | None = None, enable_warning: bool = False, **ignored: Any
) -> Pass:
    """Every operator becomes a call of a PrimFunc that computes it, made by its lowering row.

    ``customize_map``: operator name → function of a builder and the call, which returns its replacement.
    Operators that loops cannot hold (sorts, scans, …) stay; ``enable_warning`` warns with the reason.
    """
    custom = dict(customize_map or {})

    def run(mod: IRModule) -> IRModule:
        builder = BlockBuilder(mod)
        for var, function in mod.functions.items():
            if isinstance(function, Function):
                body = _rebuilt(builder, function.body, custom) if custom else function.body
                function = function.changed(body=_legal(builder, body, enable_warning))
                builder.update_func(var, function)
        return builder.get()

    return Pass("LegalizeOps", run)


def _rebuilt(builder: BlockBuilder, body: SeqExpr, custom: Mapping[str, Customize]) -> SeqExpr:
    """The body with the results of customizing functions, and the bindings that they emit."""
    blocks: list[BindingBlock] = []
    for block in body.blocks:
        builder._begin(type(block)())
        for binding in block.bindings:
            value = binding.value
            make = (
                custom.get(getattr(getattr(value, "op", None), "name", ""))
                if isinstance(value, Call)
                else None
            )
            if make is not None:
                binding = VarBinding(binding.var, builder.normalize(make(builder, value)))
            builder.emit_normalized(binding)
        blocks.append(builder._open.pop())
    return SeqExpr(blocks, body.body)


def _legal(builder: BlockBuilder, body: SeqExpr, warn: bool) -> SeqExpr:
    blocks: list[BindingBlock] = []
    for block in body.blocks:
        bindings: list[Any] = []
        for binding in block.bindings:
            value = binding.value
            if isinstance(value, If):
                branches = (_legal(builder, each, warn) for each in (value.true_branch, value.false_branch))
                binding = VarBinding(binding.var, as_known(If(value.cond, *branches), value))
            elif isinstance(binding, VarBinding) and isinstance(value, Call) and _is_operator(value):
                found = legalized(value, builder.add_func)
                if isinstance(found, Call):
                    binding = VarBinding(binding.var, found)
                elif warn:
                    from smelt import logs

                    logs.logger.warning("smelt: LegalizeOps leaves %s: %s", value.op.name, found)
            bindings.append(binding)
        blocks.append(type(block)(bindings))
    return SeqExpr(blocks, body.body)


def _is_operator(call: Call) -> bool:
    return isinstance(call.op, (Operator, AtenOperator))


def DeadCodeElimination(entry_functions: Sequence[str] | None = None) -> Pass:  # noqa: N802
    """Removes bindings that nothing depends on, and functions that no entry (default: public one) calls."""

    def run(mod: IRModule) -> IRModule:
        functions = dict(mod.functions)
        for var, function in functions.items():
            if isinstance(function, Function):
                functions[var] = function.changed(
                    body=without_dead(function.body), captured=function.captured
                )
        names = {var.name_hint: var for var in functions}
        waiting = [
            var
            for var, function in functions.items()
            if (
                var.name_hint in entry_functions
                if entry_functions is not None
                else not getattr(function, "private", False)
            )
        ]
        kept: dict[GlobalVar, Any] = {}
        while waiting:
            var = waiting.pop()
            if var in kept:
                continue
            kept[var] = functions[var]
            if isinstance(kept[var], Function):
                called = _called(kept[var].body)
                waiting += [names[name] for name in sorted(called) if name in names]
        found = IRModule({var: function for var, function in functions.items() if var in kept})
        found.attrs.update(mod.attrs)
        return found

    return Pass("DeadCodeElimination", run)


def _called(value: Any) -> set[str]:
    if isinstance(value, GlobalVar):
        return {value.name_hint}
    return {name for each in parts_of(value) for name in _called(each)}


def FoldConstant() -> Pass:  # noqa: N802
    """Computes operators whose arguments are all constants."""

    def fold(function: Function, mod: IRModule) -> Function:
        values: dict[Any, Any] = {}
        blocks = []
        for block in function.body.blocks:
            bindings: list[Any] = []
            for binding in block.bindings:
                value = substituted(binding.value, values)
                if isinstance(binding, VarBinding):
                    found = _folded(value)
                    if isinstance(found, Constant):
                        values[binding.var] = value = found
                    binding = VarBinding(binding.var, value)
                bindings.append(binding)
            blocks.append(type(block)(bindings))
        return function.changed(body=without_dead(SeqExpr(blocks, substituted(function.body.body, values))))

    return _on_functions("FoldConstant", fold)


def _folded(value: Any) -> Any:
    if isinstance(value, Constant):
        return value
    if not isinstance(value, Call) or not _is_operator(value) or variables(value):
        return None
    if not any(isinstance(each, Constant) for each in _all_parts(value)):
        return None
    if not isinstance(value.struct_info, TensorStructInfo):
        return None
    with torch.no_grad():
        return const(Evaluator().value(value).contiguous())


def _all_parts(value: Any) -> list[Any]:
    return [value, *[leaf for each in parts_of(value) for leaf in _all_parts(each)]]


def BindParams(func_name: str, params: Mapping[Any, Any]) -> Pass:  # noqa: N802
    """Replaces parameters of a function, by name or variable, by constants."""

    def run(mod: IRModule) -> IRModule:
        found = IRModule(mod.functions)
        found.attrs.update(mod.attrs)
        found[func_name] = mod[func_name].bind_params(params)
        return found

    return Pass("BindParams", run)


def CanonicalizeBindings() -> Pass:  # noqa: N802
    """Removes variables that are aliases of others, unless they are visible outside of their block."""

    def clean(function: Function, mod: IRModule) -> Function:
        from smelt.relax.values import DataflowVar

        values: dict[Any, Any] = {}
        blocks = []
        for block in function.body.blocks:
            bindings: list[Any] = []
            for binding in block.bindings:
                value = substituted(binding.value, values)
                alias = isinstance(binding, VarBinding) and isinstance(value, (Var, Constant))
                if alias and (isinstance(binding.var, DataflowVar) or not isinstance(value, DataflowVar)):
                    values[binding.var] = value
                    continue
                bindings.append(
                    VarBinding(binding.var, value)
                    if isinstance(binding, VarBinding)
                    else type(binding)(binding.var, value, binding.struct_info)
                )
            if bindings:
                blocks.append(type(block)(bindings))
        return function.changed(body=SeqExpr(blocks, substituted(function.body.body, values)))

    return _on_functions("CanonicalizeBindings", clean)


__all__ = [
    "CALL_TIR",
    "BindParams",
    "CanonicalizeBindings",
    "DeadCodeElimination",
    "FoldConstant",
    "LegalizeOps",
    "Pass",
    "Sequential",
    "Tuple",
    "function_pass",
    "module_pass",
]
