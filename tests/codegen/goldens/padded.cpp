namespace smelt {

static void kernel_padded_8(const f32_buffer* in0, f32_buffer* out1, i64 s0) {
  i64 d0 = 0;
  for (; d0 + 8 <= s0 + 5; d0 += 8) {
    const auto v0 = iota<8>(d0);
    const i64 v1 = i64(s0 + 2);
    const auto v2 = ge(v0, splat<8>(i64(2)));
    const auto v3 = lt(v0, splat<8>(v1));
    const auto v4 = logical_and(v2, v3);
    const auto v6 = load<8>(v4, in0 + (d0 - 2));
    const auto v5 = where(v4, v6, splat<8>(-1.0f));
    store(out1 + d0, v5);
  }
  if (d0 < s0 + 5) {
    const auto m0 = first<8>(s0 + 5 - d0);
    const auto v7 = iota<8>(d0);
    const i64 v8 = i64(s0 + 2);
    const auto v9 = ge(v7, splat<8>(i64(2)));
    const auto v10 = lt(v7, splat<8>(v8));
    const auto v11 = logical_and(v9, v10);
    const auto m1 = bitwise_and(m0, v11);
    const auto v13 = load<8>(m1, in0 + (d0 - 2));
    const auto v12 = where(v11, v13, splat<8>(-1.0f));
    store(m0, out1 + d0, v12);
  }
}

static void (*watcher)(i64) = 0;
extern "C" SMELT_ENTRY void smelt_watch(void (*by)(i64)) { watcher = by; }
#define SMELT_WATCHED(number) if (__builtin_expect(watcher != 0, 0)) watcher(number)

extern "C" SMELT_ENTRY i64 run_padded_8(char* arena, void* p0, void* p1, i64 s0) {
  SMELT_WATCHED(0);
  kernel_padded_8((f32_buffer*)p0, (f32_buffer*)p1, s0);
  SMELT_WATCHED(-1);
  return 0;
}

}  // namespace smelt
