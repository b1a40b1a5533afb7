"""A TorchScript graph as the text of a Python function, one statement for each node.

If control flow depends on data (a branch on a tensor's value, a loop until convergence, a number read from a
tensor), the function is plain Python around separate functions, `Source.pieces`: these never read a tensor's
data, and each can be compiled as a whole.
"""

from __future__ import annotations

import builtins
import keyword
import re
from collections import namedtuple
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import torch

from smelt.capture.torchscript.graphs import Block, Node, Value, gradient_mode, is_module
from smelt.capture.torchscript.operators import ENUMERATIONS, NAMES, READS, filled, template_of
from smelt.capture.torchscript.passes import (
    FEWEST,
    SCRIPTED,
    calls_of_aten,
    depends_on_data,
    leave_to_torchscript,
    numbers_for_tensors,
)
from smelt.errors import SmeltError

_HELPERS = {"ScalarType": "dtype_of", "Layout": "layout_of", "MemoryFormat": "memory_format_of"}
_RETURN_SELF = ("aten::append", "aten::add_.t")
_FOREVER = 2**63 - 1
_READ = "Python reads what a tensor holds: compiled code ends here"
_SINGLE = "one call between two reads of data is not worth a compiled function"


@dataclass(slots=True)
class Source:
    """``text`` defines the function ``name`` and its ``pieces``; ``scope``: the constants it refers to.

    ``left``: (operator, reason, line) of uncompiled parts.
    """

    name: str
    text: str
    pieces: list[str]
    scope: dict[str, Any]
    left: list[tuple[str, str, str | None]]


@dataclass(frozen=True, slots=True)
class Parameter:
    """An argument of a function; ``default`` is valid if ``has_default``."""

    name: str
    has_default: bool = False
    default: Any = None


def write(
    name: str, block: Block, parameters: Sequence[Parameter], method: bool, structured: bool = False
) -> Source:
    """The Python function of a graph.

    Args:
        parameters: its arguments; ``method``: the block's first input, ``self``, comes before them.
        structured: data-dependent branches and loops become ``torch.cond`` and ``while_loop``, and the
            function has no pieces.

    Raises:
        SmeltError: SM0111 a part that only TorchScript can run cannot be separated; SM0112, ``structured``
            and a branch or loop that is no function of tensors.
    """
    numbers_for_tensors(block)
    left = leave_to_torchscript(block)
    writer = _Writer(name, structured)
    writer.function(block, parameters, method)
    for node in left:
        writer.left.append((str(node.left), "TorchScript runs it: Python has no such operator", node.where))
    text = "\n\n".join("\n".join(lines) for lines in writer.functions) + "\n"
    return Source(name, text, writer.pieces, writer.scope, writer.left)


@dataclass(slots=True)
class _Writer:
    name: str
    structured: bool
    functions: list[list[str]] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    scope: dict[str, Any] = field(default_factory=dict)
    left: list[tuple[str, str, str | None]] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)
    used: set[str] = field(default_factory=lambda: {*NAMES, "self"})
    hidden: set[str] = field(default_factory=set)
    """Built-in functions that are hidden by an argument of their name."""
    loose: set[int] = field(default_factory=set)
    lines: list[str] = field(default_factory=list)
    indent: int = 1

    # -- functions

    def function(self, block: Block, parameters: Sequence[Parameter], method: bool) -> None:
        self.loose = depends_on_data(block)
        inputs = block.inputs[1:] if method else block.inputs
        if method:
            self.names[id(block.inputs[0])] = "self"
        signature = ["self"] if method else []
        for value, parameter in zip(inputs, parameters, strict=True):
            self._name_argument(value, parameter.name)
            text = self.names[id(value)]
            signature.append(f"{text}={self._literal(parameter.default)}" if parameter.has_default else text)
        self._begin(self.name, signature)
        for value in inputs if _changes_containers(block) else ():
            if value.kind in ("ListType", "DictType"):
                self._line(f"{self._name(value)} = copied({self._name(value)})")
        in_pieces = bool(self.loose) and not self.structured
        self._nodes(block.nodes, block.outputs, in_pieces)
        self._line(f"return {', '.join(map(self._text, block.outputs)) or None}")
        self.functions.append(self.lines)

    def _begin(self, name: str, signature: Iterable[str]) -> None:
        self.lines, self.indent = [f"def {name}({', '.join(signature)}):"], 1

    def _name_argument(self, value: Value, name: str) -> None:
        if keyword.iskeyword(name) or name in NAMES:
            name += "_"
        if hasattr(builtins, name):
            self.hidden.add(name)
        self.used.add(name)
        self.names[id(value)] = name

    def _line(self, text: str, where: str | None = None) -> None:
        for name in self.hidden:
            text = re.sub(rf"(?<![\w.]){name}\(", f"builtins.{name}(", text)
        comment = f"  # {where}" if where else ""
        self.lines.append("    " * self.indent + text + comment)

    # -- values

    def _name(self, value: Value) -> str:
        """The variable of a value."""
        if id(value) not in self.names:
            name = re.sub(r"\W", "_", value.name)
            name = name if not name[0].isdigit() else f"v{name}"
            while name in self.used or keyword.iskeyword(name) or hasattr(builtins, name):
                name += "_"
            self.used.add(name)
            self.names[id(value)] = name
        return self.names[id(value)]

    def _text(self, value: Value) -> str:
        """A value as an expression: a variable, a literal, or the path of a module."""
        node = value.node
        if node is not None and node.is_constant:
            return self._literal(node.constant)
        if node is not None and node.key == "prim::GetAttr" and is_module(value):
            return self._attribute(node)
        return self._name(value)

    def _attribute(self, node: Node) -> str:
        owner, name = self._text(node.inputs[0]), node.source.s("name")
        return f"{owner}.{name}" if name.isidentifier() else f"getattr({owner}, {name!r})"

    def _literal(self, value: Any) -> str:
        if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
            return "math.nan" if value != value else "math.inf" if value > 0 else "-math.inf"
        if value is None or type(value) in (bool, int, float, str, complex):
            return repr(value)
        if isinstance(value, list):
            return f"[{', '.join(map(self._literal, value))}]"
        if type(value) is tuple:
            return f"({''.join(f'{self._literal(each)}, ' for each in value)})"
        if isinstance(value, torch.device):
            return f"torch.device({str(value)!r})"
        return self._constant(value)

    def _constant(self, value: Any) -> str:
        for name, known in self.scope.items():
            if known is value:
                return name
        name = f"{self.name}_c{len(self.scope)}"
        self.scope[name] = value
        return name

    # -- nodes

    def _nodes(self, nodes: Sequence[Node], wanted: Sequence[Value], in_pieces: bool) -> None:
        """Writes nodes, ``in_pieces`` between those at which compiled code ends; ``wanted`` is used later."""
        if not in_pieces:
            for node in nodes:
                self._node(node, False)
            return
        run: list[Node] = []
        for node in nodes:
            if id(node) not in self.loose:
                run.append(node)
                continue
            self._piece(run, wanted)
            run = []
            if node.key in READS:
                self.left.append((node.key, _READ, node.where))
            self._node(node, True)
        self._piece(run, wanted)

    def _piece(self, nodes: list[Node], wanted: Sequence[Value]) -> None:
        """A separate function for nodes, and its call; the nodes themselves if a piece does not pay."""
        if calls_of_aten(nodes) < FEWEST:
            for node in nodes:
                self._node(node, False)
                if calls_of_aten([node]):
                    self.left.append((node.key, _SINGLE, node.where))
            return
        inside = {id(inner) for node in nodes for inner in node.walk()}
        made = [value for node in nodes for value in node.outputs]
        own = {id(value) for node in nodes for inner in node.walk() for value in _made_in(inner)}
        given: dict[str, None] = {}
        for node in (inner for each in nodes for inner in each.walk()):
            for value in [*node.inputs, *(value for block in node.blocks for value in block.outputs)]:
                known = value.node is not None and value.node.is_constant
                if not known and id(value) not in own:
                    given["self" if is_module(value) else self._text(value)] = None
        names = {id(value) for value in wanted}
        kept = [
            value
            for value in made
            if not (value.node is not None and value.node.is_constant)
            and (id(value) in names or any(id(user) not in inside for user in value.users))
        ]
        name = f"{self.name}_{len(self.pieces) + 1}"
        self.pieces.append(name)
        outer, self.lines, indent, self.indent = self.lines, [], self.indent, 1
        self._begin(name, given)
        for node in nodes:
            self._node(node, False)
        results = ", ".join(map(self._text, kept))
        self._line(f"return {results or None}")
        self.functions.append(self.lines)
        self.lines, self.indent = outer, indent
        call = f"{name}({', '.join(given)})"
        where = next((node.where for node in nodes if not node.is_constant), None)
        self._line(f"{results} = {call}" if kept else call, where)

    def _node(self, node: Node, in_pieces: bool) -> None:
        if node.is_constant or (self.structured and self._is_predicate(node)):
            return
        writer = _WRITERS.get(node.key)
        if writer is not None:
            writer(self, node, in_pieces)
            return
        self._assign(node, self._call(node))
        if node.key.split(".")[0] in _RETURN_SELF or node.key in _RETURN_SELF:
            self.lines[-1] = self.lines[-1].split(" = ", 1)[-1] if node.outputs else self.lines[-1]
            self.lines[-1] = "    " * self.indent + self.lines[-1].strip()
            if any(value.users or value.is_returned for value in node.outputs):
                self._line(f"{self._name(node.outputs[0])} = {self._text(node.inputs[0])}")

    def _assign(self, node: Node, text: str) -> None:
        names = ", ".join(map(self._name, node.outputs))
        if len(node.outputs) == 1 and node.key in ("prim::ListUnpack", "prim::TupleUnpack"):
            names += ","
        self._line(f"{names} = {text}" if names else text, node.where)

    def _call(self, node: Node) -> str:
        """A node's operator with its arguments."""
        template = template_of(node.key, node.schema)
        if node.key == SCRIPTED:
            function = self._constant(torch.compiler.disable(node.constant))
            return f"{function}({', '.join(map(self._text, node.inputs))})"
        arguments = node.schema.arguments if node.schema is not None else [None] * len(node.inputs)
        args: list[str] = []
        kwargs: dict[str, str] = {}
        for argument, value in zip_longest(arguments, node.inputs):
            text = self._argument(argument, value, template is not None and "dtype_of" in template)
            if argument is not None and argument.kwarg_only:
                kwargs[argument.name] = text
            else:
                args.append(text)
        if template is not None:
            if "torch.tensor(" in template or "torch.as_tensor(" in template:
                kwargs = {name: text for name, text in kwargs.items() if text not in ("None", "False")}
            return filled(template, args, kwargs)
        for argument, value in reversed(list(zip(arguments, node.inputs))):
            known = value.node is not None and value.node.is_constant
            default = argument.default_value if argument.has_default_value() else _NOTHING
            if not known or not _same(value.node.constant, default):  # type: ignore[union-attr]
                if not argument.kwarg_only:
                    break
                continue
            if argument.kwarg_only:
                del kwargs[argument.name]
            else:
                args.pop()
        namespace, _, name = node.key.partition("::")
        name, _, overload = name.partition(".")
        passed = ", ".join([*args, *(f"{key}={text}" for key, text in kwargs.items())])
        return f"torch.ops.{namespace}.{name}.{overload or 'default'}({passed})"

    def _argument(self, argument: Any, value: Value, as_number: bool) -> str:
        """An argument's text; TorchScript's numbers of dtypes, layouts and memory formats become Python's."""
        kind = "" if argument is None else str(argument.real_type).removeprefix("Optional[").removesuffix("]")
        if kind not in ENUMERATIONS or as_number:
            return self._text(value)
        node = value.node
        if node is not None and node.is_constant:
            return "None" if node.constant is None else str(ENUMERATIONS[kind][node.constant])
        if node is not None and node.key == "prim::dtype":
            return f"{self._text(node.inputs[0])}.dtype"
        return f"{_HELPERS[kind]}({self._text(value)})"

    # -- nodes that are no operators

    def _if(self, node: Node, in_pieces: bool) -> None:
        if self.structured and id(node) in self.loose:
            self._cond(node)
            return
        branches: list[list[str]] = []
        outer, self.indent = self.lines, self.indent + 1
        for block in node.blocks:
            self.lines = []
            self._nodes(block.nodes, block.outputs, in_pieces)
            if not any(each.key == "prim::RaiseException" for each in block.nodes):
                self._give(node.outputs, block.outputs)
            branches.append(self.lines)
        self.lines, self.indent = outer, self.indent - 1
        then, otherwise = branches
        condition = self._text(node.inputs[0])
        if not then and otherwise:
            condition, then, otherwise = f"not {condition}", otherwise, []
        if then:
            self._line(f"if {condition}:", node.where)
            self.lines += then
        if otherwise:
            self._line("else:")
            self.lines += otherwise

    def _give(self, targets: Sequence[Value], values: Sequence[Value]) -> None:
        if targets:
            self._line(f"{', '.join(map(self._name, targets))} = {', '.join(map(self._text, values))}")

    def _loop(self, node: Node, in_pieces: bool) -> None:
        if self.structured and id(node) in self.loose:
            self._while_loop(node)
            return
        (body,) = node.blocks
        most, begins = node.inputs[:2]
        iteration, carried = body.inputs[0], body.inputs[1:]
        self._give(carried, node.inputs[2:])
        always = all(_is_true(value) for value in (begins, body.outputs[0]))
        counted = not (most.node is not None and most.node.is_constant and most.node.constant == _FOREVER)
        goes_on = ""
        if always and counted:
            self._line(f"for {self._name(iteration)} in range({self._text(most)}):", node.where)
        else:
            goes_on = self._fresh("goes_on")
            self._line(f"{goes_on} = {self._text(begins)}", node.where)
            if counted or iteration.users:
                self._line(f"{self._name(iteration)} = 0")
            bound = f" and {self._name(iteration)} < {self._text(most)}" if counted else ""
            self._line(f"while {goes_on}{bound}:", node.where)
        self.indent += 1
        self._nodes(body.nodes, body.outputs, in_pieces)
        if goes_on:
            self._line(f"{goes_on} = {self._text(body.outputs[0])}")
            if counted or iteration.users:
                self._line(f"{self._name(iteration)} += 1")
        self._give(carried, body.outputs[1:])
        if not self.lines[-1].startswith("    " * self.indent):
            self._line("pass")
        self.indent -= 1
        self._give(node.outputs, carried)

    def _fresh(self, name: str) -> str:
        while name in self.used:
            name += "_"
        self.used.add(name)
        return name

    def _get(self, node: Node, in_pieces: bool) -> None:
        self._assign(node, self._attribute(node))

    def _set(self, node: Node, in_pieces: bool) -> None:
        owner, name = self._text(node.inputs[0]), node.source.s("name")
        value = self._text(node.inputs[1])
        text = f"{owner}.{name} = {value}" if name.isidentifier() else f"setattr({owner}, {name!r}, {value})"
        self._line(text, node.where)

    def _raise(self, node: Node, in_pieces: bool) -> None:
        message, kind = node.inputs[0], node.inputs[1] if len(node.inputs) > 1 else None
        text = self._text(message)
        if kind is not None and kind.node is not None and kind.node.constant is not None:
            text = f'{self._text(kind)} + ": " + {text}'
        self._line(f"raise torch.jit.Error({text})", node.where)

    def _tuple(self, node: Node, in_pieces: bool) -> None:
        texts = list(map(self._text, node.inputs))
        made = f"({''.join(f'{each}, ' for each in texts)})" if len(texts) < 2 else f"({', '.join(texts)})"
        fields = _fields(node.outputs[0])
        if fields is not None:
            made = f"{self._constant(_named(*fields))}({', '.join(texts)})"
        self._assign(node, made)

    def _dict(self, node: Node, in_pieces: bool) -> None:
        texts = list(map(self._text, node.inputs))
        items = ", ".join(f"{key}: {value}" for key, value in zip(texts[::2], texts[1::2]))
        self._assign(node, f"{{{items}}}")

    def _number_to_tensor(self, node: Node, in_pieces: bool) -> None:
        dtypes = {"IntType": "int64", "BoolType": "bool", "FloatType": "float64", "ComplexType": "complex128"}
        dtype = dtypes.get(node.inputs[0].kind)
        given = f", dtype=torch.{dtype}" if dtype else ""
        self._assign(node, f"torch.scalar_tensor({self._text(node.inputs[0])}{given})")

    def _gradient_mode(self, node: Node, in_pieces: bool) -> None:
        if node.key == "prim::CreateObject":
            return
        context = node.inputs[0]
        if node.key == "prim::Enter":
            self._line(f"{self._name(context)} = torch.is_grad_enabled()")
            self._line(f"torch._C._set_grad_enabled({gradient_mode(context)})", node.where)
        else:
            self._line(f"torch._C._set_grad_enabled({self._name(context)})")

    # -- control flow as operators

    def _cond(self, node: Node) -> None:
        predicate = self._predicate(node.inputs[0], node)
        self._check_pure(node)
        names = []
        for which, block in zip(("then", "otherwise"), node.blocks):
            names.append(self._fresh(f"{which}_{len(self.lines)}"))
            self._inner(names[-1], [], block, block.outputs)
        targets = ", ".join(map(self._name, node.outputs))
        self._line(f"{targets}, = torch.cond({predicate}, {', '.join(names)}, ())", node.where)

    def _while_loop(self, node: Node) -> None:
        (body,) = node.blocks
        most, begins = node.inputs[:2]
        counted = not (most.node is not None and most.node.is_constant and most.node.constant == _FOREVER)
        if counted or body.inputs[0].users:
            raise _not_structured(node, "it counts its iterations")
        self._check_pure(node)
        goes_on = self._predicate(begins, node)
        names = [self._name(value) for value in body.inputs[1:]]
        test, step, again = (self._fresh(f"{each}_{len(self.lines)}") for each in ("test", "step", "again"))
        self._line(f"def {test}({', '.join([again, *names])}):")
        self._line(f"    return {again}.clone()")
        self._inner(step, [again, *names], body, body.outputs[1:], body.outputs[0])
        given = [f"{self._text(each)}.clone()" for each in node.inputs[2:]]
        targets = ", ".join(map(self._name, node.outputs))
        call = f"while_loop({test}, {step}, ({', '.join([goes_on, *given])}))"
        self._line(f"_, {targets} = torch._higher_order_ops.{call}", node.where)

    def _inner(
        self, name: str, arguments: list[str], block: Block, outputs: list[Value], again: Value | None = None
    ) -> None:
        """A nested function. Its results have their own memory, as control flow operators require."""
        self._line(f"def {name}({', '.join(arguments)}):")
        self.indent += 1
        self._nodes(block.nodes, block.outputs, False)
        given = [f"{self._text(each)}.clone()" for each in outputs]
        if again is not None:
            given.insert(0, self._predicate(again, None))
        self._line(f"return ({''.join(f'{each}, ' for each in given)})")
        self.indent -= 1

    def _predicate(self, value: Value, of: Node | None) -> str:
        """The tensor from which a bool was read."""
        node = value.node
        if node is not None and node.key == "aten::Bool.Tensor":
            return f"{self._text(node.inputs[0])}.reshape(()).to(torch.bool)"
        if node is not None and node.key == "aten::__not__":
            return f"{self._predicate(node.inputs[0], of)}.logical_not()"
        raise _not_structured(of, "its condition is no tensor's")

    def _is_predicate(self, node: Node) -> bool:
        """Whether a bool is used only by control flow operators, which take the tensor."""
        if node.key not in ("aten::Bool.Tensor", "aten::__not__"):
            return False
        if node.key == "aten::__not__" and id(node.inputs[0]) in self.names:
            return False
        users = node.outputs[0].users
        return all((user.blocks and id(user) in self.loose) or self._is_predicate(user) for user in users)

    def _check_pure(self, node: Node) -> None:
        for value in node.outputs:
            if value.kind != "TensorType":
                raise _not_structured(node, f"it gives a {value.type}")
        for block in node.blocks:
            for inner in block.walk():
                mutates = inner.schema is not None and inner.schema.is_mutable
                if mutates or inner.key in ("prim::SetAttr", "prim::RaiseException", "prim::Print", SCRIPTED):
                    raise _not_structured(node, f"it holds {inner.key}, which changes or stops something")


_NOTHING = object()


def _not_structured(node: Node | None, why: str) -> SmeltError:
    return SmeltError(
        "SM0112",
        "a branch or a loop that data decides is no function of tensors",
        where=node.where if node is not None else None,
        why=why,
        remedy="smelt.compile runs it as Python between compiled pieces; a graph cannot hold it",
    )


def _same(value: Any, default: Any) -> bool:
    if isinstance(value, torch.Tensor) or isinstance(default, torch.Tensor):
        return False
    return type(value) is type(default) and value == default


def _is_true(value: Value) -> bool:
    return value.node is not None and value.node.is_constant and value.node.constant is True


def _changes_containers(block: Block) -> bool:
    """Whether a graph changes a list or a dict."""
    return any(
        argument.alias_info is not None and argument.alias_info.is_write and value.kind != "TensorType"
        for node in block.walk()
        for argument, value in zip(node.schema.arguments if node.schema is not None else (), node.inputs)
    )


def _made_in(node: Node) -> list[Value]:
    return [*node.outputs, *(value for block in node.blocks for value in block.inputs)]


def _fields(value: Value) -> tuple[str, list[str]] | None:
    """The name and the fields of a named tuple's type; None for any other."""
    text = value.type.str()
    if not text.startswith("NamedTuple("):
        return None
    fields, depth, name = [], 0, ""
    for sign in text[len("NamedTuple(") :]:
        depth += (sign in "([" and 1) or (sign in ")]" and -1) or 0
        if sign == ":" and not depth:
            fields.append(name.strip(" ,"))
            name = ""
        elif sign == "," and not depth:
            name = ""
        else:
            name += sign
    return str(value.type.annotation_str).rsplit(".", 1)[-1], fields


_KNOWN_TUPLES: dict[tuple[str, ...], Any] = {}


def _named(name: str, fields: list[str]) -> Any:
    key = (name, *fields)
    if key not in _KNOWN_TUPLES:
        _KNOWN_TUPLES[key] = namedtuple(name, fields)
    return _KNOWN_TUPLES[key]


_WRITERS: dict[str, Callable[[_Writer, Node, bool], None]] = {
    "prim::If": _Writer._if,
    "prim::Loop": _Writer._loop,
    "prim::GetAttr": _Writer._get,
    "prim::SetAttr": _Writer._set,
    "prim::RaiseException": _Writer._raise,
    "prim::TupleConstruct": _Writer._tuple,
    "prim::DictConstruct": _Writer._dict,
    "prim::NumToTensor.Scalar": _Writer._number_to_tensor,
    "prim::CreateObject": _Writer._gradient_mode,
    "prim::Enter": _Writer._gradient_mode,
    "prim::Exit": _Writer._gradient_mode,
}
