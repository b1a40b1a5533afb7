"""Random te programs: the interpreter of their nests against the same expressions of torch."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from smelt import te
from tests.te.support import run

DTYPES = ["float64", "float32", "int64", "int32", "bool"]
COMPARE = ["__lt__", "__le__", "__gt__", "__ge__", "__eq__", "__ne__"]
ARITHMETIC = ["__add__", "__sub__", "__mul__"]


class Both:
    """An expression of te at an index, and all of its elements of torch."""

    def __init__(self, value, elements):
        self.value, self.elements = value, elements


def operand(draw, tensors, axes, shape):
    """An element of a tensor, an index or a constant."""
    kind = draw(st.sampled_from(["load", "load", "load", "turned", "index", "number"]))
    if kind == "number":
        number = draw(st.sampled_from([0, 1, -2, 3]))
        dtype = draw(st.sampled_from(DTYPES[:4]))
        return Both(te.const(number, dtype), torch.full(shape, number, dtype=getattr(torch, dtype)))
    if kind == "index":
        dim = draw(st.integers(0, len(shape) - 1))
        view = [1] * len(shape)
        view[dim] = shape[dim]
        return Both(axes[dim], torch.arange(shape[dim], dtype=torch.int32).view(view).expand(shape))
    tensor, elements = draw(st.sampled_from(tensors))
    if kind == "load":
        return Both(tensor(*axes), elements)
    return Both(
        tensor(*(size - 1 - axis for axis, size in zip(axes, shape))), elements.flip(*range(len(shape)))
    )


def expression(draw, tensors, axes, shape, depth):
    if depth == 0:
        return operand(draw, tensors, axes, shape)
    left, right = (expression(draw, tensors, axes, shape, depth - 1) for _ in range(2))
    kind = draw(st.sampled_from(["arithmetic", "arithmetic", "compare", "choice", "max", "cast", "index"]))
    if kind == "cast":
        dtype = draw(st.sampled_from(DTYPES[:4]))
        return Both(left.value.astype(dtype), left.elements.to(getattr(torch, dtype)))
    if kind == "index":
        cut = draw(st.integers(0, shape[0]))
        condition = axes[0] < cut
        view = [shape[0]] + [1] * (len(shape) - 1)
        mask = (torch.arange(shape[0]) < cut).view(view).expand(shape)
        a, b = torch_pair(left, right)
        return Both(te.if_then_else(condition, left.value, right.value), torch.where(mask, a, b))
    a, b = torch_pair(left, right)
    if kind == "compare":
        name = draw(st.sampled_from(COMPARE))
        return Both(getattr(left.value, name)(right.value), getattr(a, name)(b))
    if kind == "choice":
        condition, mask = left.value > right.value, a > b
        return Both(te.select(condition, left.value, right.value), torch.where(mask, a, b))
    if kind == "max":
        return Both(te.max(left.value, right.value), torch.maximum(a, b))
    if a.dtype is torch.bool:
        a, b = a.int(), b.int()
    name = draw(st.sampled_from(ARITHMETIC))
    value, elements = getattr(left.value, name)(right.value), getattr(a, name)(b)
    if isinstance(value, int):  # an index minus itself
        value = te.const(value, te.dtypes.NAMES[elements.dtype])
    return Both(value, elements)


def torch_pair(left, right):
    kind = te.dtypes.promoted(te.dtypes.kind_of(left.value.dtype), te.dtypes.kind_of(right.value.dtype))
    return left.elements.to(kind), right.elements.to(kind)


@st.composite
def programs(draw):
    shape = tuple(draw(st.lists(st.integers(1, 3), min_size=1, max_size=2)))
    inputs = []
    for number in range(draw(st.integers(1, 2))):
        dtype = draw(st.sampled_from(DTYPES))
        seed = draw(st.integers(0, 99))
        elements = torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(seed))
        inputs.append((te.placeholder(shape, dtype, f"A{number}"), elements.to(getattr(torch, dtype))))
    tensors, results = list(inputs), []
    for number in range(draw(st.integers(1, 3))):
        elements = []
        depth = draw(st.integers(1, 2))

        def body(*axes):
            both = expression(draw, tensors, axes, shape, depth)  # noqa: B023
            elements.append(both.elements)  # noqa: B023
            return both.value

        made = te.compute(shape, body, name=f"T{number}")
        tensors.append((made, elements[0].to(te.dtypes.kind_of(made.dtype))))
        results.append(tensors[-1])
    last, values = tensors[-1]
    if draw(st.booleans()) and values.dtype is not torch.bool:
        k = te.reduce_axis((0, shape[-1]), "k")
        kind = draw(st.sampled_from(["sum", "max", "min"]))
        made = te.compute(shape[:-1], lambda *i: getattr(te, kind)(last(*i, k), axis=k), name="R")
        reduced = values.sum(-1) if kind == "sum" else getattr(values, f"a{kind}")(-1)
        results.append((made, reduced.to(values.dtype)))
    return inputs, results


@given(programs())
@settings(max_examples=60, deadline=None)
def test_programs(program):
    inputs, results = program
    tensors = [tensor for tensor, _ in (*inputs, *results)]
    found = run(tensors, *(elements for _, elements in inputs))
    found = found if isinstance(found, tuple) else (found,)
    for ours, (tensor, want) in zip(found, results, strict=True):
        assert str(ours.dtype) == f"torch.{tensor.dtype}"
        assert torch.equal(ours, want), tensor
