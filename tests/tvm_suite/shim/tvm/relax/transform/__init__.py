"""TVM's ``relax.transform``."""

from smelt.relax.transform import *
