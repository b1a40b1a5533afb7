// smelt_softmax.h: the accumulator of softmax in one pass. Included after smelt_math.h and smelt_reduce.h.

namespace smelt {

// The maximum m and the sum of exp(x - m) (Milakov, Gimelshein 2018).
template <class V> struct reduce_online_softmax {
  typedef elem<V> T;
  V max = fill_as<V>(lowest<T>()), total = fill_as<V>(T(0));
  SMELT_INLINE_METHOD void update(V x) {
    V delta = sub(x, max), nothing = fill_as<V>(T(0));
    V e = exp(neg(abs(delta)));
    e = where(eq(x, fill_as<V>(lowest<T>())), nothing, e);
    auto larger = gt(delta, nothing);
    total = where(larger, fma(total, e, fill_as<V>(T(1))), add(total, e));
    max = maximum(max, x);
  }
  template <class M> SMELT_INLINE_METHOD void update(M m, V x) {
    auto next = *this;
    next.update(x);
    max = where(m, next.max, max);
    total = where(m, next.total, total);
  }
  SMELT_INLINE_METHOD void merge(reduce_online_softmax other) {
    V least = fill_as<V>(lowest<T>()), nothing = fill_as<V>(T(0));
    V both = maximum(max, other.max);
    V mine = where(eq(max, least), nothing, exp(sub(max, both)));
    V yours = where(eq(other.max, least), nothing, exp(sub(other.max, both)));
    total = fma(total, mine, mul(other.total, yours));
    max = both;
  }
  // An infinite maximum makes eager's sum NaN.
  SMELT_INLINE_METHOD V sum() const {
    return where(eq(max, fill_as<V>(highest<T>())), fill_as<V>(T(__builtin_nan(""))), total);
  }
};
template <class V, class F> SMELT_INLINE auto map_fields(reduce_online_softmax<V> a, F f) {
  return reduce_online_softmax<decltype(f(a.max))>{f(a.max), f(a.total)};
}
template <class T, int N, bool W> SMELT_INLINE reduce_online_softmax<T> reduce(reduce_online_softmax<vec<T, N, W>> a) {
  T max = reduce(reduce_max<vec<T, N, W>>{a.max}).v;
  auto scale = exp(sub(a.max, fill<T, N>(max)));
  auto empty = eq(a.max, fill<T, N>(lowest<T>()));
  return {max, sum_lanes(where(empty, fill<T, N>(T(0)), mul(a.total, scale)))};
}

}  // namespace smelt
