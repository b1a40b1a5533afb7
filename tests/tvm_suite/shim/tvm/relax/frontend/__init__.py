"""``tvm.relax.frontend``."""

from tvm.relax.frontend import torch

__all__ = ["torch"]
