// smelt_integers.h: products of 8-bit integers with weights of 8 or 4 bits, in the processor's own instruction.
//
// It multiplies unsigned octets by signed ones and adds four products to each 32-bit lane. Weights are the unsigned
// operand: of 4 bits as they are, of 8 bits plus 128; `start` has the words that take such an offset back, so that all
// integers are exact. A block of terms is one vector of weights: 64 of 8 bits, or 128 of 4 bits, whose octets hold the
// halves of groups of 32. Lanes are groups' quarters (eighths) then, and have the group's scale.

#if defined(__AVX512VNNI__) && defined(SMELT_AVX512)
namespace smelt {
typedef raw<u8, 64> octets;
typedef raw<i32, 16> words;
typedef raw<f32, 16> singles;

SMELT_INLINE words dot(words onto, octets weights, const octets& x) {
  __asm__("vpdpbusd %2, %1, %0" : "+v"(onto) : "v"(weights), "vm"(x));
  return onto;
}
SMELT_INLINE octets octets_at(const void* p) { octets v; __builtin_memcpy(&v, p, 64); return v; }

// A block of a row of quantized activations; the product of its scale and a weight's is that of the lane's words.
template <int Bits> struct Terms;
template <> struct Terms<4> { octets x[2]; words start; singles scale; static constexpr int count = 128; };
template <> struct Terms<8> { octets x[1]; words start; singles scale; static constexpr int count = 64; };

// Four numbers, each in the lanes of a group; two, where a block has two groups; or one.
template <int Groups> SMELT_INLINE singles in_lanes(const f32_buffer* p) {
  struct __attribute__((may_alias)) Four { f32 all[4]; };
  struct __attribute__((may_alias)) Two { f32 all[2]; };
  singles v;
  if constexpr (Groups == 4) {
    __asm__("vbroadcastf32x4 %1, %0" : "=v"(v) : "m"(*(const Four*)p));
    return __builtin_shufflevector(v, v, 0, 0, 0, 0, 5, 5, 5, 5, 10, 10, 10, 10, 15, 15, 15, 15);
  } else if constexpr (Groups == 2) {
    __asm__("vbroadcastsd %1, %0" : "=v"(v) : "m"(*(const Two*)p));
    return __builtin_shufflevector(v, v, 0, 0, 0, 0, 4, 4, 4, 4, 9, 9, 9, 9, 13, 13, 13, 13);
  } else {
    __asm__("vbroadcastss %1, %0" : "=v"(v) : "m"(*p));
    return v;
  }
}
// The first Count of them; the others are 0.
template <int Groups, int Count> SMELT_INLINE singles in_lanes_of(const f32_buffer* p) {
  if constexpr (Count >= Groups) return in_lanes<Groups>(p);
  f32 some[4] = {};
  for (int k = 0; k < Count; ++k) some[k] = p[k];
  return in_lanes<Groups>((const f32_buffer*)some);
}
template <int Size> SMELT_INLINE octets some_octets(const u8_buffer* p) {
  if constexpr (Size >= 64) return octets_at(p);
  static_assert(Size % 16 == 0);
  raw<i64, 2> part[4] = {};
  for (int k = 0; k < Size / 16; ++k) __builtin_memcpy(part + k, p + 16 * k, 16);
  return (octets)(raw<i64, 8>){part[0][0], part[0][1], part[1][0], part[1][1],
                              part[2][0], part[2][1], part[3][0], part[3][1]};
}
// The words of all lanes of up to four vectors.
template <class V> SMELT_INLINE auto folded(const V& v) {
  const auto half = __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7) +
                    __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
  return __builtin_shufflevector(half, half, 0, 1, 2, 3) + __builtin_shufflevector(half, half, 4, 5, 6, 7);
}
template <class V> SMELT_INLINE auto folded(const V& a, const V& b, const V& c, const V& d) {
  const auto p = folded(a), q = folded(b), r = folded(c), s = folded(d);
  const auto pq = __builtin_shufflevector(p, q, 0, 4, 1, 5) + __builtin_shufflevector(p, q, 2, 6, 3, 7);
  const auto rs = __builtin_shufflevector(r, s, 0, 4, 1, 5) + __builtin_shufflevector(r, s, 2, 6, 3, 7);
  return __builtin_shufflevector(pq, rs, 0, 1, 4, 5) + __builtin_shufflevector(pq, rs, 2, 3, 6, 7);
}

// -- weights with one scale for each row
template <int Depth, int R, int C>
SMELT_INLINE void sum_rows(f32_buffer* out, i64 out_step, const octets* x, const i32* start, const f32_buffer* scales,
                           const u8_buffer* w, i64 w_step, const f32_buffer* a) {
  constexpr int full = Depth / 64, left = Depth % 64, all = (Depth + 63) / 64;
  words total[R][C] = {};
  for (int block = 0; block < full; ++block)
#pragma GCC unroll 16
    for (int c = 0; c < C; ++c) {
      const u8_buffer* here = w + c * w_step + block * 64;
      const octets v = octets_at(here) ^ u8(128);
      __builtin_prefetch(here + C * w_step);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) total[r][c] = dot(total[r][c], v, x[r * all + block]);
    }
  if constexpr (left > 0)
    for (int c = 0; c < C; ++c) {
      const octets v = some_octets<left>(w + c * w_step + full * 64) ^ u8(128);
      for (int r = 0; r < R; ++r) total[r][c] = dot(total[r][c], v, x[r * all + full]);
    }
  for (int r = 0; r < R; ++r) {
    f32_buffer* row = out + r * out_step;
    if constexpr (C % 4 == 0)
      for (int c = 0; c < C; c += 4) {
        const auto four = folded(total[r][c], total[r][c + 1], total[r][c + 2], total[r][c + 3]) + start[r];
        raw<f32, 4> scale;
        __builtin_memcpy(&scale, a + c, 16);
        const raw<f32, 4> values = __builtin_convertvector(four, raw<f32, 4>) * (scale * scales[r]);
        __builtin_memcpy(row + c, &values, 16);
      }
    else
      for (int c = 0; c < C; ++c) {
        const auto four = folded(total[r][c]);
        row[c] = f32((four[0] + four[2]) + (four[1] + four[3]) + start[r]) * (a[c] * scales[r]);
      }
  }
}

// out[r, c] = scales[r] * a[c] * sum over k: x[r, k] * (w[c, k] - Offset + 128)
template <int Depth, int Offset, int R>
SMELT_INLINE void row_products(i64 columns, f32_buffer* out, i64 out_step, const i8_buffer* x, i64 x_step,
                               const f32_buffer* scales, const u8_buffer* w, i64 w_step, const f32_buffer* a) {
  constexpr int C = R == 1 ? 8 : 4, all = (Depth + 63) / 64;
  alignas(64) octets rows[R * all];
  i32 start[R];
  for (int r = 0; r < R; ++r) {
    rows[r * all + all - 1] = octets{};
    __builtin_memcpy(rows + r * all, x + r * x_step, Depth);
    words sum = {};
    for (int block = 0; block < all; ++block) sum = dot(sum, octets{} + u8(1), rows[r * all + block]);
    const auto four = folded(sum);
    start[r] = ((four[0] + four[2]) + (four[1] + four[3])) * -Offset;
  }
  i64 c = 0;
  for (; c + C <= columns; c += C)
    sum_rows<Depth, R, C>(out + c, out_step, rows, start, scales, w + c * w_step, w_step, a + c);
  for (; c < columns; ++c)
    sum_rows<Depth, R, 1>(out + c, out_step, rows, start, scales, w + c * w_step, w_step, a + c);
}

// -- weights with a scale for each group of terms
template <int Bits, int Depth> constexpr int blocks_of = (Depth + Terms<Bits>::count - 1) / Terms<Bits>::count;

// The sums of the lanes of each group, one after another; with fewer numbers, of as many groups together.
template <int Count> SMELT_INLINE raw<f32, 4> group_sums_of(singles v) {
  const auto half = v + __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14);
  const auto all = half + __builtin_shufflevector(half, half, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);
  const auto four = __builtin_shufflevector(all, all, 0, 4, 8, 12);
  if constexpr (Count == 4) return four;
  const auto two = four + __builtin_shufflevector(four, four, 1, 0, 3, 2);
  if constexpr (Count == 2) return __builtin_shufflevector(two, two, 0, 2, 0, 2);
  return two + __builtin_shufflevector(two, two, 2, 3, 0, 1);
}

// A block of a row of x, with a scale for each 32 terms; `numbers[k]`: the sum of the values of group k.
template <int Bits, int Offset, int Group, bool Mins>
SMELT_INLINE void arrange_block(Terms<Bits>& into, f32* numbers, const void* x, const f32_buffer* scales) {
  constexpr int count = Terms<Bits>::count, groups = count > Group ? count / Group : 1;
  const octets ones = octets{} + u8(1);
  if constexpr (Bits == 4) {
    const auto a = (raw<i64, 8>)octets_at(x), b = (raw<i64, 8>)octets_at((const char*)x + 64);
    into.x[0] = (octets)__builtin_shufflevector(a, b, 0, 1, 4, 5, 8, 9, 12, 13);
    into.x[1] = (octets)__builtin_shufflevector(a, b, 2, 3, 6, 7, 10, 11, 14, 15);
  } else {
    into.x[0] = octets_at(x);
  }
  words all = dot(words{}, ones, into.x[0]);
  if constexpr (Bits == 4) all = dot(all, ones, into.x[1]);
  into.start = all * -Offset;
  into.scale = in_lanes<count / 32>(scales);
  if constexpr (Mins) {
    const auto found = group_sums_of<groups>(__builtin_convertvector(all, singles) * into.scale);
    __builtin_memcpy(numbers, &found, 16);
  }
}

// Brings a row of x into blocks. Blocks are in parts of groups, or groups in blocks.
template <int Bits, int Depth, int Offset, int Group, bool Mins>
SMELT_INLINE void arrange(Terms<Bits>* into, f32* numbers, const i8_buffer* x, const f32_buffer* scales) {
  constexpr int count = Terms<Bits>::count, full = Depth / count, left = Depth % count;
  constexpr int groups = count > Group ? count / Group : 1;
  for (int block = 0; block < full; ++block)
    arrange_block<Bits, Offset, Group, Mins>(into[block], numbers + block * groups, x + block * count,
                                             scales + block * (count / 32));
  if constexpr (left > 0) {
    u8 rest[count] = {};
    f32 each[4] = {};
    __builtin_memcpy(rest, x + full * count, left);
    for (int k = 0; k < left / 32; ++k) each[k] = scales[full * (count / 32) + k];
    arrange_block<Bits, Offset, Group, Mins>(into[full], numbers + full * groups, rest, (const f32_buffer*)each);
  }
}

template <int Bits, int Depth, int Group, int R, int C, int Size>
SMELT_INLINE void add_block(singles (&total)[R][C], int block, const Terms<Bits>* x, i64 x_step, const u8_buffer* w,
                            i64 w_step, const f32_buffer* a, i64 a_step) {
  constexpr int count = Terms<Bits>::count, groups = count > Group ? count / Group : 1;
#pragma GCC unroll 16
  for (int c = 0; c < C; ++c) {
    const u8_buffer* here = w + c * w_step + block * 64;
    const octets v = some_octets<Size>(here);
    if (Size == 64 ) __builtin_prefetch(here + C * w_step);
    const f32_buffer* scale = a + c * a_step + (groups > 1 ? block * groups : block * count / Group);
    const singles scales = in_lanes_of<groups, (Size * 8 / Bits < Group ? 1 : Size * 8 / Bits / Group)>(scale);
    octets low, high;
    if constexpr (Bits == 4) low = v & u8(15), high = (octets)((raw<u16, 32>)v >> 4) & u8(15);
    else low = v ^ u8(128);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const Terms<Bits>& terms = x[r * x_step + block];
      words dots = dot(terms.start, low, terms.x[0]);
      if constexpr (Bits == 4) dots = dot(dots, high, terms.x[1]);
      total[r][c] = mad(__builtin_convertvector(dots, singles), scales * terms.scale, total[r][c]);
    }
  }
}

template <int Bits, int Depth, int Group, bool Mins, int R, int C>
SMELT_INLINE void sum_columns(f32_buffer* out, i64 out_step, const Terms<Bits>* x, const f32* group_sums,
                              const u8_buffer* w, i64 w_step, const f32_buffer* a, const f32_buffer* b, i64 a_step) {
  constexpr int all = blocks_of<Bits, Depth>, full = Depth / Terms<Bits>::count;
  constexpr int left = (Depth - full * Terms<Bits>::count) * Bits / 8, groups = Depth / Group;
  singles total[R][C] = {};
  for (int block = 0; block < full; ++block)
    add_block<Bits, Depth, Group, R, C, 64>(total, block, x, all, w, w_step, a, a_step);
  if constexpr (left > 0) add_block<Bits, Depth, Group, R, C, left>(total, full, x, all, w, w_step, a, a_step);
  if constexpr (Mins) {
    for (int g = 0; g + 16 <= groups; g += 16)
      for (int c = 0; c < C; ++c) {
        singles min;
        __builtin_memcpy(&min, b + c * a_step + g, 64);
        for (int r = 0; r < R; ++r) {
          singles own;
          __builtin_memcpy(&own, group_sums + r * groups + g, 64);
          total[r][c] = mad(min, own, total[r][c]);
        }
      }
  }
  for (int r = 0; r < R; ++r) {
    f32_buffer* row = out + r * out_step;
    if constexpr (C % 4 == 0)
      for (int c = 0; c < C; c += 4) {
        const auto four = folded(total[r][c], total[r][c + 1], total[r][c + 2], total[r][c + 3]);
        __builtin_memcpy(row + c, &four, 16);
      }
    else
      for (int c = 0; c < C; ++c) {
        const auto four = folded(total[r][c]);
        row[c] = (four[0] + four[2]) + (four[1] + four[3]);
      }
    if constexpr (Mins && groups % 16)
      for (int c = 0; c < C; ++c) {
        f32 rest = 0;
        for (int g = groups / 16 * 16; g < groups; ++g) rest += b[c * a_step + g] * group_sums[r * groups + g];
        row[c] += rest;
      }
  }
}

// out[r, c] = sum over k: scales[r, k / 32] * x[r, k] * (a[c, k / Group] * (w[c, k] - Offset) + b[c, k / Group])
template <int Bits, int Depth, int Group, int Offset, bool Mins, int R>
SMELT_INLINE void group_products(
    i64 columns, f32_buffer* out, i64 out_step, const i8_buffer* x, i64 x_step, const f32_buffer* scales, i64 scale_step,
    const u8_buffer* w, i64 w_step, const f32_buffer* a, const f32_buffer* b, i64 a_step) {
  constexpr int C = R == 1 ? 8 : 4;
  alignas(64) Terms<Bits> rows[R * blocks_of<Bits, Depth>];
  constexpr int groups = Depth / Group;
  f32 group_sums[R * groups + 4];  // a block stores four numbers
  for (int r = 0; r < R; ++r)
    arrange<Bits, Depth, Offset, Group, Mins>(rows + r * blocks_of<Bits, Depth>, group_sums + r * groups, x + r * x_step,
                                              scales + r * scale_step);
  i64 c = 0;
  for (; c + C <= columns; c += C)
    sum_columns<Bits, Depth, Group, Mins, R, C>(out + c, out_step, rows, group_sums, w + c * w_step, w_step,
                                                a + c * a_step, b + c * a_step, a_step);
  for (; c < columns; ++c)
    sum_columns<Bits, Depth, Group, Mins, R, 1>(out + c, out_step, rows, group_sums, w + c * w_step, w_step,
                                                a + c * a_step, b + c * a_step, a_step);
}
}  // namespace smelt
#endif
