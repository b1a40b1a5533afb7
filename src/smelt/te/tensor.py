"""Tensors: placeholders, and tensors computed by a function of an index."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from sympy import Expr, Integer

from smelt.errors import SmeltError
from smelt.te import check
from smelt.te.dtypes import NAMES, kind_of
from smelt.te.errors import refuse
from smelt.te.index import Idx, IterVar, as_index, as_size, public
from smelt.te.reductions import Reduced
from smelt.te.value import Load, Lookup, Value, as_value, cast


class Operation:
    """The origin of tensors: their names, and the tensors that it reads.

    ``open``: the reason why no function can be made of it.
    """

    name: str
    tag: str = ""
    attrs: Mapping[str, Any]
    input_tensors: tuple[Tensor, ...] = ()
    axis: tuple[IterVar, ...] = ()
    reduce_axis: tuple[IterVar, ...] = ()
    body: tuple[Value, ...] = ()
    outputs: tuple[Tensor, ...]
    open: SmeltError | None = None
    is_given = False

    @property
    def num_outputs(self) -> int:
        return len(self.outputs)

    def output(self, number: int) -> Tensor:
        return self.outputs[number]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name})"


class PlaceholderOp(Operation):
    """Memory that the caller passes."""

    is_given = True

    def __init__(self, name: str, sizes: tuple[Expr, ...], kind: torch.dtype, index: torch.dtype) -> None:
        self.name, self.attrs = name, {}
        self.outputs = (Tensor(self, 0, sizes, kind, index),)


class ComputeOp(Operation):
    """Values for each index: one body for each output."""

    def __init__(
        self,
        name: str,
        axis: Sequence[IterVar],
        body: Sequence[Value],
        tag: str,
        attrs: Mapping[str, Any],
    ) -> None:
        self.name, self.axis, self.body, self.tag, self.attrs = (
            name,
            tuple(axis),
            tuple(body),
            tag,
            dict(attrs),
        )
        self.reduce_axis = tuple(body[0].axes) if isinstance(body[0], Reduced) else ()
        self.input_tensors, self.open = check.computed(self)
        sizes, index = tuple(each.extent for each in axis), index_kind(axis)
        self.outputs = tuple(
            Tensor(self, number, sizes, each.kind, index) for number, each in enumerate(body)
        )


class Tensor:
    """A result of an `Operation`: ``A[i, j]`` and ``A(i, j)`` are its elements.

    ``shape``: numbers if constant, else index expressions; ``dtype``: a name.
    """

    def __init__(
        self, op: Operation, value_index: int, sizes: tuple[Expr, ...], kind: torch.dtype, index: torch.dtype
    ) -> None:
        self.op, self.value_index, self.sizes, self.kind, self._index = op, value_index, sizes, kind, index

    @property
    def shape(self) -> tuple[Any, ...]:
        return tuple(public(size, self._index) for size in self.sizes)

    @property
    def dtype(self) -> str:
        return NAMES[self.kind]

    @property
    def ndim(self) -> int:
        return len(self.sizes)

    @property
    def is_scalar(self) -> bool:
        """Whether it stands for its only element in an expression."""
        return not self.sizes

    @property
    def name(self) -> str:
        return self.op.name if self.op.num_outputs == 1 else f"{self.op.name}_v{self.value_index}"

    def __getitem__(self, index: Any) -> Any:
        return _element(self, (), index if isinstance(index, (tuple, list)) else (index,))

    def __call__(self, *index: Any) -> Any:
        return _element(self, (), index, whole=True)

    def __iter__(self) -> Any:
        raise TypeError(f"{self.name} is no sequence")

    def __repr__(self) -> str:
        shape = ", ".join(str(size) for size in self.shape)
        return f"Tensor(shape=[{shape}], op.name={self.op.name})"

    # -- operators: topi's, once it is imported --------------------------------------------------------------

    def _with(self, name: str, *args: Any) -> Any:
        function = OPERATORS.get(name)
        if function is None:
            refuse("SM1103", f"{name} of whole tensors", remedy="import smelt.topi, or index them: A[i, j]")
        return function(*args)

    def __add__(self, other: Any) -> Any:
        return self._with("add", self, other)

    def __radd__(self, other: Any) -> Any:
        return self._with("add", other, self)

    def __sub__(self, other: Any) -> Any:
        return self._with("subtract", self, other)

    def __rsub__(self, other: Any) -> Any:
        return self._with("subtract", other, self)

    def __mul__(self, other: Any) -> Any:
        return self._with("multiply", self, other)

    def __rmul__(self, other: Any) -> Any:
        return self._with("multiply", other, self)

    def __truediv__(self, other: Any) -> Any:
        return self._with("divide", self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return self._with("divide", other, self)

    def __floordiv__(self, other: Any) -> Any:
        return self._with("floor_divide", self, other)

    def __mod__(self, other: Any) -> Any:
        return self._with("mod", self, other)

    def __neg__(self) -> Any:
        return self._with("negative", self)

    def astype(self, dtype: Any, span: Any = None) -> Any:
        return self._with("cast", self, dtype)


OPERATORS: dict[str, Callable[..., Any]] = {}
"""The functions for operators on whole tensors; `smelt.topi` registers them."""


class TensorSlice:
    """A tensor with its first indices given: ``A[i]`` of ``A[i][j]``."""

    def __init__(self, tensor: Tensor, index: tuple[Any, ...]) -> None:
        self.tensor, self.index = tensor, index

    @property
    def dtype(self) -> str:
        return self.tensor.dtype

    def __getitem__(self, index: Any) -> Any:
        return _element(self.tensor, self.index, index if isinstance(index, (tuple, list)) else (index,))

    def __repr__(self) -> str:
        given = ", ".join(map(str, self.index))
        return f"{self.tensor.name}[{given}]: {len(self.index)} of {self.tensor.ndim} indices"


def _element(tensor: Tensor, before: tuple[Any, ...], more: Sequence[Any], whole: bool = False) -> Any:
    index = (*before, *more)
    if len(index) < tensor.ndim and not whole:
        return TensorSlice(tensor, index)
    if len(index) != tensor.ndim:
        said = f"{tensor.name}[{', '.join(map(str, index))}]"
        refuse("SM1102", f"{said}: {len(index)} indices, {tensor.name} has {tensor.ndim} dimensions")
    return Load(tensor, [_place(tensor, dim, at) for dim, at in enumerate(index)])


def _place(tensor: Tensor, dim: int, at: Any) -> Expr:
    expr = as_index(at)
    if expr is not None:
        return expr
    if isinstance(at, slice):
        refuse("SM1108", f"{tensor.name}: a slice is no index", remedy="te.compute over the elements wanted")
    value = as_value(at)
    if value.kind.is_floating_point or value.kind is torch.bool:
        what = f"{tensor.name}[{at}]: an index is an integer, not {value.dtype}"
        refuse("SM1108", what, remedy='.astype("int32")')
    return Lookup(value, tensor.sizes[dim]).symbol


def index_kind(axes: Sequence[IterVar]) -> torch.dtype:
    """The dtype of a tensor's indices."""
    return torch.int64 if any(axis.kind is torch.int64 for axis in axes) else torch.int32


def _shape(shape: Any, name: str) -> tuple[tuple[Expr, ...], torch.dtype]:
    if as_index(shape) is not None:
        shape = (shape,)
    wide = any(isinstance(size, Idx) and size.kind is torch.int64 for size in shape)
    return tuple(as_size(size, name) for size in shape), torch.int64 if wide else torch.int32


def placeholder(shape: Any, dtype: Any = None, name: str = "placeholder") -> Tensor:
    """A tensor that the caller passes.

    >>> A = placeholder((4, 3), name="A")
    >>> A.shape, A.dtype, A.ndim
    ((4, 3), 'float32', 2)
    """
    sizes, index = _shape(shape, name)
    return PlaceholderOp(name, sizes, kind_of(dtype or "float32"), index).output(0)


def compute(
    shape: Any,
    fcompute: Callable[..., Any],
    name: str = "compute",
    tag: str = "",
    attrs: Mapping[str, Any] | None = None,
    varargs_names: Sequence[str] | None = None,
) -> Any:
    """A tensor with the element ``fcompute(*index)`` at each index; a tuple of tensors for a tuple.

    The names of the function's arguments name the loops: ``lambda i, j: A[j, i]``; ``*i`` are ``i0, i1 …``.
    The function is called once.

    >>> A = placeholder((4, 3), name="A")
    >>> B = compute((3, 4), lambda i, j: A[j, i] + 1, name="B")
    >>> B.op.body[0], [axis.name for axis in B.op.axis]
    (A[j, i] + 1.0, ['i', 'j'])

    Raises:
        SmeltError: SM1101, an index is outside of a tensor, or may be; SM1102, as many arguments as
            dimensions are wanted; SM1105, a reduction inside of an expression, or an axis that is not
            reduced over.
    """
    sizes, kind = _shape(shape, name)
    axes = [
        IterVar(label, Integer(0), size, kind, reduce=False)
        for label, size in zip(_labels(fcompute, len(sizes), name, varargs_names), sizes)
    ]
    result = fcompute(*axes)
    several = isinstance(result, (tuple, list))
    body = [_body(each, name) for each in (result if several else [result])]
    if tag == "" and SCOPES:
        tag = SCOPES[-1]
    check.one_reduction(name, body)
    whole = body[0].of.outputs if isinstance(body[0], Reduced) else body
    op = ComputeOp(name, axes, whole, tag, attrs or {})
    found = tuple(
        op.output(each.output if isinstance(each, Reduced) else number) for number, each in enumerate(body)
    )
    return found if several and len(body) > 1 else found[0]


SCOPES: list[str] = []
"""The tags of the enclosing scopes (`smelt.te.tag.tag_scope`)."""


def _body(result: Any, name: str) -> Value:
    if isinstance(result, TensorSlice):
        refuse(
            "SM1102",
            f"{name}: {result}",
            remedy="give all of them, or te.compute a tensor of fewer dimensions",
        )
    if result is None:
        refuse("SM1103", f"{name}: the function returns nothing")
    value = as_value(result)
    return cast(value, value.kind)


def _labels(f: Callable[..., Any], rank: int, name: str, varargs: Sequence[str] | None) -> list[str]:
    """The names of the function's arguments."""
    parameters = list(inspect.signature(f).parameters.values())
    given = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if any(p.kind in (p.VAR_KEYWORD, p.KEYWORD_ONLY) or p.default is not p.empty for p in parameters):
        refuse("SM1102", f"{name}: a function of an index has neither keywords nor defaults")
    labels = [p.name for p in given]
    rest = rank - len(labels)
    if any(p.kind is p.VAR_POSITIONAL for p in parameters) and rest >= 0:
        if varargs is not None and len(varargs) != rest:
            refuse("SM1102", f"{name}: {len(varargs)} varargs_names for {rest} dimensions")
        return labels + list(varargs if varargs is not None else (f"i{number}" for number in range(rest)))
    if len(labels) != rank:
        what = f"{name}: the function takes {len(labels)} indices, its shape has {rank} dimensions"
        refuse("SM1102", what, remedy="one argument for each dimension, or *i for all")
    return labels


__all__ = [
    *("OPERATORS", "SCOPES", "ComputeOp", "Operation", "PlaceholderOp", "Tensor", "TensorSlice"),
    *("compute", "index_kind", "placeholder"),
]
