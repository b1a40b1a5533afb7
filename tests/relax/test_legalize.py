"""Operators become PrimFuncs that compute the same; what no stage can hold stays an operator."""

import pytest
import torch
from torch.utils import _pytree as pytree

from smelt import relax
from smelt.relax.transform import LegalizeOps
from smelt.relax.values import CALL_TIR, Call
from tests.relax.cases import CASES
from tests.relax.test_operators import module_of

STAY = {
    *("relax.sort", "relax.argsort", "relax.topk", "relax.median", "relax.cumsum", "relax.cumprod"),
    "relax.nn.attention",
}
"""What is no loop function that a stage can hold: sorts, scans."""


def operators_left(mod: object) -> set[str]:
    values = [binding.value for binding in mod["main"].body.bindings]
    return {each.op.name for each in values if isinstance(each, Call) and each.op is not CALL_TIR}


@pytest.mark.parametrize("group", CASES)
def test_every_operator_legalized_computes_the_same(group: str) -> None:
    cases = CASES[group]
    mod, tensors = module_of(cases)
    legal = LegalizeOps()(mod)
    assert operators_left(legal) <= STAY
    results = relax.VirtualMachine(relax.build(legal))["main"](*tensors)
    for case, result in zip(cases, results, strict=True):
        wanted = pytree.tree_leaves(case.want(*case.tensors))
        for got, want in zip(pytree.tree_leaves(result), wanted, strict=True):
            assert got.dtype == want.dtype, case.name
            torch.testing.assert_close(got, want, msg=lambda text, case=case: f"{case.name}: {text}")
