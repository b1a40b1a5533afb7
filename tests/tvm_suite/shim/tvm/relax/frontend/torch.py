"""``tvm.relax.frontend.torch``."""

from smelt.relax.frontend.torch import from_exported_program, from_fx

__all__ = ["from_exported_program", "from_fx"]
