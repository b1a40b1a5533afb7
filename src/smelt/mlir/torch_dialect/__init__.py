"""The Torch dialect, written from the contract graph."""

from smelt.mlir.torch_dialect.emit import emit

__all__ = ["emit"]
