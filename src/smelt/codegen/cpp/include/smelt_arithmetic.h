// smelt_arithmetic.h: the operators that need no library, on numbers and lanes. Part of the core, after smelt.h.

namespace smelt {

// ---------------------------------------------------------------------------------------------- arithmetic
#define SMELT_ARITHMETIC(name, op)                                                                    \
  template <class T, int N, bool W> SMELT_INLINE vec<T, N, W> name(vec<T, N, W> a, vec<T, N, W> b) {  \
    SMELT_EACH2(name) {                                                                               \
      typedef raw<typename wrap<T>::type, N> U;                                                       \
      return {(raw<T, N>)((U)a.v op (U)b.v)};                                                         \
    }                                                                                                 \
  }                                                                                                   \
  template <class T> SMELT_INLINE T name(T a, T b) {                                                  \
    if constexpr (low_precision<T>) return narrow_as<T>(name(widen(a), widen(b)));                    \
    else if constexpr (is_float<T>) return a op b;                                                    \
    else return T((u64)a op (u64)b);                                                                  \
  }
SMELT_ARITHMETIC(add, +)
SMELT_ARITHMETIC(sub, -)
SMELT_ARITHMETIC(mul, *)

// base, base + step, …
template <int N> SMELT_INLINE vec<i64, N> iota(i64 base) {
  return add(fill<i64, N>(base), lanes_of<i64, N>([](i64 k) { return k; }, 0, upto<N>()));
}
template <int N> SMELT_INLINE vec<i64, N> iota(i64 base, i64 step) {
  return add(fill<i64, N>(base), lanes_of<i64, N>([=](i64 k) { return k * step; }, 0, upto<N>()));
}
SMELT_INLINE i64 floor_mod(i64 a, i64 b) { i64 r = a % b; return r != 0 && (r < 0) != (b < 0) ? r + b : r; }
SMELT_INLINE i64 floor_div(i64 a, i64 b) { return (a - floor_mod(a, b)) / b; }

// Division, rounded down, by a number that stays the same. Where both are positive and below 2^32 it is a
// multiplication with 2^64 / by, rounded up (Lemire, Kaser, Kurz: Faster remainder by direct computation, 2019).
struct divider {
  i64 by;
  u64 magic, limit;
  explicit divider(i64 by) : by(by) {
    bool small = by > 1 && by < i64(1) << 32;
    magic = small ? ~u64(0) / u64(by) + 1 : 0;
    limit = small ? u64(1) << 32 : 0;
  }
  i64 quotient(i64 n) const {
#ifdef __SIZEOF_INT128__
    if (u64(n) < limit) return i64(u64(((unsigned __int128)magic * u64(n)) >> 64));
#endif
    return by ? floor_div(n, by) : 0;
  }
  i64 rest(i64 n) const { return n - quotient(n) * by; }
};
SMELT_INLINE i64 max_of(i64 a, i64 b) { return a > b ? a : b; }
SMELT_INLINE i64 min_of(i64 a, i64 b) { return a < b ? a : b; }

// A scalar or low precision value through the function on vectors.
#define SMELT_LIFT1(name)                                                                             \
  template <class T, int N> SMELT_INLINE vec<T, N> name(vec<T, N, true> x) { return {name(x.lo), name(x.hi)}; } \
  template <class X> SMELT_INLINE X name(X x) {                                                       \
    if constexpr (low_precision<X>) return narrow_as<X>(name(widen(x)));                              \
    else return name(vec<X, 16 / sizeof(X)>(fill<X, 16 / sizeof(X)>(x))).v[0];                        \
  }
#define SMELT_LIFT2(name)                                                                             \
  template <class T, int N> SMELT_INLINE vec<T, N> name(vec<T, N, true> x, vec<T, N, true> y) {       \
    return {name(x.lo, y.lo), name(x.hi, y.hi)};                                                      \
  }                                                                                                   \
  template <class X> SMELT_INLINE X name(X x, X y) {                                                  \
    if constexpr (low_precision<X>) return narrow_as<X>(name(widen(x), widen(y)));                    \
    else return name(vec<X, 16 / sizeof(X)>(fill<X, 16 / sizeof(X)>(x)),                              \
                     vec<X, 16 / sizeof(X)>(fill<X, 16 / sizeof(X)>(y))).v[0];                        \
  }
#define SMELT_DEFINE1(name, ...)                                                                      \
  template <class T, int N> SMELT_INLINE vec<T, N> name(vec<T, N, false> x) { __VA_ARGS__ }           \
  SMELT_LIFT1(name)
#define SMELT_DEFINE2(name, ...)                                                                      \
  template <class T, int N> SMELT_INLINE vec<T, N> name(vec<T, N, false> x, vec<T, N, false> y) { __VA_ARGS__ } \
  SMELT_LIFT2(name)

template <class R> struct sign_bits;
template <class T, int N> SMELT_INLINE raw<typename int_of<sizeof(T)>::type, N> sign_mask() {
  typedef typename int_of<sizeof(T)>::type I;
  return raw<I, N>{} + limits<I>::lowest;
}
SMELT_DEFINE1(neg, {
  if constexpr (is_float<T>) return {-x.v};
  else return {(raw<T, N>)(-(raw<typename wrap<T>::type, N>)x.v)};
})
SMELT_DEFINE1(abs, {
  typedef raw<typename int_of<sizeof(T)>::type, N> I;
  if constexpr (is_float<T>) return {(raw<T, N>)((I)x.v & ~sign_mask<T, N>())};
  else if constexpr (same<T, u8>) return x;
  else return {x.v < 0 ? neg(x).v : x.v};
})
SMELT_DEFINE1(sign, {  // 0 for NaN, as ATen
  raw<T, N> zero = raw<T, N>{}, one = zero + T(1);
  raw<T, N> r = x.v > 0 ? one : zero;
  if constexpr (!same<T, u8>) r = x.v < 0 ? zero - one : r;
  return {r};
})
SMELT_DEFINE2(maximum, {
  if constexpr (is_float<T>) return {(x.v > y.v) | (x.v != x.v) ? x.v : y.v};
  else return {x.v > y.v ? x.v : y.v};
})
SMELT_DEFINE2(minimum, {
  if constexpr (is_float<T>) return {(x.v < y.v) | (x.v != x.v) ? x.v : y.v};
  else return {x.v < y.v ? x.v : y.v};
})
SMELT_INLINE bool maximum(bool a, bool b) { return a | b; }
SMELT_INLINE bool minimum(bool a, bool b) { return a & b; }
SMELT_MASKS(maximum, bitwise_or(a, b))
SMELT_MASKS(minimum, bitwise_and(a, b))
SMELT_DEFINE2(truediv, return {x.v / y.v};)
SMELT_DEFINE1(reciprocal, return {T(1) / x.v};)
SMELT_DEFINE2(fmax, return {(x.v < y.v) | (x.v != x.v) ? y.v : x.v};)
SMELT_DEFINE2(fmin, return {(y.v < x.v) | (x.v != x.v) ? y.v : x.v};)
SMELT_DEFINE2(copysign, {
  typedef raw<typename int_of<sizeof(T)>::type, N> I;
  I sign = sign_mask<T, N>();
  return {(raw<T, N>)(((I)x.v & ~sign) | ((I)y.v & sign))};
})
#define SMELT_TEST(name, expression)                                                                  \
  template <class T, int N, bool W> SMELT_INLINE auto name(vec<T, N, W> x) {                          \
    typedef typename int_of<sizeof(T)>::type I;                                                       \
    if constexpr (W) return mask<I, N>{{name(x.lo).m, name(x.hi).m}};                                 \
    else return mask<I, N>{{(raw<I, N>)(expression)}};                                                \
  }                                                                                                   \
  template <class H, int N> SMELT_INLINE auto name(lowvec<H, N> x) { return name(widen(x)); }         \
  template <class X> SMELT_INLINE bool name(X x) {                                                    \
    if constexpr (is_low<X>) return name(widen(x));                                                   \
    else return lane(name(fill<X, 16 / sizeof(X)>(x)), 0);                                            \
  }
SMELT_TEST(isnan, x.v != x.v)
SMELT_TEST(isinf, (raw<T, N>)((raw<I, N>)x.v & ~sign_mask<T, N>()) == limits<T>::highest)
SMELT_TEST(signbit, (raw<I, N>)x.v < 0)

// Integer division. By 0: the checked forms raise DIVISION_ERROR; least / -1 wraps.
template <class T> SMELT_INLINE T truncdiv(T a, T b) {
  if (b == 0) return 0;
  if constexpr (!same<T, u8>) if (b == T(-1)) return neg(a);
  return T(a / b);
}
template <class T> SMELT_INLINE T int_fmod(T a, T b) {
  if (b == 0) return 0;
  if constexpr (!same<T, u8>) if (b == T(-1)) return 0;
  return T(a % b);
}
template <class T> SMELT_INLINE T int_remainder(T a, T b) {
  T r = int_fmod(a, b);
  return r != 0 && (r < 0) != (b < 0) ? T(r + b) : r;
}
template <class T> SMELT_INLINE T int_floordiv(T a, T b) {
  T q = truncdiv(a, b);
  return int_fmod(a, b) != 0 && (a < 0) != (b < 0) ? T(q - 1) : q;
}
template <class T> SMELT_INLINE T int_lshift(T a, T b) {
  return b < 0 || b >= T(sizeof(T) * 8) ? T(0) : T((u64)a << b);
}
template <class T> SMELT_INLINE T int_rshift(T a, T b) {
  constexpr T last = sizeof(T) * 8 - !same<T, u8>;
  return T(a >> (b < 0 || b >= last ? last : b));
}
template <class T> SMELT_INLINE T int_pow_scalar(T x, T y) {
  if (y < 0) return x == 1 ? T(1) : x == T(-1) ? T((y & 1) ? -1 : 1) : T(0);
  u64 result = 1, factor = (u64)x;
  for (u64 n = (u64)y; n; n >>= 1) {
    if (n & 1) result *= factor;
    factor *= factor;
  }
  return T(result);
}
// Lane by lane: f(x) or f(x, y).
template <class T, int N, bool W, class F> SMELT_INLINE vec<T, N, W> each(vec<T, N, W> x, F f) {
  T a[N];
  store_vec(a, x);
  for (int k = 0; k < N; ++k) a[k] = f(a[k]);
  return load_vec<N>(a);
}
template <class T, int N, bool W, class F> SMELT_INLINE vec<T, N, W> each(vec<T, N, W> x, vec<T, N, W> y, F f) {
  T a[N], b[N];
  store_vec(a, x);
  store_vec(b, y);
  for (int k = 0; k < N; ++k) a[k] = f(a[k], b[k]);
  return load_vec<N>(a);
}
#define SMELT_INTEGER(name, scalar)                                                                   \
  template <class T, int N, bool W> SMELT_INLINE vec<T, N, W> name(vec<T, N, W> x, vec<T, N, W> y) {  \
    return each(x, y, [](T a, T b) { return scalar(a, b); });                                         \
  }
SMELT_INTEGER(truncdiv, truncdiv)
// Shifts in lanes: the machine's, by the count without its high bits, where the count is in range.
template <class T, int N> SMELT_INLINE auto outside_width(vec<T, N, false> b) { return (b.v < 0) | (b.v >= T(sizeof(T) * 8)); }
template <class T, int N, bool W> SMELT_INLINE vec<T, N, W> lshift(vec<T, N, W> a, vec<T, N, W> b) {
  SMELT_EACH2(lshift) {
    typedef raw<typename wrap<T>::type, N> U;
    auto shifted = (raw<T, N>)((U)a.v << ((U)b.v & typename wrap<T>::type(sizeof(T) * 8 - 1)));
    return {outside_width(b) ? raw<T, N>{} : shifted};
  }
}
template <class T, int N, bool W> SMELT_INLINE vec<T, N, W> rshift(vec<T, N, W> a, vec<T, N, W> b) {
  SMELT_EACH2(rshift) {
    auto shifted = a.v >> (b.v & T(sizeof(T) * 8 - 1));
    raw<T, N> rest = same<T, u8> ? raw<T, N>{} : (raw<T, N>)(a.v >> T(sizeof(T) * 8 - 1));
    return {outside_width(b) ? rest : shifted};
  }
}
SMELT_INTEGER(int_pow, int_pow_scalar)
template <class T> SMELT_INLINE T lshift(T a, T b) { return int_lshift(a, b); }
template <class T> SMELT_INLINE T rshift(T a, T b) { return int_rshift(a, b); }
template <class T> SMELT_INLINE T int_pow(T a, T b) { return int_pow_scalar(a, b); }
// The divisor, after the check that it is not 0.
template <class T> SMELT_INLINE T check_divisor(T b, i64* error) {
  if (__builtin_expect(b == 0, 0)) fail(error, DIVISION_ERROR);
  return b;
}
template <class T, int N, bool W> SMELT_INLINE vec<T, N, W> check_divisor(vec<T, N, W> b, i64* error) {
  if (__builtin_expect(any(eq(b, fill<T, N>(0))), 0)) fail(error, DIVISION_ERROR);
  return b;
}
template <class I, class T, int N, bool W>
SMELT_INLINE vec<T, N, W> check_divisor(mask<I, N> m, vec<T, N, W> b, i64* error) {
  return check_divisor(where(m, b, fill<T, N>(1)), error);
}
// mad(a, b, c) = a * b + c, in one rounding where the machine has that instruction.
#if defined(__FP_FAST_FMAF) || (defined(__clang__) && (defined(__FMA__) || defined(__aarch64__)))
#define SMELT_FAST_FMA 1
#endif
template <class F> SMELT_INLINE F mad(F a, F b, F c) {
#if defined(SMELT_FAST_FMA) && __has_builtin(__builtin_elementwise_fma)
  return __builtin_elementwise_fma(a, b, c);
#elif defined(__clang__)
#pragma clang fp contract(fast)
  return a * b + c;
#elif defined(SMELT_FAST_FMA)
  for (int k = 0; k < int(sizeof(a) / sizeof(a[0])); ++k)
    c[k] = sizeof(a[0]) == 4 ? __builtin_fmaf(a[k], b[k], c[k]) : __builtin_fma(a[k], b[k], c[k]);
  return c;
#else
  return a * b + c;
#endif
}
#if defined(SMELT_GCC_X86) && defined(__FMA__)
#define SMELT_MAD(T, N, builtin, ...) \
  SMELT_INLINE raw<T, N> mad(raw<T, N> a, raw<T, N> b, raw<T, N> c) { return builtin(a, b, c __VA_ARGS__); }
SMELT_MAD(f32, 4, __builtin_ia32_vfmaddps) SMELT_MAD(f64, 2, __builtin_ia32_vfmaddpd)
SMELT_MAD(f32, 8, __builtin_ia32_vfmaddps256) SMELT_MAD(f64, 4, __builtin_ia32_vfmaddpd256)
#if defined(SMELT_AVX512)
SMELT_MAD(f32, 16, __builtin_ia32_vfmaddps512_mask, , -1, 4) SMELT_MAD(f64, 8, __builtin_ia32_vfmaddpd512_mask, , -1, 4)
#endif
#endif
// Where no instruction does it, the C library would take a hundred times as long: two roundings then.
template <class T> SMELT_INLINE T fma_scalar(T a, T b, T c) {
#if !defined(SMELT_FAST_FMA)
  return a * b + c;
#endif
  if constexpr (same<T, f32>) return __builtin_fmaf(a, b, c);
  else return __builtin_fma(a, b, c);
}
template <class T, int N, bool W> SMELT_INLINE vec<T, N, W> fma(vec<T, N, W> x, vec<T, N, W> y, vec<T, N, W> z) {
  if constexpr (W) {
    return {fma(x.lo, y.lo, z.lo), fma(x.hi, y.hi, z.hi)};
  } else {
#if defined(SMELT_FAST_FMA) && (!defined(__clang__) || __has_builtin(__builtin_elementwise_fma))
    return {mad(x.v, y.v, z.v)};
#elif !defined(SMELT_FAST_FMA)
    return {x.v * y.v + z.v};
#else
    raw<T, N> r;
    for (int k = 0; k < N; ++k) r[k] = fma_scalar<T>(x.v[k], y.v[k], z.v[k]);
    return {r};
#endif
  }
}
template <class X> SMELT_INLINE X fma(X x, X y, X z) {
  if constexpr (low_precision<X>) return narrow_as<X>(fma(widen(x), widen(y), widen(z)));
  else return fma_scalar(x, y, z);
}

// The larger (smaller) of a and b; b where either is NaN or both are zeros, as x86's MAXPS (MINPS).
template <class R> SMELT_INLINE R larger(R a, R b) { return a > b ? a : b; }
template <class R> SMELT_INLINE R smaller(R a, R b) { return a < b ? a : b; }
#if defined(__AVX__) && !defined(__clang__)
SMELT_INLINE raw<f32, 8> larger(raw<f32, 8> a, raw<f32, 8> b) { return __builtin_ia32_maxps256(a, b); }
SMELT_INLINE raw<f32, 8> smaller(raw<f32, 8> a, raw<f32, 8> b) { return __builtin_ia32_minps256(a, b); }
#endif
#if defined(__AVX512F__) && !defined(__clang__)
SMELT_INLINE raw<f32, 16> larger(raw<f32, 16> a, raw<f32, 16> b) {
  return __builtin_ia32_maxps512_mask(a, b, a, -1, 4);
}
SMELT_INLINE raw<f32, 16> smaller(raw<f32, 16> a, raw<f32, 16> b) {
  return __builtin_ia32_minps512_mask(a, b, a, -1, 4);
}
#endif
// where(x < y, y, x), exactly: x where either is NaN, and of two zeros x.
SMELT_DEFINE2(at_least, { return {larger(y.v, x.v)}; })

template <class T> SMELT_INLINE T add_scalar(T a, T b) { return add(a, b); }
template <class T> SMELT_INLINE void atomic_add(T* p, T x) {
  typedef typename int_of<sizeof(T)>::type I;
  typedef I __attribute__((may_alias)) word;
  I seen = __atomic_load_n((word*)p, __ATOMIC_RELAXED), next;
  do {
    next = same_bits<I>(add_scalar(same_bits<T>(seen), x));
  } while (!__atomic_compare_exchange_n((word*)p, &seen, next, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
}
// Scratch memory too large for the stack.
struct scratch {
  void* p;
#ifdef SMELT_PACKAGE
  inline __attribute__((always_inline)) explicit scratch(i64 size) : p(smelt_runtime_scratch(size)) {}
  inline __attribute__((always_inline)) ~scratch() { smelt_runtime_scratch_back(p); }
#else
  inline __attribute__((always_inline)) explicit scratch(i64 size) : p(malloc(size > 0 ? size : 1)) {}
  inline __attribute__((always_inline)) ~scratch() { free(p); }
#endif
};

}  // namespace smelt
