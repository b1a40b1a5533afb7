// smelt_transpose.h: register transposes: N vectors of N lanes are stored as N rows, a few vectors lane by lane.

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
// One exchange: blocks of S lanes are swapped between rows at a distance of S.
template <int S, class T, int N, int... K>
SMELT_INLINE void exchange(vec<T, N, false>& a, vec<T, N, false>& b, ints<K...>) {
  auto upper = pick(a, b, ints<(K & S ? N + K - S : K)...>());
  b = pick(a, b, ints<(K & S ? N + K : K + S)...>());
  a = upper;
}
template <int S, class T, int N> SMELT_INLINE void transpose(vec<T, N, false>* rows) {
  if constexpr (S < N) {
    for (int k = 0; k < N; k++)
      if (!(k & S)) exchange<S>(rows[k], rows[k + S], upto<N>());
    transpose<2 * S>(rows);
  }
}
template <class T, class B, int N> SMELT_INLINE void transpose_into(B* p, i64 step, vec<T, N, false> (&rows)[N]) {
  transpose<1>(rows);
#pragma GCC unroll 16
  for (int k = 0; k < N; k++) store(p + k * step, rows[k]);
}
// p[lane * step + k] = lane `lane` of rows[k]. A function: it takes longer to compile than its operands.
template <class T, class B, int N>
__attribute__((noinline)) static void store_transposed(B* p, i64 step, vec<T, N, false> (&rows)[N]) {
  transpose_into(p, step, rows);
}
// p[lane * step + k] = q[lane + k * other]. Of a full vector of float32 a program has it once (smelt_transposed.h).
template <int N, class B>
__attribute__((noinline)) void copy_transposed(B* p, i64 step, const B* q, i64 other) {
  decltype(load<N>(q)) rows[N];
#pragma GCC unroll 16
  for (int k = 0; k < N; k++) rows[k] = load<N>(q + k * other);
  transpose_into(p, step, rows);
}
extern template void copy_transposed<SMELT_VECTOR_BYTES / 4>(f32_buffer* p, i64 step, const f32_buffer* q, i64 other);

// Vector J of those that hold lane 0 of all rows, then lane 1 of all rows, ...
template <int J, int R, class T, int N, int C, int... K>
SMELT_INLINE vec<T, N, false> among(vec<T, N, false> (&rows)[C], ints<K...> lanes) {
  if constexpr (R == 0) return rows[0];
  else return pick(among<J, R - 1>(rows, lanes), rows[R], ints<((J * N + K) % C == R ? N + (J * N + K) / C :
                                                               R == 1 ? (J * N + K) / C : K)...>());
}
template <int J, class T, class B, int N, int C> SMELT_INLINE void store_among(B* p, vec<T, N, false> (&rows)[C]) {
  if constexpr (J < C) {
    store(p + J * N, among<J, C - 1>(rows, upto<N>()));
    store_among<J + 1>(p, rows);
  }
}
// p[lane * C + k] = lane `lane` of rows[k]
template <class T, class B, int N, int C> SMELT_INLINE void store_adjacent(B* p, vec<T, N, false> (&rows)[C]) {
  store_among<0>(p, rows);
}

}  // namespace smelt
