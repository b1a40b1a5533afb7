"""The Torch dialect, emitted from the contract graph."""

from smelt.mlir.torch_dialect.emit import emit
from smelt.mlir.torch_dialect.pipelines import executable

__all__ = ["emit", "executable"]
