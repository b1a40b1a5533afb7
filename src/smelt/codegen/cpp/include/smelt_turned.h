// smelt_turned.h: what smelt_transpose.h, which it follows, has of full vectors of float32. A program has it once.

namespace smelt {
template void copy_turned<SMELT_VECTOR_BYTES / 4>(f32_buffer* p, i64 step, const f32_buffer* q, i64 other);
}  // namespace smelt
