"""TVM's ``topi``: smelt's."""

import sys

from smelt import topi
from smelt.topi import *  # noqa: F403

sys.modules["tvm.topi.nn"] = topi.nn


def __getattr__(name):
    return getattr(topi, name)
