"""TVM's ``relax``: smelt's, by the names of TVM 0.27."""

import sympy

from smelt.contract import portable_decompositions
from smelt.relax import *
from smelt.relax import GlobalVar as GlobalVar
from tvm.relax import analysis as analysis
from tvm.relax import frontend as frontend
from tvm.relax import transform as transform

sympy.Integer.value = property(int)  # a size that is a number
portable_decompositions()  # once, before tests are forked
