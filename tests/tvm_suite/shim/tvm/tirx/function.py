"""``tvm.tirx.function``."""

from smelt.script import PrimFunc
from smelt.tir import TensorIntrin

__all__ = ["PrimFunc", "TensorIntrin"]
