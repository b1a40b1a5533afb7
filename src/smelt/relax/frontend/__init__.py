"""Importers: programs of other systems as relax modules."""

from smelt.relax.frontend.torch import detach_params

__all__ = ["detach_params"]
