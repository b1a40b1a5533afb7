"""``tvm.s_tir.tensor_intrin.rocm``: names."""

AMDGPU_SDOT4_INTRIN = "sdot4"
