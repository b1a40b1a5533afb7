// smelt_transposed.h: the instances of smelt_transpose.h for full vectors of float32. A program has them once.

namespace smelt {
template void copy_transposed<SMELT_VECTOR_BYTES / 4>(f32_buffer* p, i64 step, const f32_buffer* q, i64 other);
}  // namespace smelt
