"""``tvm.s_tir.tensor_intrin``: intrinsics of targets."""
