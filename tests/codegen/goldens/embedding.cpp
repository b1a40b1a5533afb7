namespace smelt {

static i64 kernel_embedding_8(const i64_buffer* in0, const f32_buffer* in1, f32_buffer* out2, i64 s0) {
  i64 failed = 0, *const error = &failed;
  in_parallel(s0, SMELT_CHUNK(begin, end) {
    for (i64 d0 = begin; d0 < end; d0 += 1) {
      const i64 v0 = in0[d0];
      const i64 x0 = check_index(wrap_index(v0, 10), 10, error);
      i64 d1 = 0;
      for (; d1 + 8 <= 19; d1 += 8) {
        const auto v1 = load<8>(in1 + (x0*19 + d1));
        store(out2 + (d0*19 + d1), v1);
      }
      if (d1 < 19) {
        const auto m0 = first<8>(19 - d1);
        const auto v2 = load<8>(m0, in1 + (x0*19 + d1));
        store(m0, out2 + (d0*19 + d1), v2);
      }
    }
  });
  return failed;
}

static void (*watcher)(i64) = 0;
extern "C" SMELT_ENTRY void smelt_watch(void (*by)(i64)) { watcher = by; }
#define SMELT_WATCHED(number) if (__builtin_expect(watcher != 0, 0)) watcher(number)

extern "C" SMELT_ENTRY i64 run_embedding_8(char* arena, void* p0, void* p1, void* p2, i64 s0) {
  SMELT_WATCHED(0);
  if (i64 error = kernel_embedding_8((i64_buffer*)p0, (f32_buffer*)p1, (f32_buffer*)p2, s0)) return error;
  SMELT_WATCHED(-1);
  return 0;
}

}  // namespace smelt
