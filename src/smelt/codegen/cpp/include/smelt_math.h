// smelt_math.h: elementary functions on lanes. Included after smelt.h.
//
// Worst error in units in the last place over all finite inputs (tests/codegen/test_math.py measures it):
//
//   function                          float32                     float64
//   sqrt reciprocal truediv           0.5                         0.5
//   rsqrt                             1.6                         1.6
//   exp                               1                           1
//   exp2                              1.2                         1     (libm)
//   expm1                             1.5                         1     (libm)
//   log1p                             1.6                         1     (libm)
//   log                               1                           1
//   log2 log10 pow atan2 hypot        0.6  (through float64)      1     (libm)
//   sin cos                           1.6                         1     (libm)
//   tanh                              2.5  (AVX-512: 1.0)         2     (libm)
//   erf                               1.2                         1     (libm)
//   ndtr                              2.4e-7 (absolute; exactly 0, 1 from 5.66 on)    2.3e-16 (absolute)
//   sigmoid                           2.5  (0 below -88.7)        2     (0 below -709.7)
//   tan asin acos atan sinh cosh asinh acosh atanh erfc lgamma
//                                     0.6  (float64 libm, lane by lane)   libm, lane by lane
//   erfinv digamma                    0.6  (own float64 code)     64 times the last place of max(1, |result|)
//
// Denormals, signed zeros, infinities and NaN are C's. libm functions run lane by lane; all others are branch-free
// (sin, cos: libm for |x| > 30000, or without fused multiply-add).

extern "C" {
double exp2(double);
double expm1(double);
double log1p(double);
double log2(double);
double log10(double);
double pow(double, double);
double sin(double);
double cos(double);
double tan(double);
double asin(double);
double acos(double);
double atan(double);
double sinh(double);
double cosh(double);
double tanh(double);
double asinh(double);
double acosh(double);
double atanh(double);
double erf(double);
double erfc(double);
double lgamma_r(double, int*);
double atan2(double, double);
double fmod(double, double);
float fmodf(float, float);
}

namespace smelt {

// ---------------------------------------------------------------------------------------------- machine functions
#if defined(SMELT_GCC_X86)
typedef float f4_ __attribute__((vector_size(16)));
typedef double d2_ __attribute__((vector_size(16)));
SMELT_INLINE f4_ machine_sqrt(f4_ x) { return __builtin_ia32_sqrtps(x); }
SMELT_INLINE d2_ machine_sqrt(d2_ x) { return __builtin_ia32_sqrtpd(x); }
#if defined(__SSE4_1__)
#define SMELT_ROUND4(Mode) \
  SMELT_INLINE f4_ machine_round(f4_ x, ints<Mode>) { return __builtin_ia32_roundps(x, Mode); } \
  SMELT_INLINE d2_ machine_round(d2_ x, ints<Mode>) { return __builtin_ia32_roundpd(x, Mode); }
SMELT_ROUND4(8) SMELT_ROUND4(9) SMELT_ROUND4(10) SMELT_ROUND4(11)
#define SMELT_HAS_ROUND 1
#endif
#if defined(__AVX__)
typedef float f8_ __attribute__((vector_size(32)));
typedef double d4_ __attribute__((vector_size(32)));
SMELT_INLINE f8_ machine_sqrt(f8_ x) { return __builtin_ia32_sqrtps256(x); }
SMELT_INLINE d4_ machine_sqrt(d4_ x) { return __builtin_ia32_sqrtpd256(x); }
#define SMELT_ROUND8(Mode) \
  SMELT_INLINE f8_ machine_round(f8_ x, ints<Mode>) { return __builtin_ia32_roundps256(x, Mode); } \
  SMELT_INLINE d4_ machine_round(d4_ x, ints<Mode>) { return __builtin_ia32_roundpd256(x, Mode); }
SMELT_ROUND8(8) SMELT_ROUND8(9) SMELT_ROUND8(10) SMELT_ROUND8(11)
#endif
#if defined(SMELT_AVX512)
typedef float f16_ __attribute__((vector_size(64)));
typedef double d8_ __attribute__((vector_size(64)));
SMELT_INLINE f16_ machine_sqrt(f16_ x) { return __builtin_ia32_sqrtps512_mask(x, x, -1, 4); }
SMELT_INLINE d8_ machine_sqrt(d8_ x) { return __builtin_ia32_sqrtpd512_mask(x, x, -1, 4); }
#define SMELT_ROUND16(Mode) \
  SMELT_INLINE f16_ machine_round(f16_ x, ints<Mode>) { return __builtin_ia32_rndscaleps_mask(x, Mode, x, -1, 4); } \
  SMELT_INLINE d8_ machine_round(d8_ x, ints<Mode>) { return __builtin_ia32_rndscalepd_mask(x, Mode, x, -1, 4); }
SMELT_ROUND16(8) SMELT_ROUND16(9) SMELT_ROUND16(10) SMELT_ROUND16(11)
#endif
#endif

#if defined(SMELT_GCC_X86)
SMELT_DEFINE1(sqrt, return {machine_sqrt(x.v)};)
#elif __has_builtin(__builtin_elementwise_sqrt)
SMELT_DEFINE1(sqrt, return {__builtin_elementwise_sqrt(x.v)};)
#else
SMELT_DEFINE1(sqrt, {
  raw<T, N> r;
  for (int k = 0; k < N; ++k) r[k] = sizeof(T) == 4 ? __builtin_sqrtf(x.v[k]) : __builtin_sqrt(x.v[k]);
  return {r};
})
#endif
#if defined(SMELT_HAS_ROUND)
#define SMELT_DEFINE_ROUND(name, mode, builtin) SMELT_DEFINE1(name, return {machine_round(x.v, ints<mode>())};)
#elif __has_builtin(__builtin_elementwise_roundeven)
#define SMELT_DEFINE_ROUND(name, mode, builtin) SMELT_DEFINE1(name, return {__builtin_elementwise_##builtin(x.v)};)
#else
#define SMELT_DEFINE_ROUND(name, mode, builtin) \
  SMELT_DEFINE1(name, {                         \
    raw<T, N> r;                                \
    for (int k = 0; k < N; ++k) r[k] = __builtin_##builtin(x.v[k]); \
    return {r};                                 \
  })
#endif
SMELT_DEFINE_ROUND(floor, 9, floor)
SMELT_DEFINE_ROUND(ceil, 10, ceil)
SMELT_DEFINE_ROUND(trunc, 11, trunc)
#if __has_builtin(__builtin_elementwise_roundeven) && !defined(SMELT_HAS_ROUND)
SMELT_DEFINE_ROUND(round, 8, roundeven)
#else
SMELT_DEFINE_ROUND(round, 8, rint)
#endif
SMELT_DEFINE1(rsqrt, return {T(1) / sqrt(x).v};)

template <class R, class T> SMELT_INLINE R horner(R, T c) { return R{} + c; }
template <class R, class T, class... C> SMELT_INLINE R horner(R x, T c, C... rest) {
  return mad(x, horner(x, rest...), R{} + c);
}
template <class R, class M> SMELT_INLINE R pick(M m, R a, R b) { return m ? a : b; }
#define SMELT_FLOAT(name) template <int N> SMELT_INLINE vec<f32, N> name(vec<f32, N, false> in)
#define SMELT_DOUBLE(name) template <int N> SMELT_INLINE vec<f64, N> name(vec<f64, N, false> in)
#define SMELT_FLOAT_TYPES  \
  typedef raw<f32, N> F;   \
  typedef raw<i32, N> I;   \
  F x = in.v;              \
  (void)x;
#define SMELT_DOUBLE_TYPES \
  typedef raw<f64, N> F;   \
  typedef raw<i64, N> I;   \
  F x = in.v;              \
  (void)x;

// ---------------------------------------------------------------------------------------------- exponentials
// 2**n for -126 <= n <= 127 (float64: -1022 … 1023)
template <int N> SMELT_INLINE raw<f32, N> power_of_2(raw<i32, N> n) { return (raw<f32, N>)((n + 127) << 23); }
template <int N> SMELT_INLINE raw<f64, N> power_of_2(raw<i64, N> n) { return (raw<f64, N>)((n + 1023) << 52); }
// p * 2**n for -252 <= n <= 254, n also as the integer k; denormal results are rounded once.
template <int N> SMELT_INLINE raw<f32, N> times_power_of_2(raw<f32, N> p, raw<f32, N> n, raw<i32, N> k) {
#if defined(SMELT_AVX512) && defined(SMELT_GCC_X86)
  if constexpr (N == 16) return __builtin_ia32_scalefps512_mask(p, n, p, -1, 4);
#endif
  raw<i32, N> half = k >> 1;
  return p * power_of_2<N>(half) * power_of_2<N>(k - half);
}

// x = n * ln2 + r with n an integer (also as t's low bits); |r| <= ln2 / 2. For |x| < 2**20.
template <int N, class F> SMELT_INLINE F split_ln2(F x, F& n, raw<i32, N>& k) {
  F t = mad(x, F{} + 0x1.715476p0f, F{} + 0x1.8p23f);
  n = t - 0x1.8p23f;
  k = (raw<i32, N>)t - 0x4b400000;
  F r = mad(n, F{} - 0x1.62e4p-1f, x);
  return mad(n, F{} - 0x1.7f7d1cp-20f, r);
}
SMELT_FLOAT(exp) {
  SMELT_FLOAT_TYPES
  x = smaller(F{} + 89.0f, larger(F{} - 104.5f, x));
  F n;
  I k;
  F r = split_ln2<N>(x, n, k);
  F p = horner(r, 4.9999994e-01f, 1.666652e-01f, 4.1668396e-02f, 8.368786e-03f, 1.3814402e-03f);
  p = mad(r * r, p, r) + 1.0f;
  return {times_power_of_2<N>(p, n, k)};
}
SMELT_FLOAT(exp2) {
  SMELT_FLOAT_TYPES
  x = smaller(F{} + 129.0f, larger(F{} - 151.0f, x));
  F t = x + 0x1.8p23f;
  I k = (I)t - 0x4b400000;
  F n = t - 0x1.8p23f, r = x - n;
  F p = horner(r, 6.931472e-01f, 2.4022648e-01f, 5.5503324e-02f, 9.618438e-03f, 1.3398903e-03f, 1.5353336e-04f);
  p = mad(r, p, F{} + 1.0f);
  return {times_power_of_2<N>(p, n, k)};
}
// e**x - 1 for -20 <= x <= 89
template <int N, class F> SMELT_INLINE F expm1_core(F x) {
  F n;
  raw<i32, N> k;
  F r = split_ln2<N>(x, n, k);
  F q = horner(r, 0.5f, 1.6666666e-01f, 4.166636e-02f, 8.333389e-03f, 1.3940732e-03f, 1.9846331e-04f);
  F p = mad(r * r, q, r), t = power_of_2<N>(k - 1);
  p = mad(p, t, t - 0.5f);
  return p + p;
}
SMELT_FLOAT(expm1) {
  SMELT_FLOAT_TYPES
  F y = smaller(F{} + 89.0f, larger(F{} - 20.0f, x));
  I small = abs(in).v < 1e-8f;
  return {small ? x : expm1_core<N>(y)};
}
SMELT_FLOAT(sigmoid) { return {1.0f / (1.0f + exp(vec<f32, N>{-in.v}).v)}; }
SMELT_FLOAT(tanh) {
  SMELT_FLOAT_TYPES
  F a = abs(in).v;
  a = smaller(F{} + 10.0f, a);
  F t = expm1_core<N>(a + a);
  F y = a < 1e-4f ? a : t / (t + 2.0f);
  return copysign(vec<f32, N>{y}, in);
}
template <int N> SMELT_INLINE raw<f64, N> exp2_scaled(raw<f64, N> p, raw<i64, N> k) {
  raw<i64, N> half = (raw<i64, N>)((raw<u64, N>)(k + 4096) >> 1) - 2048;  // k >> 1: AVX2 has no 64-bit arithmetic shift
  return p * power_of_2<N>(half) * power_of_2<N>(k - half);
}
SMELT_DOUBLE(exp) {
  SMELT_DOUBLE_TYPES
  x = x < -746.0 ? F{} - 746.0 : x;
  x = x > 710.0 ? F{} + 710.0 : x;
  F t = mad(x, F{} + 0x1.71547652b82fep0, F{} + 0x1.8p52);
  F n = t - 0x1.8p52;
  I k = (I)t - 0x4338000000000000;
  F r = mad(n, F{} - 0x1.62e42fefa3800p-1, x);
  r = mad(n, F{} - 0x1.ef35793c76730p-45, r);
  F p = horner(r, 0x1.000000000000ap-1, 0x1.55555555554fap-3, 0x1.555555555086ep-5, 0x1.1111111127bd6p-7,
               0x1.6c16c1842ce37p-10, 0x1.a01a012a66064p-13, 0x1.a0199a059b7bep-16, 0x1.71df25246c943p-19,
               0x1.28ad787800916p-22, 0x1.ad7fc73b26a2bp-26);
  p = mad(r * r, p, r) + 1.0;
  return {exp2_scaled<N>(p, k)};
}
SMELT_DOUBLE(sigmoid) { return {1.0 / (1.0 + exp(vec<f64, N>{-in.v}).v)}; }
// 2**x for |x| < 1100, to about 1e-15, for float32 pow.
template <int N> SMELT_INLINE raw<f64, N> exp2_core(raw<f64, N> x) {
  typedef raw<f64, N> F;
  F t = x + 0x1.8p52;
  raw<i64, N> k = (raw<i64, N>)t - 0x4338000000000000;
  F r = x - (t - 0x1.8p52);
  F p = horner(r, 0x1.62e42fefa39efp-1, 0x1.ebfbdff82c5a4p-3, 0x1.c6b08d7049fe7p-5, 0x1.3b2ab6fba0109p-7,
               0x1.5d87fe78cd7bep-10, 0x1.4309130edbbb3p-13, 0x1.ffcbfba944519p-17, 0x1.62bfc79689608p-20,
               0x1.b5267d4cc1405p-24);
  return exp2_scaled<N>(mad(r, p, F{} + 1.0), k);
}

// ---------------------------------------------------------------------------------------------- logarithms
// log(1 + f) for -1/3 <= f <= 1/3
template <int N, class F> SMELT_INLINE F log1p_core(F f) {
  F p = horner(f, 3.3333215e-01f, -2.4999799e-01f, 2.0010412e-01f, -1.6680466e-01f, 1.4005792e-01f,
               -1.21845685e-01f, 1.398478e-01f, -1.2890337e-01f);
  return mad(f * f, mad(f, p, F{} - 0.5f), f);
}
template <int N, class F> SMELT_INLINE F add_ln2(F r, F n) {
  return mad(n, F{} + 0x1.62e4p-1f, mad(n, F{} + 0x1.7f7d1cp-20f, r));
}
SMELT_FLOAT(log) {
  SMELT_FLOAT_TYPES
  I tiny = x < 0x1p-126f;
  F y = tiny ? x * 0x1p23f : x;
  I bits = (I)y;
  I e = (bits - 0x3f2aaaab) & -0x800000;
  F n = __builtin_convertvector(e >> 23, F) + (tiny ? F{} - 23.0f : F{});
  F r = add_ln2<N>(log1p_core<N>((F)(bits - e) - 1.0f), n);
  F special = x == 0.0f ? F{} + limits<f32>::lowest : x < 0.0f ? F{} + __builtin_nanf("") : x;
  return {(x > 0.0f) & (x < limits<f32>::highest) ? r : special};
}
SMELT_FLOAT(log1p) {
  SMELT_FLOAT_TYPES
  I huge = x >= 0x1p100f;  // 2**-n would not be a normal number
  F y = huge ? x * 0x1p-64f : x;
  I e = ((I)(y + 1.0f) - 0x3f2aaaab) & -0x800000;
  F scale = (F)(0x3f800000 - e);  // 2**-n
  F f = mad(y, scale, scale - 1.0f);
  F n = __builtin_convertvector(e >> 23, F) + (huge ? F{} + 64.0f : F{});
  F r = add_ln2<N>(log1p_core<N>(f), n);
  F special = x == -1.0f ? F{} + limits<f32>::lowest : x < -1.0f ? F{} + __builtin_nanf("") : x;
  return {(x > -1.0f) & (x < limits<f32>::highest) & (abs(in).v >= 1e-8f) ? r : special};
}
// log(x) = n * ln2 + f - (h - s * (h + R)) for finite x > 0, in the parts that are added last.
template <int N, class F> SMELT_INLINE F split_log(F x, F& n, F& f) {
  typedef raw<i64, N> I;
  typedef raw<u64, N> U;
  I tiny = x < 0x1p-1022;
  x = tiny ? x * 0x1p54 : x;
  I bits = (I)x - 0x3fe6a09e667f3bcd;
  I e = (I)((U)(bits + 0x4000000000000000) >> 52);  // the exponent + 1024
  n = (F)(e + 0x4330000000000000) - (0x1p52 + 1024.0);
  n = tiny ? n - 54.0 : n;
  f = (F)((I)x - ((e - 1024) << 52)) - 1.0;
  F s = f / (f + 2.0), z = s * s;
  F R = z * horner(z, 0x1.5555555555593p-1, 0x1.999999997fbe7p-2, 0x1.249249420cd70p-2, 0x1.c71c51f0ff2ecp-3,
                   0x1.7466444d308f2p-3, 0x1.39a1255af83d1p-3, 0x1.2f0ba9ebb9cedp-3);
  F h = 0.5 * f * f;
  return mad(s, h + R, mad(n, F{} + 0x1.ef35793c76730p-45, -h));
}
SMELT_DOUBLE(log) {
  SMELT_DOUBLE_TYPES
  F n, f, rest = split_log<N>(x, n, f);
  F r = mad(n, F{} + 0x1.62e42fefa3800p-1, rest + f);
  F special = x == 0.0 ? F{} + limits<f64>::lowest : x < 0.0 ? F{} + __builtin_nan("") : x;
  return {(x > 0.0) & (x < limits<f64>::highest) ? r : special};
}
// float32 log2, log10 and pow through float64 lanes
template <int N, class F> SMELT_INLINE vec<f32, N> log_through(vec<f32, N, false> x, F scale) {
  auto wide = log(convert<f64>(x));
  return convert<f32>(mul(wide, fill<f64, N>(scale)));
}
SMELT_FLOAT(log2) { return log_through(in, 0x1.71547652b82fep0); }
SMELT_FLOAT(log10) { return log_through(in, 0x1.bcb7b1526e50ep-2); }
template <int N> SMELT_INLINE vec<f64, N> pow_core(vec<f64, N, false> x, vec<f64, N, false> y) {
  typedef raw<f64, N> F;
  typedef raw<i64, N> I;
  F a = abs(x).v;
  F t = y.v * (log(vec<f64, N>{a}).v * 0x1.71547652b82fep0);
  t = (a == 1.0) & (y.v == y.v) ? F{} : t;
  t = t > 1000.0 ? F{} + 1000.0 : t;
  t = t < -1000.0 ? F{} - 1000.0 : t;
  F r = exp2_core<N>(t);
  F whole = trunc(y).v, halves = trunc(vec<f64, N>{y.v * 0.5}).v;
  I odd = (whole == y.v) & (halves != y.v * 0.5);
  I negative = (I)x.v < 0;
  r = odd & negative ? -r : r;
  r = (x.v < 0.0) & (whole != y.v) & (a < limits<f64>::highest) & (y.v == y.v) ? F{} + __builtin_nan("") : r;
  return {(y.v == 0.0) | (x.v == 1.0) ? F{} + 1.0 : r};
}
template <int N> SMELT_INLINE vec<f64, N> pow_core(vec<f64, N, true> x, vec<f64, N, true> y) {
  return {pow_core(x.lo, y.lo), pow_core(x.hi, y.hi)};
}
template <int N> SMELT_INLINE vec<f32, N> pow(vec<f32, N, false> x, vec<f32, N, false> y) {
  return convert<f32>(pow_core(convert<f64>(x), convert<f64>(y)));
}

// ---------------------------------------------------------------------------------------------- sine and cosine
// x = n * pi/2 + r, |r| <= pi/4, for |x| <= 30000
template <int N, class F> SMELT_INLINE F split_pi(F x, raw<i32, N>& k) {
  F t = mad(x, F{} + 0x1.45f306p-1f, F{} + 0x1.8p23f);
  F n = t - 0x1.8p23f;
  k = (raw<i32, N>)t;
  F r = mad(n, F{} - 0x1.921fb6p0f, x);
  r = mad(n, F{} + 0x1.777a5cp-25f, r);
  return mad(n, F{} + 0x1.ee59dap-50f, r);
}
template <int N, class F> SMELT_INLINE F sin_or_cos(F r, raw<i32, N> quadrant) {
  F z = r * r;
  F sine = mad(r * z, horner(z, -1.6666667e-01f, 8.333329e-03f, -1.9839304e-04f, 2.7180447e-06f), r);
  F cosine = mad(z * z, horner(z, 4.1666646e-02f, -1.388731e-03f, 2.4432402e-05f), mad(z, F{} - 0.5f, F{} + 1.0f));
  F y = (quadrant & 1) != 0 ? cosine : sine;
  return (F)((raw<i32, N>)y ^ ((quadrant & 2) << 30));
}
#if defined(SMELT_FAST_FMA)
SMELT_FLOAT(sin) {
  SMELT_FLOAT_TYPES
  F a = abs(in).v;
  I k;
  F r = split_pi<N>(x, k);
  F y = sin_or_cos<N>(r, k);
  vec<f32, N> result{a < 2e-4f ? x : y};
  if (__builtin_expect(any(mask<i32, N>{{a > 30000.0f}}), 0))
    return each(in, result, [](f32 v, f32 r) { return __builtin_fabsf(v) > 30000.0f ? f32(::sin(f64(v))) : r; });
  return result;
}
SMELT_FLOAT(cos) {
  SMELT_FLOAT_TYPES
  F a = abs(in).v;
  I k;
  F r = split_pi<N>(x, k);
  vec<f32, N> result{sin_or_cos<N>(r, k + 1)};
  if (__builtin_expect(any(mask<i32, N>{{a > 30000.0f}}), 0))
    return each(in, result, [](f32 v, f32 r) { return __builtin_fabsf(v) > 30000.0f ? f32(::cos(f64(v))) : r; });
  return result;
}
#else  // split_pi is not exact then
SMELT_FLOAT(sin) { return each(in, [](f32 v) { return f32(::sin(f64(v))); }); }
SMELT_FLOAT(cos) { return each(in, [](f32 v) { return f32(::cos(f64(v))); }); }
#endif

// ---------------------------------------------------------------------------------------------- error function
// An odd polynomial below 1.06, one around 2.5 above (tests/codegen/fit_pieces.py makes them); 1 from 4 on.
SMELT_FLOAT(erf) {
  SMELT_FLOAT_TYPES
  F a = abs(in).v, z = x * x, t = smaller(F{} + 4.0f, a) - 2.5f;
  F small = mad(x, horner(z, .128379166f, -.3761262f, .112834848f, -.0268487576f, .00517757982f,
                             -.000790822669f, 7.49789469e-05f), x);
  vec<f32, N> large{horner(t, .999593079f, .00217828248f, -.00544692064f, .00835025124f, -.00861412194f,
                              .00611522468f, -.00282035256f, .000549907796f, .000288371695f, -.000261972542f,
                              6.11403011e-05f, 1.43418893e-05f, -9.01156454e-06f, 1.01643832e-06f)};
  return {a < 1.06f ? small : copysign(large, in).v};
}

// ---------------------------------------------------------------------------------------------- normal distribution
// 1/2 and an odd quotient of polynomials without a sign among them (tests/codegen/fit_pieces.py makes it), which is
// 1/2 to the last bit at 5.338.
SMELT_FLOAT(ndtr) {
  SMELT_FLOAT_TYPES
  F a = smaller(F{} + 5.338f, larger(F{} - 5.338f, x)), z = a * a;
  F above = horner(z, .398942232f, .0343003497f, .00470284838f, .000173116641f, 6.35514607e-06f, 2.22276366e-08f);
  F below = horner(z, 1.0f, .252643973f, .0288973302f, .00190880348f, 7.48859093e-05f, 1.18251546e-06f);
  return {a * above / below + 0.5f};
}
SMELT_DOUBLE(ndtr) { return each(in, [](f64 v) { return 0.5 + 0.5 * ::erf(v * 0.70710678118654752440); }); }

// ---------------------------------------------------------------------------------------------- sixteen pieces
// With AVX-512, a lookup among sixteen is one instruction: an odd function on x >= 0 is a polynomial around a center
// of the lane's own (rows: centers, coefficients; tests/codegen/fit_pieces.py makes them), plus x where that is 0.
// The lookup reads the low four bits of `piece`.
#if defined(SMELT_AVX512) && defined(SMELT_GCC_X86)
typedef i32 i16_ __attribute__((vector_size(64)));
SMELT_INLINE f16_ in_pieces(const f16_ (&rows)[8], f16_ x, i16_ piece) {
  f16_ center = __builtin_shuffle(rows[0], piece), t = x - center, y = __builtin_shuffle(rows[7], piece);
#pragma GCC unroll 5
  for (int k = 6; k > 1; --k) y = mad(y, t, __builtin_shuffle(rows[k], piece));
  return mad(y, t, center == 0.0f ? x : __builtin_shuffle(rows[1], piece));
}
static const f16_ erf_pieces[8] = {
    {0.f, .254740357f, .507455468f, .761053264f, 1.01567852f, 1.27104282f, 1.52337205f, 1.77595127f,
     2.02990913f, 2.28554296f, 2.53804398f, 2.79193425f, 3.04814243f, 3.30085158f, 3.55667114f, 3.81057739f},
    {0.f, .281345248f, .52702713f, .718203247f, .849107563f, .927747846f, .968789101f, .987980604f,
     .995904684f, .998771787f, .999668479f, .999921322f, .999983728f, .99999696f, .999999523f, .99999994f},
    {.128379166f, 1.05748093f, .872206748f, .632281959f, .402194053f, .224300727f, .110816434f, .048160281f,
     .0183202382f, .00607894314f, .00179835141f, .00046470188f, .000104075953f, 2.09193058e-05f, 3.61967705e-06f, 5.57549185e-07f},
    {-3.0605527e-08f, -.269383073f, -.442606062f, -.481200248f, -.408499837f, -.285095811f, -.168814659f, -.0855303109f,
     -.0371884219f, -.0138936862f, -.00456429459f, -.00129741675f, -.000317238329f, -6.90514789e-05f, -1.28740094e-05f, -2.12458644e-06f},
    {-.376123577f, -.306742847f, -.141001195f, .0333826542f, .142536223f, .166812032f, .134506956f, .0852125362f,
     .0442197658f, .0191434901f, .00712338183f, .00225987867f, .000609916402f, .000144958918f, 2.93125904e-05f, 5.20968069e-06f},
    {-9.47173758e-05f, .128861845f, .183309406f, .147694603f, .0637808591f, -.0109797223f, -.0461796224f, -.0471551381f,
     -.0324843116f, -.0172454808f, -.0075184945f, -.00272241328f, -.000823825423f, -.00021624926f, -4.7835314e-05f, -9.21755054e-06f},
    {.114280201f, .0785117522f, .0052354373f, -.0545290411f, -.0683227405f, -.0443952456f, -.0123359747f, .00779331708f,
     .0130379973f, .0100130327f, .00551041123f, .00237704092f, .000829767028f, .000245418545f, 6.03533408e-05f, 1.27747089e-05f},
    {-.0101417722f, -.0407479182f, -.0494927838f, -.0253185872f, .00611635577f, .0216075275f, .0184653159f, .00785070378f,
     -.000194775232f, -.00301493495f, -.00263652764f, -.00147137116f, -.000620687555f, -.000210403014f, -5.87073482e-05f, -1.37477264e-05f},
};
static const f16_ tanh_pieces[8] = {
    {2.12299538f, 2.72810674f, 3.33893132f, 3.94057584f, 4.85838842f, 6.07344532f, 7.27804279f, 8.50236988f,
     0.f, .227281988f, .380004734f, .531641603f, .757611394f, 1.06245971f, 1.36264932f, 1.6666671f},
    {.971761346f, .991496921f, .997486234f, .99924469f, .999879479f, .99998939f, .999999046f, .99999994f,
     0.f, .223447621f, .362711579f, .48663494f, .639667869f, .786603451f, .877006114f, .931109667f},
    {.0556798801f, .0169338584f, .00502121495f, .00151005003f, .000241031565f, 2.12195773e-05f, 1.90739547e-06f, 1.64817848e-07f,
     3.04138909e-10f, .950071156f, .86844033f, .763186455f, .590825021f, .381255001f, .230860278f, .133034781f},
    {-.0541075543f, -.0167898647f, -.00500859274f, -.0015089087f, -.000241001369f, -2.12193281e-05f, -1.90735864e-06f, -1.64818445e-07f,
     -1.44447526e-07f, -.212291136f, -.314993352f, -.371393174f, -.377931774f, -.299896508f, -.202465877f, -.123869978f},
    {.0340212397f, .0110019809f, .00332200574f, .00100433233f, .000160387222f, 1.41244136e-05f, 1.26967052e-06f, 1.09711145e-07f,
     -.333322197f, -.269254059f, -.175228626f, -.0736631379f, .044802919f, .108814746f, .100611806f, .0709923655f},
    {-.0150244273f, -.0053124046f, -.00164425606f, -.000500696304f, -8.01785864e-05f, -7.06285982e-06f, -6.35396646e-07f, -5.48513448e-08f,
     -.000314535224f, .130927563f, .168555126f, .159645304f, .0973154083f, .0143730082f, -.0207459088f, -.0248107146f},
    {.00445151841f, .00199052249f, .000651861774f, .000201591611f, 3.3796885e-05f, 2.98120267e-06f, 2.67979459e-07f, 2.31602133e-08f,
     .13736178f, .0814336613f, .0166894794f, -.0359157212f, -.0633330867f, -.0391194187f, -.0103762224f, .00230581989f},
    {-.000526440796f, -.000560464105f, -.000208272366f, -6.58660138e-05f, -1.11967056e-05f, -9.92598643e-07f, -8.79346089e-08f, -7.7442861e-09f,
     -.0239157043f, -.0663616583f, -.0690722689f, -.0439774618f, -.000135778828f, .0191314798f, .0113197546f, .003298569f},
};
SMELT_INLINE vec<f32, 16> erf(vec<f32, 16, false> in) {
  f16_ a = smaller(f16_{} + 3.93f, abs(in).v);
  f16_ piece = mad(a, f16_{} + 256.0f / 65.0f, f16_{} + 0x1.8p23f);
  return copysign(vec<f32, 16>{in_pieces(erf_pieces, a, (i16_)piece)}, in);
}
SMELT_INLINE vec<f32, 16> ndtr(vec<f32, 16, false> in) {
  f16_ half = f16_{} + 0.5f;
  return {mad(half, erf(vec<f32, 16, false>{in.v * 0.70710678f}).v, half)};
}
SMELT_INLINE vec<f32, 16> tanh(vec<f32, 16, false> in) {
  f16_ a = smaller(f16_{} + 9.09f, abs(in).v);
  f16_ octave = mad(a, f16_{} + 0.82421875f, f16_{} + 0.5f);
  return copysign(vec<f32, 16>{in_pieces(tanh_pieces, a, (i16_)octave >> 21)}, in);
}
#endif

// ---------------------------------------------------------------------------------------------- length and angle
// float32 through float64 lanes, whose squares do not overflow.
template <int N> SMELT_INLINE vec<f32, N> hypot(vec<f32, N, false> x, vec<f32, N, false> y) {
  auto a = convert<f64>(x), b = convert<f64>(y);
  vec<f32, N> r = convert<f32>(sqrt(add(mul(a, a), mul(b, b))));
  raw<i32, N> endless = (abs(x).v == limits<f32>::highest) | (abs(y).v == limits<f32>::highest);
  return {endless ? raw<f32, N>{} + limits<f32>::highest : r.v};
}
// The angle of (x, y) for numbers that are not NaN, to 1e-11: atan(t) / t is a polynomial in t**2 for t <= 1.
template <int N> SMELT_INLINE vec<f64, N> angle_core(vec<f64, N, false> y, vec<f64, N, false> x) {
  typedef raw<f64, N> F;
  F a = abs(x).v, b = abs(y).v, big = a > b ? a : b, small = a > b ? b : a;
  F t = small == big ? F{} + 1.0 : small / big, z = t * t;
  t = big == 0.0 ? F{} : t;
  F r = t * horner(z, 0x1.ffffffffe73b8p-1, -0x1.55555513c3689p-2, 0x1.99997c8640332p-3, -0x1.248fb9462548ap-3, 0x1.c6df953d05219p-4,
                     -0x1.72a787e7c5386p-4, 0x1.33018fb5c9b3fp-4, -0x1.ed56cc14c7894p-5, 0x1.658dd34696c8fp-5, -0x1.aa15aa0c3e761p-6,
                     0x1.7676be8c4ef51p-7, -0x1.a2d5e8268d02fp-9, 0x1.b79940e5536f0p-12);
  r = b > a ? 1.57079632679489661923 - r : r;
  r = (raw<i64, N>)x.v < 0 ? 3.14159265358979323846 - r : r;
  return copysign(vec<f64, N>{r}, y);
}
template <int N> SMELT_INLINE vec<f64, N> angle_core(vec<f64, N, true> y, vec<f64, N, true> x) {
  return {angle_core(y.lo, x.lo), angle_core(y.hi, x.hi)};
}
template <int N> SMELT_INLINE vec<f32, N> atan2(vec<f32, N, false> y, vec<f32, N, false> x) {
  vec<f32, N> r = convert<f32>(angle_core(convert<f64>(y), convert<f64>(x)));
  return {(x.v != x.v) | (y.v != y.v) ? x.v + y.v : r.v};
}

// ---------------------------------------------------------------------------------------------- lane by lane
SMELT_INLINE f64 lgamma_scalar(f64 x) {
  int sign;
  return ::lgamma_r(x, &sign);
}
// Asymptotic series above 10, recurrence below, reflection for negative x. Poles as ATen: 0 -> -inf (-0 -> inf),
// negative integers -> NaN.
SMELT_INLINE f64 digamma_scalar(f64 x) {
  if (x == 0) return __builtin_copysign(__builtin_inf(), -x);
  f64 result = 0;
  if (x < 0) {
    if (x == __builtin_trunc(x) || x < -0x1p62) return __builtin_nan("");
    f64 whole = __builtin_rint(x), angle = 3.14159265358979323846 * (x - whole);
    result = -3.14159265358979323846 * ::cos(angle) / ::sin(angle);
    x = 1 - x;
  }
  for (; x < 10; x += 1) result -= 1 / x;
  if (x > 1e17) return result + __builtin_log(x);
  f64 z = 1 / (x * x);
  f64 series = z * (1. / 12 - z * (1. / 120 - z * (1. / 252 - z * (1. / 240 - z * (1. / 132 - z * (691. / 32760 - z / 12))))));
  return result + __builtin_log(x) - 0.5 / x - series;
}
// A start by the logarithm of 1 - x*x (Winitzki), then Halley steps on erf or erfc.
SMELT_INLINE f64 erfinv_scalar(f64 x) {
  f64 a = __builtin_fabs(x);
  if (!(a < 1)) return a == 1 ? x * __builtin_inf() : __builtin_nan("");
  if (a < 1e-9) return x * 0.886226925452758013649;
  f64 l = ::log1p(-a * a), b = 4.33074675 + l * 0.5;
  f64 y = __builtin_sqrt(__builtin_sqrt(b * b - l * 6.802721088) - b);
  for (int step = 0; step < 3; ++step) {
    f64 error = a > 0.5 ? (1 - a) - ::erfc(y) : ::erf(y) - a;
    f64 u = error / (1.12837916709551257390 * __builtin_exp(-y * y));
    y -= u / (1 + y * u);
  }
  return __builtin_copysign(y, x);
}
#define SMELT_LANES_F64_1(name, function) \
  SMELT_DOUBLE(name) { return each(in, [](f64 v) { return function(v); }); }
#define SMELT_LANES_F32_1(name, function) \
  SMELT_FLOAT(name) { return each(in, [](f32 v) { return f32(function(f64(v))); }); }
#define SMELT_LANES_1(name, function) SMELT_LANES_F64_1(name, function) SMELT_LANES_F32_1(name, function) SMELT_LIFT1(name)
#define SMELT_LANES_F64_2(name, function)                                                            \
  template <int N> SMELT_INLINE vec<f64, N> name(vec<f64, N, false> x, vec<f64, N, false> y) {       \
    return each(x, y, [](f64 a, f64 b) { return function(a, b); });                                  \
  }                                                                                                  \
  SMELT_LIFT2(name)
SMELT_LANES_F64_1(exp2, ::exp2)
SMELT_LANES_F64_1(expm1, ::expm1)
SMELT_LANES_F64_1(log1p, ::log1p)
SMELT_LANES_F64_1(log2, ::log2)
SMELT_LANES_F64_1(log10, ::log10)
SMELT_LANES_F64_1(sin, ::sin)
SMELT_LANES_F64_1(cos, ::cos)
SMELT_LANES_F64_1(tanh, ::tanh)
SMELT_LANES_F64_1(erf, ::erf)
template <int N> SMELT_INLINE vec<f64, N> pow(vec<f64, N, false> x, vec<f64, N, false> y) {
  return each(x, y, [](f64 a, f64 b) { return ::pow(a, b); });
}
SMELT_LIFT1(exp)
SMELT_LIFT1(exp2)
SMELT_LIFT1(expm1)
SMELT_LIFT1(log)
SMELT_LIFT1(log1p)
SMELT_LIFT1(log2)
SMELT_LIFT1(log10)
SMELT_LIFT1(sin)
SMELT_LIFT1(cos)
SMELT_LIFT1(tanh)
SMELT_LIFT1(erf)
SMELT_LIFT1(ndtr)
SMELT_LIFT1(sigmoid)
SMELT_LIFT2(pow)
SMELT_LANES_1(tan, ::tan)
SMELT_LANES_1(asin, ::asin)
SMELT_LANES_1(acos, ::acos)
SMELT_LANES_1(atan, ::atan)
SMELT_LANES_1(sinh, ::sinh)
SMELT_LANES_1(cosh, ::cosh)
SMELT_LANES_1(asinh, ::asinh)
SMELT_LANES_1(acosh, ::acosh)
SMELT_LANES_1(atanh, ::atanh)
SMELT_LANES_1(erfc, ::erfc)
SMELT_LANES_1(erfinv, erfinv_scalar)
SMELT_LANES_1(lgamma, lgamma_scalar)
SMELT_LANES_1(digamma, digamma_scalar)
SMELT_LANES_F64_2(atan2, ::atan2)
SMELT_LANES_F64_2(hypot, __builtin_hypot)

// fmod, remainder and floordiv of any dtype but bool. Remainder and quotient of floats follow Python.
template <class T> SMELT_INLINE T fmod_scalar(T a, T b) {
  if constexpr (same<T, f32>) return ::fmodf(a, b);
  else if constexpr (same<T, f64>) return ::fmod(a, b);
  else return int_fmod(a, b);
}
template <class T> SMELT_INLINE T remainder_scalar(T a, T b) {
  if constexpr (!is_float<T>) {
    return int_remainder(a, b);
  } else {
    T r = fmod_scalar(a, b);
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
  }
}
template <class T> SMELT_INLINE T floordiv_scalar(T a, T b) {
  if constexpr (!is_float<T>) {
    return int_floordiv(a, b);
  } else {
    if (b == 0) return a / b;
    T r = fmod_scalar(a, b), q = (a - r) / b;
    if (r != 0 && (b < 0) != (r < 0)) q -= 1;
    if (q == 0) return T(__builtin_copysign(0.0, f64(a) / f64(b)));
    T whole = T(__builtin_floor(q));
    return q - whole > T(0.5) ? whole + 1 : whole;
  }
}
#define SMELT_SCALAR_2(name)                                                                          \
  template <class T, int N, bool W> SMELT_INLINE vec<T, N, W> name(vec<T, N, W> x, vec<T, N, W> y) {  \
    return each(x, y, [](T a, T b) { return name##_scalar(a, b); });                                  \
  }                                                                                                   \
  template <class X> SMELT_INLINE X name(X x, X y) {                                                  \
    if constexpr (low_precision<X>) return narrow_as<X>(name(widen(x), widen(y)));                    \
    else return name##_scalar(x, y);                                                                  \
  }
SMELT_SCALAR_2(fmod)
SMELT_SCALAR_2(remainder)
SMELT_SCALAR_2(floordiv)
// The next number in the dtype itself (bf16 and f16 too): one step on the bits, seen as sign and magnitude.
template <class T, class I> SMELT_INLINE T nextafter_of(T x, T y, I sign) {
  I a = same_bits<I>(x), b = same_bits<I>(y), quiet = 0;
  if (isnan(x)) return x;
  if (isnan(y)) return y;
  if (eq(x, y)) return y;
  if ((a & ~sign) == quiet) return same_bits<T>(I((b & sign) | 1));
  return same_bits<T>(I(lt(x, y) == ((a & sign) == 0) ? a + 1 : a - 1));
}
template <class T> SMELT_INLINE T nextafter_scalar(T x, T y) {
  typedef typename int_of<sizeof(T)>::type I;
  return nextafter_of<T, I>(x, y, limits<I>::lowest);
}
template <class V> SMELT_INLINE V nextafter(V x, V y) {
  if constexpr (shape<V>::lanes == 1) {
    return nextafter_scalar(x, y);
  } else {
    elem<V> a[shape<V>::lanes], b[shape<V>::lanes];
    store(a, x);
    store(b, y);
    for (int k = 0; k < shape<V>::lanes; ++k) a[k] = nextafter_scalar(a[k], b[k]);
    return load<shape<V>::lanes>(a);
  }
}
}  // namespace smelt
