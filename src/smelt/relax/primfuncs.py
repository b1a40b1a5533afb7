"""PrimFuncs called on tensors: `smelt.te.operators` has one operator of PyTorch for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from smelt.relax.evaluate import Evaluator
from smelt.relax.types import StructInfo
from smelt.script.module import PrimFunc


def call_primfunc(func: PrimFunc, args: Sequence[Any], info: StructInfo, evaluator: Evaluator) -> Any:
    """What a PrimFunc makes of tensors: new ones."""
    from smelt.te.operators import operator_of

    return operator_of(func)(*args)
