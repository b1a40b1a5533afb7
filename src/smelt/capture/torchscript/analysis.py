"""Rank, dtype and sizes of every value of a TorchScript graph: the graph is run on fake tensors with symbolic
sizes. FakeTensor knows the shape rules of operators, its ShapeEnv the sizes that have to be equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from sympy.core.relational import Relational
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    GuardOnDataDependentSymNode,
    ShapeEnv,
    StatelessSymbolicContext,
)

from smelt.capture.torchscript.graphs import Block, Node, Value, is_module, read
from smelt.capture.torchscript.operators import ENUMERATIONS, READS, function_of, overload, template_of
from smelt.capture.torchscript.passes import is_written
from smelt.errors import SmeltError

Given = torch.Tensor | tuple[Sequence[int], torch.dtype] | Any
"""The known facts on an argument: an example, or sizes (-1: dynamic) and dtype."""

_NOT_REACHED = "it is not reached"
_WIDEST = 72
_MOST_ALONE = 32
"""Iterations of a loop that are analyzed one by one."""
_MOST_TURNS = 6
"""Iterations of a loop after which carried values without a fixed point are unknown."""


@dataclass(frozen=True, slots=True)
class Fact:
    """The known facts on one value.

    ``dims``: a number is a known size; a text is a dynamic size, an expression of the sizes of inputs
    (``x[0]``, ``2*x[0] + 1``) or, ``data0``, of data; equal texts are equal sizes. ``rank`` and ``dtype`` are
    None for non-tensors, and where they are unknown: then ``why`` has the reason.
    """

    name: str
    type: str
    rank: int | None = None
    dtype: torch.dtype | None = None
    dims: tuple[int | str, ...] | None = None
    where: str | None = None
    why: str | None = None

    def __str__(self) -> str:
        if self.dims is None:
            return f"%{self.name} : {self.type}" + (f", unknown: {self.why}" if self.why else "")
        kind = str(self.dtype).removeprefix("torch.")
        return f"%{self.name} : rank {self.rank}, {kind}[{', '.join(map(str, self.dims))}]"


@dataclass(frozen=True, slots=True)
class Analysis:
    """The facts of a graph's values in their order, and ``conditions``: assumptions on sizes, because
    operators need them or the example takes a branch.
    """

    facts: tuple[Fact, ...]
    conditions: tuple[str, ...]

    def __getitem__(self, name: str) -> Fact:
        """The fact on a value by its name in the graph, with or without ``%``."""
        return next(each for each in self.facts if each.name == name.removeprefix("%"))

    def __str__(self) -> str:
        told = [each for each in self.facts if each.why != _NOT_REACHED]
        lines = [str(each) for each in told]
        width = min(_WIDEST, max(map(len, lines), default=0))
        lines = [f"{line:{width}}  # {each.where}" if each.where else line for line, each in zip(lines, told)]
        left = len(self.facts) - len(told)
        ends = [f"({left} values are in branches that are not taken)"] if left else []
        return "\n".join([*lines, *(f"where {each}" for each in self.conditions), *ends])

    __repr__ = __str__


def analyze(program: Any, inputs: Sequence[Given] | None = None, *, method: str = "forward") -> Analysis:
    """Rank, dtype and sizes of every value of a scripted or traced program, or of a ``torch._C.Graph``.

    Args:
        program: what is analyzed; of a module its ``method``.
        inputs: for each argument a tensor as an example, whose sizes but 0 and 1 count as dynamic, or
            ``(sizes, dtype)`` with -1 for sizes that are dynamic, or the value of what is no tensor. None:
            what the graph's types say.

    Both branches of a data-dependent condition are analyzed; facts in which they differ are unknown. For a
    condition on sizes, the branch of the example is taken (``conditions``).

    Raises:
        SmeltError: SM0113, no such program, or another number of inputs than it has arguments.

    >>> text = "graph(%x : Tensor, %y : Tensor):\\n  %one : int = prim::Constant[value=1]()\\n"
    >>> text += "  %z : Tensor = aten::add(%x, %y, %one)\\n  return (%z)"
    >>> graph = torch._C.parse_ir(text)
    >>> print(analyze(graph, [((-1, 3), torch.float32), ((-1, -1), torch.float64)]))
    %x : rank 2, float32[x[0], 3]
    %y : rank 2, float64[x[0], 3]
    %3 : rank 2, float64[x[0], 3]
    where x[0] == y[0]
    where y[1] == 3
    """
    module = program if isinstance(program, torch.jit.ScriptModule) else None
    if module is not None and module._c._has_method(method):
        graph = module._c._get_method(method).graph
    elif isinstance(program, torch.jit.ScriptFunction):
        graph = program.graph
    elif isinstance(program, torch._C.Graph):
        graph = program
    else:
        what = f"a {type(program).__name__} has no TorchScript graph to analyze"
        raise SmeltError("SM0113", what, remedy="give a scripted module or function, or a torch._C.Graph")
    block = read(graph, as_it_is=True)
    arguments = block.inputs[1:] if block.inputs and is_module(block.inputs[0]) else block.inputs
    if inputs is not None and len(inputs) != len(arguments):
        what = f"the program has {len(arguments)} arguments, and {len(inputs)} are given"
        raise SmeltError("SM0113", what, why=", ".join(f"%{each.name}" for each in arguments))
    run = _Run(module)
    run.give(arguments, inputs if inputs is not None else [_NOTHING] * len(arguments))
    run.block(block)
    return Analysis(tuple(run.facts(block)), tuple(run.conditions()))


class _Unknown:
    """A value without known facts."""


_UNKNOWN, _NOTHING = _Unknown(), object()
_NEVER = object()
"""The result of ``prim::Uninitialized``, which is never used."""


class _Raised(Exception):  # noqa: N818  (the program's, on a path that is not looked at further)
    pass


class _Run:
    """An abstract run of a graph."""

    def __init__(self, module: Any) -> None:
        self.env = ShapeEnv(duck_shape=False, specialize_zero_one=False)
        self.mode = FakeTensorMode(shape_env=self.env, allow_non_fake_inputs=True)
        self.module = module
        self.values: dict[int, Any] = {}
        self.given: list[tuple[str, torch.Tensor]] = []
        self.names: dict[sympy.Symbol, str] = {}
        self.state: dict[tuple[str, ...], Any] = {}
        self.why: dict[int, str] = {}
        self.widened: set[Any] = set()

    # -- inputs

    def give(self, arguments: Sequence[Value], inputs: Iterable[Given]) -> None:
        for value, given in zip(arguments, inputs):
            self.values[id(value)] = self._input(value.name.split(".")[0], value, given)

    def _input(self, name: str, value: Value, given: Given) -> Any:
        if isinstance(given, torch.Tensor):
            return self._fake(name, given)
        if isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], torch.dtype):
            return self._annotated(name, *given)
        if given is not _NOTHING:
            return given
        kind = value.type
        if value.kind == "TensorType" and kind.dim() is not None and kind.scalarType() is not None:
            sizes = [-1 if size is None else size for size in kind.varyingSizes() or ()]
            return self._annotated(name, sizes, _DTYPES_BY_NAME[kind.scalarType()])
        self.why[id(value)] = "no facts are given on this argument"
        return _UNKNOWN

    def _annotated(self, name: str, sizes: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A tensor without an example: operators determine its sizes."""
        symbols: list[Any] = list(sizes)
        for dim, size in enumerate(sizes):
            if size == -1:
                symbols[dim] = self.env.create_unbacked_symint()
                torch._check(symbols[dim] >= 2)
        with self.mode:
            return self._named(name, torch.empty(symbols, dtype=dtype))

    def _fake(self, name: str, example: torch.Tensor) -> torch.Tensor:
        dims = [DimDynamic.DYNAMIC if size > 1 else DimDynamic.STATIC for size in example.shape]
        context: Any = StatelessSymbolicContext(dynamic_sizes=dims)  # type: ignore[call-arg]
        fake = self.mode.from_tensor(example.detach(), symbolic_context=context, source=ConstantSource(name))
        return self._named(name, fake)

    def _named(self, name: str, fake: torch.Tensor) -> torch.Tensor:
        """Names the symbols of a tensor's sizes after it."""
        for dim, size in enumerate(fake.shape):
            if isinstance(size, torch.SymInt):
                self.names[size.node.expr] = f"{name}[{dim}]"
        self.given.append((name, fake))
        return fake

    # -- nodes

    def block(self, block: Block) -> list[Any]:
        """Runs a block; returns its results."""
        for node in block.nodes:
            try:
                results = self._node(node)
            except _Raised:
                raise
            except Exception as error:  # errors of operators have no common class
                results = self._unknown(node, (str(error) or type(error).__name__).splitlines()[0][:100])
            for value, result in zip(node.outputs, results):
                self.values[id(value)] = result
        return [self._value(value) for value in block.outputs]

    def _unknown(self, node: Node, why: str) -> list[Any]:
        """Results of which only the type is known; numbers depend on data."""
        for value in node.outputs:
            self.why[id(value)] = why
        return [self._any(value) for value in node.outputs]

    def _any(self, value: Value) -> Any:
        make: dict[str, Callable[[], Any]] = {
            "IntType": self.env.create_unbacked_symint,
            "FloatType": self.env.create_unbacked_symfloat,
            "BoolType": self.env.create_unbacked_symbool,
        }
        return make[value.kind]() if value.kind in make else _UNKNOWN

    def _value(self, value: Value) -> Any:
        node = value.node
        return (
            node.constant if node is not None and node.is_constant else self.values.get(id(value), _UNKNOWN)
        )

    def _node(self, node: Node) -> Sequence[Any]:
        if node.is_constant:
            return [node.constant]
        if node.key in _STRUCTURAL:
            return _STRUCTURAL[node.key](self, node)
        args = [self._value(value) for value in node.inputs]
        if any(each is _NEVER for each in args):
            return [_NEVER] * len(node.outputs)
        if any(each is _UNKNOWN for each in args):
            return self._unknown(node, "it depends on an unknown value")
        if not is_written(node):
            return self._unknown(node, f"{node.key} is TorchScript's own")
        if node.key in READS:
            return self._unknown(node, "data decides")
        with enable_python_dispatcher(), self.mode:  # composite operators with symbols for sizes
            result = self._called(node, args)
        if len(node.outputs) == 1 and node.kind not in ("prim::ListUnpack", "prim::TupleUnpack"):
            return [result]
        return list(result) if node.outputs else []

    def _called(self, node: Node, args: list[Any]) -> Any:
        template = template_of(node.key, node.schema)
        if template is not None:
            kwargs_only = [
                argument.name
                for argument in (node.schema.arguments if node.schema is not None else ())
                if argument.kwarg_only
            ]
            if kwargs_only and "torch.tensor(" in template:
                return torch.tensor(args[0], dtype=_enumerated("ScalarType", args[1]))
            if kwargs_only and "torch.as_tensor(" in template:
                return torch.as_tensor(args[0], dtype=_enumerated("ScalarType", args[1]))
            return function_of(template, len(args))(*args)
        positional: list[Any] = []
        named: dict[str, Any] = {}
        for argument, value in zip(node.schema.arguments, args):
            kind = str(argument.real_type).removeprefix("Optional[").removesuffix("]")
            converted = _enumerated(kind, value)
            if argument.kwarg_only:
                named[argument.name] = converted
            else:
                positional.append(converted)
        return overload(node.key)(*positional, **named)  # type: ignore[misc]

    # -- nodes that are no operators

    def _get(self, node: Node) -> list[Any]:
        path = (*_path(node.inputs[0]), node.source.s("name"))
        if path not in self.state:
            if self.module is None:
                return self._unknown(node, "it is an attribute of a module that is not given")
            held = self.module
            for name in path:
                held = getattr(held, name)
            is_tensor = isinstance(held, torch.Tensor)
            self.state[path] = self.mode.from_tensor(held, static_shapes=True) if is_tensor else held
        return [self.state[path]]

    def _set(self, node: Node) -> list[Any]:
        self.state[(*_path(node.inputs[0]), node.source.s("name"))] = self._value(node.inputs[1])
        return []

    def _raise(self, node: Node) -> list[Any]:
        raise _Raised

    def _list(self, node: Node) -> list[Any]:
        return [[self._value(value) for value in node.inputs]]

    def _tuple(self, node: Node) -> list[Any]:
        return [tuple(self._value(value) for value in node.inputs)]

    def _dict(self, node: Node) -> list[Any]:
        values = [self._value(value) for value in node.inputs]
        return [dict(zip(values[::2], values[1::2]))]

    def _unpack(self, node: Node) -> Sequence[Any]:
        packed = self._value(node.inputs[0])
        return self._unknown(node, "it depends on an unknown value") if packed is _UNKNOWN else list(packed)

    def _number_to_tensor(self, node: Node) -> list[Any]:
        kinds = {"IntType": torch.int64, "BoolType": torch.bool, "FloatType": torch.float64}
        with self.mode:
            return [torch.empty((), dtype=kinds.get(node.inputs[0].kind, torch.float64))]

    def _if(self, node: Node) -> list[Any]:
        known = self._known(self._value(node.inputs[0]))
        if known is not None:
            return self.block(node.blocks[0 if known else 1])
        self._forget_changed(node)
        before, found = dict(self.state), []
        for block in node.blocks:
            self.state = dict(before)
            try:
                found.append((self.block(block), self.state))
            except _Raised:
                continue
        if not found:
            raise _Raised
        if len(found) == 1:
            results, self.state = found[0]
            return results
        (then, after_then), (otherwise, after_otherwise) = found
        self.state = {
            path: self._joined(after_then.get(path, _UNKNOWN), after_otherwise.get(path, _UNKNOWN))
            for path in after_then.keys() & after_otherwise.keys()
        }
        for value, one, other in zip(node.outputs, then, otherwise):
            if self._joined(one, other) is _UNKNOWN:
                self.why[id(value)] = "the branches do not agree"
        return [self._joined(one, other) for one, other in zip(then, otherwise)]

    def _known(self, condition: Any) -> bool | None:
        """A condition's value; None if it depends on data."""
        try:
            return None if condition is _UNKNOWN else bool(condition)
        except GuardOnDataDependentSymNode:
            return None

    def _forget_changed(self, node: Node) -> None:
        """Forgets lists and dicts that are changed in blocks with an unknown number of runs."""
        for block in node.blocks:
            for inner in block.walk():
                arguments = inner.schema.arguments if inner.schema is not None else ()
                for argument, value in zip(arguments, inner.inputs):
                    writes = argument.alias_info is not None and argument.alias_info.is_write
                    if writes and value.kind != "TensorType":
                        self.values[id(value)] = _UNKNOWN
                        self.why[id(value)] = "it is changed where data decides"

    def _loop(self, node: Node) -> list[Any]:
        """Runs a loop iteration by iteration while sizes and numbers decide whether it continues, then all
        iterations at once.
        """
        (body,) = node.blocks
        most, goes_on = (self._value(value) for value in node.inputs[:2])
        carried = [self._value(value) for value in node.inputs[2:]]
        for iteration in range(_MOST_ALONE):
            known = self._known(goes_on)
            ended = _UNKNOWN if most is _UNKNOWN else self._known(most <= iteration)
            if known is False or ended is True:
                return carried
            if known is None or ended is not False:
                break
            self.values[id(body.inputs[0])] = iteration
            for value, held in zip(body.inputs[1:], carried):
                self.values[id(value)] = held
            goes_on, *carried = self.block(body)
        self._forget_changed(node)
        for _ in range(_MOST_TURNS):
            self.values[id(body.inputs[0])] = self.env.create_unbacked_symint()
            for value, held in zip(body.inputs[1:], carried):
                self.values[id(value)] = held
            given = self.block(body)[1:]
            joined = [self._joined(one, other) for one, other in zip(carried, given)]
            if all(_is_same(one, other) for one, other in zip(carried, joined)):
                return joined
            carried = joined
        return self._unknown(node, "each iteration of the loop changes what it carries")

    def _joined(self, one: Any, other: Any) -> Any:
        """The common facts of two alternatives for a value."""
        if _is_same(one, other) or other is _NEVER:
            return one
        if one is _NEVER:
            return other
        if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
            if one.dtype != other.dtype or one.dim() != other.dim():
                return _UNKNOWN
            sizes = [self._joined(a, b) for a, b in zip(one.shape, other.shape)]
            with self.mode:
                return torch.empty(sizes, dtype=one.dtype)
        if _is_whole(one) and _is_whole(other):
            if isinstance(one, torch.SymInt) and one.node.expr in self.widened:
                return one
            number = self.env.create_unbacked_symint()
            torch._check(number >= 0)
            self.widened.add(number.node.expr)
            return number
        if type(one) is type(other) and isinstance(one, (list, tuple)) and len(one) == len(other):
            return type(one)([self._joined(a, b) for a, b in zip(one, other)])
        return _UNKNOWN

    # -- facts

    def facts(self, block: Block) -> Iterator[Fact]:
        """The facts on a block's inputs and values, those of inner blocks after their node."""
        names = self._final_names()
        for value in block.inputs:
            if not is_module(value):
                yield self._fact(value, None, names)
        for node in block.nodes:
            for value in node.outputs if not node.is_constant else ():
                yield self._fact(value, node, names)
            for inner in node.blocks:
                yield from self.facts(inner)

    def _fact(self, value: Value, node: Node | None, names: Mapping[Any, str]) -> Fact:
        held, kind = self._value(value), str(value.type.annotation_str)
        where = node.where if node is not None else None
        if isinstance(held, torch.Tensor):
            dims = tuple(_dim(size, names) for size in held.shape)
            return Fact(value.name, kind, held.dim(), held.dtype, dims, where)
        why = self.why.get(id(value), _NOT_REACHED) if held is _UNKNOWN else None
        return Fact(value.name, kind, where=where, why=why)

    def _final_names(self) -> dict[Any, str]:
        """The names of symbols, by the first input with such a size, once it is known which are equal."""
        names: dict[Any, str] = {}
        for name, fake in self.given:
            for dim, size in enumerate(fake.shape):
                if isinstance(size, torch.SymInt) and isinstance(size.node.expr, sympy.Symbol):
                    names.setdefault(size.node.expr, f"{name}[{dim}]")
        order = list(names)
        for expr in self._asked():
            if isinstance(expr, sympy.Eq) and all(side in names for side in expr.args):
                first, second = sorted(expr.args, key=order.index)
                names[second] = names[first]
        return names

    def _asked(self) -> list[Any]:
        """The conditions on sizes."""
        asserted = self.env.deferred_runtime_asserts.values()
        return [guard.expr for guard in self.env.guards] + [each.expr for asked in asserted for each in asked]

    def conditions(self) -> Iterator[str]:
        """The assumptions on the inputs' sizes, without those that a size is not 1."""
        said: set[str] = set()
        for expr in self._asked():
            if not isinstance(expr, Relational) or not expr.free_symbols <= self.names.keys():
                continue
            if expr.lhs in (1, 2) or expr.rhs in (1, 2):
                continue
            sides = [_spelled(side, self.names) for side in expr.args]
            text = f"{sides[0]} {_SIGNS.get(type(expr), expr.rel_op)} {sides[1]}"
            if text not in said:
                said.add(text)
                yield text


_SIGNS = {sympy.Eq: "=="}
_DTYPES_BY_NAME = {
    "Byte": torch.uint8,
    "Char": torch.int8,
    "Short": torch.int16,
    "Int": torch.int32,
    "Long": torch.int64,
    "Half": torch.float16,
    "Float": torch.float32,
    "Double": torch.float64,
    "Bool": torch.bool,
    "BFloat16": torch.bfloat16,
    "ComplexFloat": torch.complex64,
    "ComplexDouble": torch.complex128,
}
_STRUCTURAL: dict[str, Callable[[_Run, Node], Sequence[Any]]] = {
    "prim::GetAttr": _Run._get,
    "prim::SetAttr": _Run._set,
    "prim::RaiseException": _Run._raise,
    "prim::Uninitialized": lambda run, node: [_NEVER],
    "prim::ListConstruct": _Run._list,
    "prim::TupleConstruct": _Run._tuple,
    "prim::DictConstruct": _Run._dict,
    "prim::ListUnpack": _Run._unpack,
    "prim::TupleUnpack": _Run._unpack,
    "prim::NumToTensor.Scalar": _Run._number_to_tensor,
    "prim::If": _Run._if,
    "prim::Loop": _Run._loop,
}


def _path(module: Value) -> tuple[str, ...]:
    node = module.node
    return () if node is None else (*_path(node.inputs[0]), node.source.s("name"))


def _enumerated(kind: str, value: Any) -> Any:
    known = ENUMERATIONS.get(kind)
    return known[value] if known is not None and type(value) is int else value


def _is_whole(value: Any) -> bool:
    return isinstance(value, torch.SymInt) or type(value) is int


def _is_same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        same_form = one.dtype == other.dtype and one.dim() == other.dim()
        return same_form and all(map(_is_same, one.shape, other.shape))
    if _is_whole(one) and _is_whole(other):
        exprs = [each.node.expr if isinstance(each, torch.SymInt) else each for each in (one, other)]
        return bool(exprs[0] == exprs[1])
    if type(one) is not type(other):
        return False
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_is_same, one, other))
    return bool(one == other) if type(one) in (bool, float, str) else False


def _dim(size: Any, names: Mapping[Any, str]) -> int | str:
    expr = size.node.expr if isinstance(size, torch.SymInt) else sympy.Integer(size)
    return int(expr) if expr.is_Integer else _spelled(expr, names)


def _spelled(expr: Any, names: Mapping[Any, str]) -> str:
    """A size in terms of inputs' names; ``data0`` is a data-dependent one."""
    spelled = {}
    for symbol in expr.free_symbols:
        name = names.get(symbol)
        if name is None:
            digits = "".join(each for each in symbol.name if each.isdigit())
            name = f"data{digits}"
        spelled[symbol] = sympy.Symbol(name, integer=True)
    return str(expr.xreplace(spelled))
