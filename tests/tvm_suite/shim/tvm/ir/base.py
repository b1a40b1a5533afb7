"""``tvm.ir.base``."""

from tvm.ir import assert_structural_equal, structural_equal

__all__ = ["assert_structural_equal", "structural_equal"]
