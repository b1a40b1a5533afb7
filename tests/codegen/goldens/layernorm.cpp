namespace smelt {

// aten.native_layer_norm at model.py:3 in forward
static void kernel_layernorm(const f32_buffer* in0, const f32_buffer* in1, f32_buffer* out2, i64 s0) {
  in_parallel(s0, SMELT_CHUNK(begin, end) {
    for (i64 d0 = begin; d0 < end; d0 += 1) {
      reduce_welford<values<f32, 64>> a0_64;
      for (i64 d1 = 0; d1 < 768; d1 += 64) {
        const auto v0 = load<64>(in0 + (d0*768 + d1));
        a0_64.update(v0);
      }
      auto a0_all = reduce(a0_64);
      const f32 v1 = a0_all.mean;
      const f32 v2 = a0_all.m2;
      const f32 v3 = truediv(v2, 768.0f);
      const f32 v4 = add(v3, 1e-05f);
      const f32 v5 = rsqrt(v4);
      for (i64 d2 = 0; d2 < 768; d2 += 16) {
        const auto v6 = load<16>(in0 + (d0*768 + d2));
        const auto v7 = sub(v6, splat<16>(v1));
        const auto v8 = mul(v7, splat<16>(v5));
        const auto v9 = load<16>(in1 + d2);
        const auto v10 = mul(v8, v9);
        store(out2 + (d0*768 + d2), v10);
      }
    }
  });
}

static void (*watcher)(i64) = 0;
extern "C" SMELT_ENTRY void smelt_watch(void (*by)(i64)) { watcher = by; }
#define SMELT_WATCHED(number) if (__builtin_expect(watcher != 0, 0)) watcher(number)

extern "C" SMELT_ENTRY i64 run_layernorm(char* arena, void* p0, void* p1, void* p2, i64 s0) {
  SMELT_WATCHED(0);
  kernel_layernorm((f32_buffer*)p0, (f32_buffer*)p1, (f32_buffer*)p2, s0);
  SMELT_WATCHED(-1);
  return 0;
}

}  // namespace smelt
