"""Every overload that PyTorch tags as core ATen has a lowering, is taken apart, or is ATen's by choice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch._ops import OpOverload
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

import smelt
from smelt.contract.decompositions import export_decompositions
from smelt.contract.facts import reads_number
from smelt.lowering.chosen import chosen
from smelt.lowering.registry import row_of
from smelt.runtime.externs import is_random
from tests.conformance.agreement import assert_agree, clones
from tests.lowering.core_samples import Call, calls
from tests.lowering.harness import check

aten = torch.ops.aten

SIZES = {
    aten.sym_is_contiguous.default,
    aten.sym_numel.default,
    aten.sym_size.int,
    aten.sym_storage_offset.default,
    aten.sym_stride.int,
}
"""They give numbers that the metadata holds: nothing is computed."""

NEVER_SEEN = {
    aten._native_batch_norm_legit.default: "it writes to its arguments; AOTAutograd makes it functional",
    aten.atan2.out: "it writes to its argument; AOTAutograd makes it functional",
    aten.resize_.default: "Dynamo runs it in eager PyTorch, torch.export refuses it",
}


DATA_DEPENDENT = {aten.nonzero.default, aten._local_scalar_dense.default}
"""make_fx does not trace what depends on data with fake tensors; Dynamo does."""


def name_of(operator: OpOverload) -> str:
    return operator.name().removeprefix("aten::")


def unpredictable(operator: OpOverload) -> bool:
    """Whether the numbers are whatever was drawn, or lay in memory."""
    return is_random(operator) or "empty" in operator.name()


def core() -> Iterator[OpOverload]:
    for name in dir(aten):
        packet = getattr(aten, name)
        for overload in getattr(packet, "overloads", list)():
            operator = getattr(packet, overload)
            if torch.Tag.core in operator.tags:
                yield operator


def test_core_aten_is_covered() -> None:
    operators = list(core())
    assert len(operators) > 180
    apart = export_decompositions()
    missing = [
        str(operator)
        for operator in operators
        if row_of(operator) is None
        and chosen(operator) is None
        and operator not in apart
        and operator not in SIZES
        and operator not in NEVER_SEEN
        and not reads_number(operator)
    ]
    assert not missing


COMPUTED = [operator for operator in core() if operator not in SIZES and operator not in NEVER_SEEN]


@pytest.mark.parametrize("operator", COMPUTED, ids=name_of)
def test_a_call_of_each(operator: OpOverload) -> None:
    """Nothing goes to ATen but what is chosen to; the loop functions' numbers are eager's."""
    samples = list(calls(name_of(operator)))
    assert samples, f"tests/lowering/core_samples.py has no call of {operator}"
    if operator in DATA_DEPENDENT or unpredictable(operator):
        return  # test_all_of_core_compiled has them
    for sample in samples:
        tensors, function = _of_tensors(operator, sample)
        check(function, *tensors, decompositions=export_decompositions(), slack=8)


COMPILED = [operator for operator in core() if operator not in SIZES and operator != aten.resize_.default]
PARTS = 6


@pytest.mark.long
@pytest.mark.parametrize("part", range(PARTS))
def test_all_of_core_compiled(part: int) -> None:
    """Forward and backward, as machine code: no fallback, and eager's numbers."""
    work = [
        (operator, *_of_tensors(operator, sample))
        for operator in COMPILED[part::PARTS]
        for sample in calls(name_of(operator))
    ]
    functions = [function for *_, function in work]
    inputs = [_wanting_gradients(function, tensors) for _, tensors, function in work]
    smelt.reset()
    compiled = torch.compile(lambda groups: _each(functions, groups), backend="smelt", dynamic=False)
    fast, got = clones(inputs), clones(inputs)
    expected = _with_gradients(_each(functions, got), got)
    got = _with_gradients(compiled(fast), fast)
    wide = [clones(tensors, torch.float64) for tensors in inputs]
    exact = [_exact(function, tensors) for function, tensors in zip(functions, wide)]
    for (operator, *_), mine, theirs, reference in zip(work, got, expected, exact):
        numbers = not unpredictable(operator)
        assert_agree(mine, theirs, lambda: reference, numbers=numbers, what=f"{operator} output")  # noqa: B023
    assert any(len(report.kernels) for report in smelt.reports())
    assert not [each for report in smelt.reports() for each in report.fallbacks]


def _each(functions: list[Callable[..., Any]], groups: list[list[torch.Tensor]]) -> list[Any]:
    return [function(*group) for function, group in zip(functions, groups)]


def _wanting_gradients(function: Callable[..., Any], tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Copies of the tensors; those of floating point want gradients, if the operator has them."""
    wanting = [x.requires_grad_(x.is_floating_point()) for x in clones(tensors)]
    try:
        _with_gradients([function(*wanting)], [wanting])
    except RuntimeError:  # this operator has no derivative
        return clones(tensors)
    return wanting


def _with_gradients(results: list[Any], groups: list[list[torch.Tensor]]) -> list[Any]:
    """The results, each with the gradients that it gives as its own cotangent."""
    outputs = [[x for x in tree_leaves(result) if isinstance(x, torch.Tensor)] for result in results]
    ends = [x for group in outputs for x in group if x.requires_grad]
    leaves = [x for group in groups for x in group if x.requires_grad]
    found: list[Any] = [None] * len(leaves)
    if ends:
        found = list(torch.autograd.grad(ends, leaves, [x.detach() for x in ends], allow_unused=True))
    by_leaf = dict(zip(map(id, leaves), found))
    return [
        ([x.detach() for x in group], [by_leaf[id(x)] for x in tensors if by_leaf.get(id(x)) is not None])
        for group, tensors in zip(outputs, groups)
    ]


def _exact(function: Callable[..., Any], tensors: list[torch.Tensor]) -> Any:
    try:
        return _with_gradients([function(*tensors)], [tensors])[0]
    except RuntimeError:  # it does not take float64 here
        return None


def _of_tensors(operator: OpOverload, sample: Call) -> tuple[list[torch.Tensor], Callable[..., Any]]:
    """The call as a function of its tensors alone."""
    leaves, structure = tree_flatten(sample)
    places = [n for n, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    rest = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]

    def function(*tensors: torch.Tensor) -> Any:
        filled = list(rest)
        for place, tensor in zip(places, tensors):
            filled[place] = tensor
        args, kwargs = tree_unflatten(filled, structure)
        return operator(*args, **kwargs)

    return [leaves[place] for place in places], function


def test_what_is_never_seen_writes() -> None:
    assert all(operator._schema.is_mutable for operator in NEVER_SEEN)


def test_what_the_issue_names_is_lowered() -> None:
    """What others leave to ATen."""
    named = "cumsum _adaptive_avg_pool2d_backward _adaptive_avg_pool3d _cdist_forward _pdist_forward "
    named += "_embedding_bag masked_scatter nonzero rand randn randperm"
    apart = export_decompositions()
    for name in named.split():
        packet = getattr(aten, name)
        operators = [getattr(packet, overload) for overload in packet.overloads()]
        assert any(row_of(op) is not None or op in apart for op in operators), name


def test_variance_by_its_old_name() -> None:
    x = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
    check(lambda x: aten.var.dim(x, [1], False, True), x)
