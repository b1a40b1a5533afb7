"""``tvm_ffi``: comparisons."""

from tvm.ir import structural_equal

from smelt.script import structural_hash

__all__ = ["structural_equal", "structural_hash"]
