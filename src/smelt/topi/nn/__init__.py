"""Operators of neural networks on tensors of te."""

from smelt.topi.nn.activation import *  # noqa: F403
from smelt.topi.nn.convolution import *  # noqa: F403
from smelt.topi.nn.dense import *  # noqa: F403
from smelt.topi.nn.layouts import *  # noqa: F403
from smelt.topi.nn.normalization import *  # noqa: F403
from smelt.topi.nn.pooling import *  # noqa: F403
