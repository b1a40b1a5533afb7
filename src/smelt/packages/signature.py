"""Inputs, outputs and sizes of a package, from a captured program."""

from __future__ import annotations

import builtins
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from sympy import Expr, Symbol
from torch.export import ExportedProgram
from torch.fx import Node
from torch.utils import _pytree as pytree
from torch.utils._sympy.numbers import int_oo

from smelt.capture import Program, shape_env_of
from smelt.errors import SmeltError
from smelt.runtime.plan import Size
from smelt.symbolic import as_expr, free_symbols
from smelt.symbolic.solving import Solution, solve_sizes
from smelt.symbolic.text import python_text

LARGEST = 2**63 - 1
"""The upper bound of a size without one."""


@dataclass(frozen=True, slots=True)
class Value:
    """An input or output: ``shape`` in texts over sizes' symbols; ``strides`` where it is not contiguous.

    ``position``: among the program's inputs or outputs. ``initial``: a state's value when the model was
    packaged. A state is an input that a run writes in place.
    """

    name: str
    dtype: torch.dtype
    shape: tuple[Size, ...]
    position: int
    state: bool = False
    initial: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class SizeInfo:
    """A symbolic size: its ``symbol`` in plans, its ``name`` for people, its range.

    ``source``: (input, dimension) that it is read from (the dimension is None: the input's value), and
    ``value``, a text over the sizes before it and ``dim``, the number found there.
    """

    name: str
    symbol: str
    least: int
    most: int
    source: tuple[int, int | None]
    value: str


@dataclass(frozen=True, slots=True)
class Signature:
    """``inputs``: the user's, then states. ``fixed``: inputs and outputs that are no tensors, by name.
    ``conditions``: texts over symbols that hold for all sizes that the program serves.
    """

    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    sizes: tuple[SizeInfo, ...]
    conditions: tuple[str, ...] = ()
    fixed: Mapping[str, Any] | None = None

    @property
    def names(self) -> dict[str, str]:
        """The symbol of each size → its name."""
        return {each.symbol: each.name for each in self.sizes}

    @property
    def states(self) -> tuple[Value, ...]:
        """The inputs that are written."""
        return tuple(each for each in self.inputs if each.state)


def signature_of(program: Program, exported: ExportedProgram, dynamic_shapes: Any = None) -> Signature:
    """The signature of a program in contract form.

    Raises:
        SmeltError: SM1403, an output whose size is known only once the program has run.
    """
    written = {target.name for target, _ in program.mutations()}
    inputs, states, fixed = list[Value](), list[Value](), dict[str, Any]()
    symbols: dict[str, int] = {}
    taken = {each.name for each in program.inputs}
    for position, (node, each) in enumerate(zip(program.placeholders, program.inputs, strict=True)):
        value = node.meta.get("val")
        state = node.name in written
        if each.value is not None and not state:
            continue
        if isinstance(value, torch.SymInt):
            symbols[str(value.node.expr)] = len(inputs)
            inputs.append(Value(_given_name(each.name, taken), torch.int64, (), position))
        elif not isinstance(value, torch.Tensor):
            fixed[each.name] = value
        else:
            initial = each.value.detach() if each.value is not None else None
            name = each.path if each.value is not None and each.path else _given_name(each.name, taken)
            found = Value(name, value.dtype, _shape(value), position, state, initial)
            (states if each.value is not None else inputs).append(found)
    inputs += states
    outputs = list(_outputs(program, exported, fixed))
    sizes = _sizes(program, exported, inputs, symbols, _dim_names(program, exported, dynamic_shapes))
    known = {each.symbol for each in sizes}
    for output in outputs:
        _check_known(output, known)
    return Signature(tuple(inputs), tuple(outputs), sizes, tuple(_conditions(program, known)), fixed)


def _given_name(name: str, taken: set[str]) -> str:
    """The user's name of an argument: FX adds a number to names that Python has, such as ``input``.

    >>> _given_name("input_1", {"input_1"}), _given_name("x_1", {"x_1"}), _given_name("sum_1", {"sum"})
    ('input', 'x_1', 'sum_1')
    """
    own = name.removesuffix("_1")
    return own if own != name and hasattr(builtins, own) and own not in taken else name


def _shape(value: torch.Tensor) -> tuple[Size, ...]:
    return tuple(int(expr) if expr.is_Integer else python_text(expr) for expr in map(as_expr, value.shape))


def _check_known(output: Value, known: set[str]) -> None:
    for size in output.shape:
        names = {str(each) for each in re.findall(r"[A-Za-z_]\w*", str(size))} - {"max", "min"}
        if not names <= known:
            raise SmeltError(
                "SM1403",
                f"the output {output.name} has a size that depends on data: {size}",
                why="callers give memory for outputs before a run",
                remedy="return a tensor of a fixed size and a count",
            )


def _outputs(program: Program, exported: ExportedProgram, fixed: dict[str, Any]) -> Iterator[Value]:
    names = output_names(exported.call_spec.out_spec)
    values = program.outputs
    names = names if len(names) == len(values) else [f"output_{at}" for at in range(len(values))]
    for position, (name, value) in enumerate(zip(names, values)):
        meta = value.meta.get("val") if isinstance(value, Node) else value
        if isinstance(meta, torch.Tensor):
            yield Value(name, meta.dtype, _shape(meta), position)
        elif isinstance(meta, torch.SymInt):
            yield Value(name, torch.int64, (), position)
        else:
            fixed[name] = meta


def output_names(spec: Any) -> list[str]:
    """A name for each output, from keys, fields and places.

    >>> output_names(pytree.tree_structure({"loss": 0, "states": [1, 2]}))
    ['loss', 'states_0', 'states_1']
    >>> output_names(pytree.tree_structure((0, 1))), output_names(pytree.tree_structure(0))
    (['output_0', 'output_1'], ['output'])
    """
    paths = pytree.tree_flatten_with_path(pytree.tree_unflatten(range(spec.num_leaves), spec))[0]
    names = []
    for path, _ in paths:
        words = [str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key)))) for key in path]
        plain = "_".join(words) or "output"
        names.append(plain if not plain[0].isdigit() else f"output_{plain}")
    return names


def _dim_names(program: Program, exported: ExportedProgram, dynamic_shapes: Any) -> dict[str, str]:
    """Symbol → the name that the user has given to it (`torch.export.Dim`)."""
    found: dict[str, str] = {}
    users = [n.meta.get("val") for n, each in zip(program.placeholders, program.inputs) if each.value is None]
    if dynamic_shapes is None:
        return found
    args, kwargs = pytree.tree_unflatten(users, exported.call_spec.in_spec)
    if isinstance(dynamic_shapes, Mapping):
        given = [value for key, value in kwargs.items()]
        pairs = list(zip([*args, *given], _by_name(dynamic_shapes, len(args), kwargs)))
    else:
        pairs = list(zip([*args, *kwargs.values()], dynamic_shapes))
    for value, dims in pairs:
        _name_dims(value, dims, found)
    return found


def _by_name(dynamic_shapes: Mapping[str, Any], positional: int, kwargs: Mapping[str, Any]) -> list[Any]:
    """Dynamic shapes in the order of the arguments."""
    named = [dynamic_shapes.get(name) for name in kwargs]
    first = [value for name, value in dynamic_shapes.items() if name not in kwargs]
    return [*(first + [None] * positional)[:positional], *named]


def _name_dims(value: Any, dims: Any, found: dict[str, str]) -> None:
    if dims is None:
        return
    if isinstance(value, torch.Tensor):
        each = dims.items() if isinstance(dims, Mapping) else enumerate(dims)
        for dim, chosen in each:
            name = getattr(chosen, "__name__", None)
            expr = as_expr(value.shape[dim])
            if name is not None and name.isidentifier() and isinstance(expr, Symbol):
                found.setdefault(expr.name, name)
    elif isinstance(value, Mapping) and isinstance(dims, Mapping):
        for key, inner in value.items():
            _name_dims(inner, dims.get(key), found)
    elif isinstance(value, (list, tuple)) and isinstance(dims, (list, tuple)):
        for inner, chosen in zip(value, dims):
            _name_dims(inner, chosen, found)


def _sizes(
    program: Program,
    exported: ExportedProgram,
    inputs: Sequence[Value],
    numbers: Mapping[str, int],
    names: Mapping[str, str],
) -> tuple[SizeInfo, ...]:
    """The symbolic sizes, in the order in which they can be read from the inputs."""
    shapes: list[tuple[str, Sequence[Expr]]] = []
    for at, each in enumerate(inputs):
        value = program.placeholders[each.position].meta["val"]
        if isinstance(value, torch.Tensor):
            shapes.append((str(at), [as_expr(size) for size in value.shape]))
    ranges = exported.range_constraints
    made = []

    def bounds(symbol: Symbol) -> tuple[int, int]:
        found = ranges.get(symbol)
        if found is None:
            return 0, LARGEST
        return max(int(found.lower), 0), LARGEST if found.upper in (int_oo, None) else int(found.upper)

    known = {Symbol(name, integer=True) for name in numbers}
    for name, at in numbers.items():
        made.append(SizeInfo(inputs[at].name, name, -LARGEST, LARGEST, (at, None), "dim"))
    taken = {each.name for each in made}
    for solution in solve_sizes(shapes, known):
        at, dim = int(solution.tensor), solution.dim
        name = names.get(solution.symbol.name) or f"{_plain(inputs[at].name)}_{dim}"
        while name in taken:
            name += "_"
        taken.add(name)
        least, most = bounds(solution.symbol)
        made.append(SizeInfo(name, solution.symbol.name, least, most, (at, dim), _value_text(solution)))
    return tuple(made)


def _value_text(solution: Solution) -> str:
    return python_text(solution.value.xreplace({solution.size: Symbol("dim", integer=True)}))


def renamed(size: Size, names: Mapping[str, str]) -> Size:
    """A size in other names.

    >>> renamed("2*s0 + s1", {"s0": "batch"})
    '2*batch + s1'
    """
    if isinstance(size, int):
        return size
    return re.sub(r"[A-Za-z_]\w*", lambda found: names.get(found[0], found[0]), size)


def _plain(name: str) -> str:
    return re.sub(r"\W", "_", name)


def _conditions(program: Program, known: set[str]) -> Iterator[str]:
    environment = shape_env_of(program.example_inputs)
    guards = () if environment is None else environment.guards
    for condition in dict.fromkeys(guard.expr for guard in guards):
        if {str(each) for each in free_symbols([condition])} <= known:
            yield python_text(condition)
