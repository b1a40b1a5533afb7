"""``tvm.tir``: the older name of ``tvm.tirx`` and of ``tvm.s_tir``."""

from tvm.s_tir import *
from tvm.tirx import *
