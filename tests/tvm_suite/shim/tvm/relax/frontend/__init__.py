"""TVM's ``relax.frontend``."""

from tvm.relax.frontend import torch as torch
from tvm.relax.running import detach_params as detach_params
