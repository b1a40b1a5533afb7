// smelt_reduce.h: accumulators. Included after smelt.h.
//
// `kind<V>` accumulates values of type V (a scalar, or lanes that stay separate until `reduce`).
// update(x): one more value (a whole vec: one more value in each lane); update(m, x): only in the lanes of m.
// merge(other): fold in another accumulator of the same type. reduce(acc): all lanes folded into one scalar accumulator.

namespace smelt {

template <class V> SMELT_INLINE auto low_of(V x) { return low(x); }
#define SMELT_MASKED_UPDATE                                             \
  template <class M> SMELT_INLINE_METHOD void update(M m, V x) {        \
    auto next = *this;                                                  \
    next.update(x);                                                     \
    v = where(m, next.v, v);                                            \
  }

#define SMELT_SIMPLE_REDUCTION(name, identity, combine)                                                  \
  template <class V> struct name {                                                                       \
    typedef elem<V> T;                                                                                   \
    V v = fill_as<V>(identity);                                                                          \
    SMELT_INLINE_METHOD void update(V x) { v = combine(v, x); }                                          \
    SMELT_MASKED_UPDATE                                                                                  \
    SMELT_INLINE_METHOD void merge(name other) { v = combine(v, other.v); }                              \
  };                                                                                                     \
  template <class V, class F> SMELT_INLINE auto map_fields(name<V> a, F f) { return name<decltype(f(a.v))>{f(a.v)}; }
template <class T> SMELT_INLINE T one() {
  if constexpr (is_low<T>) return narrow<T>(1.0f);
  else return T(1);
}
template <class T> SMELT_INLINE T lowest() {
  if constexpr (is_low<T>) return narrow<T>(limits<f32>::lowest);
  else return limits<T>::lowest;
}
template <class T> SMELT_INLINE T highest() {
  if constexpr (is_low<T>) return narrow<T>(limits<f32>::highest);
  else return limits<T>::highest;
}
SMELT_SIMPLE_REDUCTION(reduce_sum, zero<T>(), add)
SMELT_SIMPLE_REDUCTION(reduce_prod, one<T>(), mul)
SMELT_SIMPLE_REDUCTION(reduce_max, lowest<T>(), maximum)
SMELT_SIMPLE_REDUCTION(reduce_min, highest<T>(), minimum)
SMELT_SIMPLE_REDUCTION(reduce_any, false, bitwise_or)
SMELT_SIMPLE_REDUCTION(reduce_all, true, bitwise_and)
SMELT_SIMPLE_REDUCTION(reduce_xor_sum, T(0), bitwise_xor)

// The extreme value (NaN above all) and its position; of equals the least position.
template <bool Max, class A, class B> SMELT_INLINE auto beats(A x, B old) {
  auto better = Max ? gt(x, old) : lt(x, old);
  if constexpr (is_float<elem<A>> || low_precision<A>) return bitwise_or(better, bitwise_and(isnan(x), bitwise_not(isnan(old))));
  else return better;
}
template <class A, class B> SMELT_INLINE auto ties(A x, B old) {
  if constexpr (is_float<elem<A>> || low_precision<A>) return bitwise_or(eq(x, old), bitwise_and(isnan(x), isnan(old)));
  else return eq(x, old);
}
template <class V, bool Max> struct reduce_arg {
  typedef elem<V> T;
  typedef values<i64, shape<V>::lanes> P;
  V v = fill_as<V>(Max ? lowest<T>() : highest<T>());
  P position = fill_as<P>(limits<i64>::highest);
  SMELT_INLINE_METHOD void update(V x, P at) {
    auto take = bitwise_or(beats<Max>(x, v), bitwise_and(ties(x, v), lt(at, position)));
    v = where(take, x, v);
    position = where(take, at, position);
  }
  template <class M> SMELT_INLINE_METHOD void update(M m, V x, P at) {
    auto take = bitwise_and(m, bitwise_or(beats<Max>(x, v), bitwise_and(ties(x, v), lt(at, position))));
    v = where(take, x, v);
    position = where(take, at, position);
  }
  SMELT_INLINE_METHOD void merge(reduce_arg other) { update(other.v, other.position); }
};
template <class V> using reduce_argmax = reduce_arg<V, true>;
template <class V> using reduce_argmin = reduce_arg<V, false>;
template <class V, bool Max, class F> SMELT_INLINE auto map_fields(reduce_arg<V, Max> a, F f) {
  return reduce_arg<decltype(f(a.v)), Max>{f(a.v), f(a.position)};
}

// Mean, sum of squared deviations and count (Welford 1962; merging: Chan, Golub, LeVeque 1979). The count is one number
// for all lanes until a masked update has made the lanes differ.
template <class V> struct reduce_welford {
  typedef elem<V> T;
  V mean = fill_as<V>(T(0)), m2 = fill_as<V>(T(0));
  T count = T(0);
  SMELT_INLINE_METHOD void update(V x) {
    count += T(1);
    V delta = sub(x, mean);
    mean = fma(delta, fill_as<V>(T(1) / count), mean);
    m2 = fma(delta, sub(x, mean), m2);
  }
  SMELT_INLINE_METHOD void merge(reduce_welford other) {
    T total = count + other.count;
    T weight = total > T(0) ? other.count / total : T(0);
    V delta = sub(other.mean, mean);
    mean = other.count == total ? other.mean : fma(delta, fill_as<V>(weight), mean);
    m2 = add(add(m2, other.m2), mul(mul(delta, delta), fill_as<V>(count * weight)));
    count = total;
  }
};
template <class V> struct reduce_welford_masked {
  typedef elem<V> T;
  V mean = fill_as<V>(T(0)), m2 = fill_as<V>(T(0)), count = fill_as<V>(T(0));
  SMELT_INLINE_METHOD void update(V x) { merge({x, fill_as<V>(T(0)), fill_as<V>(T(1))}); }
  template <class M> SMELT_INLINE_METHOD void update(M m, V x) {
    V none = fill_as<V>(T(0));
    merge({where(m, x, none), none, where(m, fill_as<V>(T(1)), none)});
  }
  SMELT_INLINE_METHOD void merge(reduce_welford_masked other) {
    V none = fill_as<V>(T(0)), total = add(count, other.count);
    auto empty = eq(other.count, none);
    V weight = where(empty, none, truediv(other.count, total));
    V delta = sub(other.mean, mean);
    mean = where(empty, mean, where(eq(count, none), other.mean, fma(delta, weight, mean)));
    m2 = where(empty, m2, add(add(m2, other.m2), mul(mul(delta, delta), mul(count, weight))));
    count = total;
  }
};
template <class V, class F> SMELT_INLINE auto map_fields(reduce_welford<V> a, F f) {
  return reduce_welford<decltype(f(a.mean))>{f(a.mean), f(a.m2), a.count};
}
template <class V, class F> SMELT_INLINE auto map_fields(reduce_welford_masked<V> a, F f) {
  return reduce_welford_masked<decltype(f(a.mean))>{f(a.mean), f(a.m2), f(a.count)};
}

struct low_half { template <class X> SMELT_INLINE_METHOD auto operator()(X x) const { return low(x); } };
struct high_half { template <class X> SMELT_INLINE_METHOD auto operator()(X x) const { return high(x); } };
template <int K> struct lane_number { template <class X> SMELT_INLINE_METHOD auto operator()(X x) const { return lane(x, K); } };
template <class A> struct accumulated;
template <template <class> class A, class V> struct accumulated<A<V>> { typedef V type; };
template <class V, bool Max> struct accumulated<reduce_arg<V, Max>> { typedef V type; };
template <class A> SMELT_INLINE auto reduce(A a) {
  constexpr int lanes = shape<typename accumulated<A>::type>::lanes;
  if constexpr (lanes == 1) {
    return a;
  } else if constexpr (lanes == 2) {
    auto r = map_fields(a, lane_number<0>());
    r.merge(map_fields(a, lane_number<1>()));
    return r;
  } else {
    auto half = map_fields(a, low_half());
    half.merge(map_fields(a, high_half()));
    return reduce(half);
  }
}
// All lanes against one common mean or maximum: cheaper than merging pairs of halves.
template <class T, int N, bool W> SMELT_INLINE T sum_lanes(vec<T, N, W> x) { return reduce(reduce_sum<vec<T, N, W>>{x}).v; }
template <class T, int N, bool W> SMELT_INLINE reduce_welford<T> reduce(reduce_welford<vec<T, N, W>> a) {
  T mean = sum_lanes(mul(a.mean, fill<T, N>(T(1) / T(N))));  // N is a power of 2: exact
  auto delta = sub(a.mean, fill<T, N>(mean));
  return {mean, sum_lanes(add(a.m2, mul(mul(delta, delta), fill<T, N>(a.count)))), a.count * T(N)};
}
template <class T, int N, bool W> SMELT_INLINE reduce_welford_masked<T> reduce(reduce_welford_masked<vec<T, N, W>> a) {
  T count = sum_lanes(a.count), scale = count > T(0) ? T(1) / count : T(0);
  T mean = sum_lanes(mul(a.mean, mul(a.count, fill<T, N>(scale))));
  auto delta = sub(a.mean, fill<T, N>(mean));
  return {mean, sum_lanes(add(a.m2, mul(mul(delta, delta), a.count))), count};
}
SMELT_INLINE_METHOD reduce_welford<f32> as_uniform(reduce_welford_masked<f32> a) { return {a.mean, a.m2, a.count}; }
SMELT_INLINE_METHOD reduce_welford<f64> as_uniform(reduce_welford_masked<f64> a) { return {a.mean, a.m2, a.count}; }
template <class A> SMELT_INLINE A as_uniform(A a) { return a; }

}  // namespace smelt
