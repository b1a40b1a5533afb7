"""TorchScript modules and functions as Python modules and functions."""

from __future__ import annotations

import itertools
import linecache
import re
from collections.abc import Callable, Iterable
from types import FunctionType
from typing import Any

import torch
from torch import nn

from smelt.capture.torchscript.graphs import Block, Value, is_module, read
from smelt.capture.torchscript.operators import NAMES
from smelt.capture.torchscript.source import Parameter, Source, write
from smelt.errors import SmeltError

_ORIGIN = re.compile(r"  # (\S+:\d+)$")

_numbers = itertools.count()
FILE = "<torchscript {}>"
"""The file name of generated functions, in tracebacks and for Python's ``linecache``."""


def is_torchscript(model: Any) -> bool:
    """Whether an object is TorchScript: scripted, traced or loaded.

    >>> is_torchscript(torch.nn.ReLU())
    False
    """
    return isinstance(model, (torch.jit.ScriptModule, torch.jit.ScriptFunction))


def from_torchscript(
    scripted: Any,
    *,
    structured: bool = False,
    compile_piece: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None,
) -> Any:
    """A scripted, traced or loaded module or function in Python, for Dynamo and `torch.export`.

    Args:
        scripted: a module becomes a `FromTorchScript`, a function a function.
        structured: data-dependent branches and loops become ``torch.cond`` and ``while_loop``; they stay
            Python otherwise, around pieces without them.
        compile_piece: maps each of these pieces, which are functions, to its replacement.

    Parameters and buffers are the module's own tensors. Attributes that a method sets are copied from the
    module and belong to the new one from then on. TorchScript runs the parts that Python cannot express.
    ``source`` and ``left`` of the result: the Python text, and the operators that do not run compiled.

    Raises:
        SmeltError: SM0110 ``scripted`` is not TorchScript's, SM0111 a part that only TorchScript can run
            cannot be separated from the rest, SM0112, ``structured`` and a branch or loop that is no function
            of tensors.

    >>> graph = torch._C.parse_ir("graph(%x : Tensor):\\n  %y : Tensor = aten::relu(%x)\\n  return (%y)")
    >>> function = from_torchscript(torch._C._create_function_from_graph("positive", graph))
    >>> print(function.source)
    def positive(x):
        v1 = torch.ops.aten.relu.default(x)
        return v1
    <BLANKLINE>
    """
    if isinstance(scripted, torch.jit.ScriptFunction):
        return _function(scripted, structured, compile_piece)
    if isinstance(scripted, torch.jit.ScriptModule):
        return FromTorchScript(scripted, structured, compile_piece)
    raise SmeltError(
        "SM0110",
        f"a {type(scripted).__name__} is no TorchScript module or function",
        remedy="torch.jit.script, trace or load gives one; smelt.compile takes all others as they are",
    )


def _function(
    scripted: Any, structured: bool, compile_piece: Callable[[Callable[..., Any]], Callable[..., Any]] | None
) -> Callable[..., Any]:
    block = read(scripted.graph)
    names = [each.name for each in scripted.schema.arguments]
    source = write(scripted.name, block, parameters_of(scripted.schema.arguments), False, structured)
    function = load(source, scripted.name, compile_piece)
    function.source, function.left, function.pieces = source.text, source.left, source.pieces  # type: ignore[attr-defined]
    assert len(names) == len(block.inputs)
    return function


def parameters_of(arguments: Iterable[Any]) -> list[Parameter]:
    """A schema's arguments."""
    return [Parameter(each.name, each.has_default_value(), each.default_value) for each in arguments]


def load(
    source: Source,
    of: str,
    compile_piece: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None,
) -> FunctionType:
    """The function that a text defines; tracebacks show its lines."""
    file = FILE.format(f"{of}.{source.name} {next(_numbers)}")
    linecache.cache[file] = (len(source.text), None, source.text.splitlines(keepends=True), file)
    scope = {**NAMES, **source.scope}  # without a name: Dynamo would import a module of that name
    exec(compile(source.text, file, "exec"), scope)
    if compile_piece is not None:
        scope.update({name: compile_piece(scope[name]) for name in source.pieces})
    function: FunctionType = scope[source.name]
    return function


def origin(file: str, line: int) -> str | None:
    """``model.py:12``, the user's line of a line of generated text; None for other files."""
    if not file.startswith("<torchscript "):
        return None
    found = _ORIGIN.search(linecache.getline(file, line).rstrip())
    return found[1] if found else None


class Attributes:
    """Attributes of a module that its methods set: separate from the module, whose dict then does not
    change.
    """


class Part(nn.Module):
    """A submodule of a TorchScript module: its parameters, buffers, modules and attributes, without
    methods.
    """

    held: Attributes

    def extra_repr(self) -> str:
        return str(getattr(type(self), "original_name", ""))


class FromTorchScript(Part):
    """A TorchScript module as a Python module, with all of its methods.

    ``source``: the text of each method by name; ``left``: (operator, reason, line) of uncompiled parts;
    ``pieces``: the methods that are Python around compiled pieces, with their number; ``kept``: the
    attributes, other than parameters and buffers, by which ``forward`` depends on the calls before.
    """

    def __init__(
        self,
        scripted: torch.jit.ScriptModule,
        structured: bool = False,
        compile_piece: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None,
    ) -> None:
        super().__init__()
        methods = {name: scripted._c._get_method(name) for name in scripted._c._method_names()}
        blocks = {name: read(method.graph) for name, method in methods.items()}
        read_, set_ = _attributes(blocks.values())
        _fill(self, scripted, (), read_, set_)
        tensors = {name for name, _ in itertools.chain(self.named_parameters(), self.named_buffers())}
        self.kept = sorted(_kept(blocks["forward"]) - tensors) if "forward" in blocks else []
        sources: dict[str, Source] = {}
        members: dict[str, Any] = {"__module__": __name__}
        own = str(getattr(scripted, "original_name", type(scripted).__name__))
        for name, block in blocks.items():
            parameters = parameters_of(methods[name].schema.arguments[1:])
            try:
                sources[name] = write(name, block, parameters, True, structured)
            except SmeltError as error:
                if name == "forward":
                    raise
                members[name] = _refusing(error)
                continue
            members[name] = load(sources[name], own, compile_piece)
        cls = type(self)
        vars_of = {name: value for name, value in vars(cls).items() if isinstance(value, property)}
        self.__class__ = type(own, (FromTorchScript,), {**vars_of, **members})
        self.source = {name: source.text for name, source in sources.items()}
        self.pieces = {name: len(source.pieces) for name, source in sources.items() if source.pieces}
        self.left = [each for source in sources.values() for each in source.left]


def _refusing(error: SmeltError) -> Callable[..., Any]:
    """A method that raises the error of its translation when called."""

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        raise error

    return method


Path = tuple[str, ...]


def _attributes(blocks: Iterable[Block]) -> tuple[dict[Path, set[str]], dict[Path, set[str]]]:
    """Names of the attributes that methods read and set, by the path of their module."""
    reads: dict[Path, set[str]] = {}
    sets: dict[Path, set[str]] = {}
    for block in blocks:
        for node in block.walk():
            if node.key in ("prim::GetAttr", "prim::SetAttr") and is_module(node.inputs[0]):
                found = reads if node.key == "prim::GetAttr" else sets
                found.setdefault(_path(node.inputs[0]), set()).add(node.source.s("name"))
    return reads, sets


def _kept(block: Block) -> set[str]:
    """The attributes that a method sets, and may read before it has set them, by their paths."""
    early, known, changed = set[str](), set[str](), set[str]()
    for outer in block.nodes:
        for node in outer.walk():
            if node.key in ("prim::GetAttr", "prim::SetAttr") and is_module(node.inputs[0]):
                name = ".".join((*_path(node.inputs[0]), node.source.s("name")))
                if node.key == "prim::SetAttr":
                    changed.add(name)
                    known |= {name} if node is outer else set()
                elif name not in known:
                    early.add(name)
    return early & changed


def _path(module: Value) -> Path:
    node = module.node
    if node is None:
        return ()
    return (*_path(node.inputs[0]), node.source.s("name"))


def _fill(
    part: Part, scripted: Any, path: Path, reads: dict[Path, set[str]], sets: dict[Path, set[str]]
) -> None:
    """Copies the contents of a TorchScript module into a module."""
    tensors = set()
    parameters: Any = torch._C.ParameterDict(scripted._c)
    buffers: Any = torch._C.BufferDict(scripted._c)
    for name, value in parameters.items():
        own = value if isinstance(value, nn.Parameter) else nn.Parameter(value, value.requires_grad)
        part.register_parameter(name, own)
        tensors.add(name)
    for name, value in buffers.items():
        part.register_buffer(name, value)
        tensors.add(name)
    modules = dict(scripted._modules.items())
    for name, module in modules.items():
        inner = Part()
        _fill(inner, module, (*path, name), reads, sets)
        part.add_module(name, inner)
    changing = sets.get(path, set()) - tensors
    part.held = Attributes()
    for name in sorted((reads.get(path, set()) | changing) - tensors - set(modules)):
        if name == "training":
            continue
        value = scripted._c.getattr(name)
        setattr(part.held if name in changing else part, name, value)
    objects = {
        each[len(path)] for each in {**reads, **sets} if each[: len(path)] == path and len(each) > len(path)
    }
    for name in objects - set(modules):
        setattr(part, name, _object(scripted._c.getattr(name), (*path, name), reads, sets))
    part.training = bool(getattr(scripted, "training", False))
    properties: dict[str, Any] = {name: _held(name) for name in changing}
    if properties:
        part.__class__ = type(type(part).__name__, (type(part),), properties)


def _object(value: Any, path: Path, reads: dict[Path, set[str]], sets: dict[Path, set[str]]) -> Attributes:
    """An object of a script class: the attributes that methods use (which are inlined)."""
    held = Attributes()
    for name in reads.get(path, set()) | sets.get(path, set()):
        setattr(held, name, getattr(value, name))
    for each in {**reads, **sets}:
        if each[:-1] == path:
            setattr(held, each[-1], _object(getattr(value, each[-1]), each, reads, sets))
    return held


def _held(name: str) -> property:
    def get(self: Part) -> Any:
        return getattr(self.held, name)

    def set_(self: Part, value: Any) -> None:
        setattr(self.held, name, value)

    return property(get, set_)
