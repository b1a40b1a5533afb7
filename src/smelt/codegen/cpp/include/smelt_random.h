// smelt_random.h: Philox4x32-10 (Salmon, Moraes, Dror and Shaw, SC 2011) in 64-bit lanes; included after smelt.h.

namespace smelt {

// The product of the low words of each lane, all 64 bits of it.
template <int N> SMELT_INLINE raw<u64, N> multiply_words(raw<u64, N> a, raw<u64, N> b) {
#if defined(SMELT_GCC_X86)
  typedef int i4 __attribute__((vector_size(16)));
  typedef int i8v __attribute__((vector_size(32)));
  if constexpr (N == 2) return (raw<u64, N>)__builtin_ia32_pmuludq128((i4)a, (i4)b);
#if defined(__AVX2__)
  else if constexpr (N == 4) return (raw<u64, N>)__builtin_ia32_pmuludq256((i8v)a, (i8v)b);
#endif
#if defined(SMELT_AVX512)
  typedef int i16v __attribute__((vector_size(64)));
  typedef long long l8 __attribute__((vector_size(64)));
  if constexpr (N == 8) return (raw<u64, N>)__builtin_ia32_pmuludq512_mask((i16v)a, (i16v)b, l8{}, -1);
#endif
  else
#endif
    return (a & 0xffffffff) * (b & 0xffffffff);
}
SMELT_INLINE u64 multiply_words(u64 a, u64 b) { return (a & 0xffffffff) * (b & 0xffffffff); }

// 64 random bits: words 0 and 1 of the block at `counter` (low half) and `stream` (high half). Lanes hold a word in
// their low half; the high half is whatever it is until the end, and only `multiply_words` and the xors read lanes.
template <class U, class F> SMELT_INLINE U philox_bits(U key, U counter, U stream, F multiply) {
  const U low = U{} + 0xffffffff;
  U a = counter, b = counter >> 32, c = stream, d = stream >> 32, left = key, right = key >> 32;
  for (int round = 0; round < 10; ++round) {
    U one = multiply(a, U{} + 0xD2511F53u), two = multiply(c, U{} + 0xCD9E8D57u);
    a = (two >> 32) ^ b ^ left;
    b = two;
    c = (one >> 32) ^ d ^ right;
    d = one;
    left += 0x9E3779B9u;
    right += 0xBB67AE85u;
  }
  return (a & low) | (b << 32);
}
template <int N, bool W> SMELT_INLINE vec<i64, N, W> philox(vec<i64, N, W> key, vec<i64, N, W> counter, vec<i64, N, W> stream) {
  if constexpr (W) {
    return {philox(key.lo, counter.lo, stream.lo), philox(key.hi, counter.hi, stream.hi)};
  } else {
    typedef raw<u64, N> U;
    return {(raw<i64, N>)philox_bits((U)key.v, (U)counter.v, (U)stream.v, [](U a, U b) __attribute__((always_inline)) {
      return multiply_words<N>(a, b);
    })};
  }
}
SMELT_INLINE i64 philox(i64 key, i64 counter, i64 stream) {
  return i64(philox_bits(u64(key), u64(counter), u64(stream), [](u64 a, u64 b) { return multiply_words(a, b); }));
}

}  // namespace smelt
