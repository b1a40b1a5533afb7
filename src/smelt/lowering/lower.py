"""Contract graph → loop graph: one walk, one table look-up per FX node."""

from __future__ import annotations

from typing import Any

import torch
from sympy import Expr, Symbol
from torch.fx import Graph as FxGraph
from torch.fx import Node as FxNode

from smelt.errors import Unsupported
from smelt.loops.ir import Buffer, Graph, Mutation, Origin, StridedView
from smelt.lowering.builder import Builder, shape_of, strides_of
from smelt.lowering.registry import TABLE
from smelt.lowering.tensor import Tensor
from smelt.symbolic import as_expr

_CHOSEN_EXTERNS = ("mm", "addmm", "bmm", "baddbmm", "convolution", "convolution_backward", "_scaled_dot_product")
"""Operators (by name prefix) that smelt calls in ATen by choice: these are no fallbacks."""
