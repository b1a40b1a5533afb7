namespace smelt {

static void kernel_softmax(const f32_buffer* in0, f32_buffer* out1, f32_buffer* out2) {
  for (i64 d0 = 0; d0 < 64; d0 += 1) {
    reduce_online_softmax<values<f32, 16>> a0_16;
    i64 d1 = 0;
    for (; d1 + 16 <= 197; d1 += 16) {
      const auto v0 = load<16>(in0 + (d0*197 + d1));
      a0_16.update(v0);
    }
    if (d1 < 197) {
      const auto m0 = first<16>(197 - d1);
      const auto v1 = load<16>(m0, in0 + (d0*197 + d1));
      a0_16.update(m0, v1);
    }
    auto a0_all = reduce(a0_16);
    const f32 v2 = a0_all.max;
    const f32 v3 = a0_all.sum();
    out1[d0] = v2;
    out2[d0] = v3;
  }
}

static void (*watcher)(i64) = 0;
extern "C" SMELT_ENTRY void smelt_watch(void (*by)(i64)) { watcher = by; }
#define SMELT_WATCHED(number) if (__builtin_expect(watcher != 0, 0)) watcher(number)

extern "C" SMELT_ENTRY i64 run_softmax(char* arena, void* p0, void* p1, void* p2) {
  SMELT_WATCHED(0);
  kernel_softmax((f32_buffer*)p0, (f32_buffer*)p1, (f32_buffer*)p2);
  SMELT_WATCHED(-1);
  return 0;
}

}  // namespace smelt
