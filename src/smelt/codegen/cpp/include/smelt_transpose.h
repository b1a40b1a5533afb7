// smelt_transpose.h: N vectors of N lanes, turned in registers and stored as N rows.

namespace smelt {

#if __has_builtin(__builtin_shufflevector)
template <class T, int N, int... K>
SMELT_INLINE vec<T, N, false> pick(vec<T, N, false> a, vec<T, N, false> b, ints<K...>) {
  return {__builtin_shufflevector(a.v, b.v, K...)};
}
#else
template <class T, int N, int... K>
SMELT_INLINE vec<T, N, false> pick(vec<T, N, false> a, vec<T, N, false> b, ints<K...>) {
  typedef typename int_of<sizeof(T)>::type L;
  return {__builtin_shuffle(a.v, b.v, (raw<L, N>){K...})};
}
#endif
// One exchange: blocks of S lanes change places between rows that lie S apart.
template <int S, class T, int N, int... K>
SMELT_INLINE void exchange(vec<T, N, false>& a, vec<T, N, false>& b, ints<K...>) {
  auto upper = pick(a, b, ints<(K & S ? N + K - S : K)...>());
  b = pick(a, b, ints<(K & S ? N + K : K + S)...>());
  a = upper;
}
template <int S, class T, int N> SMELT_INLINE void turn(vec<T, N, false>* rows) {
  if constexpr (S < N) {
    for (int k = 0; k < N; k++)
      if (!(k & S)) exchange<S>(rows[k], rows[k + S], upto<N>());
    turn<2 * S>(rows);
  }
}
// p[lane * step + k] = lane `lane` of rows[k]
template <class T, class B, int N> SMELT_INLINE void store_turned(B* p, i64 step, vec<T, N, false> (&rows)[N]) {
  turn<1>(rows);
#pragma GCC unroll 16
  for (int k = 0; k < N; k++) store(p + k * step, rows[k]);
}

}  // namespace smelt
