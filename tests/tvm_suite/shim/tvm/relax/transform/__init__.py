"""TVM's ``relax.transform``."""

from smelt.relax.transform import *  # noqa: F403
