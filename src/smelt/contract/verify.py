"""The contract's verifier: it always runs, and reports all errors at once."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from sympy import Symbol
from torch._subclasses import FakeTensor
from torch.fx import Node

from smelt.capture import Program
from smelt.contract.devices import KINDS, between_devices, devices_of
from smelt.contract.facts import REFUSED, new_sizes, number, returns_nothing
from smelt.contract.higher_order import KEPT, bodies_of, body_program
from smelt.errors import Problem, Unsupported, VerificationError
from smelt.runtime.externs import is_collective, is_mutating
from smelt.symbolic import as_expr
from smelt.symbolic.solving import solve_sizes

aten = torch.ops.aten

CODES = {
    "SM0421": "a node that is not a call of an operator",
    "SM0422": "a node without metadata",
    "SM0423": "a call that writes to its arguments",
    "SM0424": "an input or output whose kind is not what the program says",
    "SM0425": "a size symbol that nothing binds",
    "SM0426": "a node without a source line",
    "SM0427": "metadata that is not a static rank and dtype",
}
"""Code → its finding. A VerificationError with findings of several codes has the code SM0420."""

_SYMBOLIC_MODULES = ("operator", "_operator", "math", "builtins", "torch", "torch.fx.experimental.sym_node")
_RESHAPING = (aten.set_, aten.resize_, aten.resize_as_)
_INFERENCE_ONLY = ("aten.mkldnn_rnn_layer.default",)
"""Operators (by name: not every PyTorch has them) that read the gradient mode, and omit results."""

QUANTIZED = "a quantized or nested tensor"
"""The reason for values that do not consist of plain elements, whatever their metadata says."""

_QUANTIZING = ("quantize_per_tensor", "quantize_per_channel", "quantize_per_tensor_dynamic")
_UNQUANTIZING = ("dequantize", "int_repr", "q_per_channel_scales", "q_per_channel_zero_points")


def verify(program: Program) -> None:
    """Check that ``program`` satisfies the contract.

    Raises:
        VerificationError: SM0420-SM0427 with all findings; a bug of smelt or of a pass given to it.
        Unsupported: nothing is wrong, but smelt cannot compile the graph; the text names every reason.
    """
    found = unsupported(program)
    if found:
        texts = [located(node, reason) for node, reasons in found.items() for reason in reasons]
        raise Unsupported("; ".join(dict.fromkeys(texts)))


def unsupported(program: Program) -> dict[Node, list[str]]:
    """The nodes of a program in the contract form that smelt cannot compile, and the reasons.

    They include inputs and constants whose value loop functions cannot hold.

    Raises:
        VerificationError: SM0420-SM0427 with all findings; a bug of smelt or of a pass given to it.
        Unsupported: PyTorch has to run the whole program, as autograd sees it.
    """
    finder = _Finder(program)
    finder.run()
    if finder.problems:
        codes = {code for code, _ in finder.problems}
        code = codes.pop() if len(codes) == 1 else "SM0420"
        listed = [Problem(f"{own}: {problem.what}", problem.where) for own, problem in finder.problems]
        raise VerificationError(code, f"contract of {program.name}", listed)
    return finder.unsupported


def located(node: Node, reason: str) -> str:
    """A reason with the user's line, if known."""
    where = node.meta.get("where")
    return reason if where in (None, "<unknown>") else f"{reason} (at {where})"


def unfit(value: torch.Tensor) -> str | None:
    """The reason why loop functions cannot hold a tensor, or None."""
    if value.device.type not in KINDS:
        return f"a tensor on {value.device}: smelt compiles for CPUs and CUDA devices"
    if value.layout is not torch.strided:
        return f"a {value.layout} tensor: smelt compiles strided tensors"
    return QUANTIZED if value.is_quantized or value.is_nested else None


class _Finder:
    def __init__(self, program: Program, bound: Iterable[Any] = ()) -> None:
        self.program = program
        self.problems: list[tuple[str, Problem]] = []
        self.unsupported: dict[Node, list[str]] = {}
        self.quantized: set[Node] = set()
        self.bound: set[Any] = set(bound)
        self.ended = False
        self.several = len(devices_of(program.graph_module.graph.nodes)) > 1

    def run(self) -> None:
        self._signature()
        for node in self.program.placeholders:
            self._bind(node.meta.get("val"))
        self._solve()
        for node in self.program.graph_module.graph.nodes:
            if node.op in ("placeholder", "get_attr"):
                self._input(node)
            elif node.op == "call_function":
                self._call(node)
            elif node.op != "output":
                self._problem("SM0421", node, f"{node.op} {node.target!r} is not a call of an operator")

    # -- findings ------------------------------------------------------------------------------------------

    def _problem(self, code: str, node: Node | None, what: str) -> None:
        name = "" if node is None else f"{node.name}: "
        self.problems.append((code, Problem(name + what, None if node is None else node.meta.get("where"))))

    def _unsupported(self, node: Node, what: str) -> None:
        self.unsupported.setdefault(node, []).append(what)

    # -- rules ---------------------------------------------------------------------------------------------

    def _signature(self) -> None:
        program = self.program
        placeholders = program.placeholders
        if [each.name for each in program.inputs] != [node.name for node in placeholders]:
            self._problem(
                "SM0424", None, f"{len(program.inputs)} inputs listed, {len(placeholders)} placeholders"
            )
        else:
            for each, node in zip(program.inputs, placeholders):
                is_tensor = isinstance(node.meta.get("val"), torch.Tensor)
                if "val" in node.meta and is_tensor == (each.role == "size"):
                    self._problem(
                        "SM0424", node, f"a {each.role} input holds {type(node.meta['val']).__name__}"
                    )
        if len(program.outputs) != len(program.output_roles):
            self._problem(
                "SM0424", None, f"{len(program.outputs)} outputs, {len(program.output_roles)} roles"
            )
        for value in program.outputs:
            if not isinstance(value, (Node, int, float, bool, type(None))):
                self._problem("SM0424", None, f"output {value!r} is neither a node nor a number nor None")

    def _input(self, node: Node) -> None:
        if node.op == "get_attr":
            try:
                value = operator.attrgetter(str(node.target))(self.program.graph_module)
            except AttributeError:
                self._problem("SM0424", node, f"constant {node.target!r} does not exist")
                return
            if isinstance(value, torch.fx.GraphModule):
                return  # a body of a higher-order operator, which is checked at its call
            if not isinstance(value, torch.Tensor):
                self._unsupported(node, f"constant {node.target!r} is a {type(value).__name__}, not a tensor")
                return
        if "val" not in node.meta:
            self._problem("SM0422", node, f"{node.op} without metadata")
            return
        self._value(node, node.meta["val"])

    def _call(self, node: Node) -> None:
        target = node.target
        if node.meta.get("where") is None:
            self._problem("SM0426", node, f"{target} has no source line (not even <unknown>)")
        if isinstance(target, torch._ops.HigherOrderOperator):
            if target.name() not in KEPT or REFUSED in node.meta:
                reason = node.meta.get(REFUSED) or f"higher-order operator {target.name()}"
                self._unsupported(node, reason)
                return
            self._bodies(node)
        elif not isinstance(target, torch._ops.OpOverload) and not _is_symbolic(node):
            self._problem("SM0421", node, f"call of {_name(target)}, which is not an ATen overload")
            return
        if is_collective(node.target):
            self._unsupported(node, "a collective operation: its order counts on every process")
        apart = between_devices(node) if self.several else None
        if apart is not None:
            self._unsupported(node, apart)
        if self._is_quantized(node):  # fake tensors forget the quantization
            self.quantized.add(node)
            self._unsupported(node, QUANTIZED)
        if str(target) in _INFERENCE_ONLY and self.program.kind == "forward":
            raise Unsupported(f"{target} gives what its backward needs only where ATen records it")
        if is_mutating(target):
            self._mutation(node)
        elif self.ended:
            self._problem("SM0423", node, "a call after inputs were overwritten")
        if "val" not in node.meta:
            if not returns_nothing(target):
                self._problem("SM0422", node, f"result of {target} without metadata")
            return
        self.bound.update(new_sizes(node))
        value = node.meta["val"]
        if isinstance(value, (torch.SymInt, torch.SymFloat)) and isinstance(number(value), Symbol):
            self.bound.add(number(value))
        self._value(node, value)

    def _is_quantized(self, node: Node) -> bool:
        if getattr(node.target, "namespace", None) != "aten":
            return node.target is operator.getitem and node.args[0] in self.quantized
        name = node.target.overloadpacket.__name__  # type: ignore[union-attr]
        takes = not self.quantized.isdisjoint(node.all_input_nodes)
        return name in _QUANTIZING or (takes and name not in _UNQUANTIZING)

    def _bodies(self, node: Node) -> None:
        """Check that bodies satisfy the contract too; they may use every size bound before the call."""
        for body in bodies_of(node):
            module = getattr(self.program.graph_module, str(body.target), None)
            if not isinstance(module, torch.fx.GraphModule):
                self._problem("SM0421", node, f"its body {body.target!r} is no graph")
                continue
            finder = _Finder(body_program(module, str(body.target)), self.bound)
            finder.run()
            self.problems += finder.problems
            for inner, reasons in finder.unsupported.items():
                for reason in reasons:
                    self._unsupported(node, f"in its body: {located(inner, reason)}")
            if finder.program.mutations():
                self._unsupported(node, f"{node.target} with a body that writes to its operands")

    def _mutation(self, node: Node) -> None:
        target = node.args[0] if node.args else None
        if node.target is aten.copy_.default and isinstance(target, Node) and target.op == "placeholder":
            self.ended = True
            if node.users:
                self._problem("SM0423", node, "the result of a trailing copy_ is used")
        elif getattr(node.target, "overloadpacket", None) in _RESHAPING:
            self._unsupported(node, f"{node.target} gives an input other memory")
        else:
            self._problem("SM0423", node, f"{node.target} writes to its arguments")

    # -- metadata ------------------------------------------------------------------------------------------

    def _bind(self, value: Any) -> None:
        """Bind the symbols that an input holds directly: an s0 input, a tensor of shape (s0, 4)."""
        numbers = [*value.shape, *_strides(value)] if isinstance(value, torch.Tensor) else [value]
        self.bound.update(number(each) for each in numbers if hasattr(number(each), "is_symbol"))

    def _solve(self) -> None:
        """Bind the symbols that the inputs' sizes determine: ``h``, by a tensor of shape (2*h, 4)."""
        values = [(node.name, node.meta.get("val")) for node in self.program.placeholders]
        shapes = [
            (name, [as_expr(size) for size in value.shape])
            for name, value in values
            if isinstance(value, torch.Tensor)
        ]
        self.bound.update(each.symbol for each in solve_sizes(shapes, self.bound))

    def _value(self, node: Node, value: Any) -> None:
        if isinstance(value, (list, tuple)):
            for each in value:
                self._value(node, each)
        elif isinstance(value, torch.Tensor):
            self._tensor(node, value)
        elif isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            self._symbols(node, [value])
        elif not isinstance(value, (int, float, bool, complex, type(None), torch.dtype, torch.device, str)):
            if node.op == "placeholder":
                self._unsupported(node, f"input {node.name} is a {type(value).__name__}")
            else:
                self._problem("SM0427", node, f"metadata is a {type(value).__name__}")

    def _tensor(self, node: Node, value: torch.Tensor) -> None:
        if not isinstance(value, FakeTensor) and node.op != "get_attr":
            self._problem("SM0427", node, "metadata is a real tensor, not a FakeTensor")
        reason = unfit(value)
        if reason is not None:
            self._unsupported(node, reason)
        else:
            self._symbols(node, [*value.shape, *value.stride()])

    def _symbols(self, node: Node, sizes: list[Any]) -> None:
        for size in sizes:
            expr = number(size)
            if isinstance(expr, (int, float, bool)):
                continue
            free = sorted(str(symbol) for symbol in expr.free_symbols - self.bound)
            if free:
                self._problem("SM0425", node, f"size {expr} needs {', '.join(free)}, which nothing binds")


def _strides(value: torch.Tensor) -> Iterator[Any]:
    return iter(value.stride() if value.layout is torch.strided else ())


def _is_symbolic(node: Node) -> bool:
    """``operator.getitem``, or arithmetic on sizes."""
    if node.target is operator.getitem:
        return True
    if getattr(node.target, "__module__", None) not in _SYMBOLIC_MODULES:
        return False
    values = [arg.meta.get("val") for arg in node.all_input_nodes]
    return not any(isinstance(value, torch.Tensor) for value in values)


def _name(target: Any) -> str:
    return getattr(target, "__qualname__", None) or getattr(target, "__name__", None) or repr(target)
