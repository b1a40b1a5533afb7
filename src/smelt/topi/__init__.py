"""Operators on tensors of te, by TVM's names: each is based on smelt's lowering row of an ATen operator.

C = topi.nn.relu(topi.add(topi.nn.dense(x, w), bias))
"""

from typing import Any

from smelt.te.tensor import OPERATORS as _OPERATORS
from smelt.topi import nn as nn
from smelt.topi import reduction as reduction
from smelt.topi.indexing import *  # noqa: F403
from smelt.topi.names import FUNCTIONS as _FUNCTIONS
from smelt.topi.reduction import *  # noqa: F403
from smelt.topi.transform import *  # noqa: F403

globals().update(_FUNCTIONS)
_OPERATORS.update(_FUNCTIONS)


def __getattr__(name: str) -> Any:
    raise AttributeError(f"topi has no {name}")
