"""TVM's ``relax``: smelt's, by the names of TVM 0.27."""

import sympy

from smelt.contract import portable_decompositions
from smelt.relax import *
from smelt.relax import Function, ObjectStructInfo, StructInfo
from smelt.relax import GlobalVar as GlobalVar
from smelt.script import IRModule
from tvm.relax import analysis as analysis
from tvm.relax import frontend as frontend
from tvm.relax import transform as transform

AnyType = ObjectStructInfo


def _as_tvm(script):
    """The text of a program as TVM prints it: its scripts begin with TVM's package."""
    return lambda self, **options: script(self, **options).replace("smelt.script", "tvm.script")


for _kind in (Function, IRModule):
    _kind.script = _as_tvm(_kind.script)
StructInfo.script = StructInfo._relax_script = lambda self, **options: str(self)
sympy.Integer.value = property(int)  # a size that is a number
portable_decompositions()  # once, before tests are forked
