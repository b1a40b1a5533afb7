"""Every overload that PyTorch tags as core ATen has a lowering, is taken apart, or is ATen's by choice."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch._ops import OpOverload

from smelt.contract.decompositions import export_decompositions
from smelt.contract.facts import reads_number
from smelt.lowering.chosen import chosen
from smelt.lowering.registry import row_of
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
