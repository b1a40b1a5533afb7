"""Importers: programs of other systems as relax modules. ``nn``: models written by hand."""

from smelt.relax.frontend import nn
from smelt.relax.frontend.torch import detach_params

__all__ = ["detach_params", "nn"]
