"""``tvm_ffi``: comparisons."""

from types import SimpleNamespace

from tvm.ir import structural_equal

from smelt.script import structural_hash

container = SimpleNamespace(Map=dict)

__all__ = ["container", "structural_equal", "structural_hash"]
