// kernels.cpp: kernels as packages have them, of a model named tiny and a level "here"; and calls of them.
#define SMELT_PACKAGE 1
#define SMELT_NAME tiny
#define smelt tiny_here
#include "smelt_kernels.h"

namespace smelt {
static void rows(
    const f32_buffer* x, f32_buffer* sorted, i64_buffer* at, f32_buffer* turned, i64 count, i64 length) {
  in_parallel(
      count, SMELT_CHUNK(begin, end) {
        for (i64 row = begin; row < end; row += 1) {
          scratch copied(length * 4);
          f32* copy = (f32*)copied.p;
          for (i64 i = 0; i < length; ++i) copy[i] = add(x[row * length + i], 0.5f);
          sort_row(copy, length, length, false, sorted + row * length, at + row * length);
        }
      });
  scratch sums(count * 8);
  calls_in_parallel(
      count, SMELT_CALLS(begin, end) {
        for (i64 row = begin; row < end; row += 1) ((f64*)sums.p)[row] = f64(exp(sorted[row * length]));
      });
  for (i64 row = 0; row < count; ++row) turned[row] = f32(((f64*)sums.p)[row]);
}
}  // namespace smelt

extern "C" SMELT_ENTRY void tiny_here_rows(void** arguments, const int64_t* sizes) {
  smelt::rows((smelt::f32_buffer*)arguments[0], (smelt::f32_buffer*)arguments[1],
      (smelt::i64_buffer*)arguments[2], (smelt::f32_buffer*)arguments[3], sizes[0], sizes[1]);
}
