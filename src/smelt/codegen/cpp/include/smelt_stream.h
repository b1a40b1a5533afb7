// smelt_stream.h: stores past the caches, for results that no cache keeps until they are read: memory is written
// without being read first.

namespace smelt {

template <class T, int N, bool W> SMELT_INLINE void stream(T* p, vec<T, N, W> x) {
  if constexpr (W) {
    stream(p, x.lo);
    stream(p + N / 2, x.hi);
    return;
  }
#if defined(__x86_64__)
  else if constexpr (sizeof(T) * N == SMELT_VECTOR_BYTES) {
    if (__builtin_expect(((u64)p & (SMELT_VECTOR_BYTES - 1)) == 0, 1)) {
      typedef float words __attribute__((vector_size(SMELT_VECTOR_BYTES)));
#if __has_builtin(__builtin_nontemporal_store)
      __builtin_nontemporal_store((words)x.v, (words*)p);
#elif SMELT_VECTOR_BYTES == 64
      __builtin_ia32_movntps512((float*)p, (words)x.v);
#elif SMELT_VECTOR_BYTES == 32
      __builtin_ia32_movntps256((float*)p, (words)x.v);
#else
      __builtin_ia32_movntps((float*)p, (words)x.v);
#endif
      return;
    }
  }
#endif
  store_vec(p, x);
}
template <class H, int N> SMELT_INLINE void stream(H* p, lowvec<H, N> x) { stream((u16*)p, x.bits); }

// After a kernel's last streaming store: other threads see all of them from here on.
SMELT_INLINE void streamed() {
#if defined(__x86_64__)
  __builtin_ia32_sfence();
#endif
}

}  // namespace smelt
