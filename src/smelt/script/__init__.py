"""Programs of loops as text: TVMScript, printed and parsed."""

from smelt.script.equal import assert_structural_equal, structural_equal, structural_hash
from smelt.script.module import GlobalVar, IRModule, PrimFunc
from smelt.script.parse import from_source

__all__ = [
    "GlobalVar",
    "IRModule",
    "PrimFunc",
    "assert_structural_equal",
    "from_source",
    "structural_equal",
    "structural_hash",
]
