// smelt.h: the base of generated kernels. No other header is needed: only compiler builtins are used.
//
// Values: scalars, and `vec<T, N>` with N lanes (one machine vector, or two halves where it would be wider than one),
// `mask<I, N>` for bool (lanes 0 or -1 of the integer type I; one byte 0/1 in memory), `lowvec<H, N>` for bf16/f16.
// Every operator of smelt.ops.table is a function of the same name over all of these.

#pragma GCC diagnostic ignored "-Wpsabi"
#pragma GCC diagnostic ignored "-Wignored-attributes"
#define SMELT_INLINE static inline __attribute__((always_inline))
#define SMELT_INLINE_METHOD inline __attribute__((always_inline))
// The branch hint of a loop with sums in registers. g++ takes ten iterations for many, where it does not know their
// number, and keeps a constant of the loops that follow in a register, one of the sums in memory.
#define SMELT_OFTEN(condition) __builtin_expect_with_probability(condition, 1, 0.99)
#ifndef __has_builtin
#define __has_builtin(x) 0
#endif
#if defined(__AVX512F__) && defined(__AVX512DQ__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#define SMELT_AVX512 1
#define SMELT_VECTOR_BYTES 64
#elif defined(__AVX__)
#define SMELT_VECTOR_BYTES 32
#else
#define SMELT_VECTOR_BYTES 16
#endif
#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__)
#define SMELT_GCC_X86 1
#endif
// Functions that only call functions, like entry points. Optimizing them costs time and gains nothing.
#ifdef __clang__
#define SMELT_PLAIN __attribute__((noinline, optnone))
#else
#define SMELT_PLAIN __attribute__((noinline, optimize("O0")))
#endif
// In a package its runtime (smelt_runtime.h, included before) gives threads and scratch memory; elsewhere OpenMP
// and malloc do.
#ifdef SMELT_PACKAGE
#define SMELT_ENTRY SMELT_PLAIN
#else
#define SMELT_ENTRY __attribute__((visibility("default"))) SMELT_PLAIN
extern "C" {
void* malloc(__SIZE_TYPE__);
void free(void*);
}
#endif

namespace smelt {

typedef __INT8_TYPE__ i8;
typedef __INT16_TYPE__ i16;
typedef __INT32_TYPE__ i32;
typedef __INT64_TYPE__ i64;
typedef __UINT8_TYPE__ u8;
typedef __UINT16_TYPE__ u16;
typedef __UINT32_TYPE__ u32;
typedef __UINT64_TYPE__ u64;
typedef float f32;
typedef double f64;
typedef i64 int64_t;

// What buffers hold: like the value types, but two pointers may point to the same memory.
typedef i8 __attribute__((may_alias)) i8_buffer;
typedef i16 __attribute__((may_alias)) i16_buffer;
typedef i32 __attribute__((may_alias)) i32_buffer;
typedef i64 __attribute__((may_alias)) i64_buffer;
typedef u8 __attribute__((may_alias)) u8_buffer;
typedef f32 __attribute__((may_alias)) f32_buffer;
typedef f64 __attribute__((may_alias)) f64_buffer;
struct __attribute__((may_alias)) bf16 { u16 bits; };
struct __attribute__((may_alias)) f16 { u16 bits; };
struct __attribute__((may_alias)) boolean {
  u8 byte;
  boolean() = default;
  inline __attribute__((always_inline)) boolean(bool x) : byte(x) {}
  inline __attribute__((always_inline)) operator bool() const { return byte != 0; }
};
typedef bf16 bf16_buffer;
typedef f16 f16_buffer;
typedef boolean bool_buffer;

// ---------------------------------------------------------------------------------------------- type traits
template <class A, class B> struct same_as { static constexpr bool value = false; };
template <class A> struct same_as<A, A> { static constexpr bool value = true; };
template <class A, class B> constexpr bool same = same_as<A, B>::value;
template <class T> constexpr bool is_float = same<T, f32> || same<T, f64>;
template <class T> constexpr bool is_low = same<T, bf16> || same<T, f16>;
template <bool C, class A, class B> struct choose { typedef A type; };
template <class A, class B> struct choose<false, A, B> { typedef B type; };
template <int Bytes> struct int_of;
template <> struct int_of<1> { typedef i8 type; };
template <> struct int_of<2> { typedef i16 type; };
template <> struct int_of<4> { typedef i32 type; };
template <> struct int_of<8> { typedef i64 type; };
template <int Bytes> using int_sized = typename int_of<Bytes>::type;
// Arithmetic in `wrap<T>` has no undefined overflow.
template <class T> struct wrap { typedef T type; };
template <> struct wrap<i8> { typedef u8 type; };
template <> struct wrap<i16> { typedef u16 type; };
template <> struct wrap<i32> { typedef u32 type; };
template <> struct wrap<i64> { typedef u64 type; };
template <class T> struct limits;
template <> struct limits<f32> { static constexpr f32 lowest = -__builtin_inff(), highest = __builtin_inff(); };
template <> struct limits<f64> { static constexpr f64 lowest = -__builtin_inf(), highest = __builtin_inf(); };
template <> struct limits<i8> { static constexpr i8 lowest = -128, highest = 127; };
template <> struct limits<i16> { static constexpr i16 lowest = -32768, highest = 32767; };
template <> struct limits<i32> { static constexpr i32 lowest = -__INT32_MAX__ - 1, highest = __INT32_MAX__; };
template <> struct limits<i64> { static constexpr i64 lowest = -__INT64_MAX__ - 1, highest = __INT64_MAX__; };
template <> struct limits<u8> { static constexpr u8 lowest = 0, highest = 255; };
template <> struct limits<bool> { static constexpr bool lowest = false, highest = true; };

template <int... K> struct ints {};
#if __has_builtin(__make_integer_seq)
template <class T, T... K> struct int_sequence { typedef ints<K...> type; };
template <int N> using upto = typename __make_integer_seq<int_sequence, int, N>::type;
#else
template <int N> using upto = ints<__integer_pack(N)...>;
#endif

// ---------------------------------------------------------------------------------------------- vectors
template <class T, int N, bool Wide = (sizeof(T) * N > SMELT_VECTOR_BYTES)> struct vec;
template <class T, int N> struct vec<T, N, false> {
  typedef T type __attribute__((vector_size(sizeof(T) * N)));
  type v;
};
template <class T, int N> struct vec<T, N, true> { vec<T, N / 2> lo, hi; };
template <class T, int N> using raw = typename vec<T, N, false>::type;
template <class I, int N> struct mask { vec<I, N> m; };
template <class H, int N> struct lowvec { vec<u16, N> bits; };

template <class V> struct shape { typedef V elem; static constexpr int lanes = 1; };
template <class T, int N, bool W> struct shape<vec<T, N, W>> { typedef T elem; static constexpr int lanes = N; };
template <class I, int N> struct shape<mask<I, N>> { typedef bool elem; static constexpr int lanes = N; };
template <class H, int N> struct shape<lowvec<H, N>> { typedef H elem; static constexpr int lanes = N; };
template <class V> using elem = typename shape<V>::elem;

// The type that holds N values of T.
template <class T, int N> struct many { typedef vec<T, N> type; };
template <class T> struct many<T, 1> { typedef T type; };
template <int N> struct many<bool, N> { typedef mask<i32, N> type; };
template <> struct many<bool, 1> { typedef bool type; };
template <int N> struct many<bf16, N> { typedef lowvec<bf16, N> type; };
template <> struct many<bf16, 1> { typedef bf16 type; };
template <int N> struct many<f16, N> { typedef lowvec<f16, N> type; };
template <> struct many<f16, 1> { typedef f16 type; };
template <class T, int N> using values = typename many<T, N>::type;

template <class R, class T> SMELT_INLINE R fill_raw(T x) { return x - R{}; }
template <class T, int N> SMELT_INLINE vec<T, N> fill(T x) {
  if constexpr (sizeof(T) * N > SMELT_VECTOR_BYTES) {
    vec<T, N / 2> half = fill<T, N / 2>(x);
    return {half, half};
  } else {
    return {fill_raw<raw<T, N>>(x)};
  }
}
// The scalar x in N lanes.
template <int N, class T> SMELT_INLINE auto splat(T x) {
  if constexpr (same<T, bool>) return mask<i32, N>{fill<i32, N>(-i32(x))};
  else if constexpr (is_low<T>) return lowvec<T, N>{fill<u16, N>(x.bits)};
  else return fill<T, N>(x);
}
template <class V> SMELT_INLINE V fill_as(elem<V> x) {
  if constexpr (shape<V>::lanes == 1) return x;
  else return splat<shape<V>::lanes>(x);
}

#if __has_builtin(__builtin_shufflevector)
template <int From, class T, int N, int... K>
SMELT_INLINE vec<T, N / 2> part(vec<T, N, false> x, ints<K...>) {
  return {__builtin_shufflevector(x.v, x.v, (From + K)...)};
}
template <class T, int N, int... K> SMELT_INLINE vec<T, N * 2> concat(vec<T, N, false> a, vec<T, N, false> b, ints<K...>) {
  return {__builtin_shufflevector(a.v, b.v, K...)};
}
#else
template <int From, class T, int N, class S> SMELT_INLINE vec<T, N / 2> part(vec<T, N, false> x, S) {
  vec<T, N / 2> half;
  __builtin_memcpy(&half, (const T*)&x + From, sizeof(half));
  return half;
}
template <class T, int N, class S> SMELT_INLINE vec<T, N * 2> concat(vec<T, N, false> a, vec<T, N, false> b, S) {
  vec<T, N * 2> both;
  __builtin_memcpy(&both, &a, sizeof(a));
  __builtin_memcpy((T*)&both + N, &b, sizeof(b));
  return both;
}
#endif
template <class T, int N, bool W> SMELT_INLINE vec<T, N / 2> low(vec<T, N, W> x) {
  if constexpr (W) return x.lo;
  else return part<0>(x, upto<N / 2>());
}
template <class T, int N, bool W> SMELT_INLINE vec<T, N / 2> high(vec<T, N, W> x) {
  if constexpr (W) return x.hi;
  else return part<N / 2>(x, upto<N / 2>());
}
template <class T, int N, bool W> SMELT_INLINE vec<T, N * 2> join(vec<T, N, W> a, vec<T, N, W> b) {
  if constexpr (sizeof(T) * N * 2 > SMELT_VECTOR_BYTES) return {a, b};
  else return concat(a, b, upto<N * 2>());
}
template <class I, int N> SMELT_INLINE mask<I, N / 2> low(mask<I, N> x) { return {low(x.m)}; }
template <class I, int N> SMELT_INLINE mask<I, N / 2> high(mask<I, N> x) { return {high(x.m)}; }
template <class H, int N> SMELT_INLINE lowvec<H, N / 2> low(lowvec<H, N> x) { return {low(x.bits)}; }
template <class H, int N> SMELT_INLINE lowvec<H, N / 2> high(lowvec<H, N> x) { return {high(x.bits)}; }
template <class T, int N, bool W> SMELT_INLINE T lane(vec<T, N, W> x, int k) {
  if constexpr (W) return k < N / 2 ? lane(x.lo, k) : lane(x.hi, k - N / 2);
  else return x.v[k];
}
template <class I, int N> SMELT_INLINE bool lane(mask<I, N> x, int k) { return lane(x.m, k) != 0; }
template <class H, int N> SMELT_INLINE H lane(lowvec<H, N> x, int k) { return {lane(x.bits, k)}; }

// ---------------------------------------------------------------------------------------------- bits
template <class D, class S> SMELT_INLINE D same_bits(S x) {
  static_assert(sizeof(D) == sizeof(S), "bitcast between widths");
  D r;
  __builtin_memcpy(&r, &x, sizeof(D));
  return r;
}
template <class D, class S> SMELT_INLINE D bitcast(S x) { return same_bits<D>(x); }
template <class D, class S, int N, bool W> SMELT_INLINE values<D, N> bitcast(vec<S, N, W> x) {
  if constexpr (is_low<D>) return {bitcast<u16>(x)};
  else if constexpr (W) return {bitcast<D>(x.lo), bitcast<D>(x.hi)};
  else return {(raw<D, N>)x.v};
}
template <class D, class H, int N> SMELT_INLINE auto bitcast(lowvec<H, N> x) { return bitcast<D>(x.bits); }

// ---------------------------------------------------------------------------------------------- conversion
// Hides from g++ how an integer came from a float: else it makes of S(D(x)) a trunc(x), which may be -0.0 and never is out
// of range. In vectors too, where the machine has no instruction for D and g++ goes lane by lane.
#if defined(__x86_64__)
#define SMELT_VECTOR_REGISTER "+v"
#elif defined(__aarch64__)
#define SMELT_VECTOR_REGISTER "+w"
#else
#define SMELT_VECTOR_REGISTER "+m"
#endif
template <class D> SMELT_INLINE D hidden(D whole) {
  __asm__("" : "+r"(whole));
  return whole;
}
template <class D, int N> SMELT_INLINE vec<D, N, false> hidden(vec<D, N, false> whole) {
  __asm__("" : SMELT_VECTOR_REGISTER(whole.v));
  return whole;
}

// bf16/f16: to and from float32, rounding to nearest even, NaN stays NaN.
template <class U> SMELT_INLINE U bf16_bits(U u, U nan, U round) { return nan ? (u >> 16) | 0x40 : round >> 16; }

template <class D, class S, int N, bool W> SMELT_INLINE vec<D, N> convert(vec<S, N, W> x) {
  if constexpr (same<S, D>) return x;
#if defined(SMELT_GCC_X86) && defined(SMELT_AVX512)
  else if constexpr (sizeof(S) == 1 && !is_float<D> && sizeof(D) == 4 && N == 16) {
    typedef char c16 __attribute__((vector_size(16)));
    if constexpr (same<S, u8>) return {(raw<D, N>)__builtin_ia32_pmovzxbd512_mask((c16)x.v, raw<i32, N>{}, -1)};
    else return {(raw<D, N>)__builtin_ia32_pmovsxbd512_mask((c16)x.v, raw<i32, N>{}, -1)};
  } else if constexpr (sizeof(S) == 1 && is_float<D> && N == 16) return convert<D>(convert<i32>(x));
#endif
  else if constexpr (is_float<S> && sizeof(D) < 4) return convert<D>(convert<i32>(x));
  // GCC converts lane by lane where the width changes by more than a factor of two: go there in steps.
  else if constexpr (!is_float<S> && sizeof(D) > 2 * sizeof(S)) return convert<D>(convert<int_sized<2 * sizeof(S)>>(x));
  else if constexpr (!is_float<S> && !is_float<D> && sizeof(S) > 2 * sizeof(D))
    return convert<D>(convert<int_sized<sizeof(S) / 2>>(x));
  else if constexpr (!W && sizeof(D) * N <= SMELT_VECTOR_BYTES) {
    vec<D, N> y{__builtin_convertvector(x.v, raw<D, N>)};
    if constexpr (is_float<S> && !is_float<D>) return hidden(y);
    else return y;
  } else return join(convert<D>(low(x)), convert<D>(high(x)));
}

template <int N> SMELT_INLINE vec<f32, N> widen(lowvec<bf16, N> x) {
  auto wide = convert<u32>(x.bits);
  if constexpr (sizeof(f32) * N > SMELT_VECTOR_BYTES) {
    return {widen(low(x)), widen(high(x))};
  } else {
    return {(raw<f32, N>)(wide.v << 16)};
  }
}
template <int N> SMELT_INLINE vec<f32, N> widen(lowvec<f16, N> x) {
  if constexpr (sizeof(f32) * N > SMELT_VECTOR_BYTES) {
    return {widen(low(x)), widen(high(x))};
  } else {
#if defined(SMELT_GCC_X86) && defined(__F16C__)
    typedef short s8 __attribute__((vector_size(16)));
    if constexpr (N == 8) return {(raw<f32, N>)__builtin_ia32_vcvtph2ps256((s8)x.bits.v)};
#ifdef SMELT_AVX512
    typedef short s16 __attribute__((vector_size(32)));
    if constexpr (N == 16) return {(raw<f32, N>)__builtin_ia32_vcvtph2ps512_mask((s16)x.bits.v, raw<f32, N>{}, -1, 4)};
#endif
#endif
    typedef raw<u32, N> U;
    U h = convert<u32>(x.bits).v;
    U sign = (h & 0x8000) << 16, rest = h & 0x7fff;
    // The exponent is off by 112; a multiplication by 2**112 puts it right, denormals included.
    raw<f32, N> scaled = (raw<f32, N>)(rest << 13) * 0x1p112f;
    U special = (rest << 13) | 0x7f800000;
    U bits = (raw<i32, N>)rest >= 0x7c00 ? special : (U)scaled;
    return {(raw<f32, N>)(sign | bits)};
  }
}
template <class H, int N, bool W> SMELT_INLINE lowvec<H, N> narrow(vec<f32, N, W> x) {
  if constexpr (W) {
    return {join(narrow<H>(x.lo).bits, narrow<H>(x.hi).bits)};
  } else if constexpr (same<H, bf16>) {
    typedef raw<u32, N> U;
    U u = (U)x.v;
    U rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16, quiet = (u >> 16) | 0x40;
    vec<u32, N> bits{x.v != x.v ? quiet : rounded};
    return {convert<u16>(bits)};
  } else {
#if defined(SMELT_GCC_X86) && defined(__F16C__)
    if constexpr (N == 8) return {{(raw<u16, N>)__builtin_ia32_vcvtps2ph256(x.v, 0)}};
#ifdef SMELT_AVX512
    typedef short s16 __attribute__((vector_size(32)));
    if constexpr (N == 16) return {{(raw<u16, N>)__builtin_ia32_vcvtps2ph512_mask(x.v, 0, s16{}, -1)}};
#endif
#endif
    typedef raw<u32, N> U;
    typedef raw<f32, N> F;
    U u = (U)x.v, sign = (u >> 16) & 0x8000, rest = u & 0x7fffffff;
    // Normal: round off 13 bits. Denormal: let the addition of 0.5 round at the right place.
    U normal = (rest + 0xfff + ((rest >> 13) & 1) - 0x38000000) >> 13;
    U small = (U)((F)rest + 0.5f) - 0x3f000000;
    U bits = (raw<i32, N>)rest < 0x38800000 ? small : normal;
    U inf = U{} + 0x7c00, nan = (rest >> 13) | 0x7e00;
    bits = (raw<i32, N>)rest >= 0x477ff000 ? inf : bits;
    bits = (raw<i32, N>)rest > 0x7f800000 ? (nan & 0x7fff) : bits;
    vec<u32, N> both{sign | bits};
    return {convert<u16>(both)};
  }
}
SMELT_INLINE f32 widen(bf16 x) { return same_bits<f32>(u32(x.bits) << 16); }
template <class H> SMELT_INLINE f32 widen(H x) { return widen(lowvec<H, 8>{fill<u16, 8>(x.bits)}).v[0]; }
template <class H> SMELT_INLINE H narrow(f32 x) { return {lane(narrow<H>(fill<f32, 8>(x)).bits, 0)}; }
#if defined(SMELT_GCC_X86) && defined(__F16C__) && __GNUC__ >= 12
SMELT_INLINE f32 widen(f16 x) { return same_bits<_Float16>(x.bits); }
#elif SMELT_VECTOR_BYTES < 32
SMELT_INLINE f32 widen(f16 x) { return widen(lowvec<f16, 4>{fill<u16, 4>(x.bits)}).v[0]; }
#endif

template <class V> struct is_low_value { static constexpr bool value = is_low<V>; };
template <class H, int N> struct is_low_value<lowvec<H, N>> { static constexpr bool value = true; };
template <class V> constexpr bool low_precision = is_low_value<V>::value;
template <class X, class F> SMELT_INLINE X narrow_as(F x) { return narrow<elem<X>>(x); }

// Tensor.to: float to integer truncates. Out of range and NaN, as ATen does on x86: the least i32/i64; for 8- and 16-bit
// results the low bits of the i32 result (u8: of the i64 result, which only an f64 shows).
template <class D, class S> SMELT_INLINE D to(S x) {
  if constexpr (same<S, D>) return x;
  else if constexpr (same<D, bool> && is_low<S>) return widen(x) != 0;
  else if constexpr (same<D, bool>) return x != 0;
  else if constexpr (is_low<S>) return to<D>(widen(x));
  else if constexpr (is_low<D>) return narrow<D>(f32(x));
  else if constexpr (same<S, f64> && same<D, u8>) return D(to<i64>(x));
  else if constexpr (is_float<S> && !is_float<D> && sizeof(D) < 4) return D(to<i32>(x));
  else if constexpr (is_float<S> && !is_float<D>) return hidden(D(x));
  else return D(x);
}
template <class D, class S, int N, bool W> SMELT_INLINE values<D, N> to(vec<S, N, W> x);
template <class D, class H, int N> SMELT_INLINE auto to(lowvec<H, N> x) {
  if constexpr (same<D, H>) return x;
  else return to<D>(widen(x));
}
template <class D, class I, int N> SMELT_INLINE auto to(mask<I, N> x);

// ---------------------------------------------------------------------------------------------- masks
template <class I, class J, int N> SMELT_INLINE mask<I, N> resize(mask<J, N> x) { return {convert<I>(x.m)}; }
#define SMELT_COMPARE(name, op)                                                                       \
  template <class T, int N, bool W> SMELT_INLINE auto name(vec<T, N, W> a, vec<T, N, W> b) {          \
    typedef typename int_of<sizeof(T)>::type I;                                                       \
    if constexpr (W) return mask<I, N>{{name(a.lo, b.lo).m, name(a.hi, b.hi).m}};                     \
    else return mask<I, N>{{(raw<I, N>)(a.v op b.v)}};                                                \
  }                                                                                                   \
  template <class H, int N> SMELT_INLINE auto name(lowvec<H, N> a, lowvec<H, N> b) {                  \
    return name(widen(a), widen(b));                                                                  \
  }                                                                                                   \
  template <class T> SMELT_INLINE bool name(T a, T b) {                                               \
    if constexpr (is_low<T>) return widen(a) op widen(b);                                             \
    else return a op b;                                                                               \
  }
SMELT_COMPARE(eq, ==)
SMELT_COMPARE(ne, !=)
SMELT_COMPARE(lt, <)
SMELT_COMPARE(le, <=)
SMELT_COMPARE(gt, >)
SMELT_COMPARE(ge, >=)

template <class I, class J> using narrower = typename choose<(sizeof(I) <= sizeof(J)), I, J>::type;
#define SMELT_EACH1(name) if constexpr (W) return {name(a.lo), name(a.hi)}; else
#define SMELT_EACH2(name) if constexpr (W) return {name(a.lo, b.lo), name(a.hi, b.hi)}; else
// A function of two masks: for equal lane types too, which would otherwise be ambiguous with the templates on any type.
#define SMELT_MASKS(name, ...)                                                                        \
  template <class I, int N> SMELT_INLINE auto name(mask<I, N> a, mask<I, N> b) { return __VA_ARGS__; } \
  template <class I, class J, int N> SMELT_INLINE auto name(mask<I, N> a, mask<J, N> b) {             \
    typedef narrower<I, J> K;                                                                         \
    return name(resize<K>(a), resize<K>(b));                                                          \
  }
#define SMELT_BITWISE(name, op)                                                                       \
  template <class T, int N, bool W> SMELT_INLINE vec<T, N, W> name(vec<T, N, W> a, vec<T, N, W> b) {  \
    SMELT_EACH2(name) return {a.v op b.v};                                                            \
  }                                                                                                   \
  SMELT_MASKS(name, mask<I, N>{name(a.m, b.m)})                                                       \
  template <class T> SMELT_INLINE T name(T a, T b) { return T(a op b); }
SMELT_BITWISE(bitwise_and, &)
SMELT_BITWISE(bitwise_or, |)
SMELT_BITWISE(bitwise_xor, ^)
template <class T, int N, bool W> SMELT_INLINE vec<T, N, W> bitwise_not(vec<T, N, W> a) { SMELT_EACH1(bitwise_not) return {~a.v}; }
template <class I, int N> SMELT_INLINE mask<I, N> bitwise_not(mask<I, N> a) { return {bitwise_not(a.m)}; }
template <class T> SMELT_INLINE T bitwise_not(T a) {
  if constexpr (same<T, bool>) return !a;
  else return T(~a);
}
template <class A, class B> SMELT_INLINE auto logical_and(A a, B b) { return bitwise_and(a, b); }
template <class A, class B> SMELT_INLINE auto logical_or(A a, B b) { return bitwise_or(a, b); }
template <class A, class B> SMELT_INLINE auto logical_xor(A a, B b) { return bitwise_xor(a, b); }
template <class A> SMELT_INLINE A logical_not(A a) { return bitwise_not(a); }
SMELT_MASKS(eq, bitwise_not(bitwise_xor(a, b)))
SMELT_MASKS(ne, bitwise_xor(a, b))
SMELT_MASKS(lt, bitwise_and(bitwise_not(a), b))
SMELT_MASKS(le, bitwise_or(bitwise_not(a), b))
SMELT_MASKS(gt, bitwise_and(a, bitwise_not(b)))
SMELT_MASKS(ge, bitwise_or(a, bitwise_not(b)))

#if defined(SMELT_AVX512) && defined(SMELT_GCC_X86)
#define SMELT_MASK_BITS(I, N, builtin, V) \
  SMELT_INLINE u64 mask_bits(vec<I, N, false> m) { return (u64)builtin((V)m.v); }
typedef char c16_ __attribute__((vector_size(16)));
typedef char c32_ __attribute__((vector_size(32)));
typedef char c64_ __attribute__((vector_size(64)));
typedef short s8_ __attribute__((vector_size(16)));
typedef short s16_ __attribute__((vector_size(32)));
typedef short s32_ __attribute__((vector_size(64)));
typedef int i4_ __attribute__((vector_size(16)));
typedef int i8_ __attribute__((vector_size(32)));
typedef int i16_ __attribute__((vector_size(64)));
typedef long long l2_ __attribute__((vector_size(16)));
typedef long long l4_ __attribute__((vector_size(32)));
typedef long long l8_ __attribute__((vector_size(64)));
// (lane type, lanes, vector type, builtin suffix, mask type, pointer type)
#define SMELT_MASKED_TABLE(X)                                                                              \
  X(i8, 16, c16_, b2mask128, quqi128, u16, char) X(i8, 32, c32_, b2mask256, quqi256, u32, char)            \
  X(i8, 64, c64_, b2mask512, quqi512, u64, char) X(i16, 8, s8_, w2mask128, quhi128, u8, short)             \
  X(i16, 16, s16_, w2mask256, quhi256, u16, short) X(i16, 32, s32_, w2mask512, quhi512, u32, short)        \
  X(i32, 4, i4_, d2mask128, qusi128, u8, int) X(i32, 8, i8_, d2mask256, qusi256, u8, int)                  \
  X(i32, 16, i16_, d2mask512, qusi512, u16, int) X(i64, 2, l2_, q2mask128, qudi128, u8, long long)         \
  X(i64, 4, l4_, q2mask256, qudi256, u8, long long) X(i64, 8, l8_, q2mask512, qudi512, u8, long long)
#define SMELT_MASKED(I, N, V, cvt, mem, K, P)                                                              \
  SMELT_INLINE K mask_bits(vec<I, N, false> m) { return (K)__builtin_ia32_cvt##cvt((V)m.v); }              \
  SMELT_INLINE vec<I, N, false> load_some(const void* p, vec<I, N, false> m) {                             \
    return {(raw<I, N>)__builtin_ia32_loadd##mem##_mask((const P*)p, V{}, mask_bits(m))};                  \
  }                                                                                                        \
  SMELT_INLINE void store_some(void* p, vec<I, N, false> m, vec<I, N, false> x) {                          \
    __builtin_ia32_stored##mem##_mask((P*)p, (V)x.v, mask_bits(m));                                        \
  }
SMELT_MASKED_TABLE(SMELT_MASKED)
template <class I, int N> constexpr bool mask_registers = sizeof(I) * N >= 16;
#elif defined(__AVX2__) && defined(SMELT_GCC_X86)
typedef int i4_ __attribute__((vector_size(16)));
typedef int i8_ __attribute__((vector_size(32)));
typedef long long l2_ __attribute__((vector_size(16)));
typedef long long l4_ __attribute__((vector_size(32)));
#define SMELT_MASKED(I, N, V, suffix)                                                                      \
  SMELT_INLINE vec<I, N, false> load_some(const void* p, vec<I, N, false> m) {                             \
    return {(raw<I, N>)__builtin_ia32_maskload##suffix((const V*)p, (V)m.v)};                              \
  }                                                                                                        \
  SMELT_INLINE void store_some(void* p, vec<I, N, false> m, vec<I, N, false> x) {                          \
    __builtin_ia32_maskstore##suffix((V*)p, (V)m.v, (V)x.v);                                               \
  }
SMELT_MASKED(i32, 4, i4_, d)
SMELT_MASKED(i32, 8, i8_, d256)
SMELT_MASKED(i64, 2, l2_, q)
SMELT_MASKED(i64, 4, l4_, q256)
template <class I, int N> constexpr bool mask_registers = sizeof(I) >= 4 && sizeof(I) * N >= 16;
#else
template <class I, int N> constexpr bool mask_registers = false;
#endif

template <class I, int N> SMELT_INLINE bool any(mask<I, N> x) {
  if constexpr (sizeof(I) * N > SMELT_VECTOR_BYTES) return any(bitwise_or(low(x), high(x)));
  else {
#ifdef SMELT_AVX512
#ifdef SMELT_GCC_X86
    if constexpr (mask_registers<I, N>) return mask_bits(x.m) != 0;
#endif
#endif
    if constexpr (sizeof(I) * N > 8) return any(mask<i64, sizeof(I) * N / 8>{{(raw<i64, sizeof(I) * N / 8>)x.m.v}}, 0);
    else return same_bits<typename int_of<sizeof(I) * N>::type>(x.m.v) != 0;
  }
}
template <int N> SMELT_INLINE bool any(mask<i64, N> x, int) {
  i64 all = 0;
  for (int k = 0; k < N; ++k) all |= x.m.v[k];
  return all != 0;
}

// x where m, else y
template <class J, class T, int N, bool W> SMELT_INLINE vec<T, N, W> where(mask<J, N> m, vec<T, N, W> a, vec<T, N, W> b) {
  typedef typename int_of<sizeof(T)>::type I;
  auto lanes = convert<I>(m.m);
  if constexpr (W) return {where(mask<I, N / 2>{lanes.lo}, a.lo, b.lo), where(mask<I, N / 2>{lanes.hi}, a.hi, b.hi)};
  else return {lanes.v ? a.v : b.v};
}
template <class J, class H, int N> SMELT_INLINE lowvec<H, N> where(mask<J, N> m, lowvec<H, N> a, lowvec<H, N> b) {
  return {where(m, a.bits, b.bits)};
}
template <class J, class A, class B, int N> SMELT_INLINE auto where(mask<J, N> m, mask<A, N> a, mask<B, N> b) {
  return bitwise_or(bitwise_and(m, a), bitwise_and(bitwise_not(m), b));
}
template <class T> SMELT_INLINE T where(bool m, T a, T b) { return m ? a : b; }

template <class D, class S, int N, bool W> SMELT_INLINE values<D, N> to(vec<S, N, W> x) {
  if constexpr (same<D, bool>) return resize<i32>(ne(x, fill<S, N>(0)));
  else if constexpr (is_low<D>) return narrow<D>(convert<f32>(x));
  else if constexpr (same<S, f64> && same<D, u8>) return convert<u8>(convert<i64>(x));
  else return convert<D>(x);
}
template <class D, class I, int N> SMELT_INLINE auto to(mask<I, N> x) {
  if constexpr (same<D, bool>) return x;
  else if constexpr (is_low<D>) return where(x, splat<N>(narrow<D>(1)), splat<N>(narrow<D>(0)));
  else return where(x, fill<D, N>(1), fill<D, N>(0));
}

// ---------------------------------------------------------------------------------------------- memory
template <class T, int N> struct packed { typedef T type __attribute__((vector_size(sizeof(T) * N), aligned(1), may_alias)); };
template <int N, class T> SMELT_INLINE vec<T, N> load_vec(const T* p) {
  if constexpr (sizeof(T) * N > SMELT_VECTOR_BYTES) return {load_vec<N / 2>(p), load_vec<N / 2>(p + N / 2)};
  else return {*(const typename packed<T, N>::type*)p};
}
// A value that several operations take stays in its register: g++ would load it anew for each where it takes registers
// to be scarce, as it does in a long function.
template <class V> SMELT_INLINE V held(V x) { return x; }
#ifdef SMELT_GCC_X86
template <class T, int N, bool W> SMELT_INLINE vec<T, N, W> held(vec<T, N, W> x) {
  if constexpr (W) x = {held(x.lo), held(x.hi)};
  else if constexpr (sizeof(T) * N >= 16) asm("" : "+v"(x.v));
  return x;
}
#endif
template <class T, int N, bool W> SMELT_INLINE void store_vec(T* p, vec<T, N, W> x) {
  if constexpr (W) {
    store_vec(p, x.lo);
    store_vec(p + N / 2, x.hi);
  } else {
    *(typename packed<T, N>::type*)p = x.v;
  }
}
template <class I, int N> SMELT_INLINE vec<i8, N> bytes(mask<I, N> x) { return convert<i8>(x.m); }
template <class T, int N, class I> SMELT_INLINE vec<T, N> load_vec(mask<I, N> m, const T* p) {
  typedef typename int_of<sizeof(T)>::type L;
  auto lanes = convert<L>(m.m);
  if constexpr (sizeof(T) * N > SMELT_VECTOR_BYTES) {
    return {load_vec<T, N / 2>(mask<L, N / 2>{lanes.lo}, p), load_vec<T, N / 2>(mask<L, N / 2>{lanes.hi}, p + N / 2)};
  } else if constexpr (mask_registers<L, N>) {
    return bitcast<T>(load_some(p, lanes));
  } else {
    L on[N];
    T x[N];
    store_vec(on, lanes);
    for (int k = 0; k < N; ++k) x[k] = on[k] ? p[k] : T(0);
    return load_vec<N>(x);
  }
}
template <class T, int N, bool W, class I> SMELT_INLINE void store_vec(mask<I, N> m, T* p, vec<T, N, W> x) {
  typedef typename int_of<sizeof(T)>::type L;
  auto lanes = convert<L>(m.m);
  if constexpr (W) {
    store_vec(mask<L, N / 2>{lanes.lo}, p, x.lo);
    store_vec(mask<L, N / 2>{lanes.hi}, p + N / 2, x.hi);
  } else if constexpr (mask_registers<L, N>) {
    store_some(p, lanes, bitcast<L>(x));
  } else {
    L on[N];
    T t[N];
    store_vec(on, lanes);
    store_vec(t, x);
    for (int k = 0; k < N; ++k)
      if (on[k]) p[k] = t[k];
  }
}
// N values from p on; with a mask: 0 where it is off, and nothing is read there.
template <int N, class T> SMELT_INLINE auto load(const T* p) {
  if constexpr (is_low<T>) return lowvec<T, N>{load_vec<N>((const u16*)p)};
  else if constexpr (same<T, boolean>) return mask<i8, N>{ne(load_vec<N>((const i8*)p), fill<i8, N>(0)).m};
  else return load_vec<N>(p);
}
template <int N, class T, class I> SMELT_INLINE auto load(mask<I, N> m, const T* p) {
  if constexpr (is_low<T>) return lowvec<T, N>{load_vec<u16>(m, (const u16*)p)};
  else if constexpr (same<T, boolean>) return mask<i8, N>{ne(load_vec<i8>(m, (const i8*)p), fill<i8, N>(0)).m};
  else return load_vec<T>(m, p);
}
template <class T, int N, bool W> SMELT_INLINE void store(T* p, vec<T, N, W> x) { store_vec(p, x); }
template <class H, int N> SMELT_INLINE void store(H* p, lowvec<H, N> x) { store_vec((u16*)p, x.bits); }
template <class I, int N> SMELT_INLINE void store(boolean* p, mask<I, N> x) {
  store_vec((i8*)p, bitwise_and(bytes(x), fill<i8, N>(1)));
}
template <class T, int N, bool W, class I> SMELT_INLINE void store(mask<I, N> m, T* p, vec<T, N, W> x) { store_vec(m, p, x); }
template <class H, int N, class I> SMELT_INLINE void store(mask<I, N> m, H* p, lowvec<H, N> x) { store_vec(m, (u16*)p, x.bits); }
template <class J, int N, class I> SMELT_INLINE void store(mask<I, N> m, boolean* p, mask<J, N> x) {
  store_vec(m, (i8*)p, bitwise_and(bytes(x), fill<i8, N>(1)));
}

template <class T, int N, class F, int... K> SMELT_INLINE vec<T, N> lanes_of(F f, i64 from, ints<K...>) {
  if constexpr (sizeof(T) * N > SMELT_VECTOR_BYTES) {
    return {lanes_of<T, N / 2>(f, from, upto<N / 2>()), lanes_of<T, N / 2>(f, from + N / 2, upto<N / 2>())};
  } else {
    return {raw<T, N>{f(from + K)...}};
  }
}
template <int N, class F> SMELT_INLINE auto gather_from(F f) {
  typedef decltype(f(0)) T;
  if constexpr (is_low<T>) return lowvec<T, N>{lanes_of<u16, N>([&](i64 k) { return f(k).bits; }, 0, upto<N>())};
  else if constexpr (same<T, boolean> || same<T, bool>)
    return mask<i8, N>{lanes_of<i8, N>([&](i64 k) { return i8(-i8(bool(f(k)))); }, 0, upto<N>())};
  else return lanes_of<T, N>(f, 0, upto<N>());
}
template <class T> struct unaliased { typedef T type; };
template <> struct unaliased<boolean> { typedef bool type; };
template <class T> SMELT_INLINE T zero() {
  if constexpr (is_low<T>) return T{0};
  else return T(0);
}
// f(0), f(1), … in N lanes; with a mask, f is called only where it is on (0 elsewhere).
template <int N, class F> SMELT_INLINE auto gather(F f) { return gather_from<N>(f); }
template <int N, class I, class F> SMELT_INLINE auto gather(mask<I, N> m, F f) {
  i8 on[N];
  store_vec(on, bytes(m));
  typedef decltype(f(0)) T;
  return gather_from<N>([&](i64 k) { return on[k] ? f(k) : zero<T>(); });
}
// f(k, lane k of x) for each lane in order; with a mask, only where it is on.
template <class V, class F> SMELT_INLINE void scatter(V x, F f) {
  constexpr int N = shape<V>::lanes;
  typedef typename choose<same<elem<V>, bool>, boolean, elem<V>>::type T;
  T t[N];
  store(t, x);
  for (int k = 0; k < N; ++k) f(k, t[k]);
}
template <class I, int N, class V, class F> SMELT_INLINE void scatter(mask<I, N> m, V x, F f) {
  i8 on[N];
  store_vec(on, bytes(m));
  scatter(x, [&](i64 k, auto value) {
    if (on[k]) f(k, value);
  });
}
// The first `count` lanes.
template <int N> SMELT_INLINE mask<i32, N> first(i64 count) {
  auto k = lanes_of<i32, N>([](i64 lane) { return i32(lane); }, 0, upto<N>());
  return lt(k, fill<i32, N>(i32(count < N ? count : N)));
}
template <class T> SMELT_INLINE void atomic_add(T* p, T x);

// ---------------------------------------------------------------------------------------------- checks
enum { INDEX_ERROR = 1, DIVISION_ERROR = 2, BOUNDS_ERROR = 3 };
// The first failed check of a call wins, whichever thread finds it.
SMELT_INLINE void fail(i64* error, i64 code) {
  i64 none = 0;
  __atomic_compare_exchange_n(error, &none, code, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}
SMELT_INLINE i64 wrap_index(i64 x, i64 size) { return x < 0 ? x + size : x; }
SMELT_INLINE i64 check_index(i64 x, i64 size, i64* error, i64 code = INDEX_ERROR) {
  if (__builtin_expect((u64)x < (u64)size, 1)) return x;
  fail(error, code);
  return 0;
}
template <int N, bool W> SMELT_INLINE vec<i64, N, W> wrap_index(vec<i64, N, W> x, i64 size) {
  return where(lt(x, fill<i64, N>(0)), vec<i64, N, W>(add(x, fill<i64, N>(size))), x);
}
template <int N, bool W>
SMELT_INLINE vec<i64, N, W> check_index(vec<i64, N, W> x, i64 size, i64* error, i64 code = INDEX_ERROR) {
  auto bad = bitwise_or(lt(x, fill<i64, N>(0)), ge(x, fill<i64, N>(size)));
  if (__builtin_expect(any(bad), 0)) fail(error, code);
  return where(bad, fill<i64, N>(0), x);
}
template <class I, int N, bool W>
SMELT_INLINE vec<i64, N, W> check_index(
    mask<I, N> m, vec<i64, N, W> x, i64 size, i64* error, i64 code = INDEX_ERROR) {
  return check_index(where(m, x, fill<i64, N>(0)), size, error, code);
}

}  // namespace smelt
