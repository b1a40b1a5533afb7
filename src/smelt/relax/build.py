"""`build` compiles the functions of a module; `VirtualMachine` calls them by their names."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import sympy
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from smelt.capture import Program
from smelt.capture.program import shape_env_of
from smelt.config import Config
from smelt.pipeline import compile_program
from smelt.relax.evaluate import Evaluator, symbols_bound
from smelt.relax.primfuncs import call_primfunc
from smelt.relax.program import Traced, traced
from smelt.relax.types import (
    PrimStructInfo,
    RelaxError,
    ShapeStructInfo,
    StructInfo,
    TensorStructInfo,
    TupleStructInfo,
    is_determined,
)
from smelt.relax.values import Function
from smelt.script.module import IRModule, PrimFunc
from smelt.symbolic import as_expr

_CPU = ("llvm", "c", "cpu")


class Executable:
    """A compiled module: its functions by name. A `VirtualMachine` calls it."""

    def __init__(self, functions: Mapping[str, Callable[..., Any]], mod: IRModule) -> None:
        self.functions, self.mod = dict(functions), mod


def build(
    mod: IRModule | Function, target: Any = "llvm", config: Config | None = None, **ignored: Any
) -> Executable:
    """Compile every function of tensors of a module that is not private.

    ``target``: any name of the CPU (``"llvm"``, ``"llvm -mcpu=…"``).

    Raises:
        RelaxError: SM1306, another target, or no such functions.
    """
    kind = str(getattr(target, "kind", target) or "llvm").split()[0]
    if kind not in _CPU:
        raise RelaxError("SM1306", f"target {target!r}", remedy='smelt compiles for the CPU: target="llvm"')
    if isinstance(mod, Function):
        mod = IRModule({mod.attrs.get("global_symbol", "main"): mod})
    functions = {var.name_hint: function for var, function in mod.functions.items()}
    found = {
        name: CompiledFunction(name, function, functions, config or Config())
        for name, function in functions.items()
        if isinstance(function, Function) and not function.private
    }
    if not found:
        there = ", ".join(functions) or "nothing"
        what = f"no function of tensors to compile in the module; there is: {there}"
        remedy = "PrimFuncs alone are built by smelt.build"
        raise RelaxError("SM1306", what, remedy=remedy)
    for each in found.values():
        each.compile()
    return Executable(found, mod)


class CompiledFunction:
    """A function of tensors, compiled once for all sizes that its struct info leaves open.

    If a call's sizes violate the assumptions of tracing, or nothing was known of them before, it is compiled
    for these sizes.
    """

    def __init__(self, name: str, function: Function, functions: Mapping[str, Any], config: Config) -> None:
        self.name, self.function, self.functions, self.config = name, function, functions, config
        self.infos = [each.struct_info for each in function.params]
        self.whole: _Version | None = None
        self.versions: dict[Hashable, _Version] = {}

    def compile(self) -> None:
        """Compile the function for all sizes, if its parameters' struct info suffices."""
        if not all(is_determined(each) and _is_tensors(each) for each in self.infos):
            return
        try:
            self.whole = self._version(self.infos)
        except RelaxError as error:
            if error.code != "SM1303" or not symbols_bound(self.infos):
                raise  # else: variables that must be equal, which only a call's sizes decide

    def _version(self, infos: Sequence[StructInfo]) -> _Version:
        function = self.function
        if infos is self.infos and function.captured is not None:
            return _Version(function.captured, self.config)
        found = traced(function, self.functions, call_primfunc, infos, self.name)
        return _Version(found, self.config)

    def __call__(self, *args: Any) -> Any:
        """Call the function: tensors or arrays in, tensors out, nested as the function's value.

        Raises:
            RelaxError: SM1305, an argument does not fit its parameter.
        """
        given = [_tensors(each) for each in args]
        if len(given) != len(self.infos):
            names = ", ".join(each.name_hint for each in self.function.params)
            what = f"{self.name} takes {len(self.infos)} arguments ({names}), {len(given)} are given"
            raise RelaxError("SM1305", what)
        checker = Evaluator()
        for bind in (False, True):
            for param, value in zip(self.function.params, given):
                checker.match(value, param.struct_info, f"argument {param.name_hint} of {self.name}", bind)
        leaves = [each for each in pytree.tree_leaves(given) if isinstance(each, Tensor)]
        version = self.whole
        if version is None or not version.holds(leaves):
            infos = tuple(_exactly(each) for each in given)
            version = self.versions.get(infos)
            if version is None:
                version = self.versions[infos] = self._version(infos)
        with torch.no_grad():
            return version(leaves)


class _Version:
    """A compiled program of a function, and the sizes for which it is valid."""

    def __init__(self, traced: Traced, config: Config) -> None:
        self.traced = traced
        program = traced.program
        self.expected = [
            node.meta["val"]
            for node, each in zip(program.placeholders, program.inputs)
            if each.value is None and isinstance(node.meta.get("val"), Tensor)
        ]
        self.call = compile_program(program, config)
        env = shape_env_of(self.expected)
        self.guards = () if env is None else tuple(dict.fromkeys(guard.expr for guard in env.guards))
        self.replaced = {} if env is None else dict(env.replacements)

    def holds(self, leaves: Sequence[Tensor]) -> bool:
        """Whether these sizes satisfy the assumptions of tracing."""
        if not self.guards and not self.replaced:
            return True
        sizes = {
            as_expr(size): sympy.Integer(have)
            for expected, leaf in zip(self.expected, leaves)
            for size, have in zip(expected.shape, leaf.shape)
        }
        if any(sizes.get(key, value) != value.xreplace(sizes) for key, value in self.replaced.items()):
            return False
        return all(guard.xreplace(sizes) != sympy.false for guard in self.guards)

    def __call__(self, leaves: Sequence[Tensor]) -> Any:
        results = list(self.call([*self.traced.constants, *leaves]))
        return pytree.tree_unflatten(results, self.traced.spec)


def _is_tensors(info: StructInfo) -> bool:
    if isinstance(info, TupleStructInfo):
        return all(_is_tensors(each) for each in info.fields)
    return isinstance(info, TensorStructInfo)


def _tensors(value: Any) -> Any:
    """An argument with arrays replaced by torch tensors, and without gradients."""
    if isinstance(value, (list, tuple)):
        return tuple(_tensors(each) for each in value)
    if isinstance(value, Tensor):
        return value.detach().contiguous()
    if hasattr(value, "__dlpack__") or type(value).__module__ == "numpy":
        return torch.as_tensor(value).contiguous()
    return value


def _exactly(value: Any) -> StructInfo:
    """The exact struct info of one argument."""
    if isinstance(value, Tensor):
        return TensorStructInfo(tuple(value.shape), value.dtype)
    if isinstance(value, tuple) and value and all(isinstance(each, int) for each in value):
        return ShapeStructInfo(value)
    if isinstance(value, tuple):
        return TupleStructInfo([_exactly(each) for each in value])
    return PrimStructInfo({bool: "bool", float: "float64"}.get(type(value), "int64"), value)


class VirtualMachine:
    """``VirtualMachine(ex)["main"](x)`` calls a compiled function. Any ``device`` is the CPU."""

    def __init__(self, ex: Executable | IRModule, device: Any = None, **ignored: Any) -> None:
        self.executable = ex if isinstance(ex, Executable) else build(ex)

    def __getitem__(self, name: str) -> Callable[..., Any]:
        found = self.executable.functions.get(name)
        if found is None:
            there = ", ".join(self.executable.functions)
            raise RelaxError("SM1306", f"no function {name!r}", why=f"there are: {there}")
        return found

    def invoke_stateful(self, name: str, *args: Any) -> Any:
        return self[name](*args)


def program_of(mod: IRModule, name: str = "main") -> Program:
    """The FX graph of a module's function, in the form used everywhere in smelt.

    >>> from smelt.relax import BlockBuilder, TensorStructInfo, Var, op
    >>> x, bb = Var("x", TensorStructInfo((2,), "float32")), BlockBuilder()
    >>> with bb.function("main", [x]):
    ...     main = bb.emit_func_output(bb.emit(op.exp(x)))
    >>> [str(n.target) for n in program_of(bb.get()).graph_module.graph.nodes if n.op == "call_function"]
    ['aten.exp.default']
    """
    functions = {var.name_hint: function for var, function in mod.functions.items()}
    function = functions.get(name)
    if not isinstance(function, Function):
        raise RelaxError(
            "SM1306", f"no function of tensors {name!r}", why=f"there are: {', '.join(functions)}"
        )
    captured: Traced = function.captured or traced(function, functions, call_primfunc, None, name)
    return captured.program


__all__ = ["CompiledFunction", "Executable", "PrimFunc", "VirtualMachine", "build", "program_of"]
