"""A content hash of a program: equal keys mean equal compiled code, in this process and any other."""

from __future__ import annotations

import hashlib
import operator
from typing import Any

import sympy
import torch
from sympy import Expr
from torch.fx import GraphModule, Node

from smelt.capture import Program
from smelt.contract.facts import REFUSED, environment_of, number
from smelt.contract.outside import digest_of


def graph_key(program: Program) -> str:
    """sha256 (hex) of everything in a contract program that determines its code.

    In: operators, arguments, literals, dtype, shape, strides, offset and device of every value, sizes by
    symbols that are numbered as they appear, with their assumptions and known ranges, contents of constants,
    input and output roles, mutations. Out: names of nodes, source lines, the sizes seen while capturing
    (hints steer decisions, never results). The cache adds the versions of smelt, torch and the compiler.

    >>> import torch
    >>> from smelt.capture import capture_function
    >>> one = graph_key(capture_function(lambda x: x + 1, [torch.ones(3)]))
    >>> two = graph_key(capture_function(lambda x: x + 2, [torch.ones(3)]))
    >>> len(one), one == two
    (64, False)
    """
    writer = _Writer()
    roles = ",".join(f"{each.role}{'*' if each.static else ''}" for each in program.inputs)
    writer.text(f"smelt graph 1;{program.kind};{roles};{','.join(program.output_roles)}")
    writer.graph(program.graph_module)
    values = (node.meta.get("val") for node in program.graph_module.graph.nodes)
    writer.ranges(next((env for env in map(environment_of, values) if env is not None), None))
    return writer.digest()


class _Writer:
    def __init__(self) -> None:
        self.hash = hashlib.sha256()
        self.parts: list[str] = []
        self.symbols: dict[Any, str] = {}
        self.exprs: dict[Any, str] = {}
        self.targets: dict[Any, str] = {}
        self.metadata: dict[Any, str] = {}

    def text(self, text: str) -> None:
        self.parts.append(text)

    def digest(self) -> str:
        self._flush()
        return self.hash.hexdigest()

    def _flush(self) -> None:
        self.hash.update("\n".join(self.parts).encode())
        self.parts.clear()

    def graph(self, module: GraphModule) -> None:
        position: dict[Node, int] = {}
        for node in module.graph.nodes:
            place = len(position)
            position[node] = place
            if node.op == "get_attr":
                self.text(f"{place}=constant:{node.target}")
                self._constant(operator.attrgetter(str(node.target))(module))
            elif node.op == "placeholder":
                self.text(f"{place}=input:{self._value(node.meta.get('val'))}")
            else:
                target = self.targets.get(node.target)
                if target is None:
                    target = self.targets[node.target] = _target_name(node.target)
                args = self._argument(node.args, position)
                kwargs = self._argument(node.kwargs, position) if node.kwargs else ""
                self.text(f"{place}={target}{args}{kwargs}:{self._value(node.meta.get('val'))}")
                known = digest_of(node.target)
                if known is not None:
                    self.text(f"row: {known}")
                if REFUSED in node.meta:
                    self.text(f"by PyTorch: {node.meta[REFUSED]}")

    def ranges(self, env: Any) -> None:
        """Add the ranges of the symbols in the program: code may rely on them."""
        known = getattr(env, "var_to_range", {})
        for symbol, name in self.symbols.items():
            bounds = known.get(symbol)
            span = "" if bounds is None else f"{_bound(bounds.lower)}..{_bound(bounds.upper)}"
            self.text(f"{name}:{symbol.is_integer},{symbol.is_positive},{symbol.is_nonnegative},{span}")
        checked = getattr(env, "deferred_runtime_asserts", {})
        for symbol, name in list(self.symbols.items()):
            for each in checked.get(symbol, ()):
                self.text(f"{name}:{self._expr(each.expr)};{each.msg}")

    # -- parts ---------------------------------------------------------------------------------------------

    def _argument(self, value: Any, position: dict[Node, int]) -> str:
        if isinstance(value, Node):
            return f"%{position[value]}"
        if isinstance(value, (tuple, list)):
            return "(" + ",".join([self._argument(each, position) for each in value]) + ")"
        if isinstance(value, dict):
            return (
                "{"
                + ",".join(f"{name}:{self._argument(value[name], position)}" for name in sorted(value))
                + "}"
            )
        if isinstance(value, slice):
            return "slice" + self._argument((value.start, value.stop, value.step), position)
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return self._size(value)
        return f"{type(value).__name__} {value!r}"

    def _value(self, value: Any) -> str:
        if isinstance(value, torch.Tensor):
            strided = value.layout is torch.strided
            sizes = ",".join([self._size(each) for each in value.shape])
            strides = (
                ",".join([self._size(each) for each in value.stride()]) if strided else str(value.layout)
            )
            offset = self._size(value.storage_offset()) if strided else ""
            marks = f"{'*' if value.is_conj() else ''}{'-' if value.is_neg() else ''}"
            return f"{value.dtype}{marks}[{sizes}][{strides}]{offset}{self._device(value.device)}"
        if isinstance(value, (tuple, list)):
            return "(" + ";".join([self._value(each) for each in value]) + ")"
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return f"{type(value).__name__} {self._size(value)}"
        return (
            f"{type(value).__name__} {value!r}"
            if isinstance(value, (int, float, bool))
            else type(value).__name__
        )

    def _device(self, device: torch.device) -> str:
        found = self.metadata.get(device)
        if found is None:
            found = self.metadata[device] = str(device)
        return found

    def _size(self, size: Any) -> str:
        if type(size) is int:
            return str(size)
        expr = number(size)
        if not isinstance(expr, sympy.Basic):
            return repr(expr)
        text = self.exprs.get(expr)
        if text is None:
            text = self.exprs[expr] = self._expr(expr)
        return text

    def _expr(self, expr: Any) -> str:
        """An expression's prefix form; a symbol is numbered at its first occurrence.

        Arguments of sums and products are sorted by their form without names, then by the numbers already
        given: SymPy's own order depends on this process's names.
        """
        if expr.is_Symbol:
            name = self.symbols.get(expr)
            if name is None:
                name = self.symbols[expr] = f"s{len(self.symbols)}"
            return name
        if not expr.args:
            return sympy.srepr(expr) if not expr.is_Integer else str(int(expr))
        args = list(expr.args)
        if isinstance(expr, (sympy.Add, sympy.Mul, sympy.Max, sympy.Min, sympy.And, sympy.Or)):
            args.sort(key=lambda each: (_shape_of(each), self._known_names(each)))
        return f"{expr.func.__name__}({','.join([self._expr(arg) for arg in args])})"

    def _known_names(self, expr: Expr) -> list[tuple[int, str]]:
        names = [self.symbols.get(symbol, "~") for symbol in expr.free_symbols]
        return sorted((len(name), name) for name in names)

    def _constant(self, value: Any) -> None:
        if isinstance(value, GraphModule):
            self.text("graph")
            self.graph(value)
            self.text("end")
        elif isinstance(value, torch.Tensor):
            self.text(self._value(value))
            if value.layout is not torch.strided or value.device.type not in ("cpu", "cuda"):
                return
            self._flush()
            flat = value.detach().cpu().contiguous().reshape(-1)
            if flat.numel():
                self.hash.update(flat.view(torch.uint8).numpy().data)
        else:
            self.text(repr(type(value)))


def _shape_of(expr: Any) -> str:
    """The prefix form with every symbol as ``?``."""
    if expr.is_Symbol:
        return "?"
    if not expr.args:
        return str(expr)
    return f"{expr.func.__name__}({','.join(sorted(_shape_of(arg) for arg in expr.args))})"


def _bound(bound: Any) -> str:
    return str(bound)


def _target_name(target: Any) -> str:
    if isinstance(target, torch._ops.OpOverload):
        return str(target)
    if isinstance(target, str):
        return "" if target == "output" else target
    module = getattr(target, "__module__", "")
    return (
        f"{module}.{getattr(target, '__qualname__', None) or getattr(target, '__name__', repr(type(target)))}"
    )
